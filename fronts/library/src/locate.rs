//! Where bytes are.

use crate::failure::Outcome;
use crate::place::Place;
use crate::signals::blocked;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use weft_client::Location;

/// Most files that are asked for at a time.
const AT_A_TIME_MAX: usize = 16;
/// Files for which another thread is worth its start.
const FILES_PER_THREAD: usize = 8;

/// Bytes of a file in one piece, and who keeps them.
pub struct Located {
    pub location: Location,
    /// They are on a node that runs where this process does.
    pub is_local: bool,
}

impl Place<'_> {
    /// The pieces of the file, in their order.
    pub fn locate(&self) -> Outcome<Vec<Located>> {
        let client = &self.fs.client;
        let locations = self.call("locate", || client.locate(&self.fs.who, self.inode(true)?))?;
        let map = client.map();
        let located = |location: Location| {
            let node = location.node.and_then(|node| map.node(node));
            let is_local = node.is_some_and(|node| node.identity == client.identity());
            Located { location, is_local }
        };
        Ok(locations.into_iter().map(located).collect())
    }
}

/// The pieces of each file, several files at a time. Fails if one does.
pub fn locate(places: &[Place<'_>]) -> Outcome<Vec<Vec<Located>>> {
    let threads = (places.len() / FILES_PER_THREAD).min(AT_A_TIME_MAX);
    if threads < 2 {
        return places.iter().map(Place::locate).collect();
    }
    let next = AtomicUsize::new(0);
    let (send, located) = mpsc::channel();
    let work = |send: mpsc::Sender<_>| {
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(place) = places.get(index)
        {
            send.send((index, place.locate())).expect("the receiver outlives the threads");
        }
    };
    std::thread::scope(|scope| {
        blocked(|| {
            for _ in 0..threads {
                let send = send.clone();
                scope.spawn(|| work(send));
            }
        });
    });
    drop(send);
    let mut pieces: Vec<_> = located.into_iter().collect();
    pieces.sort_unstable_by_key(|(index, _)| *index);
    pieces.into_iter().map(|(_, pieces)| pieces).collect()
}

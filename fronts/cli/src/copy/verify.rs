//! Reading copies again, and comparing them with their sources.
//!
//! Each file system is read through a connection of its own: what the copying one keeps in memory is not asked. Of
//! files of this machine, the kernel writes to the device what it has, and reads from there, as far as the file system
//! below lets it.
//!
//! Cost of a file: its bytes are read twice, at the source and at the target.

use super::file::{BUFFER_BYTES, step_bytes};
use super::place::Place;
use crate::failure::{Explain, Failure, Outcome};
use crate::session::Session;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Bytes that one thread compares at a time of a file that several compare.
const PIECE_BYTES: u64 = 64 << 20;

/// Connections of their own to the file systems that a copy works in, by name.
pub struct Verifier(BTreeMap<String, Arc<Session>>);

impl Verifier {
    /// Connects to the file systems of these places.
    pub fn new<'a>(places: impl Iterator<Item = &'a Place>) -> Outcome<Self> {
        let mut sessions = BTreeMap::new();
        for place in places {
            if let Place::Weft(session, _) = place
                && !sessions.contains_key(&session.instance.map.name)
            {
                let name = session.instance.map.name.clone();
                let opened = Arc::new(Session::open(Some(&name))?);
                sessions.insert(name, opened);
            }
        }
        Ok(Self(sessions))
    }

    /// Ends the connections.
    pub fn close(&self) -> Outcome<()> {
        self.0.values().try_for_each(|session| session.close())
    }

    /// The same place, read afresh.
    fn afresh(&self, place: &Place) -> Place {
        match place {
            Place::Weft(session, path) => {
                let own = self.0.get(&session.instance.map.name).unwrap_or(session);
                Place::Weft(Arc::clone(own), path.clone())
            }
            Place::Local(path) => Place::Local(path.clone()),
        }
    }

    /// Whether two files have the same bytes, the first `size` of which are known to be there; by up to `jobs` threads.
    pub fn compare(&self, source: &Place, copy: &Place, size: u64, jobs: usize) -> Outcome<bool> {
        forget_cached(copy)?;
        let (source, copy) = (self.afresh(source), self.afresh(copy));
        let (next, differs) = (AtomicU64::new(0), AtomicBool::new(false));
        let threads = usize::try_from(size / PIECE_BYTES).unwrap_or(jobs).clamp(1, jobs.max(1));
        let compare = || {
            let (from, to) = (source.open()?, copy.open()?);
            let [mut left, mut right] = [(); 2].map(|()| vec![0; BUFFER_BYTES]);
            loop {
                let begin = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
                if begin > size || differs.load(Ordering::Relaxed) {
                    return Ok(());
                }
                // Where the file ends is seen by reading to there, in both.
                let end = if begin + PIECE_BYTES <= size { begin + PIECE_BYTES } else { u64::MAX };
                let mut offset = begin;
                while offset < end {
                    let wanted = step_bytes(end - offset, BUFFER_BYTES);
                    let read = from.read_at(&source, &mut left[..wanted], offset)?;
                    if read != to.read_at(&copy, &mut right[..wanted], offset)? || left[..read] != right[..read] {
                        differs.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                    if read == 0 {
                        break;
                    }
                    offset += read as u64;
                }
            }
        };
        let crashed = || Err(Failure::new(format!("a thread that compares {copy} failed")));
        let compared: Outcome<()> = thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(compare)).collect();
            let own = compare();
            others.into_iter().map(|other| other.join().unwrap_or_else(|_| crashed())).fold(own, Outcome::and)
        });
        compared?;
        Ok(!differs.load(Ordering::Relaxed))
    }
}

/// Has the kernel write what it has of a copy on this machine, and read it from there next time.
fn forget_cached(copy: &Place) -> Outcome<()> {
    let Place::Local(path) = copy else { return Ok(()) };
    let file = fs::File::open(path).explain(|| format!("open {copy}"))?;
    file.sync_data().explain(|| format!("write {copy}"))?;
    // Advice: where the kernel does not take it, it reads what it has.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

//! A shard's namespace as bytes: what is kept beside the store, then its keys and values.
//!
//! Not here: the front's part (`front/moving.rs`), where the bytes go.

use super::Back;
use crate::kv::{KEY_BYTES_MAX, KeyValue};
use std::ops::ControlFlow;
use weft_protocol::{Cookie, Error, Result, ShardId, codec};

impl<K: KeyValue> Back<K> {
    /// Appends the whole state.
    pub(crate) fn append_image(&self, image: Vec<u8>) -> Vec<u8> {
        let numbers = (self.next_sequence, self.next_intent, self.inodes, self.dentries, self.continued);
        let mut image = codec::append(&(numbers, &self.replies, &self.intents, &self.locks), image);
        self.store.scan(&[], |key, value| {
            for part in [key, value] {
                let bytes = u32::try_from(part.len()).expect("keys and values are short");
                image.extend_from_slice(&bytes.to_le_bytes());
                image.extend_from_slice(part);
            }
            ControlFlow::Continue(())
        });
        image
    }

    /// The namespace that an image is of, over an empty store.
    pub(crate) fn of_image(shard: ShardId, mut store: K, mut image: &[u8]) -> Result<Self> {
        let (numbers, replies, intents, locks) = codec::take(&mut image)?;
        let (next_sequence, next_intent, inodes, dentries, continued) = numbers;
        while !image.is_empty() {
            let (key, value) = (take_part(&mut image)?, take_part(&mut image)?);
            if key.len() > KEY_BYTES_MAX || !store.insert(key, value) {
                return Err(Error::Malformed);
            }
        }
        let (cookie_of, latest_directory) = (Cookie::of as fn(&_) -> _, None);
        let mut back = Self {
            store,
            shard,
            next_sequence,
            next_intent,
            inodes,
            dentries,
            cookie_of,
            continued,
            latest_directory,
            unread: 0,
            replies,
            intents,
            locks,
        };
        back.unread = back.count_unread();
        Ok(back)
    }
}

fn take_part<'a>(image: &mut &'a [u8]) -> Result<&'a [u8]> {
    let (bytes, rest) = image.split_first_chunk().ok_or(Error::Malformed)?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*bytes) as usize).ok_or(Error::Malformed)?;
    *image = rest;
    Ok(part)
}

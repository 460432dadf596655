//! Patterns of a file in which a client is likely to read: those that it has published, and those of lists that it
//! reads. They say what to ask the shard for, and nothing about what is there.

use std::ops::Range;
use weft_layout::{Unpublished, covers, joined};
use weft_protocol::Pattern;

/// Patterns that are kept. A list of more than a few has no pattern to read on in.
const PATTERNS_MAX: usize = 16;
const PATTERNS_OF_LIST_MAX: usize = 4;

/// See the module.
#[derive(Default)]
pub struct Expected {
    /// The latest is the last.
    patterns: Vec<Pattern>,
}

impl Expected {
    /// The client has published these. Of many, the last ones are kept.
    pub fn published(&mut self, patterns: &[Pattern]) {
        let first = patterns.len().saturating_sub(PATTERNS_MAX);
        patterns[first..].iter().for_each(|pattern| self.add(pattern));
    }

    /// The client reads a list of ranges.
    pub fn reads(&mut self, list: &[(u64, usize)]) {
        let mut ranges = Unpublished::default();
        list.iter().for_each(|(offset, bytes)| ranges.add(*offset, *bytes as u64));
        let patterns = ranges.take();
        if patterns.len() <= PATTERNS_OF_LIST_MAX {
            self.published(&patterns);
        }
    }

    /// The latest pattern that has all of a range.
    pub fn around(&self, range: &Range<u64>) -> Option<Pattern> {
        let range = Pattern::run(range.start, range.end.checked_sub(range.start)?)?;
        self.patterns.iter().rev().find(|pattern| covers(pattern, &range)).copied()
    }

    fn add(&mut self, pattern: &Pattern) {
        if self.patterns.iter().any(|known| covers(known, pattern)) {
            return;
        }
        let longer = |(index, known): (usize, &Pattern)| Some((index, joined(known, pattern)?));
        let pattern = match self.patterns.iter().enumerate().rev().find_map(longer) {
            Some((index, longer)) => {
                self.patterns.remove(index);
                longer
            }
            None => *pattern,
        };
        self.patterns.retain(|known| !covers(&pattern, known));
        if self.patterns.len() == PATTERNS_MAX {
            self.patterns.remove(0);
        }
        self.patterns.push(pattern);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_in_strides_is_one_pattern() {
        let mut expected = Expected::default();
        assert_eq!(expected.around(&(0..10)), None);
        let pattern = |start, count| Pattern::new(start, 10, 100, count).expect("a pattern");
        // Two writers' worth in turns, of one client.
        for sync in 0..20 {
            expected.published(&[pattern(sync * 1000, 10), pattern(50 + sync * 1000, 10)]);
        }
        assert_eq!(expected.around(&(12_300..12_310)), Some(pattern(0, 200)));
        assert_eq!(expected.around(&(12_352..12_355)), Some(pattern(50, 200)));
        assert_eq!(expected.around(&(12_300..12_311)), None, "one byte is another's");
        expected.published(&[pattern(0, 30)]);
        assert_eq!(expected.around(&(0..10)), Some(pattern(0, 200)), "the longer one is kept");
        for run in 0..100 {
            expected.published(&[Pattern::run(1_000_000 + run * run * 100, 10 + run).expect("a run")]);
        }
        assert!(expected.patterns.len() <= PATTERNS_MAX);
    }

    #[test]
    fn lists_without_a_pattern_are_not_expected() {
        let mut expected = Expected::default();
        expected.reads(&[(0, 10), (100, 10), (200, 10)]);
        assert_eq!(expected.around(&(200..210)), Pattern::new(0, 10, 100, 3));
        let list: Vec<_> = (0..20).map(|run| (10_000 + run * run * 100, 10)).collect();
        expected.reads(&list);
        assert_eq!(expected.around(&(10_000..10_010)), None);
    }
}

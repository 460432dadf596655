//! What programs do with a file in which writers take turns: each has a *lane*, records at equal distances, which it
//! writes as a whole, and of which it reads some back.

use crate::program::{FILE_BYTES, Program};
use std::rc::Rc;
use weft_layout::is_strided;
use weft_protocol::Pattern;

/// Lanes of a file: those of one stride have no bytes in common, and those of the other lie across them.
pub(crate) const LANES: u64 = 10;
const LANES_OF_FIRST: u64 = 6;
/// Most records that are read back.
const READS_MAX: u64 = 5;

/// A lane, from the beginning of the file to its end.
fn records(lane: u64) -> Pattern {
    let (start, bytes, stride) =
        if lane < LANES_OF_FIRST { (4 * lane, 4, 24) } else { (5 * (lane - LANES_OF_FIRST), 3, 20) };
    let records = Pattern::new(start, bytes, stride, FILE_BYTES / stride).expect("the records are apart");
    assert!(is_strided(&records) && records.end() <= FILE_BYTES);
    records
}

impl Program {
    /// Writes a lane, as a rule, and publishes it; reads some of it.
    pub async fn use_lane(&mut self, lane: u64) {
        let (process, records) = (Rc::clone(&self.process), records(lane));
        let options = self.handle.options();
        let (reads, may_write) = (options.access.reads(), options.access.writes() && !options.append);
        let place = |record: u64| records.start() + record * records.stride();
        if may_write && self.id.decide(&process, "writes lane", true, |random| !random.one_in(3)) {
            for record in 0..records.count() {
                self.position = place(record);
                self.write(records.bytes()).await;
            }
            self.sync().await;
        }
        let most = if reads { READS_MAX + 1 } else { 1 };
        let count = self.id.decide(&process, "reads of lane", 0, |random| random.below(most));
        for _ in 0..count.min(most) {
            let record = self.id.decide(&process, "record", 0, |random| random.below(records.count()));
            self.position = place(record.min(records.count() - 1));
            self.read(records.bytes()).await;
        }
    }
}

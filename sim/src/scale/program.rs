//! The program of one rank: `bench/mpi/scale.c` through the MPI-IO driver (`fronts/mpi/driver`), call for call.

use super::Setting;
use super::outside::{Outside, ScaleShell};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Files, GroupWish, JoinOptions, Member, OpenOptions, OpenedFile};
use weft_protocol::message::shard::{Access, CreateFile, GroupLayouts};
use weft_protocol::{Credentials, GroupOpen, InodeNumber, Name, Publication, routing};

/// What ranks tell each other.
#[derive(Default)]
pub struct Shared {
    /// By rank 0.
    open: RefCell<Option<GroupOpen>>,
    /// What the ranks of each node have handed out.
    handed_out: RefCell<BTreeMap<u32, Vec<Publication>>>,
}

/// One rank.
pub struct Rank {
    pub files: Arc<Files<ScaleShell>>,
    pub outside: Rc<Outside>,
    pub shared: Rc<Shared>,
    pub number: u32,
    pub setting: Setting,
}

/// Why nothing fails.
const NOTHING_IS_LOST: &str = "no message is lost, and no node is full";

impl Rank {
    /// Writes, reads back, opens and closes once more, and ends.
    pub async fn run(self) {
        let file = self.open().await;
        self.write(&file).await;
        self.publish_together(&file).await;
        file.sync(&self.files).await.expect(NOTHING_IS_LOST);
        self.outside.barrier().await;
        self.read(&file).await;
        self.close(file).await;
        let again = self.open().await;
        self.close(again).await;
        // MPI_Finalize, and the end of the process.
        self.outside.barrier().await;
        self.files.close().await.expect(NOTHING_IS_LOST);
    }

    /// `ad_weft_open_coll`.
    async fn open(&self) -> Member<ScaleShell> {
        self.outside.barrier().await;
        let file = if self.number == 0 { self.open_first().await } else { None };
        self.outside.barrier().await;
        match file {
            Some(file) => file,
            None => {
                let open = self.shared.open.borrow().clone().expect("rank 0 has exported it");
                self.import(open).await
            }
        }
    }

    /// `open_first`: walks to the directory, opens the name for the group, and uses the file as the others do.
    async fn open_first(&self) -> Option<Member<ScaleShell>> {
        let (files, who) = (&self.files, Credentials::default());
        let name = Name::new(b"scale").expect("a name");
        files.attributes(&who, InodeNumber::ROOT).await.expect(NOTHING_IS_LOST);
        let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
        let options = OpenOptions::of(Access::ReadWrite);
        let wish = GroupWish { layouts: GroupLayouts::All, synced: false };
        let opened = files.open_for_group(&who, (InodeNumber::ROOT, &name), options, create, wish).await;
        let OpenedFile::OfGroup(member) = opened.expect(NOTHING_IS_LOST) else {
            panic!("a split file is opened for the group")
        };
        self.shared.open.replace(member.exported().cloned());
        Some(*member)
    }

    async fn import(&self, open: GroupOpen) -> Member<ScaleShell> {
        let inode = open.inode;
        let member = Member::join(&self.files, &Credentials::default(), open, JoinOptions::default())
            .await
            .expect(NOTHING_IS_LOST);
        self.files.calls().renew_at(routing::of_inode(inode)).await.expect(NOTHING_IS_LOST);
        member
    }

    /// Where a record of a rank is, and what its bytes are.
    fn record(&self, rank: u32, record: u32) -> (u64, u8) {
        let Setting { records, bytes, is_strided, .. } = self.setting;
        let (rank, record) = (u64::from(rank), u64::from(record));
        let place = match is_strided {
            true => record * u64::from(self.setting.ranks()) + rank,
            false => rank * u64::from(records) + record,
        };
        let value = u8::try_from(1 + (rank * 31 + record) % 255).expect("a remainder of 255, and one");
        (place * u64::from(bytes), value)
    }

    async fn write(&self, file: &Member<ScaleShell>) {
        let mut bytes = vec![0; self.setting.bytes as usize];
        for record in 0..self.setting.records {
            let (offset, value) = self.record(self.number, record);
            bytes.fill(value);
            file.write_at(&self.files, &bytes, offset).await.expect(NOTHING_IS_LOST);
        }
    }

    async fn read(&self, file: &Member<ScaleShell>) {
        let rank = if self.setting.reads_next { (self.number + 1) % self.setting.ranks() } else { self.number };
        let mut bytes = vec![0; self.setting.bytes as usize];
        for record in 0..self.setting.records {
            let (offset, value) = self.record(rank, record);
            let count = file.read_at(&self.files, &mut bytes, offset).await.expect(NOTHING_IS_LOST);
            let is_same = count == bytes.len() && bytes.iter().all(|byte| *byte == value);
            assert!(is_same, "rank {}: record {record} of rank {rank} has other bytes than were written", self.number);
        }
    }

    /// `ad_weft_close`.
    async fn close(&self, file: Member<ScaleShell>) {
        self.publish_together(&file).await;
        self.outside.barrier().await;
        file.close(&self.files).await;
    }

    /// `ad_weft_publish_together`: one rank of a node publishes for all of that.
    async fn publish_together(&self, file: &Member<ScaleShell>) {
        let ranks_per_node = u32::from(self.setting.ranks_per_node);
        if ranks_per_node > 1 {
            let node = self.number / ranks_per_node;
            let handed_out = file.hand_out(&self.files).await.expect(NOTHING_IS_LOST);
            let is_some = handed_out.is_some();
            self.shared.handed_out.borrow_mut().entry(node).or_default().extend(handed_out);
            self.outside.barrier().await;
            if self.number.is_multiple_of(ranks_per_node) {
                let all = self.shared.handed_out.borrow_mut().remove(&node).expect("this rank has come here");
                let results = file.publish_for(&self.files, all).await;
                assert!(results.iter().all(Result::is_ok), "{results:?}");
            }
            self.outside.barrier().await;
            if is_some {
                file.published_by_other().await;
            }
        }
        file.flush(&self.files).await.expect(NOTHING_IS_LOST);
    }
}

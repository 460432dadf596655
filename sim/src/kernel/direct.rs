//! Reads and writes that bypass the pages: FOPEN_DIRECT_IO, O_DIRECT, and passed-through files.
//!
//! - FOPEN_DIRECT_IO writes dirty pages of its range back first, and a write drops them before and after
//!   (`fuse_direct_io`).
//! - Its writes hold the inode's lock, shared with FOPEN_PARALLEL_DIRECT_WRITES unless they append, grow the file, or
//!   the inode is cached (`fuse_dio_lock`).
//! - O_DIRECT on a cached file sends all requests at once and, if cut short, goes on through pages (`fuse_direct_IO`,
//!   `generic_file_read_iter`, `generic_file_direct_write`).
//! - A passed-through file's I/O goes to the backing file; a write still changes the size here
//!   (`fuse_passthrough_write_iter`).
//!
//! Not here: which of them applies (`calls/io.rs`).

use super::attributes::Stale;
use super::executor::Context;
use super::open_file::FileKey;
use super::requests::{Answer, Errno, Operation, Reply};
use super::state::{InodeKey, LockGuard};

/// What a request moves.
enum Transfer<'a> {
    Read(u64),
    Write(&'a [u8]),
}

impl Transfer<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Transfer::Read(bytes) => *bytes,
            Transfer::Write(data) => data.len() as u64,
        }
    }

    fn operation(&self, fh: u64, offset: u64, done: u64, count: u64, kill: bool) -> Operation {
        match self {
            Transfer::Read(_) => Operation::Read { fh, offset: offset + done, size: count as u32, has_owner: true },
            Transfer::Write(data) => {
                let data = data[done as usize..(done + count) as usize].to_vec();
                let (offset, cached, has_owner) = (offset + done, false, true);
                Operation::Write { fh, offset, data, cached, has_owner, kill_privileges: kill }
            }
        }
    }
}

/// Counts what an answer moved, and keeps its bytes.
fn moved(answer: Answer, asked: u64, out: &mut Vec<u8>) -> Result<u64, Errno> {
    match answer? {
        Reply::Data(data) if data.len() as u64 <= asked => {
            out.extend_from_slice(&data);
            Ok(data.len() as u64)
        }
        Reply::Written(count) if u64::from(count) <= asked => Ok(u64::from(count)),
        _ => Err(Errno::EIO),
    }
}

impl Context {
    fn pages_of(&self, offset: u64, bytes: u64) -> (u64, u64) {
        let page_bytes = self.mount().page_bytes();
        (offset / page_bytes, (offset + bytes.max(1) - 1) / page_bytes)
    }

    /// `fuse_direct_io` without `async`: one request after the other, until one is short.
    async fn transfer(&self, file: FileKey, offset: u64, transfer: Transfer<'_>) -> Result<(u64, Vec<u8>), Errno> {
        let (inode, node, fh, opened_direct, most, kill) = {
            let mount = self.mount();
            let open = mount.file(file);
            let limits = mount.config;
            let writes = matches!(transfer, Transfer::Write(_));
            let most = if writes { limits.max_write_bytes } else { limits.max_read_bytes }.min(limits.max_read_bytes);
            let kill = writes && limits.kills_privileges;
            let node = mount.inode(open.inode).node;
            (open.inode, node, open.opened.fh, open.opened.direct_io, u64::from(most), kill)
        };
        let (first, last) = self.pages_of(offset, transfer.bytes());
        let writes = matches!(transfer, Transfer::Write(_));
        if opened_direct {
            self.write_back(inode, first, last).await?;
            if writes {
                self.invalidate_pages(inode, first, last).await?;
            }
        }
        let (mut done, mut out, mut result) = (0, Vec::new(), Ok(()));
        while done < transfer.bytes() {
            let count = most.min(transfer.bytes() - done);
            let answer = self.ask(node, transfer.operation(fh, offset, done, count, kill)).await;
            match moved(answer, count, &mut out) {
                Ok(moved) => {
                    done += moved;
                    if writes {
                        self.mount().note_piece(file, done);
                    }
                    if moved < count {
                        break;
                    }
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if done > 0 && writes && opened_direct {
            let _ = self.invalidate_pages(inode, first, last).await;
        }
        if done == 0 { result.map(|()| (0, out)) } else { Ok((done, out)) }
    }

    /// A read of a file that the server opened with FOPEN_DIRECT_IO.
    pub async fn read_direct(&self, file: FileKey, offset: u64, size: u64) -> Result<Vec<u8>, Errno> {
        let result = self.transfer(file, offset, Transfer::Read(size)).await;
        let mut mount = self.mount();
        let inode = mount.file(file).inode;
        mount.make_stale(inode, Stale::ATIME);
        result.map(|(_, data)| data)
    }

    /// `fuse_dio_lock`. True: shared, and counted as an uncached user.
    async fn lock_direct(&self, file: FileKey, end: Option<u64>) -> (LockGuard, bool) {
        let inode = self.mount().file(file).inode;
        let past_end = |context: &Self| end.is_none_or(|end| end > context.mount().inode(inode).size());
        let shared = {
            let mount = self.mount();
            mount.file(file).opened.parallel_direct_writes && !mount.inode(inode).cache_io_mode
        };
        if shared && !past_end(self) {
            let guard = self.lock_shared(inode).await;
            if !past_end(self) && self.mount().begin_uncached(inode, None).is_ok() {
                return (guard, true);
            }
        }
        (self.lock_exclusive(inode).await, false)
    }

    /// A write of a file that the server opened with FOPEN_DIRECT_IO (`fuse_direct_write_iter`).
    pub async fn write_direct(&self, file: FileKey, offset: Option<u64>, data: &[u8]) -> Result<(u64, u64), Errno> {
        let inode = self.mount().file(file).inode;
        let (guard, shared) = self.lock_direct(file, offset.map(|offset| offset + data.len() as u64)).await;
        let at = offset.unwrap_or_else(|| self.mount().inode(inode).size());
        let result = if data.is_empty() {
            Ok(0)
        } else {
            let result = self.transfer(file, at, Transfer::Write(data)).await.map(|(count, _)| count);
            let written = result.unwrap_or(0);
            self.mount().wrote(inode, at + written, written);
            result
        };
        if shared {
            self.mount().end_uncached(inode);
        }
        drop(guard);
        result.map(|written| (at, written))
    }

    /// O_DIRECT on a cached file: all requests at once (`fuse_direct_IO` with `FUSE_ASYNC_DIO`), or one by one.
    async fn transfer_at_once(
        &self,
        file: FileKey,
        offset: u64,
        transfer: Transfer<'_>,
    ) -> Result<(u64, Vec<u8>), Errno> {
        if !self.mount().config.async_dio {
            return self.transfer(file, offset, transfer).await;
        }
        let requests = {
            let mut mount = self.mount();
            let limits = mount.config;
            let writes = matches!(transfer, Transfer::Write(_));
            let most = if writes { limits.max_write_bytes } else { limits.max_read_bytes }.min(limits.max_read_bytes);
            let (inode, fh) = (mount.file(file).inode, mount.file(file).opened.fh);
            let node = mount.inode(inode).node;
            let mut requests = Vec::new();
            let mut done = 0;
            while done < transfer.bytes() {
                let count = u64::from(most).min(transfer.bytes() - done);
                let operation = transfer.operation(fh, offset, done, count, writes && limits.kills_privileges);
                requests.push((mount.send_background(node, operation), done, count));
                done += count;
            }
            // Before the answers: nobody waits for them with this.
            mount.make_stale(inode, if writes { Stale::MODIFY_SIZE } else { Stale::ATIME });
            requests
        };
        let (mut end, mut out, mut failed) = (transfer.bytes(), Vec::new(), None);
        for (unique, at, count) in requests {
            match moved(self.answer(unique).await, count, &mut out) {
                Ok(moved) if moved < count => end = end.min(at + moved),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        out.truncate(end as usize);
        match failed {
            Some(error) => Err(error),
            None => Ok((end, out)),
        }
    }

    /// An O_DIRECT read of a cached file (`generic_file_read_iter`).
    pub async fn read_around_pages(&self, file: FileKey, offset: u64, size: u64) -> Result<Vec<u8>, Errno> {
        let (inode, fh) = {
            let mount = self.mount();
            (mount.file(file).inode, mount.file(file).opened.fh)
        };
        let beyond = offset + size > self.mount().inode(inode).size();
        if beyond || self.mount().config.auto_inval_data {
            self.attributes(inode, Stale::SIZE, Some(fh)).await?;
        }
        let (first, last) = self.pages_of(offset, size);
        self.write_back(inode, first, last).await?;
        let file_size = self.mount().inode(inode).size();
        let mut out = Vec::new();
        if offset < file_size {
            let whole = self.whole_requests(file_size - offset);
            let asked = if self.mount().config.async_dio { size.min(whole) } else { size };
            let result = self.transfer_at_once(file, offset, Transfer::Read(asked)).await;
            self.mount().make_stale(inode, Stale::ATIME);
            out = result?.1;
        }
        let position = offset + out.len() as u64;
        if (out.len() as u64) < size && position < self.mount().inode(inode).size() {
            let rest = self.read_pages(file, position, size - out.len() as u64).await;
            match rest {
                Ok(rest) => out.extend(rest),
                Err(error) if out.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(out)
    }

    /// `fuse_round_up`.
    fn whole_requests(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(u64::from(self.mount().config.max_read_bytes))
    }

    /// An O_DIRECT write of a cached file, under the inode's lock (`generic_file_direct_write`).
    pub async fn write_direct_io(&self, file: FileKey, offset: u64, data: &[u8]) -> Result<u64, Errno> {
        let inode = self.mount().file(file).inode;
        let (first, last) = self.pages_of(offset, data.len() as u64);
        self.write_back(inode, first, last).await?;
        let mut written = 0;
        match self.invalidate_pages(inode, first, last).await {
            Ok(()) => {
                let extends = offset + data.len() as u64 > self.mount().inode(inode).size();
                let result = self.transfer_at_once(file, offset, Transfer::Write(data)).await;
                self.mount().make_stale(inode, Stale::MODIFY_SIZE);
                let count = result.as_ref().map_or(0, |(count, _)| *count);
                self.mount().wrote(inode, offset + count, count);
                if result.is_err() && extends {
                    let size = self.mount().inode(inode).size();
                    let _ = self.set_file_size(file, size).await;
                }
                written = result?.0;
                let _ = self.invalidate_pages(inode, first, last).await;
            }
            Err(Errno::EBUSY) => {}
            Err(error) => return Err(error),
        }
        if written < data.len() as u64 {
            return self.finish_through_pages(file, inode, offset, written, data).await;
        }
        Ok(written)
    }

    /// The rest of a direct write goes through pages, which are dropped again (`direct_write_fallback`).
    async fn finish_through_pages(
        &self,
        file: FileKey,
        inode: InodeKey,
        offset: u64,
        written: u64,
        data: &[u8],
    ) -> Result<u64, Errno> {
        let rest = &data[written as usize..];
        match self.write_through(file, offset + written, rest).await {
            Ok(more) => {
                let (first, last) = self.pages_of(offset + written, more);
                self.write_back(inode, first, last).await?;
                let _ = self.invalidate_pages(inode, first, last).await;
                Ok(written + more)
            }
            Err(error) if written == 0 => Err(error),
            Err(_) => Ok(written),
        }
    }

    /// A read of a passed-through file.
    pub async fn read_backing(&self, file: FileKey, offset: u64, size: u64) -> Result<Vec<u8>, Errno> {
        let (inode, node, backing) = self.backing_of(file)?;
        let operation = Operation::BackingRead { backing, offset, size: size as u32 };
        let answer = self.ask(node, operation).await;
        self.mount().make_stale(inode, Stale::ATIME);
        match answer? {
            Reply::Data(data) => Ok(data),
            _ => Err(Errno::EIO),
        }
    }

    /// A write of a passed-through file.
    pub async fn write_backing(&self, file: FileKey, offset: Option<u64>, data: &[u8]) -> Result<(u64, u64), Errno> {
        let (inode, node, backing) = self.backing_of(file)?;
        let _lock = self.lock_exclusive(inode).await;
        let at = match offset {
            Some(offset) => offset,
            None => match self.ask(node, Operation::BackingSize { backing }).await? {
                Reply::Size(size) => size,
                _ => return Err(Errno::EIO),
            },
        };
        let append = offset.is_none();
        let operation = Operation::BackingWrite { backing, offset: at, data: data.to_vec(), append };
        let written = match self.ask(node, operation).await? {
            Reply::Written(count) => u64::from(count),
            _ => return Err(Errno::EIO),
        };
        self.mount().wrote(inode, at + written, written);
        Ok((at, written))
    }

    pub fn backing_of(&self, file: FileKey) -> Result<(InodeKey, u64, u32), Errno> {
        let mount = self.mount();
        let open = mount.file(file);
        let backing = open.opened.passthrough.ok_or(Errno::EIO)?;
        Ok((open.inode, mount.inode(open.inode).node, backing))
    }
}

//! A client's end of memory that a server lends: see [`crate::peer_memory`].
//!
//! Sketch, per read: a `send` of the request, a `recv` of the reply and of where the bytes are lent, and a
//! `process_vm_readv` straight into the caller's memory. The next request tells the server that they were copied.

use crate::peer_memory::PeerMemory;
use crate::sharing::descriptor_of;
use crate::{Result, Socket, TransportError};
use weft_protocol::data::{
    DataOperation, DataReply, DataRequest, LENT_BYTES_LENGTH_MAX, LentBytes, REPLY_BYTES, SHARED_MEMORY_BYTES,
    SharedMemory,
};

/// Whether the server lends, and this process may read its memory.
#[derive(Debug)]
pub(crate) enum Borrowing {
    NotAsked,
    /// The kernel, the server or the caller does not want it.
    No,
    Yes(PeerMemory),
}

impl Borrowing {
    /// Asks the server, over a connection on which nothing is outstanding.
    fn ask(socket: &Socket) -> Result<Self> {
        socket.send_all(&DataRequest::about_nothing(DataOperation::Lend, 0).encode())?;
        let mut header = [0; REPLY_BYTES];
        socket.receive_exact(&mut header)?;
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        if reply.result().is_err() {
            return Ok(Self::No);
        }
        let mut shared = [0; SHARED_MEMORY_BYTES];
        socket.receive_exact(&mut shared)?;
        Ok(PeerMemory::open(socket, SharedMemory::decode(&shared)).map_or(Self::No, Self::Yes))
    }

    /// Reads, over a connection on which nothing is outstanding, what the server lends or sends. `None`: it is to be
    /// asked as always, because it does not lend, or has taken the bytes back before they were copied.
    pub fn read(&mut self, socket: &Socket, request: &DataRequest, into: &mut [u8]) -> Result<Option<DataReply>> {
        if matches!(self, Self::NotAsked) {
            *self = Self::ask(socket)?;
        }
        let Self::Yes(memory) = self else { return Ok(None) };
        let (mut header, mut behind) = ([0; REPLY_BYTES], [0; LENT_BYTES_LENGTH_MAX]);
        socket.send_all(&DataRequest { memory: descriptor_of(into), ..*request }.encode())?;
        let have = socket.receive_header_and_some(&mut header, &mut behind, false)?;
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        let bulk = into.get_mut(..reply.bulk_bytes as usize).ok_or(TransportError::Malformed)?;
        if reply.lent_parts == 0 {
            let (first, rest) = bulk.split_at_mut_checked(have).ok_or(TransportError::Malformed)?;
            first.copy_from_slice(behind.get(..have).ok_or(TransportError::Malformed)?);
            socket.receive_exact(rest)?;
            return Ok(Some(reply));
        }
        let lent = behind.get_mut(..reply.lent_bytes_length()).ok_or(TransportError::Malformed)?;
        socket.receive_exact(lent.get_mut(have..).ok_or(TransportError::Malformed)?)?;
        let lent = LentBytes::decode(lent, reply.bulk_bytes).map_err(|_| TransportError::Malformed)?;
        match memory.read_lent(&lent, bulk) {
            Ok(true) => Ok(Some(reply)),
            Ok(false) => Ok(None),
            Err(_) => {
                // The kernel allows it no more, or the server is gone, which shows when it is asked.
                *self = Self::No;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BulkConnection, Lender, SocketBulk};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;
    use weft_protocol::Error;
    use weft_protocol::data::{LentPart, REQUEST_BYTES};

    const BYTES: usize = 600_000;

    /// What a server does with a request to read.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Does {
        Lends,
        Sends,
        Refuses,
        /// Lends, and takes the memory back before the client knows.
        TakesBack,
        /// Lends what is not mapped.
        LendsNothing,
        /// Lends more than it was asked for.
        LendsMore,
    }

    fn contents() -> Vec<u8> {
        (0..BYTES).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
    }

    /// Serves reads of [`contents`]. Whether each of them might have been lent.
    fn serve(socket: Socket, may_lend: bool, does: Vec<Does>) -> JoinHandle<Vec<bool>> {
        std::thread::spawn(move || {
            let (lender, contents) = (Lender::new().unwrap(), contents());
            let parts: Vec<LentPart> = [&contents[..7], &contents[7..]]
                .map(|part| LentPart { address: part.as_ptr() as u64, bytes: part.len() as u64 })
                .into();
            let (mut seen, mut does, mut header) = (Vec::new(), does.into_iter(), [0; REQUEST_BYTES]);
            while socket.receive_exact(&mut header).is_ok() {
                let request = DataRequest::decode(&header).unwrap();
                let reply = DataReply { id: request.id, ..DataReply::default() };
                if request.operation == DataOperation::Lend {
                    let refused = DataReply::failed(request.id, &Error::NotSupported);
                    let (reply, shared) = if may_lend { (reply, lender.shared().encode()) } else { (refused, [0; 24]) };
                    socket.send_all_with(&reply.encode(), if may_lend { &shared } else { &[] }).unwrap();
                    continue;
                }
                seen.push(request.memory.address != 0);
                let bulk_bytes = u32::try_from(BYTES).unwrap();
                let lend = |bulk_bytes, parts: Vec<LentPart>| {
                    let reply = DataReply { bulk_bytes, lent_parts: u8::try_from(parts.len()).unwrap(), ..reply };
                    (reply, lender.lend(parts).encode())
                };
                let (reply, behind) = match does.next().unwrap() {
                    Does::Lends => lend(bulk_bytes, parts.clone()),
                    Does::Sends => (DataReply { bulk_bytes, ..reply }, contents.clone()),
                    Does::Refuses => (DataReply::failed(request.id, &Error::NoObject), Vec::new()),
                    Does::TakesBack => {
                        let lent = lend(bulk_bytes, parts.clone());
                        lender.take_back();
                        lent
                    }
                    Does::LendsNothing => lend(bulk_bytes, vec![LentPart { address: 8, bytes: BYTES as u64 }]),
                    Does::LendsMore => {
                        lend(bulk_bytes + 1, vec![parts[0], LentPart { bytes: parts[1].bytes + 1, ..parts[1] }])
                    }
                };
                socket.send_all_with(&reply.encode(), &behind).unwrap();
            }
            seen
        })
    }

    fn pair(may_lend: bool, does: &[Does]) -> (SocketBulk, JoinHandle<Vec<bool>>) {
        let (client, server) = UnixStream::pair().unwrap();
        (SocketBulk::new(Socket::from_unix(client)), serve(Socket::from_unix(server), may_lend, does.to_vec()))
    }

    fn request(bytes: usize) -> DataRequest {
        DataRequest { id: 7, ..DataRequest::about_nothing(DataOperation::Read, u32::try_from(bytes).unwrap()) }
    }

    #[test]
    fn bytes_are_copied_where_the_server_lends_and_received_where_it_sends() {
        use Does::{Lends, LendsNothing, Refuses, Sends, TakesBack};
        // What the server does, and whether it might have lent then.
        let all = [
            (true, &[(Lends, true), (Sends, true), (Refuses, true), (Lends, true)][..]),
            (true, &[(TakesBack, true), (Sends, false), (Lends, true)]),
            (true, &[(LendsNothing, true), (Sends, false), (Sends, false)]),
            (false, &[(Sends, false), (Refuses, false)]),
        ];
        for (may_lend, steps) in all {
            let does: Vec<Does> = steps.iter().map(|(does, _)| *does).collect();
            let (mut connection, serving) = pair(may_lend, &does);
            for step in does.iter().filter(|step| !matches!(step, TakesBack | LendsNothing)) {
                let mut into = vec![0; BYTES + 500];
                let reply = connection.read(&request(into.len()), &mut into).unwrap();
                if *step == Refuses {
                    assert_eq!(reply.result().err(), Some(Error::NoObject), "{steps:?}");
                } else {
                    assert_eq!(reply.bulk_bytes as usize, BYTES, "{steps:?}");
                    assert!(into[..BYTES] == contents() && into[BYTES..] == [0; 500], "{steps:?}");
                }
            }
            drop(connection);
            let asked: Vec<bool> = steps.iter().map(|(_, asked)| *asked).collect();
            assert_eq!(serving.join().unwrap(), asked, "{steps:?}");
        }
    }

    #[test]
    fn small_reads_and_those_of_a_stream_are_sent() {
        let (client, server) = UnixStream::pair().unwrap();
        let serving = serve(Socket::from_unix(server), true, vec![Does::Sends]);
        let mut into = vec![0; BYTES];
        SocketBulk::streaming(Socket::from_unix(client)).read(&request(BYTES), &mut into).unwrap();
        assert_eq!(serving.join().unwrap(), [false]);
        let (mut connection, serving) = pair(true, &[Does::Refuses]);
        assert!(connection.read(&request(4096), &mut [0; 4096]).unwrap().result().is_err());
        drop(connection);
        assert_eq!(serving.join().unwrap(), [false]);
    }

    #[test]
    fn a_server_that_lends_more_than_was_asked_for_ends_the_connection() {
        let (mut connection, serving) = pair(true, &[Does::LendsMore]);
        assert!(matches!(connection.read(&request(BYTES), &mut [0; BYTES]), Err(TransportError::Malformed)));
        drop(connection);
        serving.join().unwrap();
    }
}

//! A kernel's reads and writes of files that were passed to it: no process of the mount has a part in them.

use super::SimKernel;
use crate::kernel::requests::{Answer, Errno, Operation, Reply, Request};
use crate::object_file::Descriptor;
use crate::process::{Ask, Process};
use crate::random::Random;
use std::rc::Rc;
use std::sync::Arc;

/// Longest time that one takes, milliseconds.
const TIME_MS_MAX: u64 = 5;

/// Serves one.
pub async fn serve(process: Rc<Process>, kernel: Arc<SimKernel>, request: Request) {
    let descriptor = backing(&request.operation).and_then(|backing| kernel.backings.borrow().get(&backing).cloned());
    let what = format_args!("backing client{}", process.index);
    let choose = |random: &mut Random| if random.one_in(2) { 1 + random.below(TIME_MS_MAX) } else { 0 };
    let ms = process.decide(what, 0, choose);
    if ms > 0 {
        let ticket = process.ask(Ask::Sleep(ms));
        process.told(ticket).await;
    }
    let answer = descriptor.ok_or(Errno::EIO).and_then(|file| carry_out(&process, &file, request.operation));
    kernel.reply(request.unique, answer);
}

fn backing(operation: &Operation) -> Option<u32> {
    match operation {
        Operation::BackingRead { backing, .. }
        | Operation::BackingWrite { backing, .. }
        | Operation::BackingSync { backing }
        | Operation::BackingSize { backing } => Some(*backing),
        _ => None,
    }
}

fn carry_out(process: &Process, file: &Descriptor, operation: Operation) -> Answer {
    match operation {
        Operation::BackingRead { offset, size, .. } => Ok(Reply::Data(file.read(offset, size as usize))),
        Operation::BackingWrite { offset, data, append, .. } => {
            let offset = if append { file.file.stat().0 } else { offset };
            let written = file.file.write_past(offset, &data, process.now());
            if written == 0 && !data.is_empty() {
                return Err(Errno::ENOSPC);
            }
            Ok(Reply::Written(u32::try_from(written).expect("a write is short")))
        }
        Operation::BackingSync { .. } => Ok(Reply::Done),
        Operation::BackingSize { .. } => Ok(Reply::Size(file.file.stat().0)),
        other => unreachable!("{other:?} is the server's"),
    }
}

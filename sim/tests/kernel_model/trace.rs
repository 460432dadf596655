//! What a script made happen, in a form in which two runs can be compared.

use std::collections::BTreeMap;
use weft_sim::kernel::requests::{Attributes, Change, Errno, NodeId, Operation, Request};
use weft_sim::kernel::{CallId, CallResult, Config, Value};

/// Events of one step. Requests that nobody orders are sorted; lookups that are forgotten are summed up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// How many lookups of which inode were forgotten.
    pub forgets: BTreeMap<NodeId, u64>,
    pub requests: Vec<String>,
    pub returned: Vec<(CallId, CallResult)>,
    pub notified: Vec<(CallId, Result<(), Errno>)>,
}

impl Events {
    pub fn count(&self) -> usize {
        self.requests.len() + self.returned.len() + self.notified.len() + self.forgets.values().sum::<u64>() as usize
    }

    /// Adds a request. The number of the request is the kernel's own affair, and so is how forgets are put together.
    pub fn add_request(&mut self, request: &Request) {
        if let Operation::Forget { lookups } = request.operation {
            *self.forgets.entry(request.node).or_default() += lookups;
            return;
        }
        if is_only_times(&request.operation) {
            return;
        }
        let operation = match request.operation.clone() {
            // The kernel's own clock.
            Operation::Setattr(change) => {
                Operation::Setattr(Change { mtime: change.mtime.map(|_| 0), ctime: change.ctime.map(|_| 0), ..change })
            }
            operation => operation,
        };
        self.requests.push(format!("{}: {}", request.node, shorten(&format!("{operation:?}"))));
    }

    pub fn sort(&mut self) {
        self.requests.sort();
        self.returned.sort_by_key(|(id, _)| *id);
        self.notified.sort_by_key(|(id, _)| *id);
    }
}

/// Whether a request only tells times of write-back mode: two changes within one tick of the kernel's clock are told
/// once, which is no part of the comparison.
pub fn is_only_times(operation: &Operation) -> bool {
    match operation {
        Operation::Setattr(change) => {
            change.mode.is_none() && change.size.is_none() && (change.mtime.is_some() || change.ctime.is_some())
        }
        _ => false,
    }
}

/// Long runs of equal numbers become one with a count.
pub fn shorten(text: &str) -> String {
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for part in text.split(", ") {
        match parts.last_mut() {
            Some((last, count)) if *last == part => *count += 1,
            _ => parts.push((part, 1)),
        }
    }
    let show = |(part, count): &(&str, usize)| if *count > 1 { format!("{part} x{count}") } else { (*part).to_owned() };
    parts.iter().map(show).collect::<Vec<_>>().join(", ")
}

/// A result without what the kernel takes from its own clock.
pub fn comparable(result: CallResult, config: &Config) -> CallResult {
    match result {
        Ok(Value::Attributes(attributes)) if config.writeback_cache => {
            Ok(Value::Attributes(Attributes { mtime: 0, ctime: 0, ..attributes }))
        }
        other => other,
    }
}

/// Shows the events of a step.
pub fn show(events: &Events) -> String {
    let mut lines: Vec<String> = events.requests.iter().map(|request| format!("    request {request}")).collect();
    lines.extend(
        events.returned.iter().map(|(id, result)| format!("    call {} {}", id.0, shorten(&format!("{result:?}")))),
    );
    lines.extend(events.notified.iter().map(|(id, result)| format!("    notification {} {result:?}", id.0)));
    lines.extend(events.forgets.iter().map(|(node, lookups)| format!("    forget {node} x{lookups}")));
    lines.join("\n")
}

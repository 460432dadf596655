//! A script against the model.

use crate::script::{Script, Step};
use crate::server::{Outcome, Server};
use crate::trace::{Events, comparable};
use std::collections::VecDeque;
use weft_sim::kernel::requests::{Answer, Request};
use weft_sim::kernel::{CallId, Kernel, Output};

/// Runs a script and returns the events of each step, and then of the release of all that was held.
pub fn run(script: &Script) -> Vec<Events> {
    let mut run = Run {
        kernel: Kernel::new(script.config),
        server: Server::new(),
        held: VecDeque::new(),
        events: Events::default(),
        script,
    };
    let mut all: Vec<Events> = script
        .steps
        .iter()
        .enumerate()
        .map(|(number, step)| {
            run.step(CallId(number as u64), step);
            run.take()
        })
        .collect();
    while !run.held.is_empty() {
        run.step(CallId(u64::MAX), &Step::Release);
        all.push(run.take());
    }
    all
}

struct Run<'a> {
    kernel: Kernel,
    server: Server,
    held: VecDeque<(Request, Option<Answer>)>,
    events: Events,
    script: &'a Script,
}

impl Run<'_> {
    fn step(&mut self, id: CallId, step: &Step) {
        match step {
            Step::Call { call, .. } => self.kernel.call(id, call.clone()),
            Step::Notify(notification) => self.kernel.notify(id, notification.clone()),
            Step::Fate { kind, fate } => self.server.set_fate(kind, fate.clone()),
            Step::Outside(change) => self.server.change(change),
            Step::Release => {
                if let Some((request, answer)) = self.held.pop_front() {
                    let answer = answer.unwrap_or_else(|| self.server.answer(&request));
                    self.kernel.reply(request.unique, answer);
                }
            }
        }
        self.settle();
    }

    /// Serves until nothing happens any more.
    fn settle(&mut self) {
        loop {
            let outputs = self.kernel.take_outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                match output {
                    Output::Request(request) => self.serve(request),
                    Output::Returned { call, result } => {
                        self.events.returned.push((call, comparable(result, &self.script.config)));
                    }
                    Output::Notified { id, result } => self.events.notified.push((id, result)),
                }
            }
        }
    }

    fn serve(&mut self, request: Request) {
        if request.operation.is_backing() {
            let answer = self.server.answer(&request);
            self.kernel.reply(request.unique, answer);
            return;
        }
        self.events.add_request(&request);
        let outcome = self.server.receive(&request);
        match outcome {
            _ if request.operation.is_one_way() => {}
            Outcome::Answer(answer) => self.kernel.reply(request.unique, answer),
            Outcome::HoldReply(answer) => self.held.push_back((request, Some(answer))),
            Outcome::HoldRequest => self.held.push_back((request, None)),
        }
    }

    fn take(&mut self) -> Events {
        let mut events = std::mem::take(&mut self.events);
        events.sort();
        events
    }
}

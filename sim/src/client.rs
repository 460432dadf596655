//! A simulated client: its process, the client machine, and the tasks that use it.

use crate::bytes::ProcessId;
use crate::kernel::{Call, CallId, CallResult, Handle};
use crate::lock_program::use_locks;
use crate::mount::{MountMode, Mounted};
use crate::native_calls::NativeCalls;
use crate::process::{Process, Task};
use crate::program::{NamesOperation, answer_drops, answer_recalls, use_file, use_names};
use crate::shell::{SimShell, TUNING, releases};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use weft_client_core::{Caller, Calls, Files};
use weft_protocol::{ClusterMap, Credentials, InodeNumber, Name, SessionId};

/// Programs that use files at once.
const PROGRAMS_MAX: usize = 2;

/// How the programs of a client make system calls.
enum SystemCalls {
    Mounted(Mounted),
    Native(Rc<NativeCalls>),
}

/// A client.
pub struct Client {
    pub process: Rc<Process>,
    pub machine: Arc<Files<SimShell>>,
    recalls: Task,
    drops: Task,
    names: Option<Task>,
    programs: Vec<Task>,
    /// Beside them: what a mount and native system calls have begun.
    tasks: Vec<Task>,
    calls: Option<SystemCalls>,
    pub paused_until_ms: u64,
    /// By its own clock: when the latest renewal was sent that was answered.
    pub asked_ms: u64,
    /// Until then no recall reaches it.
    pub deaf_until_ms: u64,
}

impl Client {
    /// A client whose process has just started.
    pub fn new(process: Process, map: ClusterMap) -> Self {
        let process = Rc::new(process);
        let caller = Caller { credentials: Credentials::default(), is_fixed: false };
        let calls = Calls::new(SimShell(Rc::clone(&process)), caller, map);
        #[expect(clippy::arc_with_non_send_sync, reason = "a mount shares it so; here all is one thread")]
        let machine = Arc::new(Files::new(calls, TUNING).expect("all nodes of the simulation have storage"));
        process.id.set(machine.calls().session.id().0);
        let recalls = answer_recalls(Arc::clone(&machine), Rc::clone(&process));
        let drops = answer_drops(Arc::clone(&machine), Rc::clone(&process));
        Self {
            process,
            machine,
            recalls: Box::pin(recalls),
            drops: Box::pin(drops),
            names: None,
            programs: Vec::new(),
            tasks: Vec::new(),
            calls: None,
            paused_until_ms: 0,
            asked_ms: 0,
            deaf_until_ms: 0,
        }
    }

    /// Has programs make system calls from now on: through a mount, or without.
    pub fn make_system_calls(&mut self, mount: Option<(MountMode, Option<u64>)>) {
        self.process.makes_system_calls.set(true);
        self.process.machine.replace(Arc::downgrade(&self.machine));
        let machine = Arc::clone(&self.machine);
        self.calls = Some(match mount {
            Some((mode, order)) => SystemCalls::Mounted(Mounted::new(&self.process, machine, mode, order)),
            None => SystemCalls::Native(Rc::new(NativeCalls::new(machine, Rc::clone(&self.process)))),
        });
    }

    /// A program makes a system call.
    pub fn call(&self, id: CallId, call: Call) {
        match &self.calls {
            Some(SystemCalls::Mounted(mounted)) => mounted.call(id, call),
            Some(SystemCalls::Native(native)) => self.process.spawn(Rc::clone(native).run(id, call)),
            None => unreachable!("this client's programs use the machine itself"),
        }
    }

    /// Whether the kernel has an error to tell of pages of the call's file that could not be written back.
    pub fn owes_error(&self, call: &Call) -> bool {
        matches!(&self.calls, Some(SystemCalls::Mounted(mounted)) if mounted.owes_error(call))
    }

    /// Where the parts end in which a write that has returned was sent by the kernel.
    pub fn take_pieces(&self, id: CallId) -> Vec<u64> {
        match &self.calls {
            Some(SystemCalls::Mounted(mounted)) => mounted.take_pieces(id),
            _ => Vec::new(),
        }
    }

    /// Number of the inode that is open under this handle.
    pub fn inode_of(&self, handle: Handle) -> Option<u64> {
        match self.calls.as_ref()? {
            SystemCalls::Mounted(mounted) => mounted.inode_of(handle),
            SystemCalls::Native(native) => native.inode_of(handle),
        }
    }

    /// Whether its programs use a mount.
    pub fn is_mounted(&self) -> bool {
        matches!(self.calls, Some(SystemCalls::Mounted(_)))
    }

    /// Memory pressure in the kernel of its mount, if it is one.
    pub fn shrink(&self, pages: bool) {
        if let Some(SystemCalls::Mounted(mounted)) = &self.calls {
            mounted.shrink(pages);
        }
    }

    /// The current session.
    pub fn session(&self) -> SessionId {
        self.machine.calls().session.id()
    }

    /// Whether this is the process's current run.
    pub fn is_process(&self, id: ProcessId) -> bool {
        self.process.id.get() == id
    }

    /// Whether an operation on names is under way.
    pub fn is_using_names(&self) -> bool {
        self.names.is_some()
    }

    /// Whether a program uses a file.
    pub fn is_using_files(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Starts a program that uses a file, if there is room for one more.
    pub fn start_program(&mut self, parent: InodeNumber, name: Name) {
        if self.programs.len() < PROGRAMS_MAX {
            let (machine, process) = (Arc::clone(&self.machine), Rc::clone(&self.process));
            if process.locks_files.get() && name.as_bytes().last().is_some_and(|digit| digit % 4 != 0) {
                // Few files, which all clients lock.
                self.programs.push(Box::pin(use_locks(machine, process, name)));
            } else {
                self.programs.push(Box::pin(use_file(machine, process, parent, name)));
            }
        }
    }

    /// Starts an operation on names.
    pub fn start_names(&mut self, operation: NamesOperation) {
        assert!(self.names.is_none(), "one operation on names at a time");
        let (machine, process) = (Arc::clone(&self.machine), Rc::clone(&self.process));
        self.names = Some(Box::pin(use_names(machine, process, operation)));
    }

    /// Polls the tasks until none gets further. What system calls returned.
    pub fn poll(&mut self) -> Vec<(CallId, CallResult)> {
        let mut returned = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let before = (self.process.progress(), releases());
            assert!(self.recalls.as_mut().poll(&mut context).is_pending(), "recalls are answered without end");
            assert!(self.drops.as_mut().poll(&mut context).is_pending(), "drops are answered without end");
            self.names.take_if(|task| task.as_mut().poll(&mut context).is_ready());
            self.programs.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            match &self.calls {
                Some(SystemCalls::Mounted(mounted)) => returned.extend(mounted.take_returned()),
                Some(SystemCalls::Native(native)) => returned.append(&mut native.returned.borrow_mut()),
                None => {}
            }
            self.tasks.extend(self.process.take_spawned());
            self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            if (self.process.progress(), releases()) == before {
                return returned;
            }
        }
    }
}

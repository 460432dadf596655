"""One run: its directory on tmpfs, its time, the programs it calls, and what has to be stopped at its end."""

import contextlib
import json
import mmap
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rounds import CellFailed

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
# A cell takes seconds; one that hangs must not take the run with it.
CELL_SECONDS = 180
MIB = 1 << 20
PAGE = mmap.PAGESIZE
# More than a cell, and what the one before it has left, use at once.
KEPT_MIB = 4096
# Free memory goes back to the host in blocks: of 128 KiB on some machines, of 2 MiB on most.
BLOCK = 128 << 10
# How long the next cell waits for the machine to be quiet at most, and how long it is to be quiet: under a tenth of one core,
# which is a tick of the clock.
QUIET_SECONDS = 5
QUIET_STEP = 0.1


def _busy_seconds():
    """Of all cores since the machine was started."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Session:
    def __init__(self, options):
        self.options = options
        self.exit = contextlib.ExitStack()
        self._deadline = self._begun = time.monotonic()
        self._part = ""
        self._services = {}
        self._keeps_memory = False
        self.interrupt = None

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="weft-bench-", dir="/dev/shm"))
        self.exit.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.plain = self.make("plain")
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=str(self.make("run")), TMPDIR=str(self.make("tmp")))
        self.environment["PATH"] = f"{self.options.binaries}:{self.environment.get('PATH', '')}"
        return self

    def __exit__(self, *_):
        # A second interrupt must not leave things behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.exit.close()

    def make(self, name):
        path = self.directory / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def keep_memory(self):
        """Sees to it, once, that cells find memory that is the machine's own. A virtual machine hands free memory back to
        its host, within seconds; whoever uses it next pays for getting it again, five times the cost of writing it, and no
        cell shall pay that for another. Only whole blocks are handed back: here a page of each stays in use."""
        if self._keeps_memory:
            return
        self._keeps_memory = True
        self.say(f"taking {KEPT_MIB} MiB of memory from the host, so that no cell has to")
        with (self.directory / "kept").open("w+b", buffering=0) as file:
            for _ in range(KEPT_MIB):
                file.write(bytes([1]) * MIB)
            with mmap.mmap(file.fileno(), KEPT_MIB * MIB) as mapped:
                for block in range(0, len(mapped), BLOCK):
                    mapped.madvise(mmap.MADV_REMOVE, block + PAGE, BLOCK - PAGE)

    def wait_until_quiet(self):
        """What a cell leaves to be done, e.g. to free the files it has removed, shall be over before the next begins."""
        end, busy = time.monotonic() + QUIET_SECONDS, _busy_seconds()
        while time.monotonic() < end:
            time.sleep(QUIET_STEP)
            before, busy = busy, _busy_seconds()
            if busy - before < QUIET_STEP / 10:
                return

    def say(self, text):
        print(f"[{time.monotonic() - self._begun:4.0f} s] {self._part}: {text}", file=sys.stderr, flush=True)

    def begin_part(self, name, seconds):
        self._part = name
        self._deadline = time.monotonic() + seconds

    def interrupted_by(self, interrupt):
        """The run is to end with this as soon as what was measured has been told."""
        self.interrupt = interrupt

    def is_over(self):
        return time.monotonic() >= self._deadline

    def service(self, kind, *words):
        """Something that is started once for the run, e.g. a peer. Raises CellFailed each time when it cannot be started."""
        key = (kind, *words)
        if key not in self._services:
            try:
                self._services[key] = self.exit.enter_context(kind(self, *words))
            except CellFailed as reason:
                self.say(f"skipped: {reason}")
                self._services[key] = reason
        found = self._services[key]
        if isinstance(found, CellFailed):
            raise found
        return found

    def call(self, *words, seconds=CELL_SECONDS, environment=None):
        """Runs a program to its end and returns its output; its failure is the cell's."""
        words = [str(word) for word in words]
        with self.start(*words, environment=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise CellFailed(f"{words[0]} took more than {seconds} s") from None
            finally:
                end_group(process)
        if process.returncode != 0:
            said = [line for line in err.splitlines() if line.strip()]
            raise CellFailed(said[-1] if said else f"{words[0]} ended with {process.returncode}")
        return out

    def json(self, *words, **more):
        out = self.call(*words, **more)
        try:
            return json.loads(out)
        except ValueError:
            raise CellFailed(f"{words[0]} printed no JSON") from None

    def start(self, *words, environment=None, **more):
        """Starts a program as the leader of a process group of its own."""
        environment = dict(self.environment, **(environment or {}))
        try:
            return subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, text=True, env=environment,
                                    start_new_session=True, **more)
        except OSError as error:
            raise CellFailed(f"{words[0]}: {error.strerror}") from None


def end_group(process, patience=5):
    """Ends a program that `start` started, with what it started itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)

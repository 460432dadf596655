"""Weft as a service of a run: file systems and mounts of our own binary."""

import contextlib
import os
import pathlib

from rounds import CellFailed

WAYS = {"tcp": "tcp", "unix": "unix", "auto": "descriptor", "memory": "descriptor, store in memory"}


class Weft:
    """A file system of some nodes on tmpfs. Its name is new in each run, its runtime directory is the session's."""

    def __init__(self, session, nodes=1, name="bench", store=None, more=()):
        self.session, self.name, self.nodes, self.more = session, name, nodes, more
        self.store = store or session.make(f"store-{name}")

    def __enter__(self):
        try:
            self.session.call("weft", "up", self.name, "--nodes", self.nodes, "--store", self.store, *self.more, seconds=30)
        except CellFailed as reason:
            self.stop()
            raise CellFailed(f"weft up: {reason}") from None
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for words in (("down", self.name), ("down", "--force", self.name)):
            with contextlib.suppress(CellFailed):
                self.session.call("weft", *words, seconds=30)
                return

    def status(self):
        # Exit code 1 says that something is unwell, which the caller wants to know as well.
        return self.session.json("weft", "status", "--json", self.name)["file_systems"][0]

    def pids(self):
        return [node["pid"] for node in self.status()["nodes"]]

    def data(self, way, processes, size, request, direct=False, runs=1, one_file=False):
        """{operation: row of `weft bench data`}, the median of the runs; `size` is of each process."""
        more = ["--direct"] * direct + ["--one-file"] * one_file
        found = self.session.json("weft", "bench", "data", self.name, "--json", "--runs", runs, "--way", way, "-p", processes,
                                  "--size", size, "--request", request, *more)
        return {row["operation"]: row for row in found["results"]}

    def meta(self, way, processes, files, shared, spread=False):
        more = ["--shared"] * shared + ["--spread"] * spread
        found = self.session.json("weft", "bench", "meta", self.name, "--json", "--runs", 1, "--way", way, "-p", processes,
                                  "--files", files, *more)
        return {row["operation"]: row for row in found["results"]}


class WeftMount:
    """A mount of the run's file system, with options for -o."""

    def __init__(self, session, options="", kind=Weft):
        self.session, self.options, self.kind = session, options, kind
        self.label = "weft" + (f" -o {options}" if options else "")
        self.point = session.make(f"mount-{kind.__name__.lower()}-" + (options.replace(",", "-") or "default"))

    def __enter__(self):
        weft = self.session.service(self.kind)
        more = ["-o", self.options] if self.options else []
        # Its output goes nowhere: the background process would keep a pipe open.
        process = self.session.start("weft", "mount", weft.name, self.point, *more, stdout=open(os.devnull, "w"),
                                     stderr=open(self.session.directory / "mount.log", "a"))
        if process.wait(40) != 0:
            log = pathlib.Path(self.session.directory / "mount.log").read_text().splitlines()
            raise CellFailed(log[-1] if log else "weft mount failed")
        return self

    def __exit__(self, *_):
        for words in (("umount", self.point), ("umount", "--force", self.point)):
            with contextlib.suppress(CellFailed):
                self.session.call("weft", *words, seconds=30)
                return


def memory_bytes(pid, field="VmRSS"):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return 0


def ticks(pid):
    """CPU time that a process has used, in clock ticks, its ended children included."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15])

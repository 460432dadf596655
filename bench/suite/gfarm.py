"""Gfarm as a peer: its servers, its native interface, its mount."""

import contextlib
import os
import pathlib
import subprocess

import weft
from mounts import ForegroundMount
from rounds import CellFailed
from session import PEERS

# Ways to the data and the client's configuration for each.
WAYS = {"direct": "client", "tcp": "client-remote", "tcp-nodelay": "client-nodelay"}
# What the program must see of the way; otherwise the row would be of another one.
SEEN = {"direct": "direct-fd", "tcp": "gfsd-tcp", "tcp-nodelay": "gfsd-tcp"}
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Gfarm:
    """gfmd without a database and one gfsd, started by peers/gfarm/up.sh."""

    def __init__(self, session, nodes=1):
        self.session, self.nodes = session, nodes
        self.root = session.directory / "gfarm"
        self.program = session.directory / "gfarm-native"

    def __enter__(self):
        scripts = PEERS / "gfarm"
        process = self.session.start(scripts / "up.sh", self.nodes, self.root, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE)
        _, said = process.communicate()
        if process.returncode != 0:
            self.stop()
            raise CellFailed(said.strip().splitlines()[-1] if said.strip() else "gfarm: did not start")
        try:
            self.session.call("cc", "-O2", "-o", self.program, scripts / "native.c", "-lgfarm")
        except CellFailed as reason:
            self.stop()
            raise CellFailed(f"gfarm: its native program does not compile: {reason}") from None
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        with contextlib.suppress(CellFailed):
            self.session.call(PEERS / "gfarm" / "down.sh", self.root, seconds=60)

    def environment(self, way):
        return {"GFARM_CONFIG_FILE": str(self.root / f"{WAYS[way]}.conf")}

    def _run(self, way, *words):
        before = self._server_cpu()
        rows = self.session.json(self.program, *words, environment=self.environment(way))
        used = self._server_cpu() - before
        return {row["operation"]: row for row in rows}, used

    def data(self, way, processes, size, request):
        """{operation: row} and CPU seconds of the servers for both; `size` is of each process."""
        found, used = self._run(way, "data", "-p", processes, "-s", size, "-r", request)
        if found["write"]["way"] != SEEN[way]:
            raise CellFailed(f"gfarm went {found['write']['way']}, not {SEEN[way]}")
        return found, used

    def meta(self, way, processes, files, shared):
        return self._run(way, "meta", "-p", processes, "-n", files, *(["-S"] if shared else []))[0]

    def _server_cpu(self):
        """gfsd forks: its ended children count, the living ones are found by their process group."""
        total = 0
        for file in self.root.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                total += weft.ticks(int(file.read_text()))
        return total / TICKS_PER_SECOND


class Gfarm2fs(ForegroundMount):
    """gfarm2fs, descriptor passing on (it reaches more than through gfsd in every mode)."""

    def __init__(self, session, options=""):
        super().__init__(session, "gfarm2fs" + (f"-{options}" if options else ""))
        self.options = options
        self.label = "gfarm2fs" + (f" -o {options}" if options else "")

    def __enter__(self):
        gfarm = self.session.service(Gfarm)
        self.install("gfarm2fs")
        more = ["-o", self.options] if self.options else []
        self.mount("gfarm2fs", "-f", self.point, *more, environment=gfarm.environment("direct"))
        return self

#!/usr/bin/env python3
"""MPI-IO on split files by more and more ranks, each with a node of its own: what is counted, which a busy machine does not
change. Bytes of data that go between nodes, calls of metadata, sizes of indices; memory of a rank; a file of very many sessions.

    make build mpi && cargo build --release -p weft-bench
    bench/mpi_scale.py --binaries target/release [--ranks 1,2,4,8,16,32,72] [--out DIR]

Each node, and each rank with it, is in a network namespace of its own, as on a machine of its own: what goes between nodes goes by
an Ethernet bridge, where it is counted. So it needs root, iproute2, util-linux and mpich. What it starts it ends.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from mpi_io import compiled, machine, say, table, tell

NAME = "mpi-scale"
BYTES = 4096
# Records of a rank: neither what goes between nodes nor the index may depend on them.
FEW, MANY = 32, 512
SESSIONS = "1,64,512,4096"
# Nodes of the sessions' parts: a node has at most 4096 data connections. The file is at the shard of the first.
SESSION_NODES = 8


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--driver", type=pathlib.Path, help="libweft-romio.so (default: beside the binaries, in ../mpi)")
    parser.add_argument("--out", type=pathlib.Path, help="directory for the tables (default: they are printed only)")
    parser.add_argument("--place", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="a tmpfs (default %(default)s)")
    parser.add_argument("--ranks", default="1,2,4,8,16,32,72", help="default %(default)s; empty: none")
    parser.add_argument("--memory", default="1,8,64", help="ranks whose memory, opens and closes are measured (default %(default)s)")
    parser.add_argument("--sessions", default=SESSIONS, help="sessions of one file (default %(default)s); empty: none")
    options = parser.parse_args()
    options.driver = (options.driver or options.binaries.parent / "mpi/libweft-romio.so").resolve()
    options.binaries = options.binaries.resolve()
    options.ranks, options.memory = ([int(count) for count in text.split(",") if count] for text in (options.ranks, options.memory))
    options.quick, options.rounds = False, 1
    return options


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1200, check=False, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip()}{done.stdout.strip()}")
    return done.stdout


class Nodes:
    """So many namespaces with a node of a file system each, on one bridge. The bridge is in one more namespace."""

    def __init__(self, options, count, place):
        self.options, self.count, self.place = options, count, place
        self.hub = f"weft-hub-{os.getpid()}"
        self.names = [f"weft-{os.getpid()}-{index}" for index in range(count)]
        self.environment = {**os.environ, "WEFT_SSH": str(place / "ssh"), "XDG_RUNTIME_DIR": str(place / "run-hub")}

    def script(self, name, text):
        path = self.place / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)
        return path

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        commands = [f"netns add {self.hub}", f"-n {self.hub} link set lo up", f"-n {self.hub} link add hub type bridge",
                    f"-n {self.hub} addr add 10.77.255.254/16 dev hub", f"-n {self.hub} link set hub up"]
        for index, name in enumerate(self.names):
            commands += [f"netns add {name}", f"-n {name} link set lo up",
                         f"-n {name} link add up0 type veth peer name n{index} netns {self.hub}",
                         f"-n {name} addr add 10.77.{index // 200}.{1 + index % 200}/16 dev up0", f"-n {name} link set up0 up",
                         f"-n {self.hub} link set n{index} master hub", f"-n {self.hub} link set n{index} up"]
        for command in commands:
            run("ip", *command.split())
        weft = self.options.binaries / "weft"
        # ssh HOST -- PROGRAM...: the host's number is that of its namespace.
        self.script("ssh", f"""while [ "$1" != -- ]; do shift; done
number=${{2#n}}
export SSH_CONNECTION="10.77.255.254 1 10.77.$((number / 200)).$((1 + number % 200)) 22"
export XDG_RUNTIME_DIR={self.place}/run-$number
mkdir -p -m 700 $XDG_RUNTIME_DIR
shift 3
exec nsenter --net=/run/netns/weft-{os.getpid()}-$number {weft} "$@"
""")
        # A rank has the namespace and the runtime directory of its node.
        self.script("rank", f"""export XDG_RUNTIME_DIR={self.place}/run-$PMI_RANK
exec nsenter --net=/run/netns/weft-{os.getpid()}-$PMI_RANK "$@"
""")
        (self.place / "run-hub").mkdir(mode=0o700, exist_ok=True)
        hosts = self.place / "hosts"
        hosts.write_text("".join(f"n{index} store={self.place}/store-{index}\n" for index in range(self.count)))
        for index in range(self.count):
            (self.place / f"store-{index}").mkdir(exist_ok=True)
        self.weft("up", NAME, "--hosts", hosts)
        self.weft("layout", "--split", f"{NAME}:/")

    def __exit__(self, *_):
        with contextlib.suppress(SystemExit):
            self.weft("down", "--force", NAME)
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        for path in self.place.glob("store-*"):
            shutil.rmtree(path)

    def weft(self, *words):
        return run("ip", "netns", "exec", self.hub, self.options.binaries / "weft", *words, env=self.environment)

    def counted(self):
        """Calls of shards, bytes of data by sockets, bytes in shards' stores, bytes on the bridge, requests at nodes."""
        nodes = json.loads(self.weft("status", "--json", NAME))["file_systems"][0]["nodes"]
        shards = [shard for node in nodes for shard in node["shards"]]
        sockets = sum(count for node in nodes for name, count in node["counters"].items() if name.endswith("_bytes"))
        statistics = json.loads(run("ip", "-n", self.hub, "-j", "-s", "link", "show", "type", "veth"))
        wire = sum(link["stats64"]["rx"]["bytes"] for link in statistics)
        requests = sum(node["counters"]["requests"] for node in nodes)
        return (sum(shard["calls"] for shard in shards), sockets, sum(shard["store_bytes"] for shard in shards), wire, requests)

    def look(self):
        """What looking at the nodes costs: its session ends at each of them. (One time in ten that comes late, and the
        calls of a row are one per node more or less.)"""
        before = self.counted()
        return [after - earlier for after, earlier in zip(self.counted(), before, strict=True)]

    def mpi(self, program, *words, environment=None):
        more = [f"{name}={value}" for name, value in (environment or {}).items()]
        return json.loads(self.weft_mpiexec(more, "-n", self.count, self.place / "rank", program, *words))

    def weft_mpiexec(self, variables, *words):
        launch = ["ip", "netns", "exec", self.hub, "env", *variables, self.options.binaries / "weft", "mpiexec", "--driver",
                  self.options.driver, *words]
        return run(*launch, env=self.environment)

    def nodes_of_parts(self, path):
        return len({part["node"] for part in json.loads(self.weft("stat", "--json", f"{NAME}:{path}"))[0]["parts"]})


def counts(options, place, program):
    """What one file costs so many ranks: {ranks: ...}"""
    lines = []
    for ranks in options.ranks:
        with Nodes(options, ranks, place) as nodes:
            nodes.mpi(program, f"weft:{NAME}:/first", 1, BYTES, "segmented")
            for pattern in ("segmented", "strided"):
                found = {}
                for records in (FEW, MANY):
                    say(f"{ranks} ranks, {pattern}, {records} records")
                    look = nodes.look()
                    before = nodes.counted()
                    nodes.mpi(program, f"weft:{NAME}:/{pattern}-{records}", records, BYTES, pattern)
                    found[records] = [after - earlier - more
                                      for after, earlier, more in zip(nodes.counted(), before, look, strict=True)]
                homes = nodes.nodes_of_parts(f"/{pattern}-{MANY}")
                calls, sockets, stored, wire, requests = zip(found[FEW], found[MANY], strict=True)
                lines.append([ranks, pattern, homes, sum(sockets), *(f"{count / ranks:.1f}" for count in calls),
                              *(f"{count / ranks:.0f}" for count in stored), *(f"{count / ranks / 1024:.1f}" for count in wire),
                              *(f"{count / ranks:.1f}" for count in requests)])
    pairs = [f">{what}, {records} records"
             for what in ("calls per rank", "index bytes per rank", "KiB on the wire per rank", "requests at nodes per rank")
             for records in (FEW, MANY)]
    return table([">ranks", "pattern", ">nodes with parts", ">data by sockets, bytes", *pairs], lines)


def memory(options, place, program):
    """What the driver adds to a rank, beside the same program on a file of the machine with mpich's own MPI-IO."""
    lines = []
    for ranks in options.memory:
        launch = [shutil.which("mpiexec.hydra") or "mpiexec", "-n", ranks, program, f"ufs:{place}/stock", FEW, BYTES, "strided"]
        say(f"{ranks} ranks, memory")
        stock = json.loads(run(*launch))
        (place / "stock").unlink()
        with Nodes(options, ranks, place) as nodes:
            for label, environment in (("auto", {}), ("sockets", {"WEFT_TRANSPORT": "tcp"})):
                own = nodes.mpi(program, f"weft:{NAME}:/{label}", FEW, BYTES, "strided", environment=environment)
                lines.append([ranks, label, *(f"{(own[kind] - stock[kind]) / 1024:.1f}" for kind in ("pss", "private")),
                              *(f"{found[name] * 1e3:.1f}" for found in (own, stock) for name in ("open", "close", "open_again", "close_again"))])
    times = ["opens, and makes it", "closes", "opens", "closes"]
    return table([">ranks", "transport", ">more per rank (PSS), MiB", ">more per rank (written, its own), MiB",
                  *(f">{time}, ms" for time in times), *(f">stock: {time}, ms" for time in times)], lines)


def sessions(options, place):
    """One file of which each of so many sessions writes a part."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(place / "run-sessions")}
    (place / "run-sessions").mkdir(mode=0o700)
    weft = options.binaries / "weft"
    run(weft, "up", NAME, "--nodes", SESSION_NODES, "--store", place, env=environment)
    lines = []
    try:
        say(f"one file, {options.sessions} sessions")
        nodes = json.loads(run(weft, "status", "--json", NAME, env=environment))["file_systems"][0]["nodes"]
        nodes = nodes[:1]
        empty = resident(nodes)
        words = [options.binaries / "bench-sessions", "--name", NAME, "--sizes", options.sessions, "--parts", "--pause"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as program:
            for _ in options.sessions.split(","):
                begun = time.monotonic()
                if not (written := next_line(program)):
                    break
                seconds, kib = time.monotonic() - begun, resident(nodes) - empty
                program.stdin.write("\n")
                program.stdin.flush()
                if not (closed := next_line(program)):
                    break
                program.stdin.write("\n")
                program.stdin.flush()
                costs = [written[kind] for kind in ("connect", "import", "write", "sync")] + [closed["close"], written["ping"]]
                lines.append([written["sessions"], *(f"{cost['microseconds']:.0f}" for cost in costs), f"{seconds:.1f}",
                              f"{kib / written['sessions']:.1f}"])
    finally:
        run(weft, "down", "--force", NAME, env=environment)
    return table([">sessions", ">connect", ">import", ">first write", ">publish", ">close", ">empty call", ">until all have published, s",
                  ">KiB of the shard's node per session"], lines)


def next_line(program):
    """What the program prints; None if it has failed, and has said why."""
    line = program.stdout.readline()
    return json.loads(line) if line else None


def resident(nodes):
    """KiB of the nodes' memory."""
    sizes = [pathlib.Path(f"/proc/{node['pid']}/smaps_rollup").read_text() for node in nodes]
    return sum(int(line.split()[1]) for size in sizes for line in size.splitlines() if line.startswith("Pss:"))


def main():
    options = arguments()
    begun = datetime.datetime.now()
    text = [machine.heading(begun, options, f"all data is on {options.place}")]
    if (options.ranks or options.memory) and os.geteuid() != 0:
        raise SystemExit("namespaces need root; --ranks '' --memory '' measures the rest")
    with tempfile.TemporaryDirectory(prefix="weft-scale-", dir=options.place) as directory:
        place = pathlib.Path(directory)
        program = compiled("scale", place, "mpich")
        if options.ranks:
            text.append(f"## Counts\n\n{FEW} and {MANY} records of {BYTES} bytes of each rank, written, synced and read back, and one more open "
                        f"and close; the program's start and end are in the calls.\n\n{counts(options, place, program)}")
        if options.memory:
            text.append(f"## Memory, opens and closes\n\n{memory(options, place, program)}")
        if options.sessions:
            text.append(f"## One split file, many sessions, one shard\n\nMicroseconds per session, 1,024 of them in a process, one after the other: "
                        f"medians of five batches.\n\n"
                        f"{sessions(options, place)}")
    tell([*text, machine.ending(begun)], options.out, "mpi-scale.md")


if __name__ == "__main__":
    main()

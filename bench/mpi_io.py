#!/usr/bin/env python3
"""MPI-IO on split files beside a file of each rank in memory: IOR's patterns N-1 segmented, N-1 strided and N-N, as in "Design
of Locality-aware MPI-IO for Scalable Shared File Write Performance" (Sugihara and Tatebe, 2020).

    make build mpi && bench/mpi_io.py --binaries target/release [--out DIR]

writes DIR/mpi-io.md, and pictures where Python has matplotlib (Debian: python3-matplotlib). It starts a file system with as
many nodes as ranks on this machine, in memory, and ends it. The limit is one file of each rank in the same tmpfs, written and
read by pwrite and pread of the same processes, in the same round (bench/mpi/ior.c). With mpich and root or fuse3, stock ROMIO on a mount of
the same file system is beside it; --peer LABEL=DIR adds stock ROMIO in a directory of another one. Needs mpich, or with
--mpi openmpi Open MPI, whose processes give a shared processor away while they wait for one another; those of mpich do not.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "suite"))
import machine  # noqa: E402  (the suite is no package)
from table import ratio, table  # noqa: E402

NAME = "mpi-bench"
KIB, MIB = 1 << 10, 1 << 20
# Bytes of a transfer, and of a rank.
SIZES = {4 * KIB: 2 * MIB, 47_008: 47_008 * 1024, MIB: 64 * MIB, 8 * MIB: 128 * MIB}
QUICK = {47_008: 47_008 * 256, MIB: 32 * MIB}
DRIVERS = {"mpich": "libweft-romio.so", "openmpi": "weft-openmpi/mca_io_romio321.so"}
# Open MPI refuses root and more processes than processors, and binds each to one, unless it is told otherwise.
OPEN_MPI = {f"OMPI_{name}": value for name, value in {
    "ALLOW_RUN_AS_ROOT": "1", "ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MCA_rmaps_base_oversubscribe": "1",
    "MCA_hwloc_base_binding_policy": "none", "MCA_mpi_yield_when_idle": "1"}.items()}
OPERATIONS = ("write", "rewrite", "read")
# Processes that share few processors wait for one another for tens of milliseconds in each collective call.
COLLECTIVE_CALLS_MAX = 24


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--mpi", choices=list(DRIVERS), default="mpich", help="default %(default)s")
    parser.add_argument("--out", type=pathlib.Path, help="directory for tables and pictures (default: they are printed only)")
    parser.add_argument("--place", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="a tmpfs (default %(default)s)")
    parser.add_argument("--store", choices=["directory", "region", "memory"], default="directory",
                        help="what nodes store in (default %(default)s)")
    parser.add_argument("--ranks", default="1,2,4,8", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer", action="append", default=[], metavar="LABEL=DIR", help="stock ROMIO in this directory")
    parser.add_argument("--scale", default="1,2,4,8,16", help="ranks for which messages are counted (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two sizes, fewer bytes")
    options = parser.parse_args()
    options.driver = options.binaries.parent / "mpi" / DRIVERS[options.mpi]
    options.ranks = [int(count) for count in options.ranks.split(",")]
    options.scale = [int(count) for count in options.scale.split(",") if count]
    return options


def say(text):
    print(text, file=sys.stderr, flush=True)


def compiled(name, place, mpi):
    """The program bench/mpi/NAME.c in this directory, for this MPI."""
    compiler = shutil.which(f"mpicc.{mpi}") or "mpicc"
    subprocess.run([compiler, "-std=gnu11", "-O2", "-o", str(place / name), str(HERE / f"mpi/{name}.c")], check=True)
    return place / name


def tell(parts, out, name):
    """Prints a report, and writes it to a file of this name if there is a directory for it."""
    text = "\n".join(parts)
    print(text)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)


class Bench:
    """A file system for so many ranks, of as many nodes if it is not said otherwise."""

    def __init__(self, options, ranks, place, program, nodes=None):
        self.options, self.ranks, self.place, self.program = options, ranks, place, program
        self.nodes = nodes or ranks
        self.weft_command = str(options.binaries.resolve() / "weft")
        self.mount = None

    def weft(self, *words):
        done = subprocess.run([self.weft_command, *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise SystemExit(f"weft {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def __enter__(self):
        store = {"directory": f"{self.place}/store", "region": f"file:{self.place}/store:2GiB", "memory": "memory:4GiB"}
        self.weft("up", NAME, "--nodes", self.nodes, "--store", store[self.options.store])
        try:
            self.weft("mkdir", "--split", f"{NAME}:/split")
            self.weft("mkdir", f"{NAME}:/striped")
            if self.nodes > 1:
                self.weft("layout", "--width", self.nodes, f"{NAME}:/striped")
            point = self.place / "mount"
            point.mkdir(exist_ok=True)
            with contextlib.suppress(SystemExit):
                self.weft("mount", NAME, point)
                self.mount = point
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.mount:
            self.weft("umount", self.mount)
        self.weft("down", "--force", NAME)

    def targets(self, collective):
        """Each its options and its path."""
        more = ",collective" if collective else ""
        found = {
            "limit": f"posix:{self.place}/limit",
            "N-N": f"own:weft:{NAME}:/whole",
            "split": f"mpi,segmented{more}:weft:{NAME}:/split/segmented",
            "split strided": f"mpi,strided{more}:weft:{NAME}:/split/strided",
            "striped": f"mpi,segmented{more}:weft:{NAME}:/striped/segmented",
            "striped strided": f"mpi,strided{more}:weft:{NAME}:/striped/strided",
        }
        if collective:
            found["split, own errors"] = f"mpi,segmented{more},weft_errors/own:weft:{NAME}:/split/own-errors"
        else:
            found["split, immediate"] = f"mpi,segmented,weft_visibility/immediate:weft:{NAME}:/split/immediate"
        if self.mount and self.options.mpi == "mpich":
            found["stock striped"] = f"mpi,segmented{more}:ufs:{self.mount}/striped/stock"
        for peer in self.options.peer:
            label, directory = peer.split("=", 1)
            found[label] = f"mpi,segmented{more}:ufs:{directory}/weft-mpi-bench"
        return found

    def counted(self):
        """Calls of shards, and bytes that came to nodes and went from them by sockets."""
        nodes = json.loads(self.weft("status", "--json", NAME))["file_systems"][0]["nodes"]
        calls = sum(shard["calls"] for node in nodes for shard in node["shards"])
        by_sockets = sum(count for node in nodes for name, count in node["counters"].items() if name.endswith("_bytes"))
        return calls, by_sockets

    def run(self, transfer, size, collective, only=None, rounds=None):
        """Seconds by target and operation: a list of rounds, each the whole, the open and the transfers."""
        found = self.targets(collective)
        return self.run_targets(transfer, size, {label: found[label] for label in found if only in (None, label)}, collective, rounds)

    def run_targets(self, transfer, size, targets, collective=False, rounds=None):
        targets = [f"{label}={target}" for label, target in targets.items()]
        say(f"{self.ranks} ranks, transfers of {transfer} bytes{', collective' if collective else ''}")
        launcher = shutil.which({"mpich": "mpiexec.hydra", "openmpi": "mpiexec.openmpi"}[self.options.mpi]) or "mpiexec"
        words = [self.weft_command, "mpiexec", "--launcher", launcher, "--driver", str(self.options.driver), "-n", str(self.ranks),
                 str(self.program), str(rounds or self.options.rounds), str(transfer), str(size), *targets]
        environment = os.environ | (OPEN_MPI if self.options.mpi == "openmpi" else {})
        done = subprocess.run(words, capture_output=True, text=True, timeout=3600, check=False, env=environment)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        found = {}
        for row in map(json.loads, done.stdout.splitlines()):
            found.setdefault((row["target"], row["operation"]), []).append(row)
        return found


def figures(found, label, operation, field):
    """Bytes per second of each round: while bytes are transferred, or from open to close."""
    return [row["bytes"] / row[field] for row in found[label, operation]]


def against_limit(found, label, operation):
    limit = figures(found, "limit", operation, "transfers")
    own = figures(found, label, operation, "transfers")
    ratios = sorted(a / b for a, b in zip(own, limit, strict=True))
    return statistics.median(ratios), ratios[0], ratios[-1]


def size_of(transfer):
    if transfer % KIB:
        return f"{transfer} B"
    return f"{transfer // MIB} MiB" if transfer >= MIB else f"{transfer // KIB} KiB"


def rates(cells, operation):
    labels = list(dict.fromkeys(label for found in cells.values() for label, _ in found if label != "limit"))
    lines = []
    for (ranks, transfer, collective), found in cells.items():
        limit = statistics.median(figures(found, "limit", operation, "transfers"))
        cell = [ranks, size_of(transfer), "collective" if collective else "independent", f"{limit / 1e9:.2f}"]
        for label in labels:
            if (label, operation) in found:
                median, low, high = against_limit(found, label, operation)
                cell.append(f"{median:.2f} ({low:.2f}-{high:.2f})")
            else:
                cell.append(None)
        lines.append(cell)
    return table([">ranks", ">transfer", "calls", ">limit, GB/s", *(f">{label}" for label in labels)], lines)


def opens(cells):
    """Milliseconds of a collective open, and of what comes after the last transfer until all have closed."""
    lines = []
    for (ranks, transfer, collective), found in cells.items():
        if collective or transfer != MIB:
            continue
        for label in ("split", "striped", "stock striped", "N-N"):
            rows = found.get((label, "rewrite"))
            if rows:
                open_ms = statistics.median(row["open"] for row in rows) * 1e3
                close_ms = statistics.median(row["seconds"] - row["open"] - row["transfers"] for row in rows) * 1e3
                lines.append([ranks, label, f"{open_ms:.1f}", f"{max(close_ms, 0):.1f}"])
    return table([">ranks", "target", ">open, ms", ">close, ms"], lines)


def goals(cells):
    """What split files are to reach."""
    lines = []
    for (ranks, transfer, collective), found in cells.items():
        name = f"{ranks} ranks, {size_of(transfer)}, {'collective' if collective else 'independent'}"
        for operation in OPERATIONS:
            if transfer >= MIB:
                median, _, high = against_limit(found, "split", operation)
                lines.append([name, operation, "split, of the limit", ">= 0.85", ratio(median), verdict(median, high, 0.85)])
            pairs = [("split", "N-N", 1.0)] if transfer >= MIB else []
            pairs += [("split strided", "split", 0.75)] if transfer == 47_008 else []
            for of, to, goal in pairs:
                paired = zip(figures(found, of, operation, "transfers"), figures(found, to, operation, "transfers"), strict=True)
                ratios = sorted(a / b for a, b in paired)
                median = statistics.median(ratios)
                lines.append([name, operation, f"{of}, of {to}", f">= {goal}", ratio(median), verdict(median, ratios[-1], goal)])
    met = sum(line[-1] == "yes" for line in lines)
    return table(["", "operation", "what", ">goal", ">median", "met"], lines) + f"\nGoals met: {met} of {len(lines)}.\n"


def scale(options, place, program):
    """Messages for more and more ranks: each writes 64 pieces of 47,008 bytes in turn with the others, writes them once
    more and reads them back."""
    lines = []
    for ranks in options.scale:
        with Bench(options, ranks, place, program) as bench:
            bench.run(47_008, 47_008 * 64, collective=False, only="split strided", rounds=1)
            before = bench.counted()
            bench.run(47_008, 47_008 * 64, collective=False, only="split strided", rounds=1)
            calls, by_sockets = (after - earlier for after, earlier in zip(bench.counted(), before, strict=True))
            lines.append([ranks, calls, f"{calls / ranks:.1f}", by_sockets])
    return table([">ranks", ">calls of metadata", ">per rank", ">bytes of data by sockets"], lines)


def verdict(median, high, goal):
    return "yes" if median >= goal else "**no**, within the spread" if high >= goal else "**no**"


def matplotlib_if_there():
    try:
        import matplotlib  # noqa: PLC0415  (not everybody has it)
    except ImportError:
        say("no pictures: matplotlib is not here (Debian: python3-matplotlib)")
        return None
    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    return plt


def drawn(plt, lines, axis_label, path, title):
    """A picture of three axes. `lines(operation)`: a label, and points of x, median, lowest and highest."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, operation in zip(axes, OPERATIONS, strict=True):
        for label, points in lines(operation):
            x, median, low, high = zip(*points, strict=True)
            errors = [[m - l for m, l in zip(median, low, strict=True)], [h - m for m, h in zip(median, high, strict=True)]]
            axis.errorbar(x, median, yerr=errors, marker="o", capsize=3, label=label)
        axis.set(title=operation, xlabel=axis_label)
    axes[0].legend(fontsize="small")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path)


def labels_of(chosen):
    return dict.fromkeys(label for found in chosen.values() for label, _ in found)


def pictures(cells, place):
    """Ratios to the limit over the size of transfers, for the most ranks; and rates over the number of ranks."""
    plt = matplotlib_if_there()
    if plt is None:
        return ""
    most = max(ranks for ranks, _, _ in cells)
    of_most = {key: found for key, found in cells.items() if key[0] == most and not key[2]}
    of_sizes = {key: found for key, found in cells.items() if key[1] == MIB and not key[2]}

    def ratios(operation):
        for label in labels_of(of_most):
            if label != "limit":
                yield label, [(size_of(key[1]), *against_limit(found, label, operation)) for key, found in of_most.items()]

    def gigabytes(operation):
        for label in labels_of(of_sizes):
            points = [(key[0], [rate / 1e9 for rate in figures(found, label, operation, "transfers")])
                      for key, found in of_sizes.items() if (label, operation) in found]
            yield label, [(ranks, statistics.median(rates), min(rates), max(rates)) for ranks, rates in points]

    drawn(plt, ratios, "bytes of a transfer", place / "mpi-io.svg", f"{most} ranks, independent calls: of a file per rank in a tmpfs")
    drawn(plt, gigabytes, "ranks", place / "mpi-io-ranks.svg", "transfers of 1 MiB, independent calls: GB/s of all ranks")
    return "![rates over the size of transfers](mpi-io.svg)\n\n![rates over the number of ranks](mpi-io-ranks.svg)\n\n"


def main():
    options = arguments()
    begun = datetime.datetime.now()
    cells = {}
    text = [machine.heading(begun, options, f"all data is on {options.place}, stores: {options.store}, MPI: {options.mpi}")]
    with tempfile.TemporaryDirectory(prefix="weft-mpi-", dir=options.place) as directory:
        place = pathlib.Path(directory)
        program = compiled("ior", place, options.mpi)
        for ranks in options.ranks:
            with Bench(options, ranks, place, program) as bench:
                for transfer, size in (QUICK if options.quick else SIZES).items():
                    for collective in (False, True):
                        bytes_of_rank = min(size, COLLECTIVE_CALLS_MAX * transfer) if collective else size
                        cells[ranks, transfer, collective] = bench.run(transfer, bytes_of_rank, collective)
        counts = scale(options, place, program)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        text.append(pictures(cells, options.out))
    for operation in OPERATIONS:
        text.append(f"## {operation}: ratios to the limit, median (lowest-highest)\n\n{rates(cells, operation)}")
    text.append(f"## Goals\n\n{goals(cells)}")
    text.append(f"## Open and close, transfers of 1 MiB, medians\n\n{opens(cells)}")
    if options.scale:
        text.append("## Messages, counted\n\nOf three opens, two writes, a read and three closes of one file, and of the program's "
                    f"start and end.\n\n{counts}")
    tell([*text, machine.ending(begun)], options.out, "mpi-io.md")


if __name__ == "__main__":
    os.umask(0o022)
    main()

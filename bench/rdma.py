#!/usr/bin/env python3
"""What RDMA brings: figures 5 to 9 of "RDMA access in the Gfarm file system" (Tatebe and others, 2017), and what surrounds
them, for a file system that runs, or one that this starts on this machine's memory.

With adapters: `weft up job --hosts FILE` as usual, then on a host that stores nothing

    bench/rdma.py --binaries target/release --out DIR job

writes DIR/rdma.md with tables, and pictures beside it. What docs/rdma.md predicts for the adapter is in the last table. Without
NAME a file system of one node is started, used and ended; the bare limit of UCX is measured only then.
"""

import argparse
import datetime
import glob
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "suite"))
import machine  # noqa: E402  (the suite is no package)
from table import ratio, size_text, table  # noqa: E402
from weft import memory_bytes, ticks  # noqa: E402

MIB = 1 << 20
REQUESTS = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB"
IDLE_MOUNTS = 4
IDLE_SECONDS = 10


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("name", nargs="?", help="file system (default: one is started on this machine)")
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory for tables and pictures")
    parser.add_argument("--store", default="/dev/shm/weft-rdma", help="of a file system that is started (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", default="1GiB", help="bytes of all processes together (default %(default)s)")
    parser.add_argument("--gbit", type=float, help="rate of the adapter (default: as the kernel says)")
    parser.add_argument("--only", help="parts, separated by commas: " + ", ".join(PARTS))
    parser.set_defaults(quick=False)
    options = parser.parse_args()
    options.rounds = options.runs
    return options


class Bench:
    """The file system and the commands for it."""

    def __init__(self, options):
        self.options = options
        self.name = options.name or "rdma-bench"
        self.out = options.out
        self.runtime = None

    def weft(self, *words, seconds=1800):
        words = [str(self.options.binaries / "weft"), *map(str, words)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def thput(self, *words, size=None, runs=None):
        print("weft bench thput", *words, file=sys.stderr, flush=True)
        size, runs = size or self.options.size, runs or self.options.runs
        return json.loads(self.weft("bench", "thput", self.name, "--size", size, "--runs", runs, "--json", *words))["results"]

    def __enter__(self):
        if not self.options.name:
            self.weft("up", self.name, "--nodes", 1, "--store", self.options.store)
        return self

    def __exit__(self, *_):
        if not self.options.name:
            self.weft("down", "--force", self.name)


def label(row):
    words = [row["transport"], row["rpc"] or "", row["front"].replace("_", " ") if row["front"] != "native" else ""]
    return " ".join(word for word in words if word)


def by_cell(rows):
    cells = {}
    for row in rows:
        cells.setdefault((row["operation"], row["processes"], row["request"]), []).append(row)
    return cells


def rates(rows):
    """A row for each cell, a column for each transport: MiB/s, times the first, seconds of processor per GiB."""
    cells = by_cell(rows)
    names = [label(row) for row in next(iter(cells.values()))]
    lines = []
    for (operation, processes, request), found in cells.items():
        figures = [
            f"{row['bytes_per_second'] / MIB:.0f}, {row['ratio_to_first']:.2f}, "
            f"{row['client_cpu_seconds_per_gib']:.2f}+{row['node_cpu_seconds_per_gib']:.2f}"
            for row in found
        ]
        lines.append([operation, processes, size_text(request), *figures])
    return table(["operation", ">processes", ">request", *(">" + name for name in names)], lines)


def figures_5_and_6(bench):
    """Native: over requests, and over processes."""
    transports = ["--transport", "tcp,static,dynamic,auto"]
    five = bench.thput(*transports, "--request", REQUESTS, "--plot", bench.out / "figure5.svg")
    six = bench.thput(*transports, "-p", "1,2,4,9", "--request", "4MiB", "--plot", bench.out / "figure6.svg")
    return ("## Figures 5 and 6: native\n\nMiB/s, times TCP in the same run, processor seconds of clients+nodes per GiB.\n\n"
            f"![figure 5](figure5.svg)\n\n{rates(five)}\n![figure 6](figure6.svg)\n\n{rates(six)}")


def figures_7_to_9(bench):
    """Through mounts, one transport after the other beside its native client."""
    requests = ["--request", "64KiB,128KiB,1MiB,4MiB"]
    text = "## Figures 7 to 9: through mounts\n\nAs above, beside the native client by the same transport.\n\n"
    for number, transport in ((7, "tcp"), (8, "static"), (9, "dynamic")):
        plot = bench.out / f"figure{number}.svg"
        rows = bench.thput("--posix", "--transport", transport, *requests, "--plot", plot)
        text += f"### {transport}\n\n![figure {number}]({plot.name})\n\n{rates(rows)}\n"
    rows = bench.thput("--posix", "--transport", "auto", *requests)
    text += f"### auto, what a mount does unless it is told otherwise\n\n{rates(rows)}\n"
    rows = bench.thput("--posix", "--direct", "--transport", "auto", *requests)
    text += f"### auto, files opened with O_DIRECT, beside native handles that buffer nothing either\n\n{rates(rows)}\n"
    return text


def latency(bench):
    """Small requests that wait for their answer."""
    rows = bench.thput("--direct", "--request", "4KiB", "--transport", "tcp,static", "--rpc", "socket,am", size="64MiB",
                       runs=max(9, bench.options.runs))
    lines = [[row["operation"], label(row), f"{row['p50_us']:.1f}", f"{row['p99_us']:.1f}"] for row in rows]
    return "## Latency: 4 KiB, unbuffered, microseconds\n\n" + table(["operation", "transport", ">p50", ">p99"], lines)


def auto(bench):
    """Whether `auto` takes the better one: medians of 9."""
    rows = bench.thput("--transport", "static,dynamic,auto", "--request", "64KiB,256KiB,1MiB,4MiB,16MiB", runs=9)
    lines = []
    for (operation, processes, request), found in by_cell(rows).items():
        static, dynamic, chosen = (row["bytes_per_second"] for row in found)
        better, worse = max(static, dynamic), min(static, dynamic)
        differ = better >= 1.2 * worse
        verdict = "-" if not differ else "worse" if abs(chosen - worse) < abs(chosen - better) else "better"
        lines.append([operation, processes, size_text(request), *(f"{rate / MIB:.0f}" for rate in (static, dynamic, chosen)),
                      verdict])
    columns = ["operation", ">processes", ">request", ">static", ">dynamic", ">auto", "where they differ by 20%"]
    return "## What `auto` takes, MiB/s, medians of 9\n\n" + table(columns, lines)


def bare(bench):
    """UCX alone, between two processes of this machine; and Weft beside it in the same minute."""
    if bench.options.name:
        return "## UCX alone\n\nNot measured: it is between two processes of one machine.\n"
    rounds, requests = max(3, bench.options.runs), "1MiB,4MiB"
    words = [str(bench.options.binaries / "bench-ucx"), "--request", requests, "--size", bench.options.size, "--runs", "1"]
    limits, ours = {}, {}
    for _ in range(rounds):
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
        for row in map(json.loads, done.stdout.splitlines()):
            key = (row["operation"], row["request"], row["memory"], row["pages"])
            limits.setdefault(key, []).append(row["bytes_per_second"])
        # The first run of new clients makes their buffers: the median of three is beside it.
        for row in bench.thput("--transport", "dynamic,static,tcp", "--request", requests, runs=3):
            ours.setdefault((row["operation"], row["request"], row["transport"]), []).append(row["bytes_per_second"])
    lines = []
    for (operation, request, transport), found in ours.items():
        cells = [operation, size_text(request), transport, f"{sorted(found)[rounds // 2] / MIB:.0f}"]
        for pages in ("first", "again"):
            limit = limits[(operation, request, "own", pages)]
            cells += [f"{sorted(limit)[rounds // 2] / MIB:.0f}",
                      ratio(sorted(a / b for a, b in zip(found, limit))[rounds // 2])]
        lines.append(cells)
    columns = ["operation", ">request", "transport", ">MiB/s", ">UCX, pages first used", ">ratio", ">UCX, used before", ">ratio"]
    return ("## UCX alone: pages of a mapped file into the other's own memory, and out of it\n\n"
            f"Medians of {rounds} rounds, each of which measured both.\n\n" + table(columns, lines))


def idle(bench):
    """Memory and processor time of connections that were used and are not any more."""
    nodes = [node["pid"] for node in json.loads(bench.weft("status", "--json", bench.name))["file_systems"][0]["nodes"]]
    lines = []
    for transport in ("tcp", "ucx"):
        points = [bench.out.resolve() / f"idle-{transport}-{number}" for number in range(IDLE_MOUNTS)]
        before = sum(map(memory_bytes, nodes))
        try:
            for point in points:
                point.mkdir()
                bench.weft("mount", bench.name, point, "-o", f"transport={transport}")
                (point / "idle").write_bytes(bytes(4 * MIB))
                (point / "idle").read_bytes()
            time.sleep(1)
            used, begun = sum(map(memory_bytes, nodes)) - before, sum(map(ticks, nodes))
            time.sleep(IDLE_SECONDS)
            seconds = (sum(map(ticks, nodes)) - begun) / os.sysconf("SC_CLK_TCK")
            lines.append([transport, f"{used / IDLE_MOUNTS / MIB:.1f}", f"{seconds:.2f}"])
        finally:
            for point in points:
                if point.is_mount():
                    bench.weft("umount", point)
                if point.is_dir():
                    point.rmdir()
    return (f"## Idle: {IDLE_MOUNTS} clients that have written and read 4 MiB\n\n"
            + table(["transport", ">MiB of the node per client", f">its processor seconds in {IDLE_SECONDS} s"], lines))


def predicted(bench):
    """What the counts of docs/rdma.md say for this adapter and this processor, beside what is measured."""
    found = [pathlib.Path(path).read_text() for path in glob.glob("/sys/class/infiniband/*/ports/*/rate")]
    gbit = bench.options.gbit or max((float(text.split()[0]) for text in found), default=None)
    if gbit is None:
        return "## Predicted and measured\n\nNo adapter: give --gbit to compare with one.\n"
    copy, per_second, request = copy_rate(), gbit / 8 * 1e9, 4 * MIB
    small = bench.thput("--direct", "--request", "4KiB", "--transport", "static", size="16MiB")
    trip = next(row["p50_us"] for row in small if row["operation"] == "read") / 1e6
    expected = {
        "dynamic": min(1 / (1 / per_second + trip / request), copy),
        "static": 1 / (max(1 / per_second, 1 / copy) + trip / request),
    }
    lines = []
    for row in bench.thput("--transport", "static,dynamic", "--request", "4MiB"):
        rate = expected[row["transport"]]
        lines.append([row["operation"], row["transport"], f"{rate / MIB:.0f}", f"{row['bytes_per_second'] / MIB:.0f}",
                      ratio(row["bytes_per_second"] / rate)])
    return (f"## Predicted and measured, 4 MiB: {gbit:g} Gbit/s, copies of {copy / 1e9:.1f} GB/s, round trips of "
            f"{trip * 1e6:.1f} us\n\n" + table(["operation", "transport", ">predicted MiB/s", ">measured", ">ratio"], lines))


def copy_rate():
    """Bytes that one core copies per second, of more than its caches hold; the best of several."""
    source, target = memoryview(bytearray(64 * MIB)), memoryview(bytearray(64 * MIB))
    best = 0.0
    for _ in range(5):
        begun = time.perf_counter()
        target[:] = source
        best = max(best, len(source) / (time.perf_counter() - begun))
    return best


PARTS = {"bare": bare, "native": figures_5_and_6, "mounts": figures_7_to_9, "latency": latency, "auto": auto, "idle": idle,
         "predicted": predicted}


def main():
    options = arguments()
    chosen = options.only.split(",") if options.only else list(PARTS)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise SystemExit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now()
    text = [machine.heading(now, options)]
    with Bench(options) as bench:
        for part in chosen:
            text.append(PARTS[part](bench))
            print(text[-1], flush=True)
    text.append(machine.ending(now))
    (options.out / "rdma.md").write_text("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The region store beside the files of XFS and ext4, and the bare device: what "Implementation and evaluation of an object
storage for non-volatile devices" (Takatsu, Hiraga and Tatebe, 2018) measured in its figures 5 to 7.

    bench/region.py --binaries target/release --out DIR

writes DIR/region.md. It makes a device in memory for itself (zram), on which everything is lost, or takes the one that
--device names. Needs root, for that and for the file systems' mounts, and mkfs.xfs and mkfs.ext4.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "suite"))
import machine  # noqa: E402  (the suite is no package)
from table import size_text, table  # noqa: E402

MIB = 1 << 20
ZRAM = pathlib.Path("/sys/class/zram-control")
FILE_SYSTEMS = {"xfs": ["mkfs.xfs", "-q", "-f"], "ext4": ["mkfs.ext4", "-q", "-F"]}
THREADS = (1, 2, 4, 8, 16)
REQUESTS = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB")
OPERATIONS = ("first write", "write", "random write", "read", "random read")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory for the tables")
    parser.add_argument("--device", type=pathlib.Path, help="block device, all of which is lost (default: one in memory)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", default="256MiB", help="bytes that are written and read (default %(default)s)")
    parser.add_argument("--count", type=int, default=50_000, help="objects and files that are made (default %(default)s)")
    parser.set_defaults(quick=False)
    options = parser.parse_args()
    options.rounds = options.runs
    return options


@contextlib.contextmanager
def device_of(options):
    """The device that was named, or one in memory that is taken away again."""
    if options.device:
        yield options.device
        return
    if not (ZRAM / "hot_add").exists():
        raise SystemExit("skipped: this kernel has no zram; name a device with --device")
    number = (ZRAM / "hot_add").read_text().strip()
    try:
        pathlib.Path(f"/sys/block/zram{number}/disksize").write_text("6G")
        yield pathlib.Path(f"/dev/zram{number}")
    finally:
        (ZRAM / "hot_remove").write_text(number)


@contextlib.contextmanager
def mounted(kind, device):
    """The device with a new file system, mounted."""
    subprocess.run([*FILE_SYSTEMS[kind], str(device)], check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="weft-region-") as directory:
        subprocess.run(["mount", str(device), directory], check=True)
        try:
            yield pathlib.Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


class Bench:
    """Runs the workloads, and keeps what they reached: by operation, size or threads, and on what."""

    def __init__(self, options, device):
        self.options, self.device, self.rows = options, device, {}

    def measure(self, name, on, place, words):
        words = [str(self.options.binaries / "bench-region"), *words, "--on", on, "--place", str(place)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        for line in done.stdout.splitlines():
            row = json.loads(line)
            self.rows.setdefault((row["operation"], row["by"]), {}).setdefault(name, []).append(row)

    def everywhere(self, words, raw):
        """One workload on all, side by side in time."""
        print("bench-region", *words, file=sys.stderr, flush=True)
        self.measure("store", "store", self.device, words)
        if raw:
            self.measure("raw", "raw", self.device, words)
        for kind in FILE_SYSTEMS:
            with mounted(kind, self.device) as directory:
                self.measure(kind, "files", directory, words)

    def figure(self, key, name, field="per_second"):
        return statistics.median(row[field] for row in self.rows[key][name])

    def ratio(self, key, name, others):
        """To the best of the others in the same round; the median of that."""
        rounds = range(len(self.rows[key][name]))
        best = [max(self.rows[key][other][number]["per_second"] for other in others) for number in rounds]
        return statistics.median(self.rows[key][name][number]["per_second"] / best[number] for number in rounds)


def creations(bench):
    lines = []
    for operation in ("create", "create, durable"):
        for threads in THREADS:
            key = (operation, threads)
            rates = [f"{bench.figure(key, name) / 1e3:.1f}, {bench.figure(key, name, 'cpu'):.1f}" for name in ("store", *FILE_SYSTEMS)]
            lines.append([operation, threads, *rates, f"{bench.ratio(key, 'store', FILE_SYSTEMS):.2f}",
                          f"{bench.figure(key, 'store', 'writes'):.3f}", f"{bench.figure(key, 'store', 'flushes'):.3f}"])
    columns = ["operation", ">threads", *(f">{name}" for name in ("store", *FILE_SYSTEMS)), ">of the best", ">writes each", ">flushes each"]
    return "## Creations, thousands per second, and processor microseconds for each\n\n" + table(columns, lines)


def data(bench):
    names, lines = ("store", "raw", *FILE_SYSTEMS), []
    for operation in OPERATIONS:
        for request in sorted({by for found, by in bench.rows if found == operation}):
            key = (operation, request)
            rates = [f"{bench.figure(key, name) / MIB:.0f}, {bench.figure(key, name, 'cpu'):.2f}" for name in names]
            each = "/".join(f"{bench.figure(key, 'store', field):.2f}" for field in ("writes", "reads", "flushes"))
            lines.append([operation, size_text(request), *rates, f"{bench.ratio(key, 'store', FILE_SYSTEMS):.2f}",
                          f"{bench.ratio(key, 'store', ('raw',)):.2f}", each])
    columns = ["operation", ">request", *(f">{name}" for name in names), ">of the best files", ">of raw", ">writes/reads/flushes each"]
    return ("## Reads and writes, MiB/s, and processor seconds per GiB\n\nEach write is safe before the next.\n\n"
            + table(columns, lines))


def main():
    options = arguments()
    if os.geteuid() != 0:
        raise SystemExit("skipped: it needs root, for a device and for mounts")
    missing = [words[0] for words in FILE_SYSTEMS.values() if not shutil.which(words[0])]
    if missing:
        raise SystemExit(f"skipped: {', '.join(missing)} are not here (Debian: xfsprogs, e2fsprogs)")
    options.out.mkdir(parents=True, exist_ok=True)
    where = f"the device is {options.device}" if options.device else "the device is zram, in memory"
    text = machine.heading(datetime.datetime.now(), options, where)
    with device_of(options) as device:
        bench = Bench(options, device)
        for _ in range(options.runs):
            for threads in THREADS:
                for durable in ([], ["--durable"]):
                    bench.everywhere(["create", "--threads", str(threads), "--count", str(options.count), *durable], raw=False)
            for request in REQUESTS:
                bench.everywhere(["data", "--request", request, "--size", options.size], raw=True)
    text += "\n" + creations(bench) + "\n" + data(bench)
    (options.out / "region.md").write_text(text)
    print(options.out / "region.md")


if __name__ == "__main__":
    main()

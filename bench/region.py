#!/usr/bin/env python3
"""The region store beside the files of XFS and ext4, and the bare device: what "Implementation and evaluation of an object
storage for non-volatile devices" (Takatsu, Hiraga and Tatebe, 2018) measured in its figures 5 to 7: objects that are
made, by threads, and writes and reads, by bytes of a request.

    bench/region.py --binaries target/release [--out DIR]

writes DIR/region.md, and pictures where Python has matplotlib (Debian: python3-matplotlib). It makes devices in memory
for itself (zram), on which everything is lost, or takes those that --device names: four of one kind, or partitions of
one, on which those who are compared work by turns; each round each of them has another one. Needs root, for that and for
the file systems' mounts, and mkfs.xfs and mkfs.ext4.
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
# For directories, and what a file system has itself.
SPARE_INODES = 10_000
THREADS = (1, 2, 4, 8, 16)
REQUESTS = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB")
COMMITS = (1, 100, 100_000)
WRITES, READS = ("first write", "write", "random write"), ("read", "random read")
NAMES = ("store", "versions", "raw", *FILE_SYSTEMS)
# One for the store and the bare device, one for versions, one for each file system.
DEVICES = 2 + len(FILE_SYSTEMS)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("target/release"))
    runs = pathlib.Path(__file__).resolve().parent / "runs"
    parser.add_argument("--out", type=pathlib.Path, default=runs / (datetime.datetime.now().strftime("%Y-%m-%d-%H%M") + "-region"),
                        help="directory for the tables (default bench/runs/DATE-region)")
    parser.add_argument("--device", type=pathlib.Path, action="append", default=[], dest="devices",
                        help="block device, all of which is lost; four times (default: devices in memory)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", default="256MiB", help="bytes that are written and read (default %(default)s)")
    parser.add_argument("--count", type=int, default=50_000, help="objects and files that are made (default %(default)s)")
    parser.add_argument("--objects", type=int, default=10_000_000,
                        help="objects of the store that is opened; 0: none is; a named device has to have 4 KiB for each (default %(default)s)")
    parser.add_argument("--sums", action="store_true", help="stores with checksums of all data")
    parser.set_defaults(quick=False)
    options = parser.parse_args()
    if len(options.devices) not in (0, DEVICES):
        parser.error(f"--device: {DEVICES} are needed, or none")
    options.rounds = options.runs
    return options


@contextlib.contextmanager
def in_memory(size):
    """A device in memory, that is taken away again."""
    number = (ZRAM / "hot_add").read_text().strip()
    try:
        pathlib.Path(f"/sys/block/zram{number}/disksize").write_text(size)
        yield pathlib.Path(f"/dev/zram{number}")
    finally:
        (ZRAM / "hot_remove").write_text(number)


@contextlib.contextmanager
def devices_of(options):
    """The devices that were named, or as many in memory."""
    with contextlib.ExitStack() as stack:
        yield options.devices or [stack.enter_context(in_memory("6G")) for _ in range(DEVICES)]


@contextlib.contextmanager
def mounted(kind, device, files=0):
    """A directory of that name, where a new file system on the device is mounted, with inodes for so many files."""
    # ext4 has one for 16 KiB of the device when nobody says how many; XFS makes them when they are needed.
    inodes = ["-N", str(files + SPARE_INODES)] if kind == "ext4" and files else []
    subprocess.run([*FILE_SYSTEMS[kind], *inodes, str(device)], check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="weft-region-") as place:
        directory = pathlib.Path(place) / kind
        directory.mkdir()
        subprocess.run(["mount", str(device), str(directory)], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", str(directory)], check=True)


class Bench:
    """Runs the workloads, and keeps what they reached: by operation, size or threads, and on what."""

    def __init__(self, options, devices):
        self.options, self.devices, self.rows = options, devices, {}

    def clear(self):
        """Has all devices empty, as a new file system has its own: what they had before would make them slower."""
        for device in self.devices:
            subprocess.run(["blkdiscard", "--force", str(device)], check=True, capture_output=True)

    def measure(self, place, words, name=None):
        """What it prints is kept by this name, or by the one that it says."""
        words = [str(self.options.binaries / "bench-region"), *words, "--place", str(place)]
        words += ["--sums"] if self.options.sums else []
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        for line in done.stdout.splitlines():
            row = json.loads(line)
            self.rows.setdefault((row["operation"], row["by"]), {}).setdefault(name or row["on"], []).append(row)

    def make(self, words, count):
        """So many objects and files, by all in turn."""
        words = [*words, "--count", str(count)]
        print("bench-region", *words, file=sys.stderr, flush=True)
        self.measure(self.devices[0], words)
        for kind in FILE_SYSTEMS:
            with mounted(kind, self.devices[0], count) as directory:
                self.measure(directory, [*words, "--on", "files"], kind)

    def move(self, words):
        """Data, by all in one process."""
        print("bench-region", *words, file=sys.stderr, flush=True)
        self.clear()
        device, other, *rest = self.devices
        with contextlib.ExitStack() as stack:
            for kind, place in zip(FILE_SYSTEMS, rest, strict=True):
                words = [*words, "--files", str(stack.enter_context(mounted(kind, place)))]
            self.measure(device, [*words, "--versions", str(other)])

    def look_back(self, words):
        """Versions beside direct mode."""
        print("bench-region", *words, file=sys.stderr, flush=True)
        self.clear()
        self.measure(self.devices[0], [*words, "--direct", str(self.devices[1])])

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


def identifiers(bench):
    lines = [[threads, *(f"{bench.figure(('create', threads), name) / 1e3:.1f}" for name in ("store", "one by one")),
              *(f"{bench.figure(('create', threads), name, 'writes'):.4f}" for name in ("store", "one by one"))] for threads in THREADS]
    columns = [">threads", ">1024, thousands/s", ">1, thousands/s", ">1024, writes each", ">1, writes each"]
    return "## Creations that are not flushed, by identifiers that are taken at once\n\n" + table(columns, lines)


def opening(options):
    """A store of many objects, left as a killed process leaves it, is opened."""
    with contextlib.nullcontext(options.devices[0]) if options.devices else in_memory("64G") as device:
        bench = Bench(options, [device])
        bench.measure(device, ["create", "--threads", "2", "--count", str(options.objects)])
        bench.measure(device, ["open"])
        bench.measure(device, ["find"])
    lines = [[operation, f"{1e3 / row['per_second']:.0f}", f"{row['memory'] / MIB:.0f}", f"{row['reads']:.0f}"]
             for (operation, _), rows in bench.rows.items() if "open" in operation for row in rows["store"]]
    found = [row for (operation, _), rows in bench.rows.items() if operation == "find" for row in rows["store"]]
    lookups = "".join(f"\nFirst blocks of objects at random: {1e6 / row['per_second']:.1f} us each, {row['cpu']:.1f} us of a processor, "
                      f"{row['reads']:.2f} reads of the device.\n" for row in found)
    return (f"## A store with {options.objects} objects is opened\n\n"
            + table(["", ">ms", ">memory of the process, MiB", ">reads of the device"], lines) + lookups)


def data(bench):
    lines = []
    for operation in (*WRITES, *READS):
        for request in sorted({by for found, by in bench.rows if found == operation}):
            key = (operation, request)
            rates = [f"{bench.figure(key, name) / MIB:.0f}, {bench.figure(key, name, 'cpu'):.2f}" for name in NAMES]
            each = "/".join(f"{bench.figure(key, 'store', field):.2f}" for field in ("writes", "reads", "flushes"))
            lines.append([operation, size_text(request), *rates, f"{bench.ratio(key, 'store', FILE_SYSTEMS):.2f}",
                          f"{bench.ratio(key, 'store', ('raw',)):.2f}", f"{bench.ratio(key, 'versions', ('store',)):.2f}", each])
    columns = ["operation", ">request", *(f">{name}" for name in NAMES), ">of the best files", ">of raw", ">versions of store",
               ">writes/reads/flushes each"]
    return ("## Reads and writes, MiB/s, and processor seconds per GiB\n\nEach write is safe before the next. All take turns in one process, 4 MiB and 4 MiB. "
            "`store`: objects in direct mode; `versions`: objects that keep versions; `raw`: the bare device.\n\n" + table(columns, lines))


def versions(bench):
    lines = []
    for operation in ("first read, 1 MiB", "read, 1 MiB", "random read, 64 KiB", "random read, 4 KiB"):
        for commits in COMMITS:
            key = (operation, commits)
            rates = [f"{bench.figure(key, name) / MIB:.0f}, {bench.figure(key, name, 'cpu'):.2f}" for name in NAMES[:2]]
            each = f"{bench.figure(key, 'versions', 'reads'):.1f}"
            lines.append([operation, commits, *rates, f"{bench.ratio(key, 'versions', ('store',)):.2f}", each])
    text = ("## Objects that keep versions, by commits that wrote them, MiB/s, and processor seconds per GiB\n\n"
            + table(["operation", ">commits", ">direct mode", ">versions", ">of direct mode", ">reads of the device each"], lines))
    lines = [[operation, commits, f"{1e6 / bench.figure((operation, commits), 'versions'):.2f}"]
             for operation in ("list", "as of a version", "clean") for commits in COMMITS]
    return text + ("\n`list` and `clean`: for each version; `as of a version`: the version of a time is looked up, and 4 KiB of it are read. "
                   "Microseconds.\n\n" + table(["operation", ">commits", ">each"], lines))


def pictures(bench):
    """Figures 5 to 7, with the axes of the paper. The text that shows them."""
    try:
        import matplotlib  # noqa: PLC0415  (not everybody has it)
    except ImportError:
        print("no pictures: matplotlib is not here (Debian: python3-matplotlib)", file=sys.stderr)
        return ""
    matplotlib.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    def draw(number, title, operations, by, value, names):
        figure, axes = pyplot.subplots(1, len(operations), figsize=(5 * len(operations), 3.6), squeeze=False)
        for operation, axis in zip(operations, axes[0], strict=True):
            ticks = sorted(found for name, found in bench.rows if name == operation)
            for name in names:
                points = [bench.figure((operation, tick), name) / value[1] for tick in ticks]
                axis.plot(range(len(ticks)), points, marker="o", markersize=4, label=name)
            axis.set_xticks(range(len(ticks)), [by[1](tick) for tick in ticks])
            axis.set(title=operation, xlabel=by[0], ylabel=value[0], ylim=(0, None))
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(bench.options.out / f"figure{number}.svg")
        pyplot.close(figure)
        return f"![{title}](figure{number}.svg)\n\n"

    request, rate = ("bytes of a request", size_text), ("MiB/s", MIB)
    made = draw(5, "Figure 5: objects and files made", ("create", "create, durable"), ("threads", str), ("thousands per second", 1e3),
                ("store", *FILE_SYSTEMS))
    written = draw(6, "Figure 6: writes", WRITES, request, rate, NAMES)
    return "\n## The paper's figures\n\n" + made + written + draw(7, "Figure 7: reads", READS, request, rate, NAMES)


def why_not(options):
    if os.geteuid() != 0:
        return "it needs root, for a device and for mounts"
    if not options.devices and not (ZRAM / "hot_add").exists():
        return "this kernel has no zram; name devices with --device"
    missing = [words[0] for words in FILE_SYSTEMS.values() if not shutil.which(words[0])]
    return f"{', '.join(missing)} are not here (Debian: xfsprogs, e2fsprogs)" if missing else None


def main():
    options = arguments()
    reason = why_not(options)
    if reason:
        print(f"region stores beside file systems: skipped: {reason}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    named = ", ".join(str(device) for device in options.devices)
    where = f"the devices are {named}" if named else "the devices are zram, in memory"
    where += "; stores have checksums of all data" if options.sums else ""
    text = machine.heading(datetime.datetime.now(), options, where)
    with devices_of(options) as devices:
        bench = Bench(options, list(devices))
        for _ in range(options.runs):
            for threads in THREADS:
                words = ["create", "--threads", str(threads)]
                # What is not durable is many more, so that what is put off counts, too.
                bench.make(words, 8 * options.count)
                bench.measure(bench.devices[0], [*words, "--count", str(options.count), "--range", "1"], "one by one")
                bench.make([*words, "--durable"], options.count)
            for request in REQUESTS:
                bench.move(["data", "--request", request, "--size", options.size])
            for commits in COMMITS:
                bench.look_back(["versions", "--commits", str(commits), "--size", options.size])
            # Their memory is not equally fast.
            bench.devices.append(bench.devices.pop(0))
    parts = [creations(bench), identifiers(bench), data(bench), versions(bench) + pictures(bench)]
    if options.objects:
        parts.append(opening(options))
    text += "".join("\n" + part for part in parts)
    (options.out / "region.md").write_text(text)
    print(options.out / "region.md")


if __name__ == "__main__":
    main()

"""Scans: what a data scientist does with files, by the Python package, by the mount, and beside them."""

import contextlib
import os
import shutil
import statistics

from mounts import Sshfs
from package import ROOT, DataPython, Package
from rounds import CellFailed, Samples, measure
from table import gigabytes, ratio, spread, table, thousands
from weft import Weft, WeftMount

SHARE = 3
PROGRAM = ROOT / "bench" / "libraries" / "scans.py"
MIB, QUICK_MIB = 512, 128
SHARDS, QUICK_SHARDS = 64, 16
PLACE = "scans"
SHOWN = {"weft": "`weft://`", "mount": "Weft mount", "tmpfs": "tmpfs", "fsspec": "tmpfs, `file://`", "sshfs": "sshfs"}
# Label and ways of each work of the program. Arrow reads local files without Python; `fsspec` has it read tmpfs through
# a Python file system, as it reads Weft.
WORKS = {
    "parquet": ("Parquet", ["weft", "mount", "tmpfs", "fsspec", "sshfs"]),
    "loader": ("loader", ["weft", "mount", "tmpfs", "sshfs"]),
    "random": ("random reads", ["weft", "mount", "tmpfs", "sshfs"]),
}
# Shown, the figure's name, and the work that measures it.
LARGE = [("Parquet, all", "whole", "parquet"), ("Parquet, 2 columns", "columns", "parquet"),
         ("loader", "loader", "loader")]


class Data:
    """The files, on tmpfs and in Weft. `measure` runs the program beside them."""

    def __init__(self, session):
        self.session = session
        self.plain, self.spooled = session.plain / PLACE, None

    def __enter__(self):
        quick, weft = self.session.options.quick, self.session.service(Weft)
        self.python = self.session.service(DataPython)
        # NumPy's threads for linear algebra have nothing to do, and look for work while others are measured.
        self.environment = dict(self.session.service(Package).environment, OPENBLAS_NUM_THREADS="1")
        self.session.say("making the files")
        self._run("make", self.plain, QUICK_MIB if quick else MIB, QUICK_SHARDS if quick else SHARDS)
        self.url = f"weft://{weft.name}/{PLACE}"
        self._run("put", f"{self.plain}/", self.url)
        return self

    def __exit__(self, *_):
        pass

    def remove(self):
        """Leaves their memory to the next part."""
        with contextlib.suppress(CellFailed):
            self._run("remove", self.url)
        for directory in filter(None, (self.plain, self.spooled)):
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, *words):
        self.session.call(self.python.program, "-B", PROGRAM, *words, environment=self.environment)

    def measure(self, work, place):
        return self.session.json(self.python.program, "-B", PROGRAM, work, place, environment=self.environment)

    def place(self, way):
        """Where the program finds them."""
        if way == "weft":
            return self.url
        if way == "mount":
            return self.session.service(WeftMount, "").point / PLACE
        if way == "sshfs":
            sshfs = self.session.service(Sshfs)
            self.spooled = sshfs.spool / PLACE
            if not self.spooled.exists():
                # The server serves the same memory that is read as tmpfs.
                shutil.copytree(self.plain, self.spooled, copy_function=os.link)
            return sshfs.point / PLACE
        return f"file://{self.plain}" if way == "fsspec" else self.plain


def run(session):
    samples = Samples()
    measure(session, [(label, cells(session, work, ways)) for work, (label, ways) in WORKS.items()], samples)
    if not samples.keys(()):
        return text(session, samples, "")
    data = session.service(Data)
    data.remove()
    return text(session, samples, f"\nWith {data.python.versions}.\n")


def cells(session, work, ways):
    def of(way):
        def cell():
            data = session.service(Data)
            found = data.measure(work, data.place(way))
            return {(what, way): statistics.median(values) for what, values in found.items()}
        return cell

    return [(SHOWN[way], of(way)) for way in ways]


def text(session, samples, versions):
    quick = session.options.quick
    large = [row for shown, what, work in LARGE for row in rows(samples, shown, what, work, gigabytes)]
    small = rows(samples, "4 KiB", "random", "random", thousands)
    columns = ["work", "by", "{}", ">spread", ">by : tmpfs", ">by : mount"]
    return (
        "## Scans: Parquet, a loader and small reads, by Python\n\n"
        f"A data set of {QUICK_MIB if quick else MIB} MiB in 8 Parquet files, not compressed, is read by "
        "`pyarrow.dataset(...).to_table()`: all, and 2 of 10 columns, with Arrow's own access to local files or by "
        f"fsspec. The loader's 2 processes read {QUICK_SHARDS if quick else SHARDS} shards of 8 MiB in samples "
        "of 1 MiB into NumPy arrays, by `pread_into` of the package or by `os.preadv`. GB/s:\n\n"
        + table([name.format(">GB/s") for name in columns], large)
        + "\n20,000 reads of 4 KiB at random places of the shards, by `cat_ranges` of fsspec (`weft://` or `file://`), "
        "256 at a time. Thousand reads per second:\n\n"
        + table([name.format(">thousand/s") for name in columns], small) + versions + samples.reasons()
    )


def rows(samples, shown, what, work, form):
    found = []
    for way in WORKS[work][1]:
        key = (what, way)
        found.append([shown, SHOWN[way], form(samples.median(key)), spread(samples.spread(key), form),
                      *(compared(samples, key, (what, other)) for other in ("tmpfs", "mount"))])
    return found


def compared(samples, key, other):
    return "-" if key == other else ratio(samples.ratio(key, other))

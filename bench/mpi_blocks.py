#!/usr/bin/env python3
"""One process that writes, writes again and reads one file by MPI-IO in blocks of 4 KiB to 32 MiB, as in figures 9 to 11 of "Design of
Locality-aware MPI-IO for Scalable Shared File Write Performance" (Sugihara and Tatebe, 2020): means of ten runs, 90% intervals.

    make build mpi && bench/mpi_blocks.py --binaries target/release [--out DIR] [--peer gfarm=DIR]

writes DIR/mpi-blocks.md, and a picture where Python has matplotlib (Debian: python3-matplotlib). It starts a file system of four
nodes in a tmpfs, and ends it. Beside each other, in the same runs: a file in the same tmpfs by pwrite and pread, files of Weft that
are whole, striped and split, and with --peer stock ROMIO in a directory of another file system. Needs mpich.
"""

import argparse
import datetime
import math
import os
import pathlib
import statistics
import tempfile

import mpi_io
from mpi_io import KIB, MIB, NAME, OPERATIONS, machine, table

BLOCKS = [4 * KIB << step for step in range(14)]
NODES = 4
# 95% quantiles of Student's t, by degrees of freedom, as far as they differ from those of more.
STUDENT = [None, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--driver", type=pathlib.Path, help="libweft-romio.so (default: beside the binaries, in ../mpi)")
    parser.add_argument("--out", type=pathlib.Path, help="directory for table and picture (default: they are printed only)")
    parser.add_argument("--place", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="a tmpfs (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="runs (default %(default)s)")
    parser.add_argument("--size", type=int, default=128, help="MiB of the file (default %(default)s)")
    parser.add_argument("--peer", action="append", default=[], metavar="LABEL=DIR", help="stock ROMIO in this directory")
    options = parser.parse_args()
    options.driver = options.driver or options.binaries.parent / "mpi/libweft-romio.so"
    options.store, options.quick = "directory", False
    return options


def targets(options, place):
    found = {
        "tmpfs": f"posix:{place}/limit",
        "Weft, whole": f"mpi,segmented:weft:{NAME}:/whole",
        "Weft, striped": f"mpi,segmented:weft:{NAME}:/striped/file",
        "Weft, split": f"mpi,segmented:weft:{NAME}:/split/file",
    }
    for label, directory in (peer.split("=", 1) for peer in options.peer):
        found[label] = f"mpi,segmented:ufs:{directory}/weft-mpi-blocks"
    return found


def mean_and_interval(rates):
    """The mean, and half of its 90% interval."""
    if len(rates) < 2:
        return statistics.mean(rates), 0.0
    student = STUDENT[min(len(rates) - 1, len(STUDENT) - 1)]
    return statistics.mean(rates), student * statistics.stdev(rates) / math.sqrt(len(rates))


def rates(cells, label, operation):
    """GB/s by block: mean and half of the interval."""
    return {block: mean_and_interval([rate / 1e9 for rate in mpi_io.figures(found, label, operation, "transfers")])
            for block, found in cells.items()}


def tables(cells, labels):
    for operation in OPERATIONS:
        found = {label: rates(cells, label, operation) for label in labels}
        lines = [[mpi_io.size_of(block), *(f"{found[label][block][0]:.2f} ± {found[label][block][1]:.2f}" for label in labels)]
                 for block in cells]
        yield f"## {operation}, GB/s: mean and 90% interval\n\n{table(['>block', *(f'>{label}' for label in labels)], lines)}"


def picture(cells, labels, place):
    plt = mpi_io.matplotlib_if_there()
    if plt is None:
        return ""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, operation in zip(axes, OPERATIONS, strict=True):
        for label in labels:
            found = rates(cells, label, operation)
            axis.errorbar(list(found), [mean for mean, _ in found.values()], yerr=[half for _, half in found.values()],
                          marker="o", capsize=3, label=label)
        axis.set(title=operation, xlabel="bytes of a block", ylim=(0, None))
        axis.set_xscale("log", base=2)
    axes[0].set_ylabel("GB/s")
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(place / "mpi-blocks.svg")
    return "![rates over the size of blocks](mpi-blocks.svg)\n\n"


def main():
    options = arguments()
    begun = datetime.datetime.now()
    text = [machine.heading(begun, options, f"one process, {NODES} nodes, files of {options.size} MiB; all data is on {options.place}")]
    cells = {}
    with tempfile.TemporaryDirectory(prefix="weft-mpi-", dir=options.place) as directory:
        place = pathlib.Path(directory)
        program = mpi_io.compiled("ior", place, "mpich")
        labels = targets(options, place)
        with mpi_io.Bench(options, 1, place, program, NODES) as bench:
            for block in BLOCKS:
                cells[block] = bench.run_targets(block, max(options.size * MIB, block), labels)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        text.append(picture(cells, labels, options.out))
    mpi_io.tell([*text, *tables(cells, labels), machine.ending(begun)], options.out, "mpi-blocks.md")


if __name__ == "__main__":
    os.umask(0o022)
    main()

"""Mounts: a program that does system calls in a mounted Weft, beside the native client and beside other mounts."""

import os
import pathlib

import files
from gfarm import Gfarm2fs
from mounts import Floor, Sshfs
from parts.data import size_of
from rounds import CellFailed, Samples, measure
from table import Goals, at_least, both, gigabytes, ratio, spread, table, thousands
from weft import Weft, WeftMount

SHARE = 5
REQUESTS = ["4KiB", "64KiB", "128KiB", "1MiB", "4MiB"]
QUICK_REQUESTS = ["128KiB", "1MiB"]
# Smaller requests than these have no goal against the native client, which joins them.
GOAL_REQUESTS = ["128KiB", "1MiB", "4MiB"]
# Modes of ours, and gfarm2fs in the like mode.
MODES = {"": ("default", ["", "big_writes"]), "direct": ("direct", ["direct_io"]), "nopassthrough": ("user space", [])}
META = {"weft": (WeftMount, ""), "gfarm2fs": (Gfarm2fs, ""), "sshfs": (Sshfs,), "floor": (Floor,)}
# Longer than gfarm2fs keeps attributes: its server answers, not its cache.
SETTLE_MS = 1300
SSHFS_REQUEST_MIN = 64 << 10


def run(session):
    samples, groups = Samples(), []
    requests = session.options.requests or (QUICK_REQUESTS if session.options.quick else REQUESTS)
    for processes in session.options.processes:
        for request in requests:
            groups.append((f"{request}, {processes} processes", data_cells(session, processes, request)))
        groups.append((f"empty files, {processes} processes", meta_cells(session, processes)))
    measure(session, groups, samples)
    return data_text(session, samples, requests) + "\n" + meta_text(session, samples) + workload(session)


def size_mib(session):
    return min(session.options.size_mib, 256)


def data_cells(session, processes, request):
    each = (size_mib(session) << 20) // processes

    def mounted(name, *service):
        def cell():
            point = session.service(*service).point
            if name == "sshfs" and size_of(request) < SSHFS_REQUEST_MIN:
                raise CellFailed("sshfs may take minutes for writes of 4 KiB")
            found = files.data(session, point, processes, each, request)
            return {(name, *service[1:], operation, request, processes): row["per_second"] for operation, row in found.items()}
        return cell

    def native():
        found = session.service(Weft).data("auto", processes, each, request)
        return {("native", operation, request, processes): row["bytes_per_second"] for operation, row in found.items()}

    return [
        ("weft mount", mounted("weft", WeftMount, "")),
        ("native", native),
        ("weft mount -o direct", mounted("weft", WeftMount, "direct")),
        ("gfarm2fs", mounted("gfarm2fs", Gfarm2fs, "")),
        ("gfarm2fs -o big_writes", mounted("gfarm2fs", Gfarm2fs, "big_writes")),
        ("gfarm2fs -o direct_io", mounted("gfarm2fs", Gfarm2fs, "direct_io")),
        ("weft mount -o nopassthrough", mounted("weft", WeftMount, "nopassthrough")),
        ("sshfs", mounted("sshfs", Sshfs)),
        ("pass-through FUSE", mounted("floor", Floor)),
    ]


def meta_cells(session, processes):
    counts = {"weft": 4000, "gfarm2fs": 800, "sshfs": 2000, "floor": 8000}

    def mounted(name, *service):
        def cell():
            point = session.service(*service).point
            found = files.meta(session, point, processes, counts[name] // processes, settle_ms=SETTLE_MS)
            return {("meta", name, operation, processes): row["per_second"] for operation, row in found.items()}
        return cell

    def native():
        found = session.service(Weft).meta("auto", processes, counts["weft"] // processes, False)
        return {("meta", "native", operation, processes): row["per_second"] for operation, row in found.items()}

    return [("native", native), *((name, mounted(name, *service)) for name, service in META.items())]


def data_text(session, samples, requests):
    rows, goals = [], Goals()
    for mode in MODES:
        for processes in session.options.processes:
            for operation in ("write", "read", "reread"):
                for request in requests:
                    rows.append(data_row(samples, goals, mode, processes, operation, request))
    columns = ["mount", ">processes", "operation", ">request", ">weft GB/s", ">spread", ">native", ">weft : native",
               ">gfarm2fs", ">weft : gfarm2fs", ">sshfs", ">pass-through FUSE", "goal met"]
    return (
        f"## Mounts: {size_mib(session)} MiB in sequence with system calls, GB/s\n\n"
        "Before `read` the page cache is told to forget the file; `reread` follows at once. Requests of 128 KiB and more: the "
        "goal for direct is 0.80 of the native client, through the page cache 0.80 for `read` and 0.60 for `write`; all: more than "
        "gfarm2fs in its like mode (page cache: the better of default and big_writes; direct: direct_io). gfarm2fs runs "
        "with descriptor passing.\n\n" + table(columns, rows) + "\n" + goals.line() + samples.reasons()
    )


def data_row(samples, goals, mode, processes, operation, request):
    name, peer_options = MODES[mode]
    key = ("weft", mode, operation, request, processes)
    native = ("native", "read" if operation == "reread" else operation, request, processes)
    peer = samples.best([("gfarm2fs", options, operation, request, processes) for options in peer_options])
    of_native, of_peer = samples.ratio(key, native), samples.ratio(key, peer)
    verdict = None
    if peer_options and operation != "reread":
        verdict = at_least(of_peer, 1.0)
        if request in GOAL_REQUESTS:
            bound = 0.60 if mode == "" and operation == "write" else 0.80
            verdict = both(verdict, at_least(of_native, bound))
    judged = goals.judge(verdict) if peer_options and operation != "reread" else "-"
    return [name, processes, operation, request, gigabytes(samples.median(key)), spread(samples.spread(key), gigabytes),
            gigabytes(samples.median(native)), ratio(of_native), gigabytes(samples.median(peer)) if peer else "-",
            ratio(of_peer) if peer else "-", gigabytes(samples.median(("sshfs", operation, request, processes))),
            gigabytes(samples.median(("floor", operation, request, processes))), judged]


def meta_text(session, samples):
    rows, goals = [], Goals()
    for processes in session.options.processes:
        for operation in ("create", "stat", "unlink"):
            keys = [("meta", name, operation, processes) for name in ("weft", "native", "gfarm2fs", "sshfs", "floor")]
            of_peer = samples.ratio(keys[0], keys[2])
            verdict = at_least(of_peer, 1.0)
            rows.append([processes, operation, thousands(samples.median(keys[0])), spread(samples.spread(keys[0]), thousands),
                         *(thousands(samples.median(key)) for key in keys[1:]), ratio(of_peer), goals.judge(verdict)])
    columns = [">processes", "operation", ">weft mount", ">spread", ">native", ">gfarm2fs", ">sshfs", ">pass-through FUSE",
               ">weft : gfarm2fs", "goal met"]
    return (
        "## Mounts: empty files in own directories, thousand operations per second\n\n"
        "The goal is to be ahead of gfarm2fs. Look-ups come 1.3 s after the files were made, from another process.\n\n"
        + table(columns, rows) + "\n" + goals.line()
    )


def workload(session):
    """The workload of WEFT_PEERS (tar, git, databases, ...), when it is given and there is time."""
    peers = os.environ.get("WEFT_PEERS")
    if not peers or session.options.quick:
        return ""
    out = session.directory / "workload.md"
    try:
        point = session.service(WeftMount, "").point
        session.say("workload of WEFT_PEERS")
        session.call(pathlib.Path(peers) / "run.sh", "--out", out, "tmpfs", "passthrough:hp", f"weft={point}", "sshfs:tuned",
                     "gfarm2fs", seconds=1200, environment={"WEFT_SHM": str(session.directory / "peers-workload")})
        return "\n" + out.read_text().replace("# FUSE mounts", "## FUSE mounts", 1)
    except CellFailed as reason:
        return f"\nThe workload of WEFT_PEERS failed: {reason}\n"

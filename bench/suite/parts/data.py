"""Data: sequential writing and reading of files, each process its own, native clients."""

import statistics

import files
from gfarm import Gfarm
from rounds import Samples, measure
from table import Goals, at_least, both, either, gigabytes, ratio, spread, table
from weft import WAYS, Weft

SHARE = 6
REQUESTS = ["4KiB", "64KiB", "1MiB", "4MiB"]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
GIB = 1 << 30
DESCRIPTOR_REPEATS = 3
# The pump moves the same bytes in six ways per cell.
SOCKET_RUNS = 3


def size_of(text):
    return int(text[:-3]) * UNITS[text[-3:]]


def run(session):
    options, samples = session.options, Samples()
    requests = options.requests or REQUESTS
    groups = []
    for processes in options.processes:
        for request in requests:
            groups.append((f"{request}, {processes} processes", cells(session, processes, request)))
    measure(session, groups, samples)
    return text(session, samples, requests)


def cells(session, processes, request):
    each = (session.options.size_mib << 20) // processes

    def of_weft(way, runs=1):
        def cell():
            if way == "memory":
                found = session.service(Weft, 1, "memory", "memory").data("auto", processes, each, request, runs=runs)
            else:
                found = session.service(Weft).data(way, processes, each, request, runs=runs)
            figures = {}
            for operation, row in found.items():
                figures["weft", way, operation, request, processes] = row["bytes_per_second"]
                used = row["client_cpu_seconds"] + row["node_cpu_seconds"]
                figures["cpu", way, operation, request, processes] = used * GIB / row["bytes"]
            return figures
        return cell

    def of_gfarm(way):
        def cell():
            found, _ = session.service(Gfarm).data(way, processes, each, size_of(request))
            return {("gfarm", way, operation, request, processes): row["per_second"] for operation, row in found.items()}
        return cell

    def of_pump(socket):
        def cell():
            found = files.pump(session, socket, processes, each * processes)
            return {("pump", socket, operation, request, processes, way): rate for (operation, way), rate in found.items()}
        return cell

    def of_tmpfs():
        found = files.data(session, session.plain, processes, each, request)
        return {("tmpfs", operation, request, processes): row["per_second"] for operation, row in found.items()}

    return [
        ("pump tcp", of_pump("tcp")),
        ("weft tcp", of_weft("tcp", SOCKET_RUNS)),
        ("gfarm tcp", of_gfarm("tcp")),
        ("gfarm tcp-nodelay", of_gfarm("tcp-nodelay")),
        ("weft unix", of_weft("unix", SOCKET_RUNS)),
        ("pump unix", of_pump("unix")),
        # They do the same system calls: only several of each, in turn, tell them apart from noise.
        *DESCRIPTOR_REPEATS * [
            ("tmpfs", of_tmpfs),
            ("weft auto", of_weft("auto")),
            ("weft memory", of_weft("memory")),
            ("gfarm direct", of_gfarm("direct")),
        ],
    ]


def text(session, samples, requests):
    rows, goals = [], Goals()
    for way in ("tcp", "unix", "auto", "memory"):
        for processes in session.options.processes:
            for operation in ("write", "read"):
                for request in requests:
                    rows.append(row(samples, goals, way, processes, operation, request))
    columns = ["way", ">processes", "operation", ">request", ">weft GB/s", ">spread", ">CPU s/GiB", "gfarm", ">GB/s",
               ">weft : gfarm", "limit", ">GB/s", ">weft : limit", "goal met"]
    return (
        f"## Data: {session.options.size_mib} MiB in sequence, a file per process, native clients\n\n"
        "Through the server (tcp, unix) the goal is 2.00 of Gfarm, or 0.85 of the bare pump through the same kind of socket; "
        "with a passed descriptor it is 0.90 of tmpfs and 1.00 of Gfarm's, all in files on /dev/shm; and with a store in memory "
        "(`--store memory`), likewise. Gfarm: the best of its ways in each row; pump: the way "
        "that is best in all rows of a kind.\n\n"
        + table(columns, rows) + "\n" + goals.line() + samples.reasons()
    )


def best_pump(samples, socket, operation, processes, kind="pump"):
    """The way of the bare pump that is fastest in all its samples: it knows no requests. The best of a few samples of each
    way would be more than any of them reaches."""
    rates = {}
    for key in samples.keys((kind, socket, operation)):
        if key[4] == processes:
            rates.setdefault(key[5], []).extend(samples.values(key))
    return max(rates, key=lambda way: statistics.median(rates[way])) if rates else None


def row(samples, goals, way, processes, operation, request):
    key = ("weft", way, operation, request, processes)
    through_server = way in ("tcp", "unix")
    peers = ("tcp", "tcp-nodelay") if through_server else ("direct",)
    peer = samples.best([("gfarm", name, operation, request, processes) for name in peers])
    if through_server:
        pump = best_pump(samples, way, operation, processes)
        limit, limit_name = ("pump", way, operation, request, processes, pump), f"pump, {pump}"
    else:
        limit, limit_name = ("tmpfs", operation, request, processes), "tmpfs"
    of_peer, of_limit = samples.ratio(key, peer), samples.ratio(key, limit)
    if through_server:
        verdict = either(at_least(of_peer, 2.0), at_least(of_limit, 0.85))
    else:
        verdict = both(at_least(of_limit, 0.90), at_least(of_peer, 1.0))
    return [WAYS[way], processes, operation, request, gigabytes(samples.median(key)),
            spread(samples.spread(key), gigabytes), ratio(samples.median(("cpu", *key[1:]))),
            peer[1] if peer else "-", gigabytes(samples.median(peer)) if peer else None, ratio(of_peer),
            limit_name, gigabytes(samples.median(limit)) if limit else None, ratio(of_limit), goals.judge(verdict)]

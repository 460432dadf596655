"""Metadata: empty files are made, looked up and removed, native clients."""

import files
from gfarm import Gfarm
from rounds import Samples, measure
from table import Goals, at_least, both, ratio, spread, table, thousands
from weft import Weft

SHARE = 2
OPERATIONS = ("create", "stat", "unlink")
# `auto` calls over a Unix socket on the node itself.
WAYS = {"tcp": "tcp", "auto": "unix"}


def run(session):
    samples, groups = Samples(), []
    for processes in session.options.processes:
        for shared in (False, True):
            groups.append((f"{place(shared)}, {processes} processes", cells(session, processes, shared)))
    measure(session, groups, samples)
    return text(session, samples)


def place(shared):
    return "shared directory" if shared else "own directories"


def cells(session, processes, shared):
    quick = session.options.quick
    weft_files, gfarm_files = (5000, 1000) if quick else (20000, 4000)

    def of_weft(way):
        def cell():
            found = session.service(Weft).meta(way, processes, weft_files // processes, shared)
            return {("weft", way, operation, shared, processes): row["per_second"] for operation, row in found.items()}
        return cell

    def of_gfarm(way):
        def cell():
            found = session.service(Gfarm).meta(way, processes, gfarm_files // processes, shared)
            return {("gfarm", way, operation, shared, processes): row["per_second"] for operation, row in found.items()}
        return cell

    def of_tmpfs():
        found = files.meta(session, session.plain, processes, weft_files // processes, shared)
        return {("tmpfs", operation, shared, processes): row["per_second"] for operation, row in found.items()}

    return [
        ("weft tcp", of_weft("tcp")),
        ("gfarm", of_gfarm("direct")),
        ("gfarm nodelay", of_gfarm("tcp-nodelay")),
        ("weft unix", of_weft("auto")),
        ("tmpfs", of_tmpfs),
    ]


def text(session, samples):
    rows, goals = [], Goals()
    for way, socket in WAYS.items():
        for processes in session.options.processes:
            for shared in (False, True):
                for operation in OPERATIONS:
                    rows.append(row(samples, goals, way, socket, processes, shared, operation))
    columns = ["socket", ">processes", "where", "operation", ">weft thousand/s", ">spread", ">gfarm", ">weft : gfarm",
               ">limit (empty call)", ">weft : limit", ">tmpfs", "goal met"]
    return (
        "## Metadata: empty files, native clients, thousand operations per second\n\n"
        "The limit is an empty request on the same connections. The goal is 5.00 of Gfarm; of create with close also 0.60 of "
        "the limit.\n\n" + table(columns, rows) + "\n" + goals.line() + samples.reasons()
    )


def row(samples, goals, way, socket, processes, shared, operation):
    key = ("weft", way, operation, shared, processes)
    limit = ("weft", way, "ping", shared, processes)
    peer = samples.best([("gfarm", name, operation, shared, processes) for name in ("direct", "tcp-nodelay")])
    of_peer, of_limit = samples.ratio(key, peer), samples.ratio(key, limit)
    verdict = at_least(of_peer, 5.0)
    if operation == "create":
        verdict = both(verdict, at_least(of_limit, 0.60))
    return [socket, processes, place(shared), operation, thousands(samples.median(key)),
            spread(samples.spread(key), thousands), thousands(samples.median(peer)) if peer else None, ratio(of_peer),
            thousands(samples.median(limit)), ratio(of_limit),
            thousands(samples.median(("tmpfs", operation, shared, processes))), goals.judge(verdict)]

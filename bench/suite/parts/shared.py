"""Shared files: one file over several nodes, and one file that several clients write."""

import files
from parts.data import best_pump, size_of
from rounds import Samples, measure
from table import Goals, at_least, gigabytes, ratio, spread, table
from weft import Weft, WeftMount

SHARE = 3
NODES = 4
REQUESTS = ["64KiB", "1MiB", "4MiB", "16MiB"]
# No multiple of anything: records as programs write them.
RECORD = 47008
WRITERS = 2
RUNS = 3
# The pump with one thread for the client's ends of all connections.
ONE_THREAD = "pump-one"
GOAL_OF_PUMP = 0.85
GOAL_OF_TWO_FILES = 0.70


class Striped(Weft):
    """Files over all nodes."""

    def __init__(self, session):
        super().__init__(session, NODES, "striped")

    def __enter__(self):
        super().__enter__()
        self.session.call("weft", "layout", "--width", NODES, f"{self.name}:/")
        return self


class Elsewhere(Weft):
    """One node, as if it were on another machine."""

    def __init__(self, session):
        super().__init__(session, 1, "elsewhere", more=("--identity-per-node",))


def run(session):
    options, samples = session.options, Samples()
    requests = options.requests or REQUESTS
    groups = [("records", record_cells(session))]
    for processes in options.processes:
        for request in requests:
            groups.append((f"striped, {request}, {processes} processes", striped_cells(session, processes, request)))
    measure(session, groups, samples)
    return text(session, samples, requests)


def striped_cells(session, processes, request):
    size = session.options.size_mib << 20

    def of_weft():
        found = session.service(Striped).data("tcp", processes, size // processes, request, runs=RUNS)
        return {("weft", operation, request, processes): row["bytes_per_second"] for operation, row in found.items()}

    def of_pump(kind, client):
        def cell():
            found = files.pump(session, "tcp", NODES, size, client)
            return {(kind, "tcp", operation, request, processes, way): rate for (operation, way), rate in found.items()}
        return cell

    pump = ("pump", of_pump("pump", "each"))
    one_thread = [("pump, one thread", of_pump(ONE_THREAD, "one"))] * (processes == 1)
    return [pump, ("weft", of_weft), *one_thread, pump]


def record_cells(session):
    # Whole records.
    size = (session.options.size_mib << 20) // WRITERS // RECORD * RECORD

    def of_clients(one_file):
        def cell():
            found = session.service(Elsewhere).data("tcp", WRITERS, size, RECORD, runs=RUNS, one_file=one_file)
            return {("clients", operation, one_file): row["bytes_per_second"] for operation, row in found.items()}
        return cell

    def of_programs(one_file):
        def cell():
            mount = session.service(WeftMount, "", Elsewhere)
            found = files.data(session, mount.point, WRITERS, size, RECORD, one_file=one_file)
            return {("mount", operation, one_file): row["per_second"] for operation, row in found.items()}
        return cell

    return [(f"{of.__name__[3:]}, {'one file' if one_file else 'two files'}", of(one_file))
            for of in (of_clients, of_programs) for one_file in (True, False)]


def text(session, samples, requests):
    goals, striped, records = Goals(), [], []
    for processes in session.options.processes:
        for operation in ("write", "read"):
            for request in requests:
                striped.append(striped_row(samples, goals, processes, operation, request))
    for kind, label in (("clients", "two clients"), ("mount", "two programs, one mount")):
        for operation in ("write", "read"):
            key, other = (kind, operation, True), (kind, operation, False)
            share = samples.ratio(key, other)
            verdict = goals.judge(at_least(share, GOAL_OF_TWO_FILES)) if operation == "write" else "-"
            records.append([label, operation, gigabytes(samples.median(key)), spread(samples.spread(key), gigabytes),
                            gigabytes(samples.median(other)), ratio(share), verdict])
    return (
        f"## Shared files: {session.options.size_mib} MiB in sequence by TCP\n\n"
        f"Striped over {NODES} nodes, a file per process. The goal is {GOAL_OF_PUMP:.2f} of the bare pump over {NODES} "
        "connections, with a thread each at the client. Beside it the pump with one thread for all of them, as one process "
        "has that makes one request after the other.\n\n"
        + table([">processes", "operation", ">request", ">weft GB/s", ">spread", "limit", ">GB/s", ">weft : limit", "goal met",
                 ">one thread GB/s", ">weft : one"], striped)
        + f"\nRecords of {RECORD} bytes of {WRITERS} writers in turns in one whole file at a node elsewhere. The goal is "
        f"{GOAL_OF_TWO_FILES:.2f} of the same bytes in {WRITERS} files.\n\n"
        + table(["by", "operation", ">one file GB/s", ">spread", ">two files GB/s", ">one : two", "goal met"], records)
        + "\n" + goals.line() + samples.reasons()
    )


def striped_row(samples, goals, processes, operation, request):
    key = ("weft", operation, request, processes)
    # All runs of the pump are of the same bytes.
    pump = best_pump(samples, "tcp", operation, processes)
    limit = ("pump", "tcp", operation, request, processes, pump)
    share = samples.ratio(key, limit)
    way_of_one = best_pump(samples, "tcp", operation, processes, ONE_THREAD)
    one = (ONE_THREAD, "tcp", operation, request, processes, way_of_one)
    beside = [gigabytes(samples.median(one)), ratio(samples.ratio(key, one))] if way_of_one else ["-", "-"]
    return [processes, operation, request, gigabytes(samples.median(key)), spread(samples.spread(key), gigabytes),
            f"pump, {pump}", gigabytes(samples.median(limit)), ratio(share), goals.judge(at_least(share, GOAL_OF_PUMP)), *beside]

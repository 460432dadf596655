"""Shards: what operations on names cost when a file system has more of them."""

from rounds import Samples, measure
from table import Goals, below, ratio, spread, table, thousands
from weft import Weft

SHARE = 2
# As many nodes, with one each.
SHARDS = (1, 2, 4, 8)
PROCESSES = 4
OPERATIONS = ("create", "stat", "unlink")
PLACES = {"own": "own directories", "spread": "one spread directory"}
# Awaited messages: a name costs as many wherever it is, but for a first look at each shard.
MESSAGES_GOAL = 1.02
CPU_GOAL = 1.15


class Shards(Weft):
    def __init__(self, session, count):
        super().__init__(session, count, f"shards{count}")


def run(session):
    samples = Samples()
    groups = [(PLACES[place], [(f"{count} shards", cell(session, place, count)) for count in SHARDS]) for place in PLACES]
    measure(session, groups, samples)
    return text(samples)


def cell(session, place, count):
    files = (5000 if session.options.quick else 40000) // PROCESSES

    def measured():
        is_spread = place == "spread"
        # A file system of one shard has nothing to spread over.
        found = session.service(Shards, count).meta("tcp", PROCESSES, files, is_spread, is_spread and count > 1)
        figures = {}
        for operation in OPERATIONS:
            row = found[operation]
            figures["rate", place, operation, count] = row["per_second"]
            figures["messages", place, operation, count] = row["calls_per_operation"]
            used = row["client_cpu_seconds"] + row["node_cpu_seconds"]
            figures["cpu", place, operation, count] = used * 1e6 / row["operations"]
        return figures
    return measured


def text(samples):
    rows, goals = [], Goals()
    for place, label in PLACES.items():
        for operation in OPERATIONS:
            for count in SHARDS:
                rows.append(row(samples, goals, (place, operation), label, count))
    return (
        f"## Shards: empty files of {PROCESSES} processes by TCP\n\n"
        "A shard on each of as many nodes, all on this machine. Messages are those that the client waits for; CPU is of clients "
        f"and nodes together. The goals are those of one shard: {MESSAGES_GOAL:.2f} of its messages, {CPU_GOAL:.2f} of its "
        "CPU.\n\n"
        + table(["place", "operation", ">shards", ">1000/s", ">spread", ">messages", ">CPU µs", ">CPU : one shard",
                 "messages met", "CPU met"], rows)
        + "\n" + goals.line() + samples.reasons()
    )


def row(samples, goals, what, label, count):
    rate, messages, cpu = ((kind, *what, count) for kind in ("rate", "messages", "cpu"))
    of_one = [samples.ratio(key, (*key[:-1], SHARDS[0])) for key in (messages, cpu)]
    goals_met = ["-", "-"]
    if count != SHARDS[0]:
        goals_met = [goals.judge(below(value, bound)) for value, bound in zip(of_one, (MESSAGES_GOAL, CPU_GOAL))]
    return [label, what[1], count, thousands(samples.median(rate)), spread(samples.spread(rate), thousands),
            ratio(samples.median(messages)), ratio(samples.median(cpu)), ratio(of_one[1]), *goals_met]

"""Nodes: how long sixteen of them take to start and end on one machine, and what an idle one costs."""

import os
import statistics
import time

from rounds import CellFailed, Clock, Samples, measure
from table import Goals, below, spread, table
from weft import Weft, memory_bytes, ticks

SHARE = 1
NODES = 16
IDLE_SECONDS = 5
# Connections of `weft up` are being ended, and directories closed, in the first moments.
SETTLE_SECONDS = 1


def run(session):
    samples = Samples()
    measure(session, [(f"{NODES} nodes", [("up and down", lambda: cell(session))])], samples)
    return text(samples)


def cell(session):
    weft = Weft(session, NODES, "bench-nodes")
    try:
        with Clock() as up:
            weft.__enter__()
        pids = weft.pids()
        time.sleep(SETTLE_SECONDS)
        before = [ticks(pid) for pid in pids]
        time.sleep(IDLE_SECONDS)
        used = sum(ticks(pid) for pid in pids) - sum(before)
        memory = [memory_bytes(pid) for pid in pids]
        with Clock() as down:
            session.call("weft", "down", weft.name, seconds=30)
    except (OSError, CellFailed) as reason:
        weft.stop()
        raise CellFailed(str(reason)) from None
    if any(os.path.exists(f"/proc/{pid}") and ticks_or_none(pid) is not None for pid in pids):
        raise CellFailed("nodes were left after `weft down`")
    return {
        ("up",): up.seconds,
        ("down",): down.seconds,
        ("memory",): statistics.mean(memory) / (1 << 20),
        ("memory most",): max(memory) / (1 << 20),
        ("idle",): used,
    }


def ticks_or_none(pid):
    """None for a process that has ended and only waits to be collected."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return None if file.read().rsplit(")", 1)[1].split()[0] in "ZX" else pid
    except OSError:
        return None


def text(samples):
    goals = Goals()
    tick_ms = 1000 // os.sysconf("SC_CLK_TCK")
    lines = [
        (f"`weft up --nodes {NODES}`, s", "up", 3, ".3f"),
        (f"`weft down`, s", "down", 2, ".3f"),
        ("resident memory per idle node, MiB, mean", "memory", 30, ".1f"),
        ("the same, most", "memory most", 30, ".1f"),
        (f"CPU time of all nodes in {IDLE_SECONDS} idle s, ticks of {tick_ms} ms", "idle", 1, ".0f"),
    ]
    rows = []
    for label, name, bound, form in lines:
        value = samples.median((name,))
        verdict = goals.judge(below(value, bound))
        shown = None if value is None else format(value, form)
        rows.append([label, shown, spread(samples.spread((name,)), lambda v: format(v, form)), f"< {bound}", verdict])
    return ("## Nodes: sixteen on one machine\n\n" + table(["what", ">weft", ">spread", ">goal", "goal met"], rows) + "\n"
            + goals.line() + samples.reasons())

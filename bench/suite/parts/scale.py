"""Scale: what an operation costs, and how much memory a file takes, when there are many files."""

import contextlib
import json
import os
import pathlib
import subprocess

from rounds import CellFailed
from session import end_group
from table import table
from weft import Weft, memory_bytes

SHARE = 3
SESSIONS = [1, 64, 512, 4096]
DIRECTORY_FILES_MAX = 1_000_000
PROCESSOR = min(os.sched_getaffinity(0))


def run(session):
    all_files = session.options.files
    kinds = [
        ("in one file system, 1000 per directory", 1000, all_files, 1000),
        ("in one directory", 10, min(all_files, DIRECTORY_FILES_MAX), 0),
    ]
    sections = []
    for title, smallest, most, per_directory in kinds:
        sizes = []
        size = smallest
        while size < most:
            sizes.append(size)
            size *= 10
        sections.append(section(session, title, [*sizes, most], per_directory))
    sections.append(sessions_section(session))
    return "## Scale: cost of an operation with many files, native client\n\n" + intro() + "\n".join(sections)


def intro():
    return ("Microseconds per operation, one process, on the same processor as the node: median of five batches of a sample, lowest and highest; the sample is "
            "made by a new client in the directory that was filled last, look-ups visit files all over. Bytes of memory "
            "per file are above those of the empty file system: resident, and by the shards' own count of what they store. "
            "`create : first row` is in units of empty calls, since other load slows both.\n\n")


def section(session, title, sizes, per_directory):
    rows, failure, first = [], "", None
    name = "bench-scale-" + ("many" if per_directory else "one")
    try:
        with Weft(session, 1, name) as weft:
            pin(*weft.pids())
            resident, stored = memory_of(weft)
            for step in steps(session, weft, sizes, per_directory):
                more_resident, more_stored = (now - before for now, before in zip(memory_of(weft), (resident, stored)))
                first = first or step
                rows.append([step["files"], *(cost(step[operation]) for operation in ("create", "stat", "unlink", "ping")),
                             f"{create_per_ping(step) / create_per_ping(first):.2f}",
                             f"{step['fill_per_second'] / 1e3:.1f}", f"{more_resident / step['files']:.0f}",
                             f"{more_stored / step['files']:.0f}"])
    except (OSError, CellFailed) as reason:
        failure = f"- n/a, files {title}: {reason}\n"
    columns = [">files", ">create + close", ">stat", ">unlink", ">empty call", ">create : first row", ">filled thousand/s",
               ">resident bytes/file", ">stored bytes/file"]
    return f"### Files {title}\n\n" + table(columns, rows) + "\n" + failure


def pin(*pids):
    """Client and node on one processor: how fast another one wakes up varies more than what is to be seen here."""
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {PROCESSOR})


def create_per_ping(step):
    return step["create"]["microseconds"] / step["ping"]["microseconds"]


def cost(found):
    return f"{found['microseconds']:.0f} ({found['microseconds_min']:.0f}-{found['microseconds_max']:.0f})"


def memory_of(weft):
    nodes = weft.status()["nodes"]
    stored = sum(shard["store_bytes"] for node in nodes for shard in node["shards"])
    return sum(memory_bytes(node["pid"]) for node in nodes), stored


def steps(session, weft, sizes, per_directory):
    words = ["bench-scale", "--name", weft.name, "--sizes", ",".join(map(str, sizes)), "--per-directory", per_directory, "--pause"]
    with contextlib.closing(lines(session, words, pin)) as told:
        for size in sizes:
            session.say(f"{size} files, {'1000 per directory' if per_directory else 'one directory'}")
            yield next(told)
            if session.is_over():
                raise CellFailed("the time was over before the larger sizes")


def lines(session, words, prepare=None):
    """What a program prints, one line after the other; it waits while the caller looks at the nodes."""
    with subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=session.environment, start_new_session=True) as process:
        try:
            if prepare:
                prepare(process.pid)
            while True:
                line = process.stdout.readline()
                if not line:
                    raise CellFailed(process.stderr.read().strip() or f"{words[0]} ended early")
                yield json.loads(line)
                process.stdin.write("\n")
                process.stdin.flush()
        finally:
            process.stdin.close()
            end_group(process)


def sessions_section(session):
    """One file that very many clients have open."""
    rows, failure = [], ""
    try:
        with Weft(session, 1, "bench-sessions") as weft:
            empty, _ = memory_of(weft)
            words = ["bench-sessions", "--name", weft.name, "--sizes", ",".join(map(str, SESSIONS)), "--pause"]
            with contextlib.closing(lines(session, words)) as told:
                for sessions in SESSIONS:
                    session.say(f"one file, {sessions} sessions")
                    opened = next(told)
                    resident, _ = memory_of(weft)
                    closed = next(told)
                    rows.append([sessions, cost(opened["connect"]), cost(opened["open"]), cost(closed["close"]), cost(opened["ping"]),
                                 f"{opened['recall_milliseconds']:.1f}", f"{(resident - empty) / sessions / 1024:.1f}"])
    except (OSError, CellFailed) as reason:
        failure = f"- n/a, sessions: {reason}\n"
    columns = [">sessions", ">connect", ">open", ">close", ">empty call", ">ms until all are recalled", ">KiB of the node/session"]
    return ("### One file, many sessions\n\nMicroseconds per session, one after the other, all in one process beside the node: median of five batches, lowest and "
            "highest. When all have the file open for reading, one more opens it for writing, and the shard recalls the leases of all others. "
            "Memory: resident, of the node, above that of one without sessions, while all have it open.\n\n"
            + table(columns, rows) + "\n" + failure)

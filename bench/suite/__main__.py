"""`bench/run.sh`: all parts, one after the other, each a table.

A part is a list of groups, a group a list of cells. Cells of a group are compared with each other, so they are measured in
turn, in each round anew, and a ratio is the median over rounds of the ratio within a round: what else the machine does then
falls on both. A cell that fails is n/a, with the reason below the table, and the run goes on.
"""

import argparse
import datetime
import pathlib
import signal
import sys

import machine
import parts.data
import parts.libraries
import parts.meta
import parts.mount
import parts.nodes
import parts.scale
import parts.scans
import parts.shards
import parts.shared
from session import Session

PARTS = {
    "data": parts.data,
    "libraries": parts.libraries,
    "meta": parts.meta,
    "mount": parts.mount,
    "nodes": parts.nodes,
    "scale": parts.scale,
    "scans": parts.scans,
    "shared": parts.shared,
    "shards": parts.shards,
}
HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    parser = argparse.ArgumentParser(prog="bench/run.sh", description="Measure Weft beside a peer and the physical limit.")
    parser.add_argument("--quick", action="store_true", help="smaller files, fewer sizes")
    parser.add_argument("--only", metavar="PART,...", help="of " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="times that all is measured (default %(default)s)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", default=1500,
                        help="of all parts; no group is begun after a part's share (default %(default)s)")
    parser.add_argument("--size-mib", type=int, help="data: MiB of all processes together (default 1024, quick 256)")
    parser.add_argument("--requests", metavar="SIZE,...", help="data, mount: requests, e.g. 4KiB,1MiB")
    parser.add_argument("--processes", metavar="N,...", default="1,4", help="numbers of processes (default %(default)s)")
    parser.add_argument("--files", type=int, help="scale: most files (default 5000000, quick 100000)")
    parser.add_argument("--out", type=pathlib.Path, help="file for the tables (default bench/runs/DATE.md)")
    parser.add_argument("--binaries", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(PARTS)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error("--rounds 1 or more")
    options.parts = [part for part in PARTS if part in chosen]
    options.processes = [int(count) for count in options.processes.split(",")]
    options.size_mib = options.size_mib or (256 if options.quick else 1024)
    options.requests = options.requests.split(",") if options.requests else None
    options.files = options.files or (100_000 if options.quick else 5_000_000)
    return options


def main():
    options = arguments()
    # The way out is the same for all: what was started is stopped on the way.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    now = datetime.datetime.now()
    out = options.out or HERE.parent / "runs" / (now.strftime("%Y-%m-%d-%H%M") + ("-quick" if options.quick else "") + ".md")
    if out.is_relative_to(pathlib.Path.cwd()):
        out = out.relative_to(pathlib.Path.cwd())
    out.parent.mkdir(parents=True, exist_ok=True)
    text = [machine.heading(now, options)]
    print(text[0], flush=True)
    shares = sum(PARTS[name].SHARE for name in options.parts)
    try:
        with Session(options) as session:
            for name in options.parts:
                part = PARTS[name]
                session.begin_part(name, options.budget * part.SHARE / shares)
                text.append(part.run(session))
                print(text[-1], flush=True)
                if session.interrupt:
                    raise session.interrupt
    except SystemExit:
        text.append("Interrupted: parts are missing.\n")
        raise
    finally:
        text.append(machine.ending(now))
        out.write_text("\n".join(text))
        print(f"{text[-1]}\nwritten to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

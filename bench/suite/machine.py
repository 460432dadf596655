"""Where and when a run took place: without that its figures say nothing."""

import datetime
import os
import pathlib
import platform
import subprocess


def _first(path, prefix):
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(prefix):
            return line.split(":", 1)[1].strip()
    return "unknown"


def _commit():
    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()
    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _congestion_control():
    chosen = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return chosen.read_text().strip() if chosen.exists() else "unknown"


def load():
    return pathlib.Path("/proc/loadavg").read_text().split()[0]


def heading(now, options, where="all data is on tmpfs"):
    gib = round(int(_first("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20))
    kind = "quick" if options.quick else "full"
    return (
        f"# Weft measured, {now:%Y-%m-%d %H:%M}\n\n"
        f"Machine: {os.cpu_count()} cores ({_first('/proc/cpuinfo', 'model name')}), {gib} GiB, "
        f"Linux {platform.release().split('-')[0]}, congestion control {_congestion_control()}. Commit {_commit()}. {kind} sizes, {options.rounds} rounds. "
        f"Load average before: {load()} (the run alone makes 2 to 3).\n"
        f"Clients, servers and whatever else runs share the cores; {where}. Figures are medians over rounds, "
        "spread is lowest to highest; ratios are medians of ratios within a round. GB = 10^9 bytes.\n"
    )


def ending(begun):
    seconds = (datetime.datetime.now() - begun).total_seconds()
    return f"Took {seconds:.0f} s. Load average after: {load()}.\n"

#!/bin/bash
# down.sh ROOT - stop exactly what up.sh started there, and remove its files.
set -u
ROOT=${1:?ROOT}
[ -d "$ROOT" ] || exit 0
[ -e "$ROOT/.weft-bench-gfarm" ] || { echo "gfarm: $ROOT is not ours" >&2; exit 1; }
# A process is ours when the file names it and its command line has our root.
pid_of() { tr -cd 0-9 <"$1"; }
alive() { # PIDFILE
	local pid
	[ -s "$1" ] && pid=$(pid_of "$1") && [ -n "$pid" ] && [ -r "/proc/$pid/cmdline" ] &&
		tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$ROOT/"
}
stop() { # PIDFILE
	alive "$1" || return 0
	kill -TERM "$(pid_of "$1")" 2>/dev/null
	for _ in $(seq 50); do alive "$1" || return 0; sleep 0.1; done
	kill -KILL "$(pid_of "$1")" 2>/dev/null
	sleep 0.2
}
# gfsd leads a process group: what is left of it is ended, if it is still gfsd.
group() { # PIDFILE
	local leader pid
	leader=$(pid_of "$1")
	[ -n "$leader" ] || return 0
	for pid in $(ps -e -o pid=,pgid=,comm= | awk -v g="$leader" '$2 == g && $3 ~ /^gfsd/ { print $1 }'); do
		kill -KILL "$pid" 2>/dev/null
	done
}
for f in "$ROOT"/gfsd*.pid; do [ -e "$f" ] && { stop "$f"; group "$f"; }; done
[ -e "$ROOT/gfmd.pid" ] && stop "$ROOT/gfmd.pid"
for f in "$ROOT"/gfsd*.sockdir; do # left behind only if gfsd was killed
	[ -e "$f" ] || continue
	d=$(cat "$f")
	case $d in /tmp/.gfarm-gfsd127.*) [ -d "$d" ] && { rm -f "$d/sock"; rmdir "$d"; } ;; esac
done
rm -rf -- "$ROOT"

#!/bin/bash
# up.sh NODES ROOT - start Gfarm on this machine: gfmd (backend "none": metadata in memory) and NODES gfsd, all state below ROOT,
# which should be on tmpfs. Installs Debian's packages when they are missing. Exit code 77, with the reason on standard error:
# cannot be had here. Prints nothing else; ROOT/{client,client-remote,client-nodelay}.conf are for GFARM_CONFIG_FILE.
set -u
NODES=${1:?NODES} ROOT=${2:?ROOT}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "gfarm: $*" >&2; exit 1; }
skip() { echo "gfarm: $*" >&2; exit 77; }
case $NODES in '' | *[!0-9]* | 0) die "NODES must be a positive number" ;; esac
[ "$NODES" -le 32 ] || die "at most 32 gfsd"
case $ROOT in /*) ;; *) die "ROOT must be absolute" ;; esac
[ "$(id -u)" = 0 ] || skip "its servers run as root only"
"$HERE/install.sh" gfmd gfsd gfarm-client libgfarm-dev gcc libc6-dev || skip "cannot install its packages"

# The first port of a free pair; nobody else is asked to keep off it, so it is taken at once.
port_free() { ! (exec 9<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
free_port() {
	local port
	for port in $(seq "$1" 20 $(($1 + 2000))); do port_free "$port" && { echo "$port"; return; }; done
	return 1
}
# A daemon in its foreground mode, in a session of its own, with none of our descriptors. Not as the leader of the session:
# gfsd calls setpgid() and aborts on EPERM.
spawn() { # PIDFILE LOG COMMAND...
	local pid_file=$1 log=$2
	shift 2
	# shellcheck disable=SC2016
	setsid bash -c '
		for n in $(ls /proc/$$/fd); do [ "$n" -le 2 ] || eval "exec $n>&-"; done
		"$@" & echo $! >"$0"' "$pid_file" "$@" </dev/null >>"$log" 2>&1
}
[ ! -e "$ROOT" ] || [ -z "$(ls -A "$ROOT")" ] || die "$ROOT exists and is not empty"
METADATA_PORT=$(free_port 20601) && DATA_PORT=$(free_port 22811) || die "no free port"

umask 077
mkdir -p "$ROOT" || die "cannot make $ROOT"
: >"$ROOT/.weft-bench-gfarm"
# gfsd speaks to gfmd as the user _gfarmfs; mapped to root at the server, so that no account is needed.
printf '_gfarmfs root\n' >"$ROOT/usermap"
base="metadb_server_host 127.0.0.1
metadb_server_port $METADATA_PORT
auth enable sharedsecret *
shared_key_file $ROOT/shared_key
sockopt keepalive"
cat >"$ROOT/gfmd.conf" <<C
$base
admin_user $(id -un)
local_user_map $ROOT/usermap
minimum_free_disk_space 64M
C
cat >"$ROOT/gfsd.conf" <<C
$base
local_user_map $ROOT/usermap
C
cat >"$ROOT/client.conf" <<C
$base
minimum_free_disk_space 64M
direct_local_access enable
C
# Only 127.0.0.1 counts as local; without this every file would be on the first gfsd.
[ "$NODES" -gt 1 ] && echo "write_local_priority disable" >>"$ROOT/client.conf"
sed 's/^direct_local_access.*/direct_local_access disable/' "$ROOT/client.conf" >"$ROOT/client-remote.conf"
{ cat "$ROOT/client-remote.conf"; echo "sockopt tcp_nodelay"; } >"$ROOT/client-nodelay.conf"
export GFARM_CONFIG_FILE=$ROOT/client.conf
gfkey -f -p 31536000 >/dev/null || die "gfkey failed"

spawn "$ROOT/gfmd.pid" "$ROOT/gfmd.log" gfmd -d -L notice -f "$ROOT/gfmd.conf"
# `gfhost -l` fails while no host is registered: gfls tells when gfmd answers.
for _ in $(seq 100); do gfls -d / >/dev/null 2>&1 && break; sleep 0.1; done
gfls -d / >/dev/null 2>&1 || { cat "$ROOT/gfmd.log" >&2; die "gfmd does not answer"; }
arch=$(gfarm.arch.guess 2>/dev/null || echo x86_64-linux)
for i in $(seq "$NODES"); do
	host=127.0.0.$i port=$((DATA_PORT + 10 * (i - 1)))
	mkdir -p "$ROOT/spool$i"
	echo "/tmp/.gfarm-gfsd$host-$port" >"$ROOT/gfsd$i.sockdir" # gfsd's own choice; for down.sh
	gfhost -c -a "$arch" -p $port -n "$(nproc)" "$host" || die "gfhost -c $host failed"
	spawn "$ROOT/gfsd$i.pid" "$ROOT/gfsd$i.log" gfsd -d -L notice -f "$ROOT/gfsd.conf" -r "$ROOT/spool$i" -h "$host" -l "$host"
done
available() { gfsched -w 2>/dev/null | wc -l; }
for _ in $(seq 100); do [ "$(available)" -ge "$NODES" ] && break; sleep 0.1; done
[ "$(available)" -ge "$NODES" ] || { tail -n 20 "$ROOT"/*.log >&2; die "not all gfsd became available"; }

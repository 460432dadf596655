#!/bin/bash
# tests/rdma/in-guest.sh WEFT TEST... - what only a fabric can show, over two soft-RoCE devices; scripts/rdma-guest.sh runs
# it in a guest that has them. WEFT is the command, each TEST a test program that is to run over the first device, and
# what it is to be told. WEFT_TEST_SUITE is the suite of the C library, WEFT_TEST_PYTHON a Python with the package and
# pytest.
#
# The guest's processor is an emulated one: this proves that bytes and errors are right, and says nothing of speed.
set -u
weft=$1; shift
export WEFT_UCX_TLS=rc_verbs,tcp:aux XDG_RUNTIME_DIR=/tmp/run
# The soft-RoCE of Linux 6.12 says more than once of a closed queue that its last work was done, on which UCX 1.13 ends the
# process. It reads this variable without our prefix only.
export UCX_IB_ASYNC_EVENTS=n
server() { env WEFT_UCX_NET_DEVICES=rxe0:1,w0 "$@"; }
client() { env WEFT_UCX_NET_DEVICES=rxe1:1,w1 "$@"; }
failed=0
say() { printf '== %s\n' "$*"; }
check() {   # TEXT STATUS
    if [ "$2" = 0 ]; then echo "   ok: $1"; else echo "   FAILED: $1"; failed=1; fi
}
up() { server "$weft" up fabric --nodes 1 --identity-per-node --listen 10.77.0.1 --store /tmp/store >/tmp/up.txt 2>&1; }
down() { "$weft" down --force fabric >/dev/null 2>&1; }
bytes_on_wire() { awk '/w1:/ {print $2}' /proc/net/dev; }
connections() { "$weft" status --json fabric | tr ',' '\n' | sed -n 's/.*"connections": *\([0-9]*\).*/\1/p'; }
# A client's session ends with it; its data connections are gone when only that of `status` is left.
is_quiet() {
    for _ in $(seq 100); do
        [ "$(connections)" -le 2 ] 2>/dev/null && return 0
        sleep 0.2
    done
    return 1
}
# The wire loses everything. (To take the device down stops this kernel's soft-RoCE, and the guest with it.)
cut_link() {
    ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:01 dev w0
    ip neigh replace 10.77.0.1 lladdr 02:00:00:00:00:02 dev w1
}
mend_link() {
    ip neigh replace 10.77.0.2 lladdr "$(cat /sys/class/net/w1/address)" dev w0
    ip neigh replace 10.77.0.1 lladdr "$(cat /sys/class/net/w0/address)" dev w1
}
works() {   # a file goes there and back
    head -c 3000001 /dev/urandom >/tmp/file
    WEFT_TRANSPORT=ucx client timeout 60 "$weft" cp /tmp/file fabric:/file >/tmp/cp.txt 2>&1 &&
        WEFT_TRANSPORT=ucx client timeout 60 "$weft" cp fabric:/file /tmp/back >/tmp/cp.txt 2>&1 &&
        cmp /tmp/file /tmp/back
}
# Writes by 3 clients without end, in the background; each run is of its own directory.
busy() {
    client timeout 120 "$weft" bench data fabric --way ucx --request 1MiB --size 64MiB --runs 1 -p 3 >/tmp/busy.txt 2>&1 &
    busy=$!
    local before; before=$(bytes_on_wire)
    for _ in $(seq 150); do
        [ $(($(bytes_on_wire) - before)) -gt 3000000 ] && return 0
        sleep 0.1
    done
    return 1
}

mkdir -p /tmp/run
for test; do
    say "over one device: $(basename "$test")"
    # shellcheck disable=SC2086  # a program and its words
    server timeout 300 $test --nocapture >/tmp/test.txt 2>&1; status=$?
    [ $status = 0 ] || grep -v "^$" /tmp/test.txt | tail -n 30
    check "$(grep -c '\.\.\. ok$' /tmp/test.txt) tests, $(grep -c 'skipped: ' /tmp/test.txt) skipped" $status
done

say "from device to device"
up; check "a node" $?
before=$(bytes_on_wire)
for processes in 1 2 9; do
    for way in static/socket dynamic/socket auto/socket static/am dynamic/am auto/am; do
        WEFT_RDMA_REGISTRATION=${way%/*} WEFT_RDMA_RPC=${way#*/} client timeout 120 "$weft" bench data fabric --way ucx \
            --request 64KiB,1MiB --size 2MiB --runs 1 -p $processes >/tmp/bench.txt 2>&1
        status=$?
        [ $status = 0 ] || tail -n 5 /tmp/bench.txt
        check "$processes processes, $way: written, read back, compared" $status
    done
done
check "the bytes went over the wire" $((($(bytes_on_wire) - before) < 100000000))
"$weft" status -v fabric | tail -n 2

say "what is copied and registered, from device to device"
WEFT_TRANSPORT=ucx client timeout 300 "$WEFT_TEST_SUITE" fabric copies registered >/tmp/suite.txt 2>&1; status=$?
[ $status = 0 ] || tail -n 5 /tmp/suite.txt
check "the C library" $status
(cd "$(dirname "$0")/../../fronts/python/tests/python" && WEFT_TRANSPORT=ucx WEFT_TEST_NAME=fabric client timeout 300 \
    "$WEFT_TEST_PYTHON" -B -m pytest -q -p no:cacheprovider test_memory.py) >/tmp/pytest.txt 2>&1; status=$?
[ $status = 0 ] || tail -n 20 /tmp/pytest.txt
check "the Python package: $(tail -n 1 /tmp/pytest.txt)" $status

say "both ends have both devices"
printf '%s' "$(WEFT_UCX_NET_DEVICES=rxe0:1,rxe1:1,w0,w1 "$weft" up rails --nodes 1 --identity-per-node --listen 10.77.0.1 \
    --store /tmp/rails 2>&1)" >/tmp/up.txt
for way in static dynamic; do
    WEFT_RDMA_REGISTRATION=$way WEFT_UCX_NET_DEVICES=rxe0:1,rxe1:1,w0,w1 timeout 120 "$weft" bench data rails --way ucx \
        --request 64KiB,1MiB --size 8MiB --runs 1 -p 2 >/tmp/bench.txt 2>&1
    status=$?
    [ $status = 0 ] || tail -n 5 /tmp/bench.txt
    check "$way: written, read back, compared" $status
done
"$weft" down --force rails >/dev/null 2>&1

say "little memory may be locked"
limit='ulimit -l "$1"; shift; exec "$@"'
limited() { setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c "$limit" - "$@"; }
WEFT_RDMA_REGISTRATION=dynamic WEFT_UCX_NET_DEVICES=rxe1:1,w1 limited 8192 timeout 120 "$weft" bench data fabric --way ucx \
    --request 1MiB,16MiB --size 16MiB --runs 1 >/tmp/bench.txt 2>&1
status=$?
[ $status = 0 ] || tail -n 5 /tmp/bench.txt
check "8192 KiB: falls back, nothing is lost" $status
printf 'by sockets, then' >/tmp/file
WEFT_UCX_NET_DEVICES=rxe1:1,w1 limited 4096 timeout 20 "$weft" cp /tmp/file fabric:/little >/tmp/cp.txt 2>&1
check "4096 KiB: sockets" $?
WEFT_TRANSPORT=ucx WEFT_UCX_NET_DEVICES=rxe1:1,w1 limited 4096 timeout 20 "$weft" cp /tmp/file fabric:/less >/tmp/cp.txt 2>&1
[ $? != 0 ] && grep -q 'may be locked' /tmp/cp.txt; check "4096 KiB, UCX or nothing: refused, with the reason" $?

say "clients are killed in the middle"
busy; check "bytes are on their way" $?
pkill -9 -f 'bench worker'; wait $busy 2>/dev/null
is_quiet; check "the node has given up their connections" $?
works; check "others are served" $?

say "the link goes down in the middle"
busy; check "bytes are on their way" $?
cut_link
for _ in $(seq 150); do kill -0 $busy 2>/dev/null || break; sleep 1; done
kill -0 $busy 2>/dev/null; check "the client gave up" $((! $?))
cat /tmp/busy.txt
mend_link
sleep 1
is_quiet; check "the node has given up its connections" $?
works; check "when the link is back all is well" $?

say "the node is killed in the middle"
busy; check "bytes are on their way" $?
pkill -9 -f 'weft serve'
for _ in $(seq 60); do kill -0 $busy 2>/dev/null || break; sleep 1; done
kill -0 $busy 2>/dev/null; check "the client gave up" $((! $?))
cat /tmp/busy.txt
down
[ $failed = 0 ] && say "all is well" || say "something failed"
exit $failed

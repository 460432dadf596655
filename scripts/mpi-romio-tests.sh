#!/bin/bash
# Runs ROMIO's own test programs on files of Weft: 4 processes, 4 nodes on this machine, one table.
#     scripts/mpi-romio-tests.sh BINARIES DRIVER ROMIO [TEST...]
# BINARIES is the folder of `weft`; DRIVER that of libweft-romio.so, ROMIO that of the sources, as scripts/mpi-driver.sh
# made them.
# LAYOUT are options of `weft mkdir`: the layout of the files, as --split. LARGE=1 adds the tests that write many GB.
# Exit code 1: one has failed. Logs are in DRIVER/tests/.
set -u
binaries=$(realpath "$1") driver=$(realpath "$2") sources=$(realpath "$3")/build/test
shift 3
# Name, processes, arguments ("FILE" becomes the file).
tests="simple:4:-fname FILE
perf:4:-fname FILE
async:4:-fname FILE
async-multiple:4:-fname FILE
atomicity:4:-fname FILE
coll_test:4:-fname FILE
misc:4:-fname FILE
file_info:4:-fname FILE
excl:4:-fname FILE
creat_excl:4:-fname FILE
noncontig:2:-fname FILE
i_noncontig:2:-fname FILE
noncontig_coll:2:-fname FILE
noncontig_coll2:4:-fname FILE
split_coll:4:-fname FILE
shared_fp:4:-fname FILE
ordered_fp:4:-fname FILE
psimple:4:-fname FILE
error:1:-fname FILE
status:1:-fname FILE
aggregation1:4:-h -f FILE
aggregation2:4:FILE
hindexed:4:FILE
external32:4:-fname FILE
types_with_zeros:2:FILE
darray_read:4:FILE
big_extents:4:FILE
syshints:1:$sources/test_hintfile"
[ -z "${LARGE:-}" ] || tests="$tests
coll_perf:4:-fname FILE
large_array:4:-fname FILE
large_file:1:-fname FILE"

work=$driver/tests
rm -rf "$work"
mkdir -p "$work/store"
export XDG_RUNTIME_DIR=$work/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
weft=$binaries/weft name=mpi-romio-$$
trap '"$weft" down --force "$name" > /dev/null 2>&1; rm -rf "$work/store" "$XDG_RUNTIME_DIR"' EXIT
"$weft" up "$name" --nodes 4 --store "$work/store" > "$work/up.log" || { cat "$work/up.log" >&2; exit 2; }
compiler=$(command -v mpicc.mpich || echo mpicc)
launcher=$(command -v mpiexec.hydra || echo mpiexec)

# What programs that print "No Errors" at the end print before, where something was wrong.
complains() {
    grep -qiE "error[s]? *(in|code|:)|found [1-9][0-9]* errors|fatal|mismatch|aborting" "$1"
}

passed=0 failed=0
printf '%-18s %9s  %s\n' test processes result
while IFS=: read -r test processes words; do
    [ $# = 0 ] || [[ " $* " == *" $test "* ]] || continue
    "$compiler" -O1 -w -o "$work/$test" "$sources/$test.c" || exit 2
    # In a directory: the file of a shared pointer is made beside the file.
    # shellcheck disable=SC2086
    "$weft" mkdir ${LAYOUT:-} "$name:/$test" || exit 2
    started=$(date +%s%N)
    # shellcheck disable=SC2086
    (cd "$work" && timeout "${LIMIT:-120}" "$weft" mpiexec --driver "$driver/libweft-romio.so" --launcher "$launcher" \
        -- -n "$processes" "$work/$test" ${words//FILE/weft:/$test/file}) < /dev/null > "$work/$test.log" 2>&1
    code=$?
    took=$((($(date +%s%N) - started) / 10000000))
    if [ $code = 0 ] && ! complains "$work/$test.log"; then
        passed=$((passed + 1)) result=pass
    else
        failed=$((failed + 1)) result="FAIL ($code): $(head -n 1 "$work/$test.log" | cut -c 1-100)"
    fi
    printf '%-18s %9s  %s, %d.%02d s\n' "$test" "$processes" "$result" $((took / 100)) $((took % 100))
done <<< "$tests"
echo "$passed passed, $failed failed"
[ $failed = 0 ]

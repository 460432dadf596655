# Shared by scripts that run other projects' MPI programs on files of Weft, for `source`: a file system of four nodes on
# this machine, a table of results.
#
#     use_mpi MPI DRIVERS               MPI is mpich or openmpi, DRIVERS has what scripts/mpi-driver.sh made
#     start_nodes BINARIES FOLDER       starts the nodes; sets `weft`, `name` and `work`, which is FOLDER. Ends them at exit
#     mount_nodes                       mounts the file system on `work`/mount, or says why not and fails
#     check PROCESSES PROGRAM WORDS...  runs a program of `work` for LIMIT (120) seconds at most, in the folder `where` or in
#                                       `work`; prints a line of the table
#     finish                            prints the sums; fails if a test has failed
#
# `cannot` has tests that are not run, a line `TEST:reason` each. With `compared` a program that fails is run once more with
# the MPI library's own MPI-IO in a folder of a tmpfs: whether it fails there, too.

use_mpi() {
    case $1 in
        mpich)
            compiler=$(command -v mpicc.mpich || echo mpicc)
            launcher=$(command -v mpiexec.hydra || echo mpiexec)
            launcher_words=()
            driver=$2/libweft-romio.so ;;
        openmpi)
            compiler=mpicc.openmpi
            launcher=mpiexec.openmpi
            launcher_words=(--allow-run-as-root --oversubscribe --bind-to none)
            driver=$2/weft-openmpi/mca_io_romio321.so
            export OMPI_MCA_mpi_yield_when_idle=1 ;;
        *)
            echo "$0: $1: no MPI of this name" >&2
            exit 2 ;;
    esac
}

start_nodes() {
    weft=$1/weft work=$2 name=mpi-tests-$$
    mkdir -p "$(dirname "$work")"
    # Not handed on to the nodes, which would keep it.
    exec {lock}> "$work.lock"
    flock -n "$lock" || { echo "$0: another one runs in $work" >&2; exit 2; }
    rm -rf --one-file-system "$work"
    mkdir -p "$work/store"
    export XDG_RUNTIME_DIR=$work/run
    mkdir -m 700 "$XDG_RUNTIME_DIR"
    trap end_nodes EXIT
    "$weft" up "$name" --nodes 4 --store "$work/store" > "$work/up.log" {lock}>&- || { cat "$work/up.log" >&2; exit 2; }
    printf '%-24s %9s  %s\n' test processes result
}

mount_nodes() {
    mkdir "$work/mount"
    "$weft" mount "$name" "$work/mount" > "$work/mount.log" 2>&1 && return
    echo "skip: there is no mount: $(head -n 1 "$work/mount.log")"
    rmdir "$work/mount"
    return 1
}

end_nodes() {
    [ ! -d "$work/mount" ] || "$weft" umount "$work/mount" > /dev/null 2>&1
    "$weft" down --force "$name" > /dev/null 2>&1
    rm -rf "$work/store" "$XDG_RUNTIME_DIR" "/dev/shm/weft-$name"
}

passed=0 failed=0 same=0 left_out=0

# What programs print that end with 0 all the same.
complains() {
    grep -qiE "error[s]? *(in|code|:)|found [1-9][0-9]* errors|fatal|mismatch|aborting" "$1"
}

# run_in FOLDER LOG COMMAND...
run_in() {
    local folder=$1 log=$2 code
    shift 2
    (cd "$folder" && timeout --kill-after 10 "${LIMIT:-120}" "$@") < /dev/null > "$log" 2>&1
    code=$?
    [ $code != 0 ] || ! complains "$log" || code=1
    return $code
}

fails_without_weft() {
    local test=$1 folder=/dev/shm/weft-$name/$1
    shift
    mkdir -p "$folder"
    ! HDF5_PARAPREFIX=$folder run_in "$folder" "$work/$test.without.log" "$launcher" "${launcher_words[@]}" "$@"
}

check() {
    local processes=$1 test=$2 result code started took reason
    shift 2
    reason=$(sed -n "s/^$test://p" <<< "${cannot:-}")
    if [ -n "$reason" ]; then
        left_out=$((left_out + 1))
        printf '%-24s %9s  %s\n' "$test" "$processes" "left out: $reason"
        return
    fi
    started=$(date +%s%N)
    run_in "${where:-$work}" "$work/$test.log" "$weft" mpiexec --driver "$driver" --launcher "$launcher" -- \
        "${launcher_words[@]}" -n "$processes" "$work/$test" "$@"
    code=$?
    took=$((($(date +%s%N) - started) / 10000000))
    if [ $code = 0 ]; then
        passed=$((passed + 1)) result=pass
    elif [ -n "${compared:-}" ] && fails_without_weft "$test" -n "$processes" "$work/$test" "$@"; then
        same=$((same + 1)) result="fails without Weft, too ($code)"
    else
        failed=$((failed + 1)) result="FAIL ($code): $(head -n 1 "$work/$test.log" | cut -c 1-100)"
    fi
    printf '%-24s %9s  %s, %d.%02d s\n' "$test" "$processes" "$result" $((took / 100)) $((took % 100))
}

finish() {
    local more=
    [ -z "${compared:-}" ] || more=", $same fail without Weft, too"
    [ $left_out = 0 ] || more="$more, $left_out left out"
    echo "$passed passed, $failed failed$more"
    [ $failed = 0 ]
}

#!/bin/bash
# Runs ROMIO's own test programs on files of Weft: 4 processes, 4 nodes on this machine, one table.
#     scripts/mpi-romio-tests.sh MPI BINARIES DRIVERS ROMIO [TEST...]
# MPI is mpich or openmpi. The programs are those of mpich's ROMIO for both: Open MPI's are older, and use functions that
# Open MPI itself has removed. BINARIES is the folder of `weft`, DRIVERS that of the drivers, ROMIO that of the sources, as
# scripts/mpi-driver.sh made them.
# LAYOUT are options of `weft mkdir`: the layout of the files, as --split. LARGE=1 adds the tests that write many GB.
# Exit code 1: one has failed. Logs are in DRIVERS/tests/MPI/.
set -u
source "$(dirname "$0")/mpi-tests.bash"
mpi=$1 binaries=$(realpath "$2") drivers=$(realpath "$3") romio=$(realpath "$4")
shift 4
use_mpi "$mpi" "$drivers"
sources=$romio/build/test
[ -d "$sources" ] || { echo "$0: $sources: there is no ROMIO of mpich" >&2; exit 2; }
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

start_nodes "$binaries" "$drivers/tests/$mpi"
# Bounds of types, removed in MPI 3: Open MPI's library still has them.
more=()
if [ "$mpi" = openmpi ]; then
    # With the MPI-IO of Open MPI's own romio321 they fail, too.
    cannot="error:its ROMIO has no texts of errors
syshints:its ROMIO tells no hints of files of hints
"
    more=(-DOMPI_OMIT_MPI1_COMPAT_DECLS=0 -include "$work/bounds.h")
    cat > "$work/bounds.h" <<'END'
#include <mpi.h>
extern struct ompi_predefined_datatype_t ompi_mpi_lb, ompi_mpi_ub;
#define MPI_LB OMPI_PREDEFINED_GLOBAL(MPI_Datatype, ompi_mpi_lb)
#define MPI_UB OMPI_PREDEFINED_GLOBAL(MPI_Datatype, ompi_mpi_ub)
END
fi
# One program reads what it has written by fopen(3), too.
mount_nodes || cannot="${cannot:-}external32:there is no mount"$'\n'
while IFS=: read -r test processes words; do
    [ $# = 0 ] || [[ " $* " == *" $test "* ]] || continue
    "$compiler" "${more[@]}" -O1 -w -o "$work/$test" "$sources/$test.c" || exit 2
    # In a directory: the file of a shared pointer is made beside the file.
    # shellcheck disable=SC2086
    "$weft" mkdir ${LAYOUT:-} "$name:/$test" || exit 2
    where=$work/mount/$test
    [ -d "$where" ] || where=$work
    # shellcheck disable=SC2086
    check "$processes" "$test" ${words//FILE/weft:/$test/file}
done <<< "$tests"
finish

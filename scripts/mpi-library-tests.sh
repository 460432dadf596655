#!/bin/bash
# Runs the parallel tests of HDF5 and PnetCDF on files of Weft: 4 processes, 4 nodes on this machine, one table.
#     scripts/mpi-library-tests.sh LIBRARY MPI BINARIES DRIVERS SOURCES [TEST...]
# LIBRARY is hdf5 or pnetcdf, MPI mpich or openmpi; Debian has PnetCDF for openmpi only. The programs are those of the
# library's sources, which are fetched into SOURCES, linked to Debian's library. BINARIES is the folder of `weft`, DRIVERS
# that of the drivers, as scripts/mpi-driver.sh made them.
# LAYOUT are options of `weft mkdir`: the layout of the files, as --split. HDF5TestExpress [3]: 0 tests most.
# A program that fails is run once more in a tmpfs with the MPI library's own MPI-IO. Exit code 1: one fails with Weft only. Logs are in DRIVERS/tests/LIBRARY-MPI/. What is not installed is skipped.
set -u
here=$(realpath "$(dirname "$0")")
source "$here/mpi-tests.bash"
library=$1 mpi=$2 binaries=$(realpath "$3") drivers=$(realpath "$4") sources=$(realpath -m "$5")
shift 5
chosen=("$@")
use_mpi "$mpi" "$drivers"
case $library-$mpi in
    hdf5-*) package=hdf5-$mpi development=libhdf5-$mpi-dev ;;
    pnetcdf-openmpi) package=pnetcdf development=libpnetcdf-dev ;;
    *) echo "$0: there are no tests of $library for $mpi" >&2; exit 2 ;;
esac
if ! command -v "$compiler" > /dev/null || ! pkg-config --exists "$package" 2> /dev/null; then
    echo "skip: $development or pkg-config is not installed"
    exit 0
fi
[ -d "$sources/$library" ] || "$here/debian-source.sh" "$library" \
    "$(dpkg-query -W -f '${source:Version}' "$development")" "$sources/$library" || exit 2

read -ra flags <<< "$(pkg-config --cflags "$package")"
read -ra libraries <<< "$(pkg-config --libs "$package")"

# Each builds its programs in `work`, and lists them in `tests`: "NAME PROCESSES ARGUMENTS", in the order of the runs.
tests=()

build_hdf5() {
    local parallel=$sources/hdf5/testpar serial=$sources/hdf5/test name
    sed "s|@srcdir@|$parallel|" "$serial/H5srcdir_str.h.in" > "$work/H5srcdir_str.h"
    flags+=(-w -O1 -I"$work" -I"$sources/hdf5/src" -I"$serial" -I"$parallel")
    for name in h5test testframe cache_common swmr_common external_common; do
        "$compiler" "${flags[@]}" -c "$serial/$name.c" -o "$work/$name.o" || return
    done
    ar cr "$work/libh5test.a" "$work"/*.o
    for name in t_mpi t_bigio t_cache t_cache_image t_pread t_pshutdown t_prestart t_init_term t_shapesame \
        t_filters_parallel t_pflush1 t_pflush2; do
        is_chosen "$name" || continue
        "$compiler" "${flags[@]}" -o "$work/$name" "$parallel/$name.c" "$work/libh5test.a" "${libraries[@]}" -lz -lm || return
        tests+=("$name 4")
    done
    ! is_chosen testphdf5 && return
    "$compiler" "${flags[@]}" -o "$work/testphdf5" "$parallel"/{testphdf5,t_dset,t_file,t_file_image,t_mdset}.c \
        "$parallel"/{t_ph5basic,t_coll_chunk,t_span_tree,t_chunk_alloc,t_filter_read,t_prop,t_coll_md_read}.c \
        "$work/libh5test.a" "${libraries[@]}" -lz -lm || return
    tests+=("testphdf5 4")
}

# pnetcdf_program NAME SOURCE...: a source that is in m4 is translated.
pnetcdf_program() {
    local name=$1 file
    local -a translated=()
    shift
    for file in "$@"; do
        if [ -f "$file.m4" ]; then
            m4 -DPNETCDF -I"$sources/pnetcdf/m4" "$file.m4" > "$work/$(basename "$file").c" || return
            file=$work/$(basename "$file")
        fi
        translated+=("$file.c")
    done
    "$compiler" "${flags[@]}" -o "$work/$name" "${translated[@]}" "$work/testutils.o" "${libraries[@]}" -lm
}

# Those of nc_test/ are for one process. Not nc_test itself, which takes minutes without Weft, too.
build_pnetcdf() {
    local folder=$sources/pnetcdf/test name
    flags+=(-w -O1 -D_GNU_SOURCE -DHAVE_DECL_MPI_OFFSET -DUSE_PNETCDF "-Dschar=signed char" "-Duchar=unsigned char"
        "-Dlonglong=long long" "-Dulonglong=unsigned long long" -I"$work" -I"$folder/common" -I"$folder/nc_test")
    "$compiler" "${flags[@]}" -c "$folder/common/testutils.c" -o "$work/testutils.o" || return
    for name in nc_test/{t_nc,tst_misc,tst_norm,tst_small,tst_names,tst_atts3,tst_atts,tst_nofill} \
        testcases/{ncmpi_vars_null_stride,vectors,collective_error,test_varm,alignment_test,flexible,flexible2} \
        testcases/{flexible_varm,nonblocking,noclobber,record,inq_num_vars,varn_int,modes,one_record,inq_recsize} \
        testcases/{test_vard,test_vard_rec,test_vard_multiple,varn_contig,ivarn,check_striping,add_var,buftype_free} \
        testcases/{last_large_var,check_type,test_erange,scalar,null_args,tst_dimsizes,mix_collectives} \
        testcases/{large_var_cdf5,tst_max_var_dims,tst_info,tst_vars_fill,tst_def_var_fill,test_fillvalue} \
        testcases/{error_precedence,tst_free_comm,put_all_kinds,iput_all_kinds,redef1} \
        nonblocking/{mcoll_perf,test_bput,interleaved,i_varn_int64,flexible_bput,wait_after_indep,req_all,i_varn_indef} \
        nonblocking/{large_num_reqs,bput_varn,column_wise} C/pres_temp_4D_{wr,rd} \
        cdf_format/{test_inq_format,cdf_type,dim_cdf12} header/header_consistency; do
        local test=${name##*/}
        is_chosen "$test" || continue
        pnetcdf_program "$test" "$folder/$name" || return
        case $name in
            nc_test/*) tests+=("$test 1 file.nc") ;;
            C/*) tests+=("$test 4 ../pres_temp_4D.nc") ;;
            */test_inq_format) tests+=("$test 4 $folder/cdf_format") ;;
            *) tests+=("$test 4 file.nc") ;;
        esac
    done
}

is_chosen() {
    [ ${#chosen[@]} = 0 ] || [[ " ${chosen[*]} " == *" $1 "* ]]
}

compared=yes
export HDF5TestExpress=${HDF5TestExpress:-3} LIMIT=${LIMIT:-600}
start_nodes "$binaries" "$drivers/tests/$library-$mpi"
"build_$library" || exit 2
# All get files below a mount: some take names without a prefix, and PnetCDF and some of HDF5's open files by open(2), too.
mount_nodes || exit 0
export HDF5_PARAPREFIX="$work/mount/files"
# shellcheck disable=SC2086
"$weft" mkdir ${LAYOUT:-} "$name:/files" || exit 2
for test in "${tests[@]}"; do
    read -r program processes words <<< "$test"
    mkdir -p "$work/mount/files/$program"
    # shellcheck disable=SC2086
    where=$work/mount/files/$program check "$processes" "$program" $words
done
finish

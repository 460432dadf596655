#!/bin/bash
# Builds the MPI-IO driver for the MPI libraries that are installed, mpich and Open MPI:
#     scripts/mpi-driver.sh BINARIES DESTINATION [ROMIO]
# BINARIES is the folder with libweft_c.a, as target/release; DESTINATION gets
#     libweft-romio.so    a library to preload: ROMIO of mpich, with the driver weft: and the C library in it
#     COPYRIGHT.mpich     its licence, which goes where the library goes
#     weft-openmpi/       a component of Open MPI, mca_io_romio321.so: its ROMIO, with the same in it; its LICENSE
# ROMIO [DESTINATION/romio] is the folder where ROMIO is built, once: afterwards only the driver is compiled.
# Needs mpich or Open MPI with headers, dpkg-dev and, the first time, apt's sources. Where neither is installed, root gets
# mpich (WEFT_NO_INSTALL=1: fails instead). WEFT_MPICH_SOURCE=DIR, WEFT_OPENMPI_SOURCE=DIR: the sources are there, of the
# version that is installed.
set -euo pipefail
binaries=$(realpath "$1")
mkdir -p "$2"
destination=$(realpath "$2")
root=$(realpath "$(dirname "$0")/..")
mpi=$root/fronts/mpi
mkdir -p "${3:-$destination/romio}"
romio=$(realpath "${3:-$destination/romio}")

fail() { echo "mpi-driver: $1" >&2; echo "  remedy: $2" >&2; exit 1; }

# MPICC, mpicc.mpich or mpicc, whichever is mpich's; empty if none is.
mpich_compiler() {
    local name
    for name in ${MPICC:-mpicc.mpich mpicc}; do
        if command -v "$name" >/dev/null && "$name" -show 2>/dev/null | grep -q -- -lmpich; then
            echo "$name"
            return
        fi
    done
}

# Prints the folder of Open MPI's headers and libraries; nothing where it is not installed. Components need the internal
# headers, which Debian installs too.
openmpi_folder() {
    local folder
    folder=/usr/lib/$(gcc -print-multiarch 2>/dev/null)/openmpi
    [ ! -f "$folder/include/openmpi/ompi/mca/io/io.h" ] || echo "$folder"
}

require_tools() {
    local missing=
    [ -n "$(mpich_compiler)$(openmpi_folder)" ] || missing="mpich libmpich-dev"
    [ -n "${WEFT_MPICH_SOURCE:-}" ] || command -v dpkg-source >/dev/null || missing="$missing dpkg-dev"
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && [ -z "${WEFT_NO_INSTALL:-}" ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086
        apt-get update -q && apt-get install -y -q --no-install-recommends $missing
    fi
    [ -n "$(mpich_compiler)$(openmpi_folder)" ] ||
        fail "no compiler of mpich" "apt-get install mpich libmpich-dev, or set MPICC; for Open MPI libopenmpi-dev"
}

# fetch_source PACKAGE VERSION VARIABLE: fetches the sources of exactly what is installed into $romio/fetched, because the
# library and ROMIO share structures. VARIABLE names them instead.
fetch_source() {
    local failure
    echo "mpi-driver: fetching the sources of $1 $2" >&2
    failure=$("$root/scripts/debian-source.sh" "$1" "$2" "$romio/fetched" 2>&1) ||
        fail "$failure" "see $romio/fetched.log, or set $3 to the sources of $1"
}

# edit FILE SCRIPT: one that changes nothing means another ROMIO than the script knows.
edit() {
    local before
    before=$(sha256sum < "$1")
    sed -i "$2" "$1"
    [ "$before" != "$(sha256sum < "$1")" ] ||
        fail "$1 is not as this script knows it" \
            "build with the mpich (4.0.2) or Open MPI (4.1.4) of Debian 12, or mend the script"
}

# A path below a mount: before ROMIO looks for a prefix, and not cut at a colon afterwards.
patch_mounts() {
    edit adio/common/ad_fstype.c 's|^    tmp = strchr(filename, .:.);|\
    extern int ad_weft_is_mounted(MPI_Comm, const char *);\
    if (ad_weft_is_mounted(comm, filename)) {\
        *fstype = ADIO_WEFT_MOUNT;\
        *ops = \&ADIO_WEFT_MOUNT_operations;\
        *error_code = MPI_SUCCESS;\
        return;\
    }\
&|'
    edit mpi-io/open.c 's/if (tmp > filename + 1)/if (file_system != ADIO_WEFT_MOUNT \&\& tmp > filename + 1)/'
    edit mpi-io/delete.c 's/if (tmp > filename + 1)/if (file_system != ADIO_WEFT_MOUNT \&\& tmp > filename + 1)/'
}

patch_romio() {
    edit adio/include/adio.h '/^#define ADIO_QUOBYTEFS /a #define ADIO_WEFT 190\n#define ADIO_WEFT_MOUNT 191'
    edit adio/include/adioi_fs_proto.h '/^#define ADIOI_FS_PROTO_H_INCLUDED/a \
extern struct ADIOI_Fns_struct ADIO_WEFT_operations, ADIO_WEFT_MOUNT_operations;'
    edit adio/common/ad_fstype.c '/^static struct ADIO_FSTypes fstypes/a \
    {\&ADIO_WEFT_operations, ADIO_WEFT, "weft:"},'
    patch_mounts
    # The handler of a file that could not be closed was freed with it.
    edit mpi-io/close.c 's/MPIO_Err_return_file(adio_fh, error_code)/MPIO_Err_return_file(*fh, error_code)/'
    edit adio/common/ad_open.c 's/fd->err_handler = ADIOI_DFLT_ERR_HANDLER;/\
    extern MPI_Errhandler weft_romio_default_errhandler(void);\
    fd->err_handler = weft_romio_default_errhandler();/'
    edit mpi-io/mpioimpl.h 's/^#define ROMIO_THREAD_CS_\(ENTER\|EXIT\|YIELD\)()$/\
void weft_romio_\L\1\E(void);\
#define ROMIO_THREAD_CS_\1() weft_romio_\L\1\E()/'
    cp "$mpi/romio/glue.c" mpi-io/glue/mpich/mpio_err.c
}

# HAVE_STATUS_SET_BYTES: a configure of ROMIO alone forgets it, and then statuses stay empty.
flags="-DHAVE_STATUS_SET_BYTES=1 -DMPIO_Err_create_code=MPIR_Err_create_code"

# Builds ROMIO in $romio/build, of mpich's sources in a folder.
build_romio() {
    cp -a "$1/src/mpi/romio" "$romio/build"
    cp "$1/COPYRIGHT" "$romio/"
    cd "$romio/build"
    patch_romio
    ./configure CC="$cc" CFLAGS="-O2 -g" CPPFLAGS="$flags" --disable-shared --enable-static --with-pic \
        --disable-f77 --disable-f90 --with-file-system=ufs+nfs > configure.log 2>&1 ||
        fail "ROMIO: configure failed: $(tail -n 1 configure.log)" "see $PWD/configure.log"
    { make -C mpl -j"$(nproc)" && make -j"$(nproc)" libromio.la; } > make.log 2>&1 ||
        fail "ROMIO: make failed: $(tail -n 1 make.log)" "see $PWD/make.log"
    # MPI_Comm_split_type() by file system stays libmpich's.
    ar d .libs/libromio.a mpir_cst_filesys.o
    cd "$root"
}

# What ROMIO is built of; it is built again when that changes.
stamp() {
    echo "$version $flags $({ declare -f patch_romio patch_mounts build_romio; cat "$mpi/romio/glue.c"; } | sha256sum)"
}

require_romio() {
    [ "$(cat "$romio/stamp" 2>/dev/null)" != "$(stamp)" ] || return 0
    rm -rf "${romio:?}"/{build,stamp}
    [ -n "${WEFT_MPICH_SOURCE:-}" ] || fetch_source mpich "$version" WEFT_MPICH_SOURCE
    echo "mpi-driver: building ROMIO of mpich $version (once, a minute or two)" >&2
    build_romio "${WEFT_MPICH_SOURCE:-$romio/fetched}"
    rm -rf "${romio:?}/fetched"
    stamp > "$romio/stamp"
}

# compile_driver COMPILER FLAGS [SOURCE...]: the driver, and these, into $destination/objects.
compile_driver() {
    local compiler=$1 options=$2 objects=$destination/objects source
    shift 2
    rm -rf "$objects"
    mkdir "$objects"
    for source in "$mpi"/driver/*.c "$@"; do
        # shellcheck disable=SC2086
        "$compiler" -std=gnu11 -O2 -g -Wall -Wextra -fPIC ${CFLAGS:-} $options -I"$root/fronts/c" -c "$source" \
            -o "$objects/$(basename "$source" .c).o"
    done
}

build_driver() {
    local build=$romio/build
    compile_driver "$cc" \
        "$flags -isystem $build/adio/include -isystem $build/include -isystem $build/mpl/include" \
        "$mpi"/romio/preload.c
    "$cc" -shared -o "$destination/libweft-romio.so.new" "$destination"/objects/*.o \
        -Wl,--whole-archive "$build/.libs/libromio.a" -Wl,--no-whole-archive "$build/mpl/.libs/libmpl.a" \
        "$binaries/libweft_c.a" -Wl,-soname,libweft-romio.so -Wl,--version-script="$mpi/romio/exports.map" \
        -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,defs,-z,nodelete -Wl,--as-needed -lgcc_s -lutil -lrt -lpthread -lm -ldl
    mv "$destination/libweft-romio.so.new" "$destination/libweft-romio.so"
    cp "$romio/COPYRIGHT" "$destination/COPYRIGHT.mpich"
}

# ---- Open MPI ----

patch_openmpi_romio() {
    edit adio/include/adio.h '/^#define ADIO_GPFS /a #define ADIO_WEFT 190\n#define ADIO_WEFT_MOUNT 191'
    edit adio/include/adio.h 's/^    int is_open;.*/&\n    int dirty_write;/'
    # Locks by the file system's function, as in later versions.
    edit adio/include/adioi.h '/^    const char \*fsname;/i \
    int (*ADIOI_xxx_SetLock)(ADIO_File fd, int command, int type, ADIO_Offset offset, int whence, ADIO_Offset length);'
    local own='(fd)->fns->ADIOI_xxx_SetLock'
    edit adio/include/adioi.h "s/^ *ADIOI_Set_lock((fd)->fd_sys, \(F_.*\))\$/\
          ($own != NULL ? $own(fd, \1) : ADIOI_Set_lock((fd)->fd_sys, \1))/"
    edit adio/include/adioi_fs_proto.h '0,/^#ifdef ROMIO_/s//\
extern struct ADIOI_Fns_struct ADIO_WEFT_operations, ADIO_WEFT_MOUNT_operations;\
&/'
    edit adio/common/ad_fstype.c 's|^    else if (!strncmp(filename, "testfs:", 7)|\
    else if (!strncasecmp(filename, "weft:", 5)) { *fstype = ADIO_WEFT; }\
&|'
    edit adio/common/ad_fstype.c 's|^    if (file_system == ADIO_TESTFS) {|    if (file_system == ADIO_WEFT) *ops = \&ADIO_WEFT_operations;\
&|'
    patch_mounts
    cp "$mpi/romio/openmpi/ompi_grequestx.h" include/
}

# The component takes files of Weft before Open MPI's own MPI-IO does (whose priority is 30), and no others.
patch_component() {
    local ours=weft_romio_is_ours file=io_romio321_component.c
    edit $file "s/^static int register_component(void);/int $ours(MPI_Comm comm, const char *name);\n&/"
    edit $file "s/^    \*priority = priority_param;/    *priority = $ours(file->f_comm, file->f_filename) ? 90 : priority_param;/"
    edit $file "s/^    \*priority = delete_priority_param;/    *priority = $ours(MPI_COMM_SELF, filename) ? 90 : delete_priority_param;/"
}

# Builds ROMIO and the component's own part in $romio/build-openmpi, of Open MPI's sources in a folder. ROMIO insists on
# lying where it lies there.
build_openmpi_romio() {
    local place=ompi/mca/io/romio321 build=$romio/build-openmpi source
    mkdir -p "$build/ompi/mca/io"
    cp -a "$1/config" "$1/LICENSE" "$build/"
    cp -a "$1/$place" "$build/$place"
    cd "$build/$place/romio"
    patch_openmpi_romio
    ./configure FROM_OMPI=yes CC=gcc CFLAGS="-O2 -g -D__EXTENSIONS__" CPPFLAGS="${openmpi_include[*]}" \
        --enable-grequest-extensions --disable-aio --disable-weak-symbols --disable-f77 --disable-f90 \
        --with-file-system=ufs+nfs --disable-shared --enable-static --with-pic > configure.log 2>&1 ||
        fail "ROMIO of Open MPI: configure failed: $(tail -n 1 configure.log)" "see $PWD/configure.log"
    make -j"$(nproc)" > make.log 2>&1 ||
        fail "ROMIO of Open MPI: make failed: $(tail -n 1 make.log)" "see $PWD/make.log"
    cd ../src
    patch_component
    for source in *.c; do
        gcc -O2 -g -fPIC "${openmpi_include[@]}" -I.. -I../romio/include -c "$source"
    done
    cd "$root"
}

openmpi_stamp() {
    echo "$openmpi_version $({ declare -f patch_openmpi_romio patch_mounts patch_component build_openmpi_romio
        cat "$mpi/romio/openmpi/ompi_grequestx.h"; } | sha256sum)"
}

require_openmpi_romio() {
    [ "$(cat "$romio/stamp-openmpi" 2>/dev/null)" != "$(openmpi_stamp)" ] || return 0
    rm -rf "${romio:?}"/{build,stamp}-openmpi
    [ -n "${WEFT_OPENMPI_SOURCE:-}" ] || fetch_source openmpi "$openmpi_version" WEFT_OPENMPI_SOURCE
    echo "mpi-driver: building ROMIO of Open MPI $openmpi_version (once, a minute or two)" >&2
    build_openmpi_romio "${WEFT_OPENMPI_SOURCE:-$romio/fetched}"
    rm -rf "${romio:?}/fetched"
    openmpi_stamp > "$romio/stamp-openmpi"
}

build_openmpi_component() {
    local component=$romio/build-openmpi/ompi/mca/io/romio321 place=$destination/weft-openmpi
    mkdir -p "$place"
    compile_driver gcc "-D_GNU_SOURCE -isystem $component/romio/adio/include -isystem $component/romio/include ${openmpi_system[*]}" \
        "$mpi"/romio/openmpi/glue.c
    gcc -shared -o "$place/new" "$destination"/objects/*.o "$component"/src/*.o \
        -Wl,--whole-archive "$component/romio/.libs/libromio_dist.a" -Wl,--no-whole-archive "$binaries/libweft_c.a" \
        -Wl,-soname,mca_io_romio321.so -Wl,--version-script="$mpi/romio/openmpi/exports.map" \
        -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,defs,-z,nodelete -Wl,--as-needed \
        -L"$openmpi/lib" -lmpi -lopen-pal -lgcc_s -lutil -lrt -lpthread -lm -ldl
    mv "$place/new" "$place/mca_io_romio321.so"
    cp "$romio/build-openmpi/LICENSE" "$place/"
}

left_out() { echo "mpi-driver: left out: $1: $2 is not installed" >&2; }

[ -f "$binaries/libweft_c.a" ] || fail "$binaries has no libweft_c.a" "cargo build --release -p weft-c"
require_tools
exec 9> "$romio/lock"
flock 9
cc=$(mpich_compiler)
if [ -n "$cc" ]; then
    version=${WEFT_MPICH_SOURCE:-$(dpkg-query -W -f '${source:Version}' libmpich12)}
    require_romio
    build_driver
    echo "$destination/libweft-romio.so"
else
    left_out mpich libmpich-dev
fi
openmpi=$(openmpi_folder)
if [ -n "$openmpi" ]; then
    openmpi_version=${WEFT_OPENMPI_SOURCE:-$(dpkg-query -W -f '${source:Version}' libopenmpi3)}
    openmpi_include=("-I$openmpi/include" "-I$openmpi/include/openmpi")
    openmpi_system=("${openmpi_include[@]/#-I/-isystem }")
    require_openmpi_romio
    build_openmpi_component
    echo "$destination/weft-openmpi/mca_io_romio321.so"
else
    left_out "Open MPI" libopenmpi-dev
fi

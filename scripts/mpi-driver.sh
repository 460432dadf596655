#!/bin/bash
# Builds the MPI-IO driver, a library that is preloaded into MPI programs:
#     scripts/mpi-driver.sh BINARIES DESTINATION [ROMIO]
# BINARIES is the folder with libweft_c.a, as target/release; DESTINATION gets
#     libweft-romio.so    ROMIO of the mpich that is installed, with the driver weft: and the C library in it
#     COPYRIGHT.mpich     its licence, which goes where the library goes
# ROMIO [DESTINATION/romio] is the folder where ROMIO is built, once: afterwards only the driver is compiled.
# Needs mpich with its headers, dpkg-dev and, the first time, apt's sources; as root it installs what is missing
# (WEFT_NO_INSTALL=1: it does not). WEFT_MPICH_SOURCE=DIR: mpich's sources are there, of the version that is installed.
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

require_tools() {
    local missing=
    [ -n "$(mpich_compiler)" ] || missing="mpich libmpich-dev"
    [ -n "${WEFT_MPICH_SOURCE:-}" ] || command -v dpkg-source >/dev/null || missing="$missing dpkg-dev"
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && [ -z "${WEFT_NO_INSTALL:-}" ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086
        apt-get update -q && apt-get install -y -q --no-install-recommends $missing
    fi
    [ -n "$(mpich_compiler)" ] || fail "no compiler of mpich" "apt-get install mpich libmpich-dev, or set MPICC"
}

# Fetches the sources of exactly what is installed into $romio/fetched: libmpich and ROMIO share the structure of an open
# file. Debian's images list no sources; so the lists are our own, made of those that apt has.
fetch_source() {
    local version=$1 apt=$romio/apt file
    mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/archives/partial"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$file" ] || sed -n 's/^deb /deb-src /p' "$file" >> "$apt/sources/weft.list"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" > "$apt/sources/$(basename "$file")"
    done
    local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources"
        -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt" -o APT::Sandbox::User=)
    (cd "$romio" && apt-get "${options[@]}" update && apt-get "${options[@]}" source "mpich=$version") \
        > "$romio/fetch.log" 2>&1 ||
        fail "mpich $version: apt-get source failed: $(tail -n 1 "$romio/fetch.log")" \
            "see $romio/fetch.log, or set WEFT_MPICH_SOURCE to mpich's sources"
    mv "$romio"/mpich-*/ "$romio/fetched"
}

# edit FILE SCRIPT: one that changes nothing means another ROMIO than the script knows.
edit() {
    local before
    before=$(sha256sum < "$1")
    sed -i "$2" "$1"
    [ "$before" != "$(sha256sum < "$1")" ] ||
        fail "$1 is not as this script knows it" "build with the mpich of Debian 12 (4.0.2), or mend the script"
}

patch_romio() {
    edit adio/include/adio.h '/^#define ADIO_QUOBYTEFS /a #define ADIO_WEFT 190\n#define ADIO_WEFT_MOUNT 191'
    edit adio/include/adioi_fs_proto.h '/^#define ADIOI_FS_PROTO_H_INCLUDED/a \
extern struct ADIOI_Fns_struct ADIO_WEFT_operations, ADIO_WEFT_MOUNT_operations;'
    edit adio/common/ad_fstype.c '/^static struct ADIO_FSTypes fstypes/a \
    {\&ADIO_WEFT_operations, ADIO_WEFT, "weft:"},'
    # A path below a mount: before ROMIO looks for a prefix, and not cut at a colon afterwards.
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
    echo "$version $flags $({ declare -f patch_romio build_romio; cat "$mpi/romio/glue.c"; } | sha256sum)"
}

require_romio() {
    [ "$(cat "$romio/stamp" 2>/dev/null)" != "$(stamp)" ] || return 0
    rm -rf "${romio:?}"/{apt,build,fetched,mpich*,stamp}
    local source=${WEFT_MPICH_SOURCE:-$romio/fetched}
    if [ -z "${WEFT_MPICH_SOURCE:-}" ]; then
        echo "mpi-driver: fetching the sources of mpich $version" >&2
        fetch_source "$version"
    fi
    echo "mpi-driver: building ROMIO of mpich $version (once, a minute or two)" >&2
    build_romio "$source"
    rm -rf "${romio:?}"/{apt,fetched,mpich*}
    stamp > "$romio/stamp"
}

build_driver() {
    local build=$romio/build objects=$destination/objects source
    local include=(-isystem "$build/adio/include" -isystem "$build/include" -isystem "$build/mpl/include"
        -I"$root/fronts/c")
    rm -rf "$objects"
    mkdir "$objects"
    for source in "$mpi"/driver/*.c; do
        # shellcheck disable=SC2086
        "$cc" -std=gnu11 -O2 -g -Wall -Wextra -fPIC ${CFLAGS:-} $flags "${include[@]}" -c "$source" \
            -o "$objects/$(basename "$source" .c).o"
    done
    "$cc" -shared -o "$destination/libweft-romio.so.new" "$objects"/*.o \
        -Wl,--whole-archive "$build/.libs/libromio.a" -Wl,--no-whole-archive "$build/mpl/.libs/libmpl.a" \
        "$binaries/libweft_c.a" -Wl,-soname,libweft-romio.so -Wl,--version-script="$mpi/romio/exports.map" \
        -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,defs,-z,nodelete -Wl,--as-needed -lgcc_s -lutil -lrt -lpthread -lm -ldl
    mv "$destination/libweft-romio.so.new" "$destination/libweft-romio.so"
    cp "$romio/COPYRIGHT" "$destination/COPYRIGHT.mpich"
}

require_tools
cc=$(mpich_compiler)
[ -f "$binaries/libweft_c.a" ] || fail "$binaries has no libweft_c.a" "cargo build --release -p weft-c"
version=${WEFT_MPICH_SOURCE:-$(dpkg-query -W -f '${source:Version}' libmpich12)}
# HAVE_STATUS_SET_BYTES: a configure of ROMIO alone forgets it, and then statuses stay empty.
flags="-DHAVE_STATUS_SET_BYTES=1 -DMPIO_Err_create_code=MPIR_Err_create_code"
exec 9> "$romio/lock"
flock 9
require_romio
build_driver
echo "$destination/libweft-romio.so"

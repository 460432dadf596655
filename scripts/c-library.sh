#!/bin/bash
# Makes a C library that programs link, out of what cargo built:
#     scripts/c-library.sh BINARIES DESTINATION [PREFIX]
# BINARIES is the folder with libweft_c.a, as target/release; DESTINATION gets
#     include/weft.h  lib/libweft.so -> libweft.so.0 -> libweft.so.0.1.0  lib/libweft.a
#     lib/pkgconfig/weft.pc  lib/cmake/weft/weft-config.cmake
# weft.pc names PREFIX [DESTINATION]. Rust's own shared libraries have no versions of symbols: so it is linked here.
set -eu
binaries=$1 destination=$2
mkdir -p "$destination/include" "$destination/lib/pkgconfig" "$destination/lib/cmake/weft"
destination=$(realpath "$destination")
prefix=${3:-$destination}
source=$(dirname "$0")/../fronts/c
version=$(sed -n '/^\[workspace.package\]/,/^$/ s/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
major=${version%%.*}
soname=libweft.so.$major

cp "$source/weft.h" "$destination/include/"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" "$source/weft.pc.in" > "$destination/lib/pkgconfig/weft.pc"
for file in weft-config.cmake weft-config-version.cmake; do
    sed "s|@VERSION@|$version|; s|@MAJOR@|$major|" "$source/$file.in" > "$destination/lib/cmake/weft/$file"
done

library=$destination/lib/libweft.so.$version
"${CC:-cc}" -shared -o "$library.new" -Wl,-soname,"$soname" -Wl,--version-script="$source/libweft.map" \
    -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,defs,-z,nodelete -Wl,--whole-archive "$binaries/libweft_c.a" -Wl,--no-whole-archive \
    -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
mv "$library.new" "$library"
ln -sf "libweft.so.$version" "$destination/lib/$soname"
ln -sf "$soname" "$destination/lib/libweft.so"
cp "$binaries/libweft_c.a" "$destination/lib/libweft.a"

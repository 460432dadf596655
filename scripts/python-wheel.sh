#!/bin/bash
# Builds the wheel of the Python package weft, with maturin, which is installed into DESTINATION/tool first:
#     scripts/python-wheel.sh PROFILE DESTINATION
# PROFILE is one of cargo's: release, or dev. DESTINATION gets weft-VERSION-cp311-abi3-….whl and no other.
set -eu
profile=$1 destination=$2
mkdir -p "$destination"
destination=$(realpath "$destination")
root=$(realpath "$(dirname "$0")/..")
tool=$destination/tool

maturin=$(sed -n '/^maturin==/p' "$root/fronts/python/tests/requirements.txt")
if [ "$("$tool/bin/maturin" --version 2>/dev/null)" != "maturin ${maturin#maturin==}" ]; then
    python3 -m venv --clear "$tool"
    "$tool/bin/pip" install --quiet --disable-pip-version-check "$maturin"
fi
target=$(realpath "${CARGO_TARGET_DIR:-$root/target}")
rm -f "$destination"/weft-*.whl
cd "$root/fronts/python"
"$tool/bin/maturin" build --quiet --locked --profile "$profile" --target-dir "$target" --out "$destination"
ls "$destination"/weft-*.whl

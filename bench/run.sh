#!/bin/bash
# bench/run.sh [OPTION...] - what `make bench` runs: builds a release, measures Weft beside Gfarm and beside what the machine
# allows, prints a table per part, and writes them to bench/runs/; then, without options, the region store beside file
# systems (bench/region.py). `bench/run.sh --help` lists the options; docs/performance.md tells what the tables mean. Everything that is started is stopped, also when it is interrupted.
set -u
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT" || exit 2
case " $* " in *" -h "* | *" --help "*) exec python3 -B bench/suite --help ;; esac
cargo build --release -p weft -p weft-bench -p weft-c -p weft-python || exit 2
binaries=${CARGO_TARGET_DIR:-$ROOT/target}/release
python3 -B bench/suite --binaries "$binaries" "$@" || exit
# What is asked for in particular is of the suite.
[ $# -gt 0 ] || exec python3 -B bench/region.py --binaries "$binaries"

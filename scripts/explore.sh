#!/bin/bash
# Runs simulation seeds that no commit before has run: usage: explore.sh SECONDS (of each kind; 45).
#
# The first seed is derived from the commit, so that the run can be repeated. A checkout without git metadata takes the
# sources instead.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-45}
if [ -e .git ] && commit=$(git rev-parse HEAD 2>/dev/null); then
    from="commit ${commit:0:12}"
else
    commit=$(find crates sim -name '*.rs' -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum)
    from="the sources"
fi
first=$((16#${commit:0:8} * 1000))
${CARGO:-cargo} build -q --release -p weft-sim
sim=${CARGO_TARGET_DIR:-target}/release/weft-sim
echo "new seeds, from $first on (derived from $from)"
failed=0
"$sim" explore "$first" "$seconds" || failed=1
"$sim" mounts explore "$first" "$seconds" || failed=1
exit $failed

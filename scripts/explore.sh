#!/bin/bash
# Runs simulation seeds that no commit before has run.
# usage: explore.sh SECONDS [KIND...] (for each kind; 60 native)
#
# The first seed is derived from the commit, so that the run can be repeated. A checkout without git metadata takes the
# sources instead.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
kinds=("${@:2}")
[ ${#kinds[@]} -gt 0 ] || kinds=(native)
if [ -e .git ] && commit=$(git rev-parse HEAD 2>/dev/null); then
    from="commit ${commit:0:12}"
else
    commit=$(find crates sim -name '*.rs' -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum)
    from="the sources"
fi
first=$((16#${commit:0:8} * 1000))
# What `make test` has built is optimized enough, and is there already.
${CARGO:-cargo} build -q -p weft-sim
sim=${CARGO_TARGET_DIR:-target}/debug/weft-sim
echo "new seeds, from $first on (derived from $from)"
failed=
for kind in "${kinds[@]}"; do
    words=()
    [ "$kind" = native ] || words=("$kind")
    "$sim" "${words[@]}" explore "$first" "$seconds" || failed="$failed $kind"
done
[ -n "$failed" ] || exit 0
cat >&2 <<END
new seeds failed:$failed. For each, run the command that replays it, here and at the commit before.
  If it fails here alone, this change is at fault, or has changed what the seed does: find out which.
  If it fails there, too, the defect is older: mend it, or add the seed, with what it shows, to "What is known to be
  missing" in docs/simulation.md. \`record\` and \`shorten\` make a short script of it, which shows what matters and
  keeps its meaning: put it into sim/scripts when its cause is mended.
END
exit 1

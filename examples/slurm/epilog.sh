#!/bin/sh
# Epilog of slurmd, as root on each host when a job has ended: takes away what a job that was killed, or did not end
# with `weft down`, has left on this host: mounts, processes, and the directory that prolog.sh has made.

jobs=/local/scratch/weft-jobs

directory=$jobs/$SLURM_JOB_ID
[ -d "$directory" ] || exit 0
# As the user, who owns the mounts. Each host clears up by itself: others are not asked (WEFT_SSH=false).
as_user=
[ "$(id -u)" = "$SLURM_JOB_UID" ] ||
    as_user="setpriv --reuid $SLURM_JOB_UID --regid $(id -g "$SLURM_JOB_UID") --init-groups"
$as_user env XDG_RUNTIME_DIR="$directory/run" WEFT_SSH=false weft down --force --all >&2
# What weft could not end, such as stores of other hosts' nodes, has no use any more.
rm -rf --one-file-system "$directory"
exit 0

#!/bin/sh
# TaskEpilog of slurmd, as the job's user: after a job's script, while its hosts are still its own, carries out what the
# directives of burst_buffer.lua leave to do: `weft stage out`, changes of a directory below, `weft down`. What it says
# on its standard error is in the job's output.
#
# Not after a job that was cancelled, or has used up its time: Slurm ends its nodes then, too.

jobs=/local/scratch/weft-jobs

directory=$jobs/$SLURM_JOB_ID
# Steps of the job have a number, its script has none.
[ "$WEFT_BB" = "$SLURM_JOB_ID" ] && [ -z "$SLURM_STEP_ID" ] || exit 0
# The job has not begun, or its script has ended the file system.
[ -e "$directory/begun" ] && [ -d "$directory/run/weft/job-$SLURM_JOB_ID" ] || exit 0
export XDG_RUNTIME_DIR="$directory/run" WEFT_SSH=srun

set -f
# Pairs of paths without spaces.
set -- $WEFT_BB_STAGE_OUT
while [ $# -gt 1 ]; do
    weft stage out --quiet "weft:${1%/}/." "$2" >&2 || echo "weft: stage_out of $1 is incomplete: $2" >&2
    shift 2
done
weft down ${WEFT_BB_OVER:+--drain} >&2 || echo "weft: what was not written back ends with this job" >&2
exit 0

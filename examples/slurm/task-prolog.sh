#!/bin/sh
# TaskProlog of slurmd, as the job's user: tells the job's programs where Weft's directory is (prolog.sh), and to start
# nodes as steps of the job. Lines that begin with "export" become part of their environment, those with "print" part
# of their output.
#
# Before a job's script it also carries out the directives that burst_buffer.lua has found in it: `weft up`, and
# `weft stage in`. If one fails, the job fails, since its script would work without its input.

jobs=/local/scratch/weft-jobs

directory=$jobs/$SLURM_JOB_ID
[ -d "$directory/run" ] || exit 0
echo "export XDG_RUNTIME_DIR=$directory/run"
echo "export WEFT_JOB_DIRECTORY=$directory"
echo "export WEFT_SSH=srun"

# Steps of the job have a number, its script has none.
[ "$WEFT_BB" = "$SLURM_JOB_ID" ] && [ -z "$SLURM_STEP_ID" ] || exit 0
export XDG_RUNTIME_DIR="$directory/run" WEFT_SSH=srun
log=$directory/begin.log

begin() {
    weft up --store "${WEFT_BB_STORE:-$directory}" ${WEFT_BB_OVER:+--over "$WEFT_BB_OVER"} || return
    set -f
    # Pairs of paths without spaces.
    set -- $WEFT_BB_STAGE_IN
    while [ $# -gt 1 ]; do
        weft stage in --quiet "${1%/}/." "weft:$2" || return
        shift 2
    done
}

# slurmd reads the output of this script to its end, which nodes that stay would keep open.
if begin > "$log" 2>&1 < /dev/null; then
    touch "$directory/begun"
else
    echo "weft: this job does not begin: its directives failed" >> "$log"
fi
sed 's/^/print /' "$log"
[ -e "$directory/begun" ]

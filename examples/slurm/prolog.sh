#!/bin/sh
# Prolog of slurmd, as root on each host of a job: a directory for Weft that is the job's user's alone.
#
# slurm.conf:  Prolog=/etc/slurm/weft/prolog.sh  TaskProlog=/etc/slurm/weft/task-prolog.sh
#              Epilog=/etc/slurm/weft/epilog.sh  PrologFlags=Alloc
#
# It never fails: a prolog that fails drains its host, and Weft is not worth that.

# On a local device of each host; the same in the three scripts.
jobs=/local/scratch/weft-jobs

directory=$jobs/$SLURM_JOB_ID
group=$(id -g "$SLURM_JOB_UID") || exit 0
install -d -m 0755 "$jobs" &&
    install -d -m 0700 -o "$SLURM_JOB_UID" -g "$group" "$directory" "$directory/run" ||
    echo "weft: no directory for job $SLURM_JOB_ID: $directory" >&2
exit 0

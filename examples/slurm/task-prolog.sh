#!/bin/sh
# TaskProlog of slurmd, as the job's user: tells the job's programs where Weft's directory is (prolog.sh), and to start
# nodes as steps of the job. Lines that begin with "export" become part of their environment.

jobs=/local/scratch/weft-jobs

directory=$jobs/$SLURM_JOB_ID
[ -d "$directory/run" ] || exit 0
echo "export XDG_RUNTIME_DIR=$directory/run"
echo "export WEFT_JOB_DIRECTORY=$directory"
echo "export WEFT_SSH=srun"

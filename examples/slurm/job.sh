#!/bin/bash
#SBATCH --nodes=2
#SBATCH --time=00:10:00
# A job that works in a file system out of its own hosts. `weft` is in the path on each of them.
set -euo pipefail

# Where Weft's site scripts are not installed (prolog.sh): files of this job that go with it.
: "${WEFT_JOB_DIRECTORY:=${TMPDIR:-/tmp}/weft-job-$SLURM_JOB_ID}"

weft up --store "$WEFT_JOB_DIRECTORY"

# The job's own work: each process writes a file, and reads that of the next one, which may be on another host.
srun --ntasks-per-node=1 bash -c '
    file=$(mktemp) && echo "from $SLURM_PROCID" > "$file" && weft cp -q "$file" "weft:/$SLURM_PROCID" && rm "$file"'
srun --ntasks-per-node=1 bash -c 'weft cat "weft:/$(( (SLURM_PROCID + 1) % SLURM_NTASKS ))"'

weft down

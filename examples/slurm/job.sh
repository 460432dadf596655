#!/bin/bash
#SBATCH --nodes=2
#SBATCH --time=00:10:00
# A job that works in a file system out of its own hosts. `weft` is in the path on each of them.
set -euo pipefail

# Where Weft's site scripts are not installed (prolog.sh): files of this job that go with it.
: "${WEFT_JOB_DIRECTORY:=${TMPDIR:-/tmp}/weft-job-$SLURM_JOB_ID}"

weft up --store "$WEFT_JOB_DIRECTORY"

# Input from the site's file system, which all hosts see.
site=$SLURM_SUBMIT_DIR/weft-example
mkdir -p "$site/input" && echo "work to do" > "$site/input/work"
weft stage in "$site/input" weft:/

# The job's own work: each process writes a file, and reads that of the next one, which may be on another host.
weft mkdir -p weft:/results
srun --ntasks-per-node=1 bash -c '
    file=$(mktemp) && weft cat weft:/input/work > "$file" && echo "from $SLURM_PROCID" >> "$file" &&
    weft cp -q "$file" "weft:/results/$SLURM_PROCID" && rm "$file"'
srun --ntasks-per-node=1 bash -c 'weft cat "weft:/results/$(( (SLURM_PROCID + 1) % SLURM_NTASKS ))"'

# Results to the site's file system.
weft stage out --verify weft:/results "$site"

weft down

#!/bin/bash
#SBATCH --nodes=2
#SBATCH --time=00:10:00
#BB_LUA weft
#BB_LUA stage_in source=/project/input destination=/input
#BB_LUA stage_out source=/results destination=/project/run-%j
# As job.sh, with directives where the site has installed burst_buffer.lua: the file system is there, with its input,
# before the first line, and after the last one its results are copied out and it is ended.
set -euo pipefail

weft mkdir -p weft:/results
srun --ntasks-per-node=1 bash -c '
    file=$(mktemp) && weft cat weft:/input/work > "$file" && echo "from $SLURM_PROCID" >> "$file" &&
    weft cp -q "$file" "weft:/results/$SLURM_PROCID" && rm "$file"'

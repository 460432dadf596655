#!/bin/bash
# Runs examples/slurm/job.sh in a Slurm of two hosts that this makes on this machine, without systemd: munged, slurmctld
# and two slurmd. Then a job that is killed, after which nothing of it may be left. Then jobs with the directives of
# examples/slurm/burst_buffer.lua, where Slurm has its plugin.
#
# Usage: scripts/slurm-test.sh WEFT. Root, and Debian's slurmctld, slurmd, slurm-client and munge; where something is
# missing it says what, and is skipped. All that it starts it ends, and its files are in a directory of its own.
set -euo pipefail

weft=$(realpath "$1")
examples=$(realpath "$(dirname "$0")/../examples/slurm")

[ "$(id -u)" = 0 ] || { echo "skip: a Slurm of its own needs root"; exit 0; }
for program in munged slurmctld slurmd srun sbatch scancel; do
    command -v $program >/dev/null || { echo "skip: no $program (Debian: slurmctld slurmd slurm-client munge)"; exit 0; }
done

ground=$(mktemp -d /tmp/weft-slurm.XXXXXX)
pids=()
clean_up() {
    for ((index = ${#pids[@]} - 1; index >= 0; index--)); do
        kill "${pids[index]}" 2>/dev/null && wait "${pids[index]}" 2>/dev/null || true
    done
    XDG_RUNTIME_DIR=$ground/left WEFT_SSH=false "$weft" down --force --all >/dev/null 2>&1 || true
    rm -rf "$ground"
}
trap clean_up EXIT
fail() {
    echo "slurm-test: $1" >&2
    tail -n 20 "$ground"/*.log "$ground"/*.out "$ground"/any/*.out >&2
    exit 1
}
# Waits up to 20 s for a command to succeed.
wait_for() {
    for _ in $(seq 100); do "${@:2}" >/dev/null 2>&1 && return; sleep 0.2; done
    fail "$1"
}

chmod 755 "$ground"
mkdir -p "$ground"/{bin,munge,state,site,n1,n2}
chmod 711 "$ground/munge"
cp "$weft" "$ground/bin/weft"
# For jobs of another user.
mkdir -m 1777 "$ground/any"
export PATH="$ground/bin:$PATH"
# The names of the two hosts are of this Slurm alone: nobody resolves them.
listen='s|weft up |weft up --listen 127.0.0.1 |'
for script in prolog task-prolog task-epilog epilog; do
    sed "s|^jobs=.*|jobs=$ground/jobs|; s|env XDG|env PATH=$PATH XDG|; $listen" "$examples/$script.sh" \
        > "$ground/site/$script.sh"
    chmod 755 "$ground/site/$script.sh"
done
burst_buffer=
if compgen -G "/usr/lib*/*/slurm*/burst_buffer_lua.so" >/dev/null; then
    burst_buffer=BurstBufferType=burst_buffer/lua
    cp "$examples/burst_buffer.lua" "$ground"
    : > "$ground/burst_buffer.conf"
fi
head -c 128 /dev/urandom > "$ground/munge/key"
chmod 400 "$ground/munge/key"
host=$(hostname -s)
cat > "$ground/slurm.conf" <<END
ClusterName=weft-test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$ground/munge/socket
StateSaveLocation=$ground/state
SlurmdSpoolDir=$ground/%n
SlurmctldPidFile=$ground/slurmctld.pid
SlurmdPidFile=$ground/slurmd-%n.pid
SlurmctldLogFile=$ground/slurmctld.log
SlurmdLogFile=$ground/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
SchedulerParameters=bf_interval=1
$burst_buffer
Prolog=$ground/site/prolog.sh
TaskProlog=$ground/site/task-prolog.sh
TaskEpilog=$ground/site/task-epilog.sh
Epilog=$ground/site/epilog.sh
PrologFlags=Alloc
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=26821 CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=26822 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$ground/slurm.conf

munged --foreground --force --key-file="$ground/munge/key" --socket="$ground/munge/socket" \
    --pid-file="$ground/munge/pid" --log-file="$ground/munge/log" --seed-file="$ground/munge/seed" \
    > "$ground/munged.out" 2>&1 & pids+=($!)
wait_for "munged does not start" test -S "$ground/munge/socket"
slurmctld -D > "$ground/slurmctld.out" 2>&1 & pids+=($!)
wait_for "slurmctld does not start" sinfo
for node in n1 n2; do
    slurmd -D -N $node > "$ground/slurmd-$node.out" 2>&1 & pids+=($!)
done
both_idle() { [ "$(sinfo --noheader --states=idle --format=%D)" = 2 ]; }
wait_for "the hosts do not come" both_idle

sed "$listen; s|^weft stage in |&--json |" "$examples/job.sh" > "$ground/job.sh"
# Enough files for both hosts to copy some.
mkdir -p "$ground/submit/weft-example/input"
for file in $(seq 500); do echo "$file" > "$ground/submit/weft-example/input/$file"; done
cd "$ground/submit"
timeout 120 sbatch --wait --quiet --output="$ground/job.out" "$ground/job.sh" || fail "the example job failed"
grep -q '"host": "n2"' "$ground/job.out" && ! grep -q 'left out' "$ground/job.out" || fail "a host did not stage"
for process in 0 1; do
    [ "$(cat "$ground/submit/weft-example/results/$process")" = "work to do"$'\n'"from $process" ] ||
        fail "the results were not staged out"
done
grep 'is up: 2 nodes on the hosts of this Slurm job' "$ground/job.out" || fail "no node on each host"
[ "$(grep -c '^from [01]$' "$ground/job.out")" = 2 ] || fail "the processes did not read each other's files"
is_empty() { [ -z "$(ls -A "$ground/jobs")" ]; }
wait_for "the epilog leaves something" is_empty

cd /

# One of another user that is killed while it works.
sed '/^weft down/i touch "'"$ground"'/any/works"\nsleep 1000' "$ground/job.sh" > "$ground/killed.sh"
cd "$ground/any"
job=$(sbatch --parsable --uid=nobody --output="$ground/any/killed.out" "$ground/killed.sh")
cd /
wait_for "the second job does not work" test -e "$ground/any/works"
[ "$(stat -c %U "$ground/any/works" "$ground/jobs/$job" | sort -u)" = nobody ] || fail "the second job is not nobody's"
[ "$(pgrep -fc "weft serve --name job-$job")" = 2 ] || fail "the second job has no two nodes"
scancel "$job"
wait_for "the epilog leaves something of a killed job" is_empty
pgrep -fa "weft serve --name job-$job" && fail "a node outlives its job"
wait_for "a host does not come back" both_idle
echo "slurm-test: a job and one that was killed: nothing is left"

[ -n "$burst_buffer" ] || { echo "skip: this Slurm has no plugin burst_buffer/lua"; exit 0; }
# Runs a script as another user, since Slurm refuses burst buffers to root.
submit() { (cd "$ground/any" && timeout 60 sbatch --wait --quiet --uid=nobody --output="$ground/any/$1.out" "$1.sh"); }
cd "$ground/any"
mkdir -p input && echo "work to do" > input/work
sed "s|/project|$ground/any|" "$examples/burst-buffer.sh" > staged.sh
submit staged || fail "the job with stage_in and stage_out failed"
for process in 0 1; do
    [ "$(cat run-*/$process)" = "work to do"$'\n'"from $process" ] || fail "stage_out has not copied $process"
done
grep -q 'is up: 2 nodes on the hosts of this Slurm job' staged.out || fail "the job is not told of its file system"

install -d -o nobody below
install -o nobody /dev/null below/old
cat > over.sh <<END
#!/bin/bash
#SBATCH --nodes=2
#BB_LUA weft over=$ground/any/below
set -e
echo new > $ground/any/text.\$SLURM_JOB_ID
weft cp -q $ground/any/text.\$SLURM_JOB_ID weft:/new
weft rm weft:/old
[ -e $ground/any/below/old ] && [ ! -e $ground/any/below/new ]
END
submit over || fail "the job over a directory failed"
[ "$(cat below/new)" = new ] && [ ! -e below/old ] || fail "the directory below has not the job's changes"

sed "s|/input destination|/input-gone destination|; s|^weft mkdir|touch $ground/any/began; &|" staged.sh > gone.sh
submit gone && fail "a job without its input did not fail"
[ ! -e began ] && grep -q 'input-gone.*no such file' gone.out || fail "a job without its input began"
sed 's|source=|src=|' staged.sh > wrong.sh
sbatch --uid=nobody wrong.sh 2> wrong.out && fail "a wrong directive was taken"
grep -q 'weft: #BB_LUA stage_in src=.*: unexpected src=' wrong.out || fail "a wrong directive is not named"
cd /
wait_for "the epilog leaves something of a job with directives" is_empty
wait_for "a host does not come back" both_idle
echo "slurm-test: directives: staged in and out, over a directory, without input, wrong"

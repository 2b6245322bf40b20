#!/bin/sh
# Submits the job script $1 to a Slurm cluster of this machine alone, with munge, that it starts for itself in
# the present folder. Leaves with 77, and says why, where that is not possible.
set -eu
job=$1
PATH=$PATH:/usr/sbin
for program in slurmctld slurmd sbatch squeue scontrol munged mungekey; do
    command -v "$program" >/dev/null || { echo "not run: $program is not installed"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "not run: slurmd needs root"; exit 77; }
here=$PWD
host=$(hostname -s)
base=$((20000 + $$ % 20000))
mkdir -p munge state spool
chmod 700 munge
mungekey --create --keyfile="$here/munge/key"
munged --force --key-file="$here/munge/key" --socket="$here/munge/socket" --pid-file="$here/munge/pid" \
    --log-file="$here/munge/log" --seed-file="$here/munge/seed"
cat >slurm.conf <<END
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
SlurmdPort=$((base + 1))
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$here/munge/socket
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd.pid
SlurmctldLogFile=$here/slurmctld.txt
SlurmdLogFile=$here/slurmd.txt
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=sched_interval=1,defer
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF="$here/slurm.conf"
finish() {
    for file in slurmd.pid slurmctld.pid munge/pid; do
        [ -s "$file" ] || continue
        pid=$(cat "$file")
        kill "$pid" || continue
        for _ in 1 2 3 4 5 6 7 8 9 10; do  # it writes into the folder until it ends
            case $(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null) in Z | "") break ;; esac
            sleep 1
        done
    done
}
trap finish EXIT
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
sh "$job"
waited=0
while [ -n "$(squeue --noheader)" ]; do
    sleep 1
    waited=$((waited + 1))
    [ "$waited" -lt 120 ] || { squeue; cat slurmctld.txt slurmd.txt; exit 1; }
done

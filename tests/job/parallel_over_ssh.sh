#!/bin/sh
# Runs the job script $1 with GNU parallel over ssh to this machine, by a server and keys of its own in the
# present folder. Leaves with 77, and says why, where a program is not installed.
set -eu
job=$1
PATH=$PATH:/usr/sbin
for program in parallel sshd ssh ssh-keygen; do
    command -v "$program" >/dev/null || { echo "not run: $program is not installed"; exit 77; }
done
parallel --version | grep -q GNU || { echo "not run: parallel is not GNU parallel"; exit 77; }
here=$PWD
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd  # where the server keeps nothing; it refuses to begin without it
port=$((20000 + $$ % 20000))
ssh-keygen -q -t ed25519 -N '' -f server
ssh-keygen -q -t ed25519 -N '' -f user
cp user.pub authorized
cat >sshd_config <<END
Port $port
ListenAddress 127.0.0.1
HostKey $here/server
AuthorizedKeysFile $here/authorized
PidFile $here/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
END
cat >ssh_config <<END
Host loopback
HostName 127.0.0.1
Port $port
User $(id -un)
IdentityFile $here/user
UserKnownHostsFile $here/known
StrictHostKeyChecking no
LogLevel ERROR
END
"$(command -v sshd)" -f "$here/sshd_config" -E "$here/sshd.txt" || { cat sshd.txt; exit 1; }
trap 'kill "$(cat "$here/sshd.pid")"' EXIT
export PARALLEL_SSH="ssh -F $here/ssh_config" PARALLEL_HOME="$here/parallel"
HOSTS=loopback sh "$job"
grep -q 'publickey' sshd.txt || { echo "no shard came over ssh"; cat sshd.txt; exit 1; }

#!/usr/bin/env bash
# A SLURM of one node for the tests in this folder: Debian, root, no systemd, no cgroups.
#   tests/slurm/cluster.sh up|down|status|reboot      (default: up)
# Its state is under $SLURM_TEST_ROOT (default /tmp/rlnb-slurm), its configuration in /etc/slurm, where sbatch and
# all other commands look for it. Partition low is preempted by partition high; so is graced, whose jobs are told so a
# minute before, by the signal that they have asked for at their time limit.
set -euo pipefail
ROOT=${SLURM_TEST_ROOT:-/tmp/rlnb-slurm}
CONF=/etc/slurm/slurm.conf
export DEBIAN_FRONTEND=noninteractive
alive() { [[ -s $1 ]] && kill -0 "$(cat "$1")" 2>/dev/null; }

install_pkgs() {
  if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
  fi
}

write_conf() {
  local host cpus mem
  host=$(hostname -s); cpus=$(nproc --all); mem=$(( $(awk '/MemTotal/{print $2}' /proc/meminfo) / 1024 - 512 ))
  mkdir -p /etc/slurm "$ROOT"/{ctld,slurmd,log,jobcomp}
  chmod 755 "$ROOT"
  getent hosts "$host" >/dev/null || echo "127.0.0.1 $host" >> /etc/hosts
  cat > "$CONF" <<CFG
ClusterName=rlnbtest
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# cred_expire also sets how long a requeued job waits before it may start again (default 120 s)
AuthInfo=cred_expire=5
SlurmctldPort=6817
SlurmdPort=6818
SlurmctldPidFile=$ROOT/slurmctld.pid
SlurmdPidFile=$ROOT/slurmd.pid
SlurmctldLogFile=$ROOT/log/slurmctld.log
SlurmdLogFile=$ROOT/log/slurmd.log
StateSaveLocation=$ROOT/ctld
SlurmdSpoolDir=$ROOT/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$ROOT/jobcomp/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,default_queue_depth=1000,requeue_delay=0
MpiDefault=none
ReturnToService=2
JobRequeue=1
MinJobAge=3600
KillWait=60
BatchStartTimeout=10
OverTimeLimit=0
CompleteWait=0
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
# Fake GPUs are declared as a count-only GRES so --gres=gpu:volta:1 parses and schedules.
GresTypes=gpu
DefMemPerCPU=4000
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$mem Gres=gpu:volta:2 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES MaxTime=1-00:00:00 State=UP OverSubscribe=YES:4 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=graced Nodes=$host MaxTime=1-00:00:00 State=UP OverSubscribe=YES:4 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=$host Default=NO MaxTime=1-00:00:00 State=UP OverSubscribe=YES:4 PriorityTier=10 PreemptMode=OFF
CFG
  # two count-only GPUs backed by harmless device files
  cat > /etc/slurm/gres.conf <<CFG
NodeName=$host Name=gpu Type=volta Count=2 File=/dev/null,/dev/zero
CFG
  printf 'CgroupAutomount=no\nConstrainCores=no\nConstrainDevices=no\nConstrainRAMSpace=no\n' > /etc/slurm/cgroup.conf
}

start_munge() {
  mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge
  chown -R munge: /run/munge /var/log/munge /var/lib/munge /etc/munge; chmod 755 /run/munge
  if [[ ! -s /etc/munge/munge.key ]]; then
    dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none
  fi
  chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
  alive /run/munge/munged.pid || runuser -u munge -- /usr/sbin/munged
  for _ in $(seq 50); do munge -n >/dev/null 2>&1 && return; sleep .1; done
  echo "munged did not come up" >&2; return 1
}

up() {
  if [[ -s $CONF ]] && ! grep -q '^ClusterName=rlnbtest' "$CONF"; then
    echo "$CONF is another cluster's" >&2; return 1
  fi
  [[ $(id -u) = 0 ]] && command -v apt-get >/dev/null || { echo "needs root on Debian" >&2; return 1; }
  install_pkgs
  start_munge
  write_conf
  alive "$ROOT/slurmctld.pid" || slurmctld -c
  for _ in $(seq 100); do scontrol ping 2>/dev/null | grep -q 'is UP' && break; sleep .1; done
  alive "$ROOT/slurmd.pid" || slurmd
  scontrol reconfigure || true
  for _ in $(seq 150); do
    [[ $(sinfo -h -p low -o %T 2>/dev/null) =~ ^(idle|mixed|allocated)$ ]] && { status; return 0; }
    scontrol update nodename="$(hostname -s)" state=resume 2>/dev/null || true
    sleep .2
  done
  echo "node never became idle" >&2; sinfo >&2 || true; tail -n 40 "$ROOT"/log/*.log >&2; return 1
}

down() {
  for p in "$ROOT/slurmd.pid" "$ROOT/slurmctld.pid" /run/munge/munged.pid; do
    if alive "$p"; then pid=$(cat "$p"); kill "$pid"; for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep .1; done; fi
  done
}
# The node fails: everything on it dies at once, and it comes back.
reboot() {  # with the numbers of the job's processes
  local daemon
  daemon=$(cat "$ROOT/slurmd.pid")
  kill -KILL "$daemon"
  rm -f "$ROOT/slurmd.pid"
  for pid in "$@"; do kill -KILL "$pid" 2>/dev/null || true; done
  slurmd -b
}
status() { scontrol ping; sinfo -N -o '%N %T %c %m %G %P'; }
"${@:-up}"

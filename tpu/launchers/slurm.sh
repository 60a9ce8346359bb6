#!/usr/bin/env bash
# Several hosts under Slurm, one task for each host with all its GPUs. From the project's folder:
#   DATA_DIR=/shared/records OUTPUT_DIR=/shared/run sbatch --nodes=4 --gpus-per-node=8 tpu/launchers/slurm.sh
#SBATCH --job-name=albert_tf
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"  # Slurm runs a copy of this file from elsewhere

HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ' ')
export HOSTS
code=0
srun --kill-on-bad-exit=0 --wait=600 bash tpu/launchers/slurm_task.sh "$@" || code=$?
((code != 199 && code != 200)) || ((code -= 198))  # 1 or 2 of one of the workers; see slurm_task.sh
# 143: saved on the signal that comes 300 seconds before the time is up; 137: a worker was killed; 75: another one saw it;
# 142: it was killed at the very start. The same command goes on from there.
if [[ $code =~ ^(75|137|142|143)$ ]] && ((${SLURM_RESTART_COUNT:-0} < 100)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

#!/usr/bin/env bash
# A task of slurm.sh: worker.sh, with 199 and 200 for its exit codes 1 and 2 (a bug, wrong use: starting again would not
# help). srun reports the greatest code of all tasks, and the workers that lost this one end with 75: start again.
INDEX=$SLURM_PROCID bash "$(dirname "${BASH_SOURCE[0]}")/worker.sh" "$@" &
worker=$!
# Slurm may signal this process alone. The signal also ends the wait, which is then begun again.
trap 'signalled=1; kill -TERM "$worker" 2>/dev/null' TERM
while
  signalled=0
  wait "$worker"
  code=$?
  ((signalled))
do :; done
exit $((code == 1 || code == 2 ? code + 198 : code))

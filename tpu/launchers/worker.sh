#!/usr/bin/env bash
# One of several hosts; slurm.sh and kubernetes.sh start it on each, and so may anything else.
#   HOSTS="node1 node2" INDEX=0 DATA_DIR=/shared/records OUTPUT_DIR=/shared/run bash tpu/launchers/worker.sh
# HOSTS: the same on every host; INDEX: the place of this one, from 0 (the chief, which writes the run folder).
set -euo pipefail
: "${HOSTS:?is not set: the names of all hosts, with spaces between}"
: "${INDEX:?is not set: the place of this host among them, from 0}"
GRAD_ACCUM_STEPS=${GRAD_ACCUM_STEPS:-4}  # 4 hosts of 8 GPUs: 128 sequences each, in parts of 32
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

addresses=$(printf "\"%s:${PORT:-2222}\", " $HOSTS)
export TF_CONFIG="{\"cluster\": {\"worker\": [${addresses%, }]}, \"task\": {\"type\": \"worker\", \"index\": $INDEX}}"
pretrain --distribution=multi_worker "$@"

#!/usr/bin/env bash
# A slice of several TPU hosts: run it on worker 0 alone; the other hosts run TensorFlow's server for the slice.
#   TPU_NAME=my-slice DATA_DIR=gs://bucket/records OUTPUT_DIR=/data/run bash tpu/launchers/tpu_pod.sh
# From elsewhere, through ssh:
#   gcloud compute tpus tpu-vm ssh my-slice --zone=ZONE --worker=0 --command="cd albert_tf && TPU_NAME=... bash ..."
set -euo pipefail
: "${TPU_NAME:?is not set: the name of the slice, or grpc://host:port}"
GRAD_ACCUM_STEPS=${GRAD_ACCUM_STEPS:-4}  # 32 cores: 128 sequences each, in parts of 32
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

export TPU_LOAD_LIBRARY=0  # the chips belong to the servers of the slice, not to this process
pretrain --distribution=tpu --tpu_name="$TPU_NAME" --iterations_per_loop=100 "$@"

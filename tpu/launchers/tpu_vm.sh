#!/usr/bin/env bash
# One TPU VM (v2-8, v3-8, v4-8, ...): run it on the VM itself.
#   DATA_DIR=/data/records OUTPUT_DIR=/data/run bash tpu/launchers/tpu_vm.sh
set -euo pipefail
GRAD_ACCUM_STEPS=${GRAD_ACCUM_STEPS:-16}  # 8 cores: 512 sequences each, in parts of 32
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

pretrain --distribution=tpu --tpu_name=local --iterations_per_loop=100 "$@"

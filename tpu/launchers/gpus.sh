#!/usr/bin/env bash
# All GPUs of one machine (CUDA_VISIBLE_DEVICES chooses).
#   DATA_DIR=/data/records OUTPUT_DIR=/data/run bash tpu/launchers/gpus.sh
set -euo pipefail
GRAD_ACCUM_STEPS=${GRAD_ACCUM_STEPS:-16}  # 8 GPUs: 512 sequences each, in parts of 32
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

pretrain --distribution=mirrored "$@"

# Shared by the launchers, which source it: the paper's schedule as one `albert_tf pretrain` command.
#
# What may be set in the environment:
#   DATA_DIR, OUTPUT_DIR   records folder and run folder (needed); on several hosts the same path everywhere
#   PRESET                 albert_base (default), albert_large, albert_xlarge, albert_xxlarge
#   GRAD_ACCUM_STEPS       parts into which a device splits its share of the 4,096 sequences
#   ALBERT_TF              the program (default: albert_tf)
#   DRY_RUN=1              print the command instead of running it
# Arguments are flags for `albert_tf pretrain`; they come last and win.

: "${DATA_DIR:?is not set: the records folder that create_pretraining_data wrote}"
: "${OUTPUT_DIR:?is not set: the run folder}"
PRESET=${PRESET:-albert_base}

# run_or_show COMMAND...: the one place where something is started.
run_or_show() {
  if [[ ${DRY_RUN:-} == 1 ]]; then
    [[ -z ${TF_CONFIG:-} ]] || printf 'TF_CONFIG=%q ' "$TF_CONFIG"
    printf '%q ' "$@"
    echo
  else
    exec "$@"
  fi
}

# pretrain FLAG...: 125,000 steps of 4,096 sequences of 512 tokens with LAMB. Give large models on few
# devices a smaller --save_checkpoints_steps: 1,000 steps can be most of a day (docs/scale.md has step times).
pretrain() {
  run_or_show "${ALBERT_TF:-albert_tf}" pretrain \
    --data_dir="$DATA_DIR" --output_dir="$OUTPUT_DIR" --preset="$PRESET" \
    --num_train_steps=125000 --train_batch_size=4096 --max_seq_length=512 \
    --optimizer=lamb --learning_rate=0.00176 --num_warmup_steps=3125 \
    --grad_accum_steps="${GRAD_ACCUM_STEPS:-1}" --mixed_precision=mixed_bfloat16 --save_checkpoints_steps=1000 "$@"
}

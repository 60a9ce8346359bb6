"""ALBERT of transformers in TensorFlow; variant "jit" compiles with XLA. float32 only: it has no mixed precision."""

import tensorflow as tf
import tf_keras
from transformers import AlbertConfig, TFAlbertForPreTraining, TFAlbertForSequenceClassification

from benchmarks.peers import work
from benchmarks.peers.contract import Part
from benchmarks.peers.systems import tensorflow_steps as steps

PACKAGES = ("transformers", "tensorflow", "tf_keras")


def prepare(case: work.Case, variant: str) -> dict[str, Part]:
    """See contract.py."""
    sizes = work.PRESETS[case.preset]
    config = AlbertConfig(
        vocab_size=work.VOCABULARY,
        embedding_size=work.EMBEDDING,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        num_labels=2,
    )
    model = (TFAlbertForSequenceClassification if case.natural else TFAlbertForPreTraining)(config)
    model({name: tf.ones([1, 8], tf.int32) for name in ("input_ids", "attention_mask", "token_type_ids")})

    def inputs(batch: steps.Batch) -> steps.Batch:
        return {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["input_mask"],
            "token_type_ids": batch["segment_ids"],
        }

    def infer(batch: steps.Batch) -> tf.Tensor:
        if case.natural:
            return model(inputs(batch)).logits[0, 0]
        return tf.reduce_sum(model.albert(inputs(batch)).pooler_output)

    def loss_of(batch: steps.Batch) -> tf.Tensor:
        outputs = model(inputs(batch), training=True)
        if case.natural:
            return steps.cross_entropy(batch["label"], outputs.logits)
        masked_lm = tf.gather(outputs.prediction_logits, batch["masked_lm_positions"], batch_dims=1)
        return steps.cross_entropy(batch["masked_lm_ids"], masked_lm) + steps.cross_entropy(
            batch["sentence_labels"], outputs.sop_logits
        )

    function = infer
    if case.kind == "train":
        optimizer = tf_keras.optimizers.AdamW(work.LEARNING_RATE)
        function = steps.training_step(loss_of, optimizer, model.trainable_variables, model.trainable_variables)
    if case.natural:
        return steps.natural_parts(case, function)
    return steps.full_parts(case, function, jit_compile=variant == "jit")

"""AlbertEncoder of the TensorFlow model garden (tf-models-official); variant "jit" compiles with XLA."""

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers, models, networks

from benchmarks.peers import work
from benchmarks.peers.contract import Part
from benchmarks.peers.systems import tensorflow_steps as steps

PACKAGES = ("tf-models-official", "tensorflow", "tf_keras")
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def prepare(case: work.Case, variant: str) -> dict[str, Part]:
    """See contract.py."""
    tf_keras.mixed_precision.set_global_policy(POLICIES[case.precision])
    sizes = work.PRESETS[case.preset]
    encoder = networks.AlbertEncoder(
        vocab_size=work.VOCABULARY,
        embedding_width=work.EMBEDDING,
        hidden_size=sizes.hidden,
        num_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        dict_outputs=True,
    )
    model = _classifier(encoder) if case.natural else _pretrainer(encoder, sizes.hidden)

    def inputs(batch: steps.Batch) -> steps.Batch:
        return {
            "input_word_ids": batch["input_ids"],
            "input_mask": batch["input_mask"],
            "input_type_ids": batch["segment_ids"],
        }

    def infer(batch: steps.Batch) -> tf.Tensor:
        if case.natural:
            return tf.cast(model(inputs(batch))[0, 0], tf.float32)
        return tf.reduce_sum(tf.cast(encoder(list(inputs(batch).values()))["pooled_output"], tf.float32))

    def loss_of(batch: steps.Batch) -> tf.Tensor:
        if case.natural:
            return steps.cross_entropy(batch["label"], model(inputs(batch), training=True))
        outputs = model({**inputs(batch), "masked_lm_positions": batch["masked_lm_positions"]}, training=True)
        return steps.cross_entropy(batch["masked_lm_ids"], outputs["mlm_logits"]) + steps.cross_entropy(
            batch["sentence_labels"], outputs["sentence_order"]
        )

    function = infer
    if case.kind == "train":
        optimizer = tf_keras.optimizers.AdamW(work.LEARNING_RATE)
        function = steps.training_step(loss_of, optimizer, model.trainable_variables, model.trainable_variables)
    if case.natural:
        return steps.natural_parts(case, function)
    return steps.full_parts(case, function, jit_compile=variant == "jit")


def _pretrainer(encoder: tf_keras.Model, hidden: int) -> tf_keras.Model:
    head = layers.ClassificationHead(inner_dim=hidden, num_classes=2, dropout_rate=0.0, name="sentence_order")
    model = models.BertPretrainerV2(encoder, mlm_activation="gelu", classification_heads=[head])
    row = tf.ones([1, 8], tf.int32)
    model({**dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), row), "masked_lm_positions": row[:, :1]})
    return model


def _classifier(encoder: tf_keras.Model) -> tf_keras.Model:
    return models.BertClassifier(encoder, num_classes=2, dropout_rate=0.0)

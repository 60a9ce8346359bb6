"""ALBERT of keras-hub on TensorFlow; variant "jit" compiles with XLA. Its pretraining is masked LM only."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import keras_hub  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks.peers import work  # noqa: E402
from benchmarks.peers.contract import Part  # noqa: E402
from benchmarks.peers.systems import tensorflow_steps as steps  # noqa: E402

PACKAGES = ("keras-hub", "keras", "tensorflow")
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def prepare(case: work.Case, variant: str) -> dict[str, Part]:
    """See contract.py."""
    keras.mixed_precision.set_global_policy(POLICIES[case.precision])
    sizes = work.PRESETS[case.preset]
    encoder = keras_hub.models.AlbertBackbone(
        vocabulary_size=work.VOCABULARY,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        embedding_dim=work.EMBEDDING,
        hidden_dim=sizes.hidden,
        intermediate_dim=sizes.inner,
        dropout=0.0,
    )
    model = keras_hub.models.AlbertMaskedLM(backbone=encoder)

    def inputs(batch: steps.Batch) -> steps.Batch:
        return {
            "token_ids": batch["input_ids"],
            "padding_mask": batch["input_mask"],
            "segment_ids": batch["segment_ids"],
        }

    def infer(batch: steps.Batch) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(encoder(inputs(batch))["pooled_output"], tf.float32))

    def loss_of(batch: steps.Batch) -> tf.Tensor:
        masked = {**inputs(batch), "mask_positions": batch["masked_lm_positions"]}
        return steps.cross_entropy(batch["masked_lm_ids"], model(masked, training=True))

    function = infer
    if case.kind == "train":
        variables = model.trainable_variables
        values = [variable.value for variable in variables]
        function = steps.training_step(loss_of, keras.optimizers.AdamW(work.LEARNING_RATE), variables, values)
    return steps.full_parts(case, function, jit_compile=variant == "jit")

"""Hugging Face's ALBERT (of transformers): its names of tensors, classes and settings beside ours, as data."""

from albert_tf.config import AlbertConfig, block_plan
from albert_tf.conversion.names import POOLER, Name
from albert_tf.errors import UserError

# The tied output matrix and its bias are stored twice or not at all; position_ids counts 0, 1, 2, ...
SKIPPED = r"^predictions\.decoder\.(weight|bias)$|embeddings\.position_ids$"

_EMBEDDINGS = (
    Name("embeddings.word_embeddings.weight", "encoder/embeddings/word_embeddings"),
    Name("embeddings.position_embeddings.weight", "encoder/embeddings/position_embeddings"),
    Name("embeddings.token_type_embeddings.weight", "encoder/embeddings/segment_embeddings"),
    Name("embeddings.LayerNorm.weight", "encoder/embeddings/layer_norm/gamma"),
    Name("embeddings.LayerNorm.bias", "encoder/embeddings/layer_norm/beta"),
)
PROJECTION = (
    Name("encoder.embedding_hidden_mapping_in.weight", "encoder/embeddings/projection/kernel", transposed=True),
    Name("encoder.embedding_hidden_mapping_in.bias", "encoder/embeddings/projection/bias"),
)
_ATTENTION = (
    Name("attention.query.weight", "query/kernel", transposed=True),
    Name("attention.query.bias", "query/bias"),
    Name("attention.key.weight", "key/kernel", transposed=True),
    Name("attention.key.bias", "key/bias"),
    Name("attention.value.weight", "value/kernel", transposed=True),
    Name("attention.value.bias", "value/bias"),
    Name("attention.dense.weight", "output/kernel", transposed=True),
    Name("attention.dense.bias", "output/bias"),
    Name("attention.LayerNorm.weight", "layer_norm/gamma"),
    Name("attention.LayerNorm.bias", "layer_norm/beta"),
)
_FEED_FORWARD = (
    Name("ffn.weight", "intermediate/kernel", transposed=True),
    Name("ffn.bias", "intermediate/bias"),
    Name("ffn_output.weight", "output/kernel", transposed=True),
    Name("ffn_output.bias", "output/bias"),
    Name("full_layer_layer_norm.weight", "layer_norm/gamma"),
    Name("full_layer_layer_norm.bias", "layer_norm/beta"),
)
_POOLER = (Name("pooler.weight", POOLER[0], transposed=True), Name("pooler.bias", POOLER[1]))


def _dense(source: str, head: str) -> tuple[Name, Name]:
    return Name(f"{source}.weight", f"{head}/kernel", transposed=True), Name(f"{source}.bias", f"{head}/bias")


HEADS: dict[str, tuple[Name, ...]] = {
    "masked_lm": (
        Name("predictions.dense.weight", "masked_lm/dense/kernel", transposed=True),
        Name("predictions.dense.bias", "masked_lm/dense/bias"),
        Name("predictions.LayerNorm.weight", "masked_lm/layer_norm/gamma"),
        Name("predictions.LayerNorm.bias", "masked_lm/layer_norm/beta"),
        Name("predictions.bias", "masked_lm/output_bias"),
    ),
    "sentence_order": _dense("sop_classifier.classifier", "sentence_order"),
    "span": _dense("qa_outputs", "span"),
    # Four heads with the same names: the class in config.json says which one it is.
    "classifier": _dense("classifier", "classifier"),
    "regression": _dense("classifier", "regression"),
    "multiple_choice": _dense("classifier", "multiple_choice"),
    "token_classifier": _dense("classifier", "token_classifier"),
}
NAMESAKES = ("classifier", "regression", "multiple_choice", "token_classifier")
WITHOUT_POOLER = {"masked_lm", "span", "token_classifier"}  # heads that do not read it

# Class of transformers -> the heads that it has.
CLASSES: dict[str, tuple[str, ...]] = {
    "AlbertModel": (),
    "AlbertForPreTraining": ("masked_lm", "sentence_order"),
    "AlbertForMaskedLM": ("masked_lm",),
    "AlbertForSequenceClassification": ("classifier",),  # "regression" with one label
    "AlbertForQuestionAnswering": ("span",),
    "AlbertForMultipleChoice": ("multiple_choice",),
    "AlbertForTokenClassification": ("token_classifier",),
}

# Our key, theirs, and what transformers takes where it is left out.
CONFIG = (
    ("vocab_size", "vocab_size", 30_000),
    ("embedding_size", "embedding_size", 128),
    ("hidden_size", "hidden_size", 4096),
    ("num_hidden_layers", "num_hidden_layers", 12),
    ("num_hidden_groups", "num_hidden_groups", 1),
    ("inner_group_num", "inner_group_num", 1),
    ("num_attention_heads", "num_attention_heads", 64),
    ("intermediate_size", "intermediate_size", 16_384),
    ("hidden_act", "hidden_act", "gelu_new"),
    ("hidden_dropout_prob", "hidden_dropout_prob", 0),
    ("attention_probs_dropout_prob", "attention_probs_dropout_prob", 0),
    ("max_position_embeddings", "max_position_embeddings", 512),
    ("type_vocab_size", "type_vocab_size", 2),
    ("initializer_range", "initializer_range", 0.02),
    ("layer_norm_epsilon", "layer_norm_eps", 1e-12),
)
ACTIVATIONS = {  # theirs -> ours; of several, the first is written
    "gelu_new": "gelu",
    "gelu": "gelu_erf",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu_erf",
}
# Settings that change what a model computes, with the one value of each that ours has too.
PLAIN = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
CLASSIFIER_DROPOUT = 0.1  # what transformers takes where nothing is said


def encoder_names(config: AlbertConfig, root: str = "albert.") -> list[Name]:
    """Every tensor of an encoder; `root` is "" in folders of the bare AlbertModel.

    Raises UserError for a way of sharing that transformers does not have, or has otherwise.
    """
    if config.sharing != "all":
        raise UserError(
            f"sharing is {config.sharing!r}: transformers knows only 'all', with num_hidden_groups and "
            "inner_group_num; this model can be kept as native only"
        )
    _check_groups(config)
    names = [*_EMBEDDINGS, *(PROJECTION if config.has_projection else ())]
    for block, (attention, feed_forward) in enumerate(block_plan(config)[0]):
        group, inner = divmod(block, config.inner_group_num)
        at = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        for rows, part in ((_ATTENTION, f"attention_{attention}"), (_FEED_FORWARD, f"feed_forward_{feed_forward}")):
            names += [row._replace(source=f"{at}.{row.source}", ours=f"encoder/{part}/{row.ours}") for row in rows]
    return [name._replace(source=root + name.source) for name in [*names, *_POOLER]]


def _check_groups(config: AlbertConfig) -> None:
    """transformers finds a layer's group as int(i / (L / G)), which rounding makes another one for a few L and G."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    for layer in range(layers):
        theirs = int(layer / (layers / groups))
        if theirs != config.group_of_layer(layer):
            raise UserError(
                f"num_hidden_layers {layers} with num_hidden_groups {groups}: transformers runs group {theirs} in "
                f"layer {layer}, the release and this project group {config.group_of_layer(layer)}; the model cannot "
                "be expressed in both"
            )


def inner_groups_that_do_not_run(config: AlbertConfig) -> str | None:
    """What to tell of a model that transformers 4 loads and then cannot run, an error and not other numbers."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    if config.inner_group_num <= layers // groups:
        return None
    return (
        f"transformers 4 stops with an IndexError where inner_group_num ({config.inner_group_num}) is above the layers "
        f"of a group ({layers // groups}): the folder holds the model, yet that library will not run it"
    )

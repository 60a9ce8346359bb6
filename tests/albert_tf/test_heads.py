import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.heads import HEADS, make_head
from albert_tf.pretraining import objective

NAMES = ("input_ids", "input_mask", "segment_ids")
TOLERANCE = 2e-5
FAR = -1e29  # forbidden positions fall to about -1e30, where the exact figure says nothing


def golden_model(shared, name, head):
    folder = shared / "golden" / "tf1" / "heads" / name
    model = checkpoints.load_model(folder, heads=[head])
    golden = np.load(folder / "io.npz")
    return model, golden


def assert_close_where_allowed(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    np.testing.assert_array_equal(ours < FAR, theirs < FAR)
    np.testing.assert_allclose(np.where(theirs < FAR, 0, ours), np.where(theirs < FAR, 0, theirs), atol=TOLERANCE)


@pytest.mark.parametrize("model", ["tiny_shared", "tiny_groups", "tiny_nofactor"])
def test_pretraining_heads_and_losses_equal_the_release(shared, model):
    folder = shared / "golden" / "tf1" / model
    loaded = checkpoints.load_model(folder)
    for file in sorted(folder.glob("io*.npz")):
        golden = np.load(file)
        inputs = {name: golden[name] for name in NAMES}
        outputs = loaded.encoder({**inputs, "output_positions": golden["masked_lm_positions"]})
        table = loaded.encoder.embeddings.word_embeddings
        logits = loaded.heads["masked_lm"](outputs["sequence_output"], table)
        tolerance = 5e-4 if "allmasked" in file.name else TOLERANCE
        np.testing.assert_allclose(tf.reshape(logits, golden["mlm_logits"].shape), golden["mlm_logits"], atol=tolerance)
        order = loaded.heads["sentence_order"](outputs["pooled_output"])
        np.testing.assert_allclose(order, golden["sop_logits"], atol=tolerance)
        features = {
            **inputs,
            **{name: golden[name] for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")},
            "sentence_labels": golden["next_sentence_labels"][:, 0],
            "sentence_weights": np.ones(len(golden["input_ids"]), np.float32),
        }
        sums = objective.forward_sums(loaded, features, training=False)
        metrics = objective.metrics(sums)
        assert metrics["masked_lm_loss"] == pytest.approx(golden["mlm_loss"], abs=tolerance)
        assert metrics["sentence_order_loss"] == pytest.approx(golden["sop_loss"], abs=tolerance)
        assert metrics["loss"] == pytest.approx(golden["total_loss"], abs=tolerance)
        total = objective.loss(sums, objective.batch_weights(features))
        assert float(total) == pytest.approx(float(golden["total_loss"]), abs=tolerance)


def test_losses_are_sums_over_the_batch_and_finite_without_predictions():
    config = AlbertConfig(
        vocab_size=30, embedding_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = checkpoints.new_model(config, {"masked_lm": {}, "sentence_order": {}})
    rng = np.random.default_rng(0)
    features = {
        "input_ids": rng.integers(5, 30, (4, 6)).astype(np.int32),
        "input_mask": np.ones((4, 6), np.int32),
        "segment_ids": np.zeros((4, 6), np.int32),
        "masked_lm_positions": np.tile(np.array([[1, 3, 0]], np.int32), (4, 1)),
        "masked_lm_ids": rng.integers(5, 30, (4, 3)).astype(np.int32),
        "masked_lm_weights": np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]], np.float32),
        "sentence_labels": np.array([0, 1, 1, 0], np.int32),
        "sentence_weights": np.array([1, 1, 1, 0], np.float32),
    }
    whole = objective.forward_sums(model, features, training=False)
    parts = [
        objective.forward_sums(model, {k: v[i : i + 1] for k, v in features.items()}, training=False) for i in range(4)
    ]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-5)
    outputs = model.encoder({name: features[name] for name in NAMES})
    hidden = tf.gather(outputs["sequence_output"], features["masked_lm_positions"], batch_dims=1)
    logits = model.heads["masked_lm"](hidden, model.encoder.embeddings.word_embeddings).numpy().astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_probs, features["masked_lm_ids"][..., None], -1)[..., 0]
    weights = features["masked_lm_weights"]
    assert float(whole.masked_lm_loss) == pytest.approx((losses * weights).sum(), rel=1e-5)
    hits = (log_probs.argmax(-1) == features["masked_lm_ids"]) * weights
    assert float(whole.masked_lm_correct) == hits.sum()
    assert (float(whole.masked_lm_weight), float(whole.sentence_weight)) == (6, 3)

    features["masked_lm_weights"] = np.zeros((4, 3), np.float32)
    empty = objective.forward_sums(model, features, training=False)
    assert objective.metrics(empty)["masked_lm_loss"] == 0
    assert np.isfinite(objective.loss(empty, objective.batch_weights(features)))


def test_classifier_equals_the_release(shared):
    model, golden = golden_model(shared, "classifier_mnli3", "classifier")
    outputs = model.encoder({name: golden[name] for name in NAMES})
    np.testing.assert_allclose(model.heads["classifier"](outputs["pooled_output"]), golden["logits"], atol=TOLERANCE)


def test_regression_equals_the_release(shared):
    model, golden = golden_model(shared, "regression_stsb", "regression")
    outputs = model.encoder({name: golden[name] for name in NAMES})
    logits = model.heads["regression"](outputs["pooled_output"])[:, 0]
    np.testing.assert_allclose(logits, golden["logits"], atol=TOLERANCE)


def test_multiple_choice_equals_the_release(shared):
    model, golden = golden_model(shared, "race", "multiple_choice")
    outputs = model.encoder({name: golden[name].reshape(12, 16) for name in NAMES})
    logits = model.heads["multiple_choice"](outputs["pooled_output"], 4)
    np.testing.assert_allclose(logits, golden["logits"], atol=TOLERANCE)


def test_span_equals_the_release(shared):
    model, golden = golden_model(shared, "squad_v1", "span")
    outputs = model.encoder({name: golden[name] for name in NAMES})
    start, end = model.heads["span"](outputs["sequence_output"])
    np.testing.assert_allclose(start, golden["predict_start_log_prob"], atol=TOLERANCE)
    np.testing.assert_allclose(end, golden["predict_end_log_prob"], atol=TOLERANCE)


def test_conditional_span_equals_the_release(shared):
    model, golden = golden_model(shared, "squad_v2", "conditional_span")
    head = model.heads["conditional_span"]
    hidden = model.encoder({name: golden[name] for name in NAMES})["sequence_output"]
    trained = head(hidden, golden["p_mask"], golden["start_positions"])
    assert_close_where_allowed(trained["start_log_probs"], golden["train_start_log_probs"])
    assert_close_where_allowed(trained["end_log_probs"], golden["train_end_log_probs"])
    np.testing.assert_allclose(trained["answer_logits"], golden["train_cls_logits"], atol=TOLERANCE)
    k1, k2 = (int(k) for k in golden["start_n_top_end_n_top"])
    beams = head.beams(hidden, golden["p_mask"], start_n_top=k1, end_n_top=k2)
    np.testing.assert_array_equal(beams["start_top_index"], golden["predict_start_top_index"])
    np.testing.assert_array_equal(beams["end_top_index"], golden["predict_end_top_index"])
    assert_close_where_allowed(beams["start_top_log_probs"], golden["predict_start_top_log_probs"])
    assert_close_where_allowed(beams["end_top_log_probs"], golden["predict_end_top_log_probs"])
    np.testing.assert_allclose(beams["start_logits"], golden["predict_start_logits"], atol=TOLERANCE)
    np.testing.assert_allclose(beams["end_logits"], golden["predict_end_logits"], atol=TOLERANCE)
    np.testing.assert_allclose(beams["answer_logits"], golden["predict_cls_logits"], atol=TOLERANCE)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_heads_give_float32_and_come_back_from_their_configuration(name, policy):
    config = AlbertConfig(hidden_size=8, embedding_size=4, vocab_size=11, num_attention_heads=2, intermediate_size=8)
    options = {"num_labels": 3} if name in ("classifier", "token_classifier") else {}
    head = make_head(name, config, options, dtype=policy)
    again = type(head).from_config(head.get_config())
    hidden = tf.random.stateless_normal([2, 5, 8], [0, 1])
    for layer in (head, again):
        layer.build(None)
    for variable, source in zip(again.named_variables().values(), head.named_variables().values(), strict=True):
        variable.assign(source)
    arguments = {
        "masked_lm": (hidden, tf.random.stateless_normal([11, 4], [2, 3])),
        "multiple_choice": (hidden[:, 0], 2),
        "conditional_span": (hidden, tf.zeros([2, 5]), tf.constant([1, 2])),
    }.get(name, (hidden,))
    first, second = head(*arguments), again(*arguments)
    for ours, theirs in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        assert ours.dtype == tf.float32
        np.testing.assert_array_equal(ours, theirs)
    assert head.count_params() == sum(v.shape.num_elements() for v in head.named_variables().values())

"""Optimisers against the reference traces and an independent NumPy recomputation, and the traps named in the module."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf import checkpoints, optimization
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError

RATE, WARMUP, TOTAL = 0.02, 2, 10
SHAPES = {
    "albert_encoder/word_embeddings/embeddings": (11, 4),
    "albert_encoder/group_0/inner_0/attention/query/kernel": (4, 6),
    "albert_encoder/group_0/inner_0/attention/query/bias": (6,),
    "albert_encoder/group_0/inner_0/attention/layer_norm/gamma": (6,),
    "cls/predictions/transform/LayerNorm_1/beta": (6,),
    "start_at_zero/kernel": (3, 2),
    "masked_lm/bias": (11,),
}


def random_problem(seed=0, num_steps=4):
    """Weights by name and a list of gradients by name; some weights and gradients are zero throughout."""
    random = np.random.default_rng(seed)
    weights = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights["start_at_zero/kernel"][:] = 0
    gradients = [
        {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(num_steps)
    ]
    return weights, gradients


def make_variables(weights):
    return [tf.Variable(value, name=name) for name, value in weights.items()]


def apply(optimizer, gradients, variables):
    optimizer.apply_gradients(zip([tf.constant(gradient) for gradient in gradients.values()], variables, strict=True))


def rate_at(step):
    return RATE * step / WARMUP if step < WARMUP else RATE * (1 - step / TOTAL)


def numpy_update(
    weights, all_gradients, *, layer_adaptation, epsilon=1e-6, decay=0.01, bias_correction=False, plain=None
):
    """The two optimisers in float64, straight from the formulas. plain: names without decay and adaptation."""
    plain = [name for name in weights if "bias" in name or "norm" in name.lower()] if plain is None else plain
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    m = {name: np.zeros_like(value) for name, value in weights.items()}
    v = {name: np.zeros_like(value) for name, value in weights.items()}
    for step, gradients in enumerate(all_gradients):
        for name, gradient in gradients.items():
            gradient = gradient.astype(np.float64)
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            m_hat, v_hat, used_epsilon = m[name], v[name], epsilon
            if bias_correction:
                m_hat, v_hat = m_hat / (1 - 0.9 ** (step + 1)), v_hat / (1 - 0.999 ** (step + 1))
                if not layer_adaptation:  # Adam's efficient form adds epsilon to the uncorrected root
                    used_epsilon = epsilon / np.sqrt(1 - 0.999 ** (step + 1))
            update = m_hat / (np.sqrt(v_hat) + used_epsilon)
            if name not in plain:
                update = update + decay * weights[name]
            ratio = 1.0
            if layer_adaptation and name not in plain:
                weight_norm, update_norm = np.linalg.norm(weights[name]), np.linalg.norm(update)
                ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
            weights[name] = weights[name] - rate_at(step) * ratio * update
    return weights, m, v


def scheduled(name, **options):
    defaults = {"learning_rate": RATE, "num_train_steps": TOTAL, "num_warmup_steps": WARMUP, "global_clipnorm": None}
    return optimization.create_optimizer(name, **(defaults | options))


def trained(name, weights, all_gradients, **options):
    """The variables and the optimiser after one update per set of gradients."""
    variables, optimizer = make_variables(weights), scheduled(name, **options)
    for gradients in all_gradients:
        apply(optimizer, gradients, variables)
    return variables, optimizer


def assert_weights(variables, expected, atol=1e-6):
    for variable, (name, value) in zip(variables, expected.items(), strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=atol, err_msg=name)


# Against the reference and against NumPy


# The AdamW kernel of TensorFlow takes 1 - beta_2 in float32, off by 1.3e-5 of itself. LAMB was seen equal to the bit;
# the room left to it is for another processor's order of summation.
@pytest.mark.parametrize(("name", "slot_rtol"), [("lamb", 2e-6), ("adamw", 2e-5)])
def test_reference_trace(shared, name, slot_rtol):
    trace = np.load(shared / f"golden/tf1/tiny_shared_{name}_train/optimizer_trace.npz", allow_pickle=False)
    rate, warmup, total = trace["hparams_init_lr_warmup_total_steps"].tolist()
    names = [key.removeprefix("step0/") for key in trace.files if key.startswith("step0/")]
    variables = [tf.Variable(trace[f"step0/{variable}"], name=variable) for variable in names]
    optimizer = scheduled(name, learning_rate=rate, num_train_steps=int(total), num_warmup_steps=int(warmup))
    for step, expected_rate in enumerate(trace["learning_rate"]):
        assert optimization.current_learning_rate(optimizer).numpy() == expected_rate
        apply(optimizer, {key: trace[f"clipped_grad_before_step{step}/{key}"] for key in names}, variables)
        for key, variable in zip(names, variables, strict=True):
            expected = trace[f"step{step + 1}/{key}"]
            np.testing.assert_allclose(variable.numpy(), expected, rtol=0, atol=5e-7, err_msg=f"step {step} {key}")
    for key, variable in zip(names, variables, strict=True):
        for slot in ("m", "v"):
            np.testing.assert_allclose(
                optimizer.get_slot(variable, slot).numpy(),
                trace[f"slot_final/{key}/adam_{slot}"],
                rtol=slot_rtol,
                atol=3e-8 if slot == "m" else 0,
                err_msg=f"{slot} {key}",
            )


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_equals_numpy(name, bias_correction):
    weights, gradients = random_problem()
    variables, optimizer = trained(name, weights, gradients, bias_correction=bias_correction)
    expected, m, v = numpy_update(weights, gradients, layer_adaptation=name == "lamb", bias_correction=bias_correction)
    assert_weights(variables, expected)
    for variable, key in zip(variables, weights, strict=True):
        np.testing.assert_allclose(optimizer.get_slot(variable, "m").numpy(), m[key], rtol=1e-5, atol=1e-7)
        slot_rtol = 2e-6 if name == "lamb" else 2e-5  # see the reference trace
        np.testing.assert_allclose(optimizer.get_slot(variable, "v").numpy(), v[key], rtol=slot_rtol)


def test_trust_ratio_is_one_where_a_norm_is_zero():
    """A weight that starts at zero moves by the plain update; a zero update leaves a weight alone and finite."""
    zero, still = tf.Variable(tf.zeros([2, 2]), name="a/kernel"), tf.Variable(tf.ones([2, 2]), name="b/kernel")
    optimizer = optimization.create_optimizer("lamb", learning_rate=0.5, weight_decay=0.0, global_clipnorm=None)
    optimizer.apply_gradients([(tf.ones([2, 2]), zero), (tf.zeros([2, 2]), still)])
    np.testing.assert_allclose(zero.numpy(), -0.5 * 0.1 / (np.sqrt(0.001) + 1e-6), rtol=1e-5)
    np.testing.assert_array_equal(still.numpy(), 1)


# Exclusions and configuration


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_empty_exclusions_are_respected(name):
    weights, gradients = random_problem()
    variables, _ = trained(name, weights, gradients, exclude_from_weight_decay=[])
    assert_weights(variables, numpy_update(weights, gradients, layer_adaptation=name == "lamb", plain=[])[0])


@pytest.mark.parametrize("name", [None, "query"])
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_kernels_and_tables_decay_and_nothing_else(optimizer, name):
    """Without gradients and at a rate of 1, decay halves what decays (LAMB takes a step as long as the weight)."""
    config = AlbertConfig(vocab_size=20, embedding_size=4, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    heads = {"masked_lm": {}, "sentence_order": {}, "conditional_span": {}}
    variables = checkpoints.new_model(config, heads, name=name).named_variables()
    for variable in variables.values():
        variable.assign(tf.ones_like(variable))
    made = optimization.create_optimizer(optimizer, learning_rate=1.0, weight_decay=0.5, global_clipnorm=None)
    made.apply_gradients([(tf.zeros_like(variable), variable) for variable in variables.values()])
    decayed = {key for key, variable in variables.items() if np.all(variable.numpy() < 1)}
    kept = {key for key, variable in variables.items() if np.all(variable.numpy() == 1)}
    assert kept == {key for key in variables if key.split("/")[-1] in ("bias", "output_bias", "gamma", "beta")}
    assert kept | decayed == set(variables) and len(decayed) > 10


def test_empty_layer_adaptation_list_is_not_the_decay_list():
    bias = tf.Variable([3.0, 4.0], name="dense/bias")
    optimizer = optimization.create_optimizer(
        "lamb", learning_rate=0.1, exclude_from_layer_adaptation=[], global_clipnorm=None
    )
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), bias)])
    # No decay, but adapted: the step is rate x |w| = 0.5 long, along the diagonal.
    np.testing.assert_allclose(bias.numpy(), np.array([3.0, 4.0]) - 0.5 / np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_config_round_trip_keeps_everything(name):
    """Before and after training, as plain JSON, and the copy trains alike."""
    kept = {"bias_correction": True, "beta_2": 0.98, "exclude_from_weight_decay": ["gamma"], "global_clipnorm": 0.25}
    if name == "lamb":
        kept["exclude_from_layer_adaptation"] = []
    weights, gradients = random_problem()
    fresh, (variables, used) = scheduled(name, **kept), trained(name, weights, gradients, **kept)
    for optimizer in (fresh, used):
        config = json.loads(json.dumps(optimizer.get_config()))
        expected = kept | {"weight_decay_rate": 0.01, "epsilon": 1e-6, "beta_1": 0.9}
        assert config | expected == config
        assert config["learning_rate"]["config"]["num_warmup_steps"] == WARMUP
        copy = tf_keras.optimizers.deserialize(tf_keras.optimizers.serialize(type(optimizer).from_config(config)))
        assert json.loads(json.dumps(copy.get_config())) == json.loads(json.dumps(optimizer.get_config()))
        copied_variables = make_variables(weights)
        for step_gradients in gradients:
            apply(copy, step_gradients, copied_variables)
        for left, right in zip(variables, copied_variables, strict=True):
            np.testing.assert_array_equal(left.numpy(), right.numpy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "adam"}, "unknown optimizer 'adam', expected one of: lamb, adamw"),
        ({"name": "adamw", "exclude_from_layer_adaptation": []}, "no layer adaptation"),
        ({"num_warmup_steps": 11}, "num_warmup_steps is 11, expected 0 to num_train_steps (10)"),
        ({"num_train_steps": 0, "num_warmup_steps": 0}, "num_train_steps is 0"),
        ({"num_train_steps": None}, "without num_train_steps"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"exclude_from_weight_decay": "bias"}, "expected a list of regular expressions"),
        ({"learning_rate": optimization.WarmupLinearDecay(1.0, 10)}, "a schedule already"),
        ({"learning_rate": object()}, "builtins.object, expected a number or a schedule of tf_keras"),
    ],
)
def test_mistakes_get_one_line(options, words):
    with pytest.raises(UserError) as error:
        scheduled(**{"name": "lamb", **options})
    assert words in str(error.value) and "\n" not in str(error.value)


# Schedule, clipping, suggested rate


def test_schedule_warms_up_to_the_full_rate():
    schedule = optimization.WarmupLinearDecay(0.02, 10, 2)
    steps = [0, 1, 2, 3, 9, 10, 1000]
    np.testing.assert_allclose(
        [schedule(step).numpy() for step in steps], [0, 0.01, 0.016, 0.014, 0.002, 0, 0], rtol=1e-6
    )
    paper = optimization.WarmupLinearDecay(0.00176, 125_000, 3_125)
    assert paper(3_124).numpy() == pytest.approx(0.00176 * 3124 / 3125)
    assert paper(3_125).numpy() == pytest.approx(0.00176 * 0.975)
    assert optimization.WarmupLinearDecay(0.5, 10)(0).numpy() == 0.5


def test_clip_by_global_norm():
    first, second = np.array([[3.0, 0.0]], np.float32), np.array([4.0], np.float32)
    clipped, norm = optimization.clip_by_global_norm([tf.constant(first), None, tf.constant(second)], 1.0)
    assert norm.numpy() == 5.0 and clipped[1] is None
    np.testing.assert_allclose(clipped[0].numpy(), first / 5, rtol=1e-6)
    np.testing.assert_allclose(clipped[2].numpy(), second / 5, rtol=1e-6)
    np.testing.assert_array_equal(optimization.clip_by_global_norm([tf.constant(first)], 3.5)[0][0].numpy(), first)
    # An id seen twice has one gradient, the sum: (1 + 2) and 4, norm 5.
    rows = tf.IndexedSlices(tf.constant([[1.0], [4.0], [2.0]]), tf.constant([2, 0, 2]), tf.constant([3, 1]))
    clipped, norm = optimization.clip_by_global_norm([rows], 1.0)
    assert norm.numpy() == 5.0
    np.testing.assert_allclose(clipped[0].numpy(), [[0.8], [0.0], [0.6]], rtol=1e-6)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_no_clipping_unless_asked_and_once_where_asked(name):
    """The first moment after one step is a tenth of the gradient that the update saw."""
    for options, seen in (({"global_clipnorm": None}, 30.0), ({"global_clipnorm": 5.0}, 5.0), ({}, 1.0)):
        variable = tf.Variable([1.0, 1.0], name="kernel")
        optimizer = optimization.create_optimizer(name, learning_rate=0.1, **options)
        optimizer.apply_gradients([(tf.constant([30.0, 0.0]), variable)])
        np.testing.assert_allclose(optimizer.get_slot(variable, "m").numpy(), [0.1 * seen, 0], rtol=1e-5)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_embedding_slices_equal_the_dense_gradient(name):
    """Rows that no id touched move too, as in the release: their moments and their weights decay."""
    results = []
    rows = tf.IndexedSlices(tf.constant([[1.0, 2], [3, 4], [5, 6]]), tf.constant([2, 0, 2]), tf.constant([4, 2]))
    for gradient in (rows, tf.constant([[3.0, 4], [0, 0], [6, 8], [0, 0]])):
        variable = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2), name="embeddings")
        optimizer = optimization.create_optimizer(name, learning_rate=0.1)
        for _ in range(3):
            optimizer.apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    np.testing.assert_array_equal(*results)
    assert (results[0][1] < [2, 3]).all()


def test_suggested_rate():
    assert optimization.suggested_learning_rate(4096) == 0.00176
    assert optimization.suggested_learning_rate(1024, "lamb") == pytest.approx(0.00088)
    assert optimization.suggested_learning_rate(64, "adamw") == pytest.approx(5e-5)
    assert optimization.learning_rate_notice(0.00176, 4096) is None
    notice = optimization.learning_rate_notice(0.00176, 512)
    assert "2.8 times" in notice and "--learning_rate=0.000622" in notice
    with pytest.raises(UserError, match="at least 1"):
        optimization.suggested_learning_rate(0)
    with pytest.raises(UserError, match="lamb, adamw"):
        optimization.suggested_learning_rate(8, "sgd")


# In Keras, under strategies, XLA and mixed precision


def small_model():
    tf_keras.utils.set_random_seed(3)
    ids = tf_keras.Input([5], dtype=tf.int32)
    hidden = tf_keras.layers.Embedding(12, 6, name="embeddings")(ids)
    hidden = tf_keras.layers.LayerNormalization(name="layer_norm")(hidden)
    hidden = tf_keras.layers.Dense(7, activation="relu", name="dense")(tf_keras.layers.Flatten()(hidden))
    return tf_keras.Model(ids, tf_keras.layers.Dense(2, dtype=tf.float32, name="logits")(hidden))


def small_data():
    random = np.random.default_rng(1)
    return random.integers(0, 12, [8, 5]).astype(np.int32), random.integers(0, 2, 8)


def make_loss():
    return tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fitted(optimizer, epochs=5):
    model = small_model()
    model.compile(optimizer, make_loss())
    model.fit(*small_data(), batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_fit_equals_a_loop_that_clips_by_itself(name, jit_compile):
    fit_model = fitted(scheduled(name, global_clipnorm=0.1))
    model, optimizer, (ids, labels) = small_model(), scheduled(name), small_data()
    optimizer._create_all_weights(model.trainable_variables)

    @tf.function(jit_compile=jit_compile)
    def step():
        with tf.GradientTape() as tape:
            loss = make_loss()(labels, model(ids, training=True))
        clipped, norm = optimization.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.1)
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))
        return norm

    for _ in range(5):
        assert step() > 0.1  # so that the clipping matters
    for left, right in zip(model.get_weights(), fit_model.get_weights(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_restored_optimizer_continues_the_same(name, tmp_path):
    model = fitted(scheduled(name))
    model.save(tmp_path / "model.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "ckpt"))
    from_h5 = tf_keras.models.load_model(tmp_path / "model.h5")
    from_checkpoint = small_model()
    from_checkpoint.compile(scheduled(name), make_loss())
    restored = tf.train.Checkpoint(model=from_checkpoint, optimizer=from_checkpoint.optimizer)
    restored.read(str(tmp_path / "ckpt"))
    for candidate in (model, from_h5, from_checkpoint):
        assert json.dumps(candidate.optimizer.get_config()) == json.dumps(model.optimizer.get_config())
        candidate.fit(*small_data(), batch_size=8, epochs=2, shuffle=False, verbose=0)
        assert candidate.optimizer.iterations.numpy() == 7
        for left, right in zip(model.get_weights(), candidate.get_weights(), strict=True):
            np.testing.assert_array_equal(left, right)
    model.save(tmp_path / "model.keras")
    from_keras = tf_keras.models.load_model(tmp_path / "model.keras")
    assert from_keras.optimizer.get_config() == model.optimizer.get_config()


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_loss_scaling_and_float32_slots(name):
    """Clipping sees the unscaled gradients, an overflow skips the step whole, slots stay float32."""
    previous = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = fitted(scheduled(name, global_clipnorm=0.1))
    finally:
        tf_keras.mixed_precision.set_global_policy(previous)
    assert isinstance(model.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    assert {variable.dtype for variable in model.optimizer.inner_optimizer.weights[1:]} == {tf.float32}
    assert all(np.isfinite(weight).all() for weight in model.get_weights())

    variable, optimizer = tf.Variable([1.0, 1.0], name="kernel"), optimization.create_optimizer(name, learning_rate=0.1)
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=True, initial_scale=1024)
    for factor, seen in ((np.inf, 0.0), (30.0, 0.1)):  # the overflow touches nothing and halves the scale
        with tf.GradientTape() as tape:
            loss = scaled.get_scaled_loss(factor * variable[0])
        gradients = scaled.get_unscaled_gradients(tape.gradient(loss, [variable]))
        scaled.apply_gradients([(gradients[0], variable)])
        if seen:
            np.testing.assert_allclose(optimizer.get_slot(variable, "m").numpy(), [seen, 0], rtol=1e-5)
        else:
            np.testing.assert_array_equal(variable.numpy(), 1)
    assert optimization.current_learning_rate(scaled).numpy() == np.float32(0.1)


@pytest.mark.parametrize("name", ["lamb", pytest.param("adamw", marks=pytest.mark.slow)])
def test_two_replicas_equal_one_device(name):
    """In a process of its own, which must divide the CPU before TensorFlow starts."""
    script = textwrap.dedent("""
        import importlib.util, sys
        import numpy as np, tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        spec = importlib.util.spec_from_file_location("optimization_tests", sys.argv[1])
        tests = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tests)
        name = sys.argv[2]
        alone = tests.fitted(tests.scheduled(name, global_clipnorm=0.1)).get_weights()
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            both = tests.fitted(tests.scheduled(name, global_clipnorm=0.1)).get_weights()
        start = tests.small_model().get_weights()
        print(*(max(np.abs(a - b).max() for a, b in zip(alone, other)) for other in (both, start)))
    """)
    done = subprocess.run([sys.executable, "-c", script, __file__, name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    difference, movement = map(float, done.stdout.split())
    assert difference < 2e-6 and movement > 1e-3

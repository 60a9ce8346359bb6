"""The release's optimisers, learning-rate schedule and clipping, as small subclasses of the official ones.

What differs from `official.modeling.optimization`:

                       official LAMB / AdamWeightDecay         release (here)
  bias correction      always                                  never (bias_correction=True gives the LAMB paper's)
  epsilon              1e-6 / 1e-7                             1e-6
  exclusions           none; lost by get_config; [] ignored    LayerNorm and bias; kept; [] means nothing
  clipping             none / 1.0, before replicas are summed  1.0, on the summed gradients
  warm-up              towards the decayed rate                towards the full rate
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras
from official.modeling.optimization import lamb, legacy_adamw

from albert_tf.errors import UserError
from albert_tf.layers import LAYER_NORM_AND_BIAS

OPTIMIZERS = ("lamb", "adamw")


@tf_keras.utils.register_keras_serializable(package="albert_tf")
class WarmupLinearDecay(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to the full rate, then the line that falls to 0 at `num_train_steps`.

        rate(step) = peak * step / warmup                   for step < warmup
                   = peak * (1 - min(step, total) / total)  from there on

    The warm-up climbs to the full peak and then drops onto the decay line, which began at step 0. Called with a
    scalar step (number of updates made so far, any real type); returns a float32 scalar. PAPER section 4.1 gives
    125,000 and 3,125 steps. Raises UserError on impossible numbers.
    """

    def __init__(self, peak_learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        super().__init__()
        if not (math.isfinite(peak_learning_rate) and peak_learning_rate >= 0):
            raise UserError(f"learning_rate is {peak_learning_rate}, expected a number that is not negative")
        if num_train_steps < 1:
            raise UserError(f"num_train_steps is {num_train_steps}, expected at least 1")
        if not 0 <= num_warmup_steps <= num_train_steps:
            raise UserError(
                f"num_warmup_steps is {num_warmup_steps}, expected 0 to num_train_steps ({num_train_steps}): "
                "the full rate would never be reached; give fewer warm-up steps or more training steps"
            )
        self.peak_learning_rate = float(peak_learning_rate)
        self.num_train_steps = int(num_train_steps)
        self.num_warmup_steps = int(num_warmup_steps)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        total = float(self.num_train_steps)
        decayed = self.peak_learning_rate * (1.0 - tf.minimum(step, total) / total)
        if not self.num_warmup_steps:
            return decayed
        warmup = float(self.num_warmup_steps)
        return tf.where(step < warmup, self.peak_learning_rate * (step / warmup), decayed)

    def get_config(self) -> dict[str, Any]:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }


class _ReleaseRule:
    """What the release's two optimisers have in common, laid over the official arithmetic."""

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        if not self.bias_correction:
            # The official updates divide the moments by 1 - beta^step; with the power at zero that is exactly 1.
            zero = tf.zeros([], var_dtype)
            apply_state[(var_device, var_dtype)].update(beta_1_power=zero, beta_2_power=zero)

    def _transform_gradients(self, grads_and_vars):
        # Keras clips here, after the replicas were summed. Both updates touch every row anyway, so an embedding's
        # gradient is made dense first: repeated ids then count as one sum in the norm, and XLA can compile the step.
        return super()._transform_gradients([(_dense(gradient), variable) for gradient, variable in grads_and_vars])

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        schedule = self._hyper["learning_rate"]
        if isinstance(schedule, tf_keras.optimizers.schedules.LearningRateSchedule):
            # The one form of a registered schedule that both .keras and .h5 files read back.
            config["learning_rate"] = tf_keras.optimizers.schedules.serialize(schedule, use_legacy_format=True)
        for key in ("learning_rate", "weight_decay_rate", "decay", "beta_1", "beta_2"):
            if not isinstance(config[key], (dict, float)):
                # After the first step these are NumPy float32: go through the shortest decimal that means the same.
                config[key] = float(str(config[key]))
        return config | {
            "bias_correction": self.bias_correction,
            "exclude_from_weight_decay": list(self.exclude_from_weight_decay),
        }


@tf_keras.utils.register_keras_serializable(package="albert_tf")
class LAMB(_ReleaseRule, lamb.LAMB):
    """LAMB as the release has it (You et al. 2020, algorithm 2, without bias correction); make with create_optimizer.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = m / (sqrt(v) + epsilon) + decay w
    w = w - rate * ratio * u,  ratio = |w| / |u|  (1 where either norm is 0, or the name is excluded)
    """

    def __init__(
        self,
        learning_rate=0.00176,
        *,
        bias_correction: bool = False,
        exclude_from_weight_decay: Sequence[str] = LAYER_NORM_AND_BIAS,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        name: str = "LAMB",
        **kwargs,
    ):
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, weight_decay_rate=weight_decay_rate, name=name, **kwargs
        )
        self._one_minus_betas = (1.0 - beta_1, 1.0 - beta_2)
        self.bias_correction = bias_correction
        self.exclude_from_weight_decay = _patterns(exclude_from_weight_decay)
        # Set after the official constructor, which takes an empty list for None.
        if exclude_from_layer_adaptation is None:
            exclude_from_layer_adaptation = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = _patterns(exclude_from_layer_adaptation)

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        # 1 - 0.999 taken in float32 is off by 1.3e-5 of itself; rounding the exact difference gives the release's bits.
        one_minus_beta_1, one_minus_beta_2 = self._one_minus_betas
        apply_state[(var_device, var_dtype)].update(
            one_minus_beta_1_t=tf.constant(one_minus_beta_1, var_dtype),
            one_minus_beta_2_t=tf.constant(one_minus_beta_2, var_dtype),
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"exclude_from_layer_adaptation": list(self.exclude_from_layer_adaptation)}


@tf_keras.utils.register_keras_serializable(package="albert_tf")
class AdamW(_ReleaseRule, legacy_adamw.AdamWeightDecay):
    """Adam with decoupled weight decay as the release has it; make with create_optimizer.

        m, v as in LAMB;  w = w - rate * (m / (sqrt(v) + epsilon) + decay w)

    With bias_correction=True the rate of the first term is multiplied by sqrt(1 - b2^t) / (1 - b1^t), t = 1, 2, ...
    (Kingma and Ba 2015, end of section 2).
    """

    def __init__(
        self,
        learning_rate=1e-4,
        *,
        bias_correction: bool = False,
        exclude_from_weight_decay: Sequence[str] = LAYER_NORM_AND_BIAS,
        weight_decay_rate: float = 0.01,
        epsilon: float = 1e-6,
        name: str = "AdamW",
        **kwargs,
    ):
        patterns = _patterns(exclude_from_weight_decay)
        super().__init__(
            learning_rate,
            epsilon=epsilon,
            weight_decay_rate=weight_decay_rate,
            exclude_from_weight_decay=patterns,
            # The official clipping runs before replicas are summed, and not at all under loss scaling.
            gradient_clip_norm=0.0,
            name=name,
            **kwargs,
        )
        self.bias_correction = bias_correction
        self.exclude_from_weight_decay = patterns


def create_optimizer(
    name: str = "lamb",
    *,
    learning_rate: float | tf_keras.optimizers.schedules.LearningRateSchedule,
    num_train_steps: int | None = None,
    num_warmup_steps: int = 0,
    weight_decay: float = 0.01,
    bias_correction: bool = False,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    exclude_from_weight_decay: Sequence[str] = LAYER_NORM_AND_BIAS,
    exclude_from_layer_adaptation: Sequence[str] | None = None,
    global_clipnorm: float | None = 1.0,
) -> LAMB | AdamW:
    """Makes the release's optimiser, for `Model.compile`, `LossScaleOptimizer` or a loop of one's own.

    A number as learning_rate with num_train_steps becomes WarmupLinearDecay; without num_train_steps it stays
    constant; a schedule is used as it is. Exclusions are regular expressions searched in variable names; an empty
    list excludes nothing; exclude_from_layer_adaptation (lamb only) defaults to exclude_from_weight_decay.
    global_clipnorm clips the summed gradients inside `apply_gradients`, the same under `Model.fit`, any strategy and
    loss scaling; a loop that calls clip_by_global_norm itself, to report the norm, passes None.
    Slots are saved by tf.train.Checkpoint, SavedModel weights and .h5; a .keras file keeps the configuration only.
    Raises UserError on an unknown name, impossible steps or a Keras 3 schedule.
    """
    common = {
        "learning_rate": _learning_rate(learning_rate, num_train_steps, num_warmup_steps),
        "weight_decay_rate": weight_decay,
        "bias_correction": bias_correction,
        "beta_1": beta_1,
        "beta_2": beta_2,
        "epsilon": epsilon,
        "exclude_from_weight_decay": exclude_from_weight_decay,
        "global_clipnorm": global_clipnorm,
    }
    if name == "lamb":
        return LAMB(exclude_from_layer_adaptation=exclude_from_layer_adaptation, **common)
    if name == "adamw" and exclude_from_layer_adaptation is not None:
        raise UserError("exclude_from_layer_adaptation is given for adamw, which has no layer adaptation: leave it out")
    if name == "adamw":
        return AdamW(**common)
    raise UserError(f"unknown optimizer {name!r}, expected one of: {', '.join(OPTIMIZERS)}")


def clip_by_global_norm(gradients: Iterable, clip_norm: float = 1.0) -> tuple[list, tf.Tensor]:
    """Scales all gradients together so that their joint L2 norm is at most `clip_norm`.

    gradients: float tensors, tf.IndexedSlices (made dense, so that repeated ids count as one sum) or None (kept), one
    per variable and already summed over replicas. Returns (clipped, norm): the list in the same order and the float32
    scalar norm before clipping. A non-finite norm makes every gradient NaN: check the norm before applying them.
    """
    return tf.clip_by_global_norm([_dense(gradient) for gradient in gradients], clip_norm)


def current_learning_rate(optimizer: tf_keras.optimizers.Optimizer | tf_keras.optimizers.legacy.Optimizer) -> tf.Tensor:
    """Returns the float32 scalar rate of the optimiser's next update; accepts a LossScaleOptimizer too."""
    rate = optimizer.learning_rate
    if isinstance(rate, tf_keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(optimizer.iterations)
    return tf.cast(rate, tf.float32)


def suggested_learning_rate(global_batch_size: int, optimizer: str = "lamb") -> float:
    """Returns a peak pretraining rate for a batch size, by square-root scaling from a published one.

    lamb: 0.00176 at 4,096 sequences (ALBERT section 4.1; the square root is You et al. 2020, section 4).
    adamw: 1e-4 at 256 (Devlin et al. 2019, appendix A.2). Raises UserError on an unknown name or a batch below 1.
    """
    published = {"lamb": (0.00176, 4096), "adamw": (1e-4, 256)}
    if optimizer not in published:
        raise UserError(f"unknown optimizer {optimizer!r}, expected one of: {', '.join(OPTIMIZERS)}")
    if global_batch_size < 1:
        raise UserError(f"the global batch size is {global_batch_size}, expected at least 1")
    rate, batch_size = published[optimizer]
    return rate * math.sqrt(global_batch_size / batch_size)


def learning_rate_notice(learning_rate: float, global_batch_size: int, optimizer: str = "lamb") -> str | None:
    """Returns a line for the start of pretraining where the rate is over twice the suggested one, else None."""
    suggested = suggested_learning_rate(global_batch_size, optimizer)
    if learning_rate <= 2 * suggested:
        return None
    return (
        f"learning rate {learning_rate:g} is {learning_rate / suggested:.1f} times the {suggested:.3g} suggested for "
        f"{optimizer} at a global batch of {global_batch_size}, and may diverge: consider "
        f"--learning_rate={suggested:.3g}"
    )


def _learning_rate(learning_rate, num_train_steps, num_warmup_steps):
    if isinstance(learning_rate, tf_keras.optimizers.schedules.LearningRateSchedule):
        if num_train_steps is not None or num_warmup_steps:
            raise UserError("learning_rate is a schedule already: leave out num_train_steps and num_warmup_steps")
        return learning_rate
    try:
        learning_rate = float(learning_rate)
    except (TypeError, ValueError):
        raise UserError(
            f"learning_rate is a {type(learning_rate).__module__}.{type(learning_rate).__name__}, expected a number or "
            "a schedule of tf_keras.optimizers.schedules (schedules of Keras 3 do not work here)"
        ) from None
    if num_train_steps is not None:
        return WarmupLinearDecay(learning_rate, num_train_steps, num_warmup_steps)
    if num_warmup_steps:
        raise UserError(f"num_warmup_steps is {num_warmup_steps} without num_train_steps: give both")
    return learning_rate


def _patterns(patterns: Sequence[str]) -> list[str]:
    if isinstance(patterns, str):  # would be taken letter by letter, and exclude nearly every name
        raise UserError(f"exclusions are {patterns!r}, expected a list of regular expressions: write [{patterns!r}]")
    return list(patterns)


def _dense(gradient):
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])

"""The flags that say where and how a command computes, for all commands that have them."""

from absl import flags


def define_device_flags(flag_values: flags.FlagValues, *, workers: bool = False, remote_tpu: bool = True) -> None:
    """Defines mixed_precision, distribution and tpu_name.

    workers: several processes can share the work (multi_worker). remote_tpu: a TPU of other machines can do it.
    """
    text = "type of the products; weights, LayerNorm, softmax, losses and optimiser stay float32"
    policies = ["float32", "mixed_bfloat16", "mixed_float16"]
    flags.DEFINE_enum("mixed_precision", "float32", policies, text, flag_values=flag_values)
    text = f"where to compute; auto takes a named TPU, {'the cluster of TF_CONFIG, ' * workers}all GPUs, else the CPU"
    places = ["auto", "cpu", "gpu", "mirrored", *["multi_worker"] * workers, "tpu"]
    flags.DEFINE_enum("distribution", "auto", places, text, flag_values=flag_values)
    text = "Cloud TPU name, grpc://host:port, or local on a TPU VM" if remote_tpu else "local, on a TPU VM"
    flags.DEFINE_string("tpu_name", None, text, flag_values=flag_values)


def define_memory_flags(flag_values: flags.FlagValues) -> None:
    """Defines grad_accum_steps and recompute: a training step in less memory."""
    text = "parts that a device splits its share of a batch into, one after another: less memory"
    flags.DEFINE_integer("grad_accum_steps", 1, text, lower_bound=1, flag_values=flag_values)
    text = "keep only each layer's input and run layers again backwards: less memory, more time"
    flags.DEFINE_boolean("recompute", False, text, flag_values=flag_values)

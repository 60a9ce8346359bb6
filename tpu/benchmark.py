"""`albert_tf benchmark`: what this machine makes of a model: speed, memory, the largest batch, the paper's schedule."""

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from albert_tf import costs, files
from albert_tf.config import AlbertConfig, preset
from albert_tf.errors import UserError
from tpu import memory
from tpu.device_flags import define_device_flags, define_memory_flags

if TYPE_CHECKING:
    import tensorflow as tf

    from tpu.measuring import Case

# The paper's schedule (section 4.1): steps, sequences a step, tokens a sequence, masked tokens a sequence.
_STEPS, _BATCH, _LENGTH, _PREDICTIONS = 125_000, 4096, 512, 77
# Dense bfloat16 or float16 products, 1e12 operations a second, by a part of the name that the driver gives; from
# NVIDIA's data sheets. The longest name that fits counts.
_PEAK_TFLOPS = {
    **{"T4": 65, "V100": 125, "L4": 121, "A10": 125, "A30": 165, "A40": 150, "L40": 181, "L40S": 362, "A100": 312},
    **{"H100": 989, "H100 PCIe": 756, "H200": 989, "RTX A6000": 155, "RTX 6000 Ada": 364},
}
_SHARE_OF_MEMORY = 0.9  # of what is available, to be filled by the largest batch
_MOST_ROWS = 1 << 20
_TOO_LARGE = "give a smaller --train_batch_size, or --recompute, or more --grad_accum_steps"


def define_flags(flag_values: flags.FlagValues) -> None:
    """Model and batch are spelt as in pretrain."""

    def define(kind: Callable[..., Any], name: str, default: Any, meaning: str, **limits: Any) -> None:
        kind(name, default, help=meaning, flag_values=flag_values, **limits)

    text, number, integer = flags.DEFINE_string, flags.DEFINE_float, flags.DEFINE_integer
    define(text, "preset", None, "size of the model, such as albert_base")
    define(text, "albert_config_file", None, "albert_config.json, instead of a preset")
    define(integer, "train_batch_size", 8, "sequences of one optimiser step, over all devices", lower_bound=1)
    define(integer, "max_seq_length", 128, "tokens a sequence", lower_bound=2)
    define(integer, "max_predictions_per_seq", None, "masked tokens a sequence; default: 15 in 100", lower_bound=1)
    define_device_flags(flag_values)
    define_memory_flags(flag_values)
    define(flags.DEFINE_enum, "optimizer", "lamb", "optimiser", enum_values=["lamb", "adamw"])
    choices = ["auto", "true", "false"]
    define(flags.DEFINE_enum, "jit_compile", "auto", "compile with XLA; auto does on GPU and TPU", enum_values=choices)
    define(integer, "num_steps", 10, "steps and passes that are timed; two before them are not", lower_bound=1)
    define(flags.DEFINE_boolean, "find_batch", False, "try the largest batch that should fit, in a process of its own")
    define(number, "price_per_hour", None, "price of this machine an hour, in any currency", lower_bound=0.0)
    define(
        number, "peak_tflops", None, "peak of a device in 1e12 operations a second, for the share used", lower_bound=0.0
    )
    define(text, "output_file", None, "JSON file for the figures")


def run(given: flags.FlagValues) -> None:
    """Measures, tells on standard error what it is doing, and prints the figures."""
    files.check_output_file(given.output_file)
    config = _config(given)
    import tensorflow as tf

    from tpu import measuring, strategy

    where = strategy.one_process_strategy(given.distribution, tpu_name=given.tpu_name)
    device = next(kind for kind in ("TPU", "GPU", "CPU") if kind in where.extended.worker_devices[0].upper())
    devices = where.num_replicas_in_sync
    case = _case(given, config, devices, jit_compile=strategy.jit_compile(given.jit_compile, where))
    figures = {"model": given.preset or given.albert_config_file, "mixed_precision": case.mixed_precision}
    figures |= {"rows_per_device": case.rows, "max_seq_length": case.length, "recompute": case.recompute}
    figures |= {"device": strategy.describe(where), "devices": devices, "jit_compile": case.jit_compile}
    available = measuring.available_bytes(device)
    _check_memory(case, available)
    largest = _largest_batch(given, case, available, devices=devices)  # while this process is small
    try:
        figures |= _measure(given, case, where, device, available)
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(f"a step of {case.rows} x {case.length} tokens does not fit: {_TOO_LARGE}") from error
    figures["largest_batch"] = largest
    figures["paper_schedule"] = _schedule(config, figures, given.price_per_hour)
    print(_report(figures))
    if given.output_file:
        files.write_json(given.output_file, figures)


def _measure(
    given: flags.FlagValues, case: "Case", where: "tf.distribute.Strategy", device: str, available: int | None
) -> dict[str, Any]:
    from tpu import measuring

    _tell("products of the model's sizes")
    limit, peak = measuring.matrix_product_rate(case, where), _device_peak(given, device)
    before = measuring.resident_bytes() if device == "CPU" else 0
    trainer = measuring.make_trainer(case, where)
    figures: dict[str, Any] = {"matrix_product_flops_per_second": limit}
    for name, make in (("training", measuring.training_step), ("inference", measuring.inference_step)):
        _tell(f"{name}: first step, with TensorFlow's preparations")
        times = measuring.seconds(make(case, trainer), given.num_steps, tell=_counter(name, given.num_steps))
        figures[name] = _speed(case, name, times, devices=where.num_replicas_in_sync, limit=limit, peak=peak)
        if name == "training":
            used = measuring.peak_bytes(device)
            figures["memory"] = {
                "peak_bytes": used,
                "before_bytes": before,
                "step_bytes": None if used is None else used - before,
                "estimated_bytes": _estimate(case),
                "available_bytes": available,
            }
    return figures


def _config(given: flags.FlagValues) -> AlbertConfig:
    if (given.preset is None) == (given.albert_config_file is None):
        raise UserError("give one of --preset=NAME and --albert_config_file=FILE")
    config = preset(given.preset) if given.preset else AlbertConfig.from_json(given.albert_config_file)
    if given.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"max_seq_length is {given.max_seq_length}: expected at most the model's {config.max_position_embeddings} "
            "positions; give a shorter length"
        )
    if config.type_vocab_size < 2:
        raise UserError(
            f"type_vocab_size is {config.type_vocab_size}: expected at least 2, as the rows are pairs of segments"
        )
    if (given.max_predictions_per_seq or 1) > given.max_seq_length:
        raise UserError(
            f"max_predictions_per_seq is {given.max_predictions_per_seq}: expected at most max_seq_length "
            f"{given.max_seq_length}; give fewer"
        )
    return config


def _case(given: flags.FlagValues, config: AlbertConfig, devices: int, *, jit_compile: bool) -> "Case":
    from tpu.measuring import Case

    parts = devices * given.grad_accum_steps
    if given.train_batch_size % parts:
        raise UserError(
            f"train_batch_size is {given.train_batch_size}: expected a multiple of {devices} device(s) x "
            f"{given.grad_accum_steps} accumulation step(s) = {parts}"
        )
    return Case(
        config=config,
        rows=given.train_batch_size // devices,
        length=given.max_seq_length,
        predictions=given.max_predictions_per_seq or max(1, round(0.15 * given.max_seq_length)),
        mixed_precision=given.mixed_precision,
        recompute=given.recompute,
        grad_accum_steps=given.grad_accum_steps,
        optimizer=given.optimizer,
        jit_compile=jit_compile,
    )


def _estimate(case: "Case", rows: int | None = None) -> int:
    return memory.training_bytes(
        case.config,
        rows=(rows or case.rows) // case.grad_accum_steps,
        max_seq_length=case.length,
        num_predictions=case.predictions,
        mixed_precision=case.mixed_precision,
        recompute=case.recompute,
        accumulate=case.grad_accum_steps > 1,
    )["total"]


def _check_memory(case: "Case", available: int | None) -> None:
    needed = _estimate(case)
    if available is not None and needed > available:
        raise UserError(
            f"a step of {case.rows} x {case.length} tokens needs about {_gib(needed)}, and {_gib(available)} are free: "
            f"{_TOO_LARGE}"
        )


def _device_peak(given: flags.FlagValues, device: str) -> float | None:
    """Operations a second that the device's maker promises, where known."""
    if given.peak_tflops:
        return given.peak_tflops * 1e12
    if device != "GPU" or given.mixed_precision == "float32":
        return None
    import tensorflow as tf

    name = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0]).get("device_name", "")
    fitting = [known for known in _PEAK_TFLOPS if all(word in name.replace("-", " ").split() for word in known.split())]
    return _PEAK_TFLOPS[max(fitting, key=len)] * 1e12 if fitting else None


def _speed(
    case: "Case", name: str, times: list[float], *, devices: int, limit: float, peak: float | None
) -> dict[str, float | None]:
    """Figures of one device, but for the tokens a second, which are everyone's."""
    sizes = {"rows": case.rows, "length": case.length}
    if name == "training":
        useful = sum(costs.training_flops(case.config, **sizes, predictions=case.predictions).values())
        done = costs.training_flops(case.config, **sizes, predictions=case.predictions, recompute=case.recompute)
    else:
        done = costs.forward_flops(case.config, **sizes, output_positions=0)
        useful = sum(done.values())
    median = statistics.median(times)
    rate = sum(done.values()) / median
    return {
        "seconds": median,
        "seconds_fastest": min(times),
        "seconds_slowest": max(times),
        "tokens_per_second": devices * case.tokens / median,
        "flops_per_second": rate,
        "share_of_matrix_product_limit": rate / limit,
        # Recomputed work does not count as the model's (Chowdhery et al. 2022, appendix B).
        "model_flop_utilisation": useful / median / peak if peak else None,
    }


def _largest_batch(
    given: flags.FlagValues, case: "Case", available: int | None, *, devices: int
) -> dict[str, int | None]:
    """Sequences a device that should fit, and that were seen to fit where asked for."""
    if available is None:
        return {"estimated": None, "verified": None}
    parts, room = case.grad_accum_steps, available * _SHARE_OF_MEMORY
    low, high = 0, _MOST_ROWS  # `low` fits, `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _estimate(case, middle * parts) <= room else (low, middle)
    verified = _verified(given, low * parts, devices=devices) if given.find_batch and low else None
    return {"estimated": low * parts, "verified": verified}


def _verified(given: flags.FlagValues, rows: int, *, devices: int) -> int | None:
    """Tries `rows` a device, then an eighth less at a time; returns the first number that fits, or None.

    Each is tried in a process of its own, which is the first to go where memory ends.
    """
    parts = given.grad_accum_steps
    names = ("preset", "albert_config_file", "grad_accum_steps", "max_seq_length", "max_predictions_per_seq")
    names += ("mixed_precision", "recompute", "optimizer", "jit_compile", "distribution")
    same = [f"--{name}={getattr(given, name)}" for name in names if getattr(given, name) is not None]
    for _ in range(8):
        _tell(f"trying a batch of {rows}")
        command = [sys.executable, "-m", "albert_tf", "benchmark", *same]
        command += [f"--train_batch_size={rows * devices}", "--num_steps=1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/oom_score_adj", "w") as score:
            score.write("1000")
        if process.wait() == 0:
            return rows
        rows = rows * 7 // 8 // parts * parts
        if not rows:
            break
    return None


def _schedule(config: AlbertConfig, figures: dict[str, Any], price: float | None) -> dict[str, float | None]:
    """The paper's pretraining at the measured rate of operations, on as many devices as were measured."""
    flops = costs.training_flops(
        config, rows=_BATCH, length=_LENGTH, predictions=_PREDICTIONS, recompute=figures["recompute"]
    )
    rate = figures["training"]["flops_per_second"] * figures["devices"]
    hours = _STEPS * sum(flops.values()) / rate / 3600
    return {"hours": hours, "price": None if price is None else hours * price}


def _report(figures: dict[str, Any]) -> str:
    used, batch, schedule = figures["memory"], figures["largest_batch"], figures["paper_schedule"]
    lines = [
        f"{figures['model']}, {figures['mixed_precision']}, {figures['rows_per_device']} x {figures['max_seq_length']} "
        f"tokens a device; {figures['device']}",
        f"products alone: {figures['matrix_product_flops_per_second'] / 1e9:,.0f} GFLOP/s a device",
    ]
    for name in ("training", "inference"):
        speed = figures[name]
        line = (
            f"{name}: {speed['tokens_per_second']:,.0f} tokens/s, {1000 * speed['seconds']:,.1f} ms (median; "
            f"{1000 * speed['seconds_fastest']:,.1f} to {1000 * speed['seconds_slowest']:,.1f}), "
            f"{100 * speed['share_of_matrix_product_limit']:.0f} % of the products' speed"
        )
        if speed["model_flop_utilisation"] is not None:
            line += f", {100 * speed['model_flop_utilisation']:.1f} % of the device's peak"
        lines.append(line)
    measured = "not measured" if used["step_bytes"] is None else f"{_gib(used['step_bytes'])} on top of"
    before = "" if used["step_bytes"] is None else f" {_gib(used['before_bytes'] or 0)} before"
    lines.append(f"memory of a training step: {measured}{before}; estimate {_gib(used['estimated_bytes'])}")
    if batch["estimated"] is not None:
        seen = "" if batch["verified"] is None else f", {batch['verified']} seen to fit"
        lines.append(
            f"largest batch a device: about {batch['estimated']} in {_gib(used['available_bytes'])} by estimate{seen}"
        )
    cost = "" if schedule["price"] is None else f", {schedule['price']:,.0f} at that price an hour"
    lines.append(
        f"the paper's {_STEPS:,} steps of {_BATCH:,} sequences of {_LENGTH}: {schedule['hours']:,.0f} hours on this "
        f"machine{cost}"
    )
    return "\n".join(lines)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _tell(doing: str) -> None:
    print(f"benchmark: {doing}", file=sys.stderr, flush=True)


def _counter(name: str, total: int) -> Callable[[int], None]:
    """Tells of each step on one line of a terminal, and of every tenth part elsewhere."""

    def tell(number: int) -> None:
        if sys.stderr.isatty():
            print(
                f"\rbenchmark: {name} {number}/{total}",
                end="\n" if number == total else "",
                file=sys.stderr,
                flush=True,
            )
        elif number % max(1, total // 10) == 0:
            _tell(f"{name} {number}/{total}")

    return tell

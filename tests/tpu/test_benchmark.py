"""`albert_tf benchmark` on a small model: figures that agree with each other, refusals in one line."""

import json
import statistics

import pytest
import tensorflow as tf

from albert_tf import costs
from albert_tf.__main__ import main
from albert_tf.config import AlbertConfig, preset
from tpu import benchmark, memory


@pytest.fixture(scope="module")
def figures(config_file, tmp_path_factory):
    """What a short run on the CPU writes."""
    output = tmp_path_factory.mktemp("benchmark") / "figures.json"
    arguments = {"albert_config_file": config_file, "train_batch_size": 4, "max_seq_length": 16, "num_steps": 3}
    arguments |= {"distribution": "cpu", "price_per_hour": 2.5, "peak_tflops": 0.5, "output_file": output}
    assert main(["albert_tf", "benchmark", *(f"--{name}={value}" for name, value in arguments.items())]) == 0
    return json.loads(output.read_text())


def test_rates_follow_from_the_times(figures, config_file):
    config = AlbertConfig.from_json(config_file)
    training, inference = figures["training"], figures["inference"]
    assert 0 < training["seconds_fastest"] <= training["seconds"] <= training["seconds_slowest"]
    assert training["tokens_per_second"] == pytest.approx(4 * 16 / training["seconds"])
    flops = sum(costs.training_flops(config, rows=4, length=16, predictions=2).values())
    assert training["flops_per_second"] == pytest.approx(flops / training["seconds"])
    assert training["model_flop_utilisation"] == pytest.approx(flops / training["seconds"] / 0.5e12)
    limit = figures["matrix_product_flops_per_second"]
    assert training["share_of_matrix_product_limit"] == pytest.approx(training["flops_per_second"] / limit)
    flops = sum(costs.forward_flops(config, rows=4, length=16, output_positions=0).values())
    assert inference["flops_per_second"] == pytest.approx(flops / inference["seconds"])


def test_schedule_and_price(figures, config_file):
    config = AlbertConfig.from_json(config_file)
    flops = 125_000 * sum(costs.training_flops(config, rows=4096, length=512, predictions=77).values())
    hours = flops / figures["training"]["flops_per_second"] / 3600
    assert figures["paper_schedule"] == pytest.approx({"hours": hours, "price": 2.5 * hours})


def test_largest_batch_fills_the_memory_by_the_estimate(figures, config_file):
    config = AlbertConfig.from_json(config_file)
    room, rows = 0.9 * figures["memory"]["available_bytes"], figures["largest_batch"]["estimated"]
    shape = {"max_seq_length": 16, "num_predictions": 2}
    assert memory.training_bytes(config, rows=rows, **shape)["total"] <= room
    assert memory.training_bytes(config, rows=rows + 1, **shape)["total"] > room
    assert figures["largest_batch"]["verified"] is None


def test_a_batch_is_tried_where_asked_for(monkeypatch):
    tried = []

    class Process:
        pid = 0

        def __init__(self, command, **_):
            tried.append(int(command[-2].split("=")[1]))

        def wait(self):
            return 0 if tried[-1] <= 80 else -9

    monkeypatch.setattr(benchmark.subprocess, "Popen", Process)
    given = dict.fromkeys(("preset", "albert_config_file", "max_seq_length", "max_predictions_per_seq"))
    given |= dict.fromkeys(("mixed_precision", "recompute", "optimizer", "jit_compile", "distribution"))
    flags = type("Flags", (), {**given, "grad_accum_steps": 4})()
    assert benchmark._verified(flags, 100, devices=1) == 72
    assert tried == [100, 84, 72]
    tried.clear()
    assert benchmark._verified(flags, 44, devices=2) == 36  # rows a device; the flag counts those of all
    assert tried == [88, 72]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--preset"),
        (["--preset=albert_bse"], "albert_base"),
        (["--preset=albert_base", "--max_seq_length=513"], "512"),
        (["--preset=albert_base", "--output_file=no/such/b.json"], "there is no folder"),
        (["--preset=albert_base", "--max_seq_length=16", "--max_predictions_per_seq=17"], "17"),
        (["--preset=albert_base", "--train_batch_size=6", "--grad_accum_steps=4", "--distribution=cpu"], "multiple"),
        (["--preset=albert_base", "--train_batch_size=1000000", "--distribution=cpu"], "smaller --train_batch_size"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(flags, words, capsys):
    assert main(["albert_tf", "benchmark", *flags]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("albert_tf benchmark: ") and words in said[-1]


def test_peaks_are_found_by_the_driver_s_name(monkeypatch):
    given = type("Flags", (), {"peak_tflops": None, "mixed_precision": "mixed_bfloat16"})()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["gpu"])

    def peak(name):
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: {"device_name": name})
        return benchmark._device_peak(given, "GPU")

    assert peak("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak("NVIDIA H100 PCIe") == 756e12 and peak("NVIDIA H100 80GB HBM3") == 989e12
    assert peak("NVIDIA L40S") == 362e12 and peak("Tesla T4") == 65e12
    assert peak("Some new thing") is None


def test_recomputed_work_is_no_use_of_the_device(config_file):
    from tpu.measuring import Case

    config = preset("albert_tiny")
    case = Case(config=config, rows=2, length=16, predictions=2, recompute=True)
    speed = benchmark._speed(case, "training", [1.0, 2.0, 4.0], devices=2, limit=1e9, peak=1e9)
    once = sum(costs.training_flops(config, rows=2, length=16, predictions=2).values())
    assert speed["seconds"] == statistics.median([1.0, 2.0, 4.0]) and speed["tokens_per_second"] == 2 * 32 / 2
    assert speed["model_flop_utilisation"] == pytest.approx(once / 2 / 1e9)
    assert speed["share_of_matrix_product_limit"] > 1.2 * speed["model_flop_utilisation"]


def test_the_limit_is_measured_on_the_devices_that_train():
    """By itself TensorFlow takes a GPU, where there is one, also for --distribution=cpu, and never a TPU."""
    from tpu import measuring, strategy

    devices, shapes = set(), []

    class Seen(strategy.OneDevice):
        def run(self, function, args=(), kwargs=None, options=None):
            results = super().run(function, args, kwargs, options)
            devices.update(one.op.device[-5:] for one in results if isinstance(one, tf.Tensor))
            shapes.extend(one.shape.as_list() for one in results if isinstance(one, tf.Tensor))
            return results

    case = measuring.Case(config=preset("albert_tiny"), rows=2, length=16, predictions=2)
    width, inner = case.config.hidden_size, case.config.intermediate_size
    assert measuring.matrix_product_rate(case, Seen("/cpu:0"), repeats=1) > 0
    assert devices == {"CPU:0"}
    assert shapes == [[32, 3 * width], [32, width], [32, inner], [32, width]]


def test_files_that_were_read_do_not_count_as_memory_in_use(tmp_path):
    from tpu import measuring

    assert measuring.control_group_bytes(str(tmp_path)) is None
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("7900\n")
    (tmp_path / "memory.stat").write_text("anon 900\nfile 7000\nshmem 500\ninactive_file 6000\nactive_file 500\n")
    assert measuring.control_group_bytes(str(tmp_path)) == 8000 - 7900 + 6500
    (tmp_path / "memory.max").write_text("max\n")
    assert measuring.control_group_bytes(str(tmp_path)) is None

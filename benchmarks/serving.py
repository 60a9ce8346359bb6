"""Latency and throughput of exported models by batch and length, in float32 and bfloat16.

    python -m benchmarks.serving

Exports a classifier of albert_base's size (fresh weights: the numbers do not matter for time), loads the SavedModel in
this process, and calls its signatures; what a server adds (network, JSON, queueing) is not in the figures. The table
goes to docs/results/serving.md. Run it on a machine that does nothing else.
"""

import argparse
import os
import pathlib
import platform
import tempfile
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from albert_tf import checkpoints, config, files  # noqa: E402
from albert_tf.export import saved_model  # noqa: E402
from albert_tf.export.signatures import named  # noqa: E402
from albert_tf.pretraining import prose  # noqa: E402
from albert_tf.pretraining.vocabulary import train_vocabulary  # noqa: E402
from albert_tf.tokenization import load_tokenizer  # noqa: E402
from tasks import export  # noqa: E402
from tasks.catalog import make_task  # noqa: E402

COMMAND = "python -m benchmarks.serving"
RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "serving.md"
HEADER = "| batch | tokens | median ms | 95 % ms | rows/s | tokens/s |\n|---|---|---|---|---|---|"


def exported(folder: pathlib.Path, precision: str, preset: str) -> tf.Module:
    """A loaded export with signatures on ids and text."""
    (folder / "prose").mkdir(exist_ok=True)
    for name, text in prose.topics().items():
        (folder / "prose" / f"{name}.txt").write_text(text, encoding="utf-8")
    if not (folder / "vocabulary").exists():
        train_vocabulary(str(folder / "prose"), folder / "vocabulary", vocab_size=2000, report=lambda line: None)
    task = make_task("sst-2", max_seq_length=384)
    tokenizer = load_tokenizer(folder / "vocabulary")
    info = checkpoints.ModelInfo(**task.describe())
    model = checkpoints.new_model(
        config.preset(preset),
        {task.head: task.head_options(0.0)},
        tokenizer,
        info=info,
        dtype=saved_model.POLICIES[precision],
    )
    ids, text, graph_tokenizer = export.signatures(model, task, with_text=True)
    saved_model.write_saved_model(
        folder / precision, named(ids, text, "both"), encoder=model.encoder, tokenizer=graph_tokenizer
    )
    return tf.saved_model.load(str(folder / precision))


def timed(call: Callable[[], object], seconds: float) -> np.ndarray:
    """Seconds of each call, after two that are not counted; at least five of them."""
    call(), call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return np.array(times)


def row(batch: int, tokens: int, times: np.ndarray) -> str:
    """A line of the table."""
    median, late = np.median(times), np.quantile(times, 0.95)
    return (
        f"| {batch} | {tokens} | {median * 1e3:.1f} | {late * 1e3:.1f} | {batch / median:.1f} | "
        f"{batch * tokens / median:,.0f} |"
    )


def ids_rows(model: tf.Module, batches: list[int], lengths: list[int], seconds: float) -> Iterator[str]:
    """A line for every batch and length; all positions hold tokens."""
    function = model.signatures["serving_default"]
    for batch in batches:
        for length in lengths:
            ids = tf.constant(np.random.default_rng(0).integers(5, 2000, [batch, length]), tf.int32)
            inputs = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
            yield row(batch, length, timed(lambda inputs=inputs: function(**inputs), seconds))


def text_row(model: tf.Module, folder: pathlib.Path, batch: int, seconds: float) -> str:
    """Texts of about 64 pieces; compare with the same batch of ids."""
    words = next(iter(prose.topics().values())).split()
    texts = [" ".join(words[start : start + 40]) for start in range(0, 40 * batch, 40)]
    lengths = [len(ids) + 2 for ids in load_tokenizer(folder / "vocabulary").encode_batch(texts)]
    function = model.signatures["text"]
    times = timed(lambda: function(text=tf.constant(texts)), seconds)
    return row(batch, max(lengths), times)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="albert_base_v2")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--lengths", default="16,64,128,384")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    batches, lengths = ([int(part) for part in text.split(",")] for text in (arguments.batches, arguments.lengths))
    lines = [
        "# Serving: latency and throughput",
        "",
        f"`{COMMAND}`, {arguments.preset}, classifier head, TensorFlow {tf.__version__}, {os.cpu_count()} processor "
        f"cores ({platform.machine()}), in process: without network and queueing. Tokens include padding; every "
        "position holds a token here.",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for precision in ("float32", "bfloat16"):
            model = exported(folder, precision, arguments.preset)
            lines += ["", f"## {precision}, ids", "", HEADER]
            for line in ids_rows(model, batches, lengths, arguments.seconds):
                print(precision, line, flush=True)
                lines.append(line)
            lines += ["", f"## {precision}, text (tokenised in the graph)", "", HEADER]
            lines.append(text_row(model, folder, batches[-1], arguments.seconds))
            print(precision, "text", lines[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(arguments.output, "\n".join(lines) + "\n")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()

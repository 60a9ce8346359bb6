"""`make demo`: the whole way from text to a pretrained model, offline and in minutes.

The text is English prose that every Python brings. The steps are the very commands that one gives by hand; each is
printed before it runs.
"""

import pathlib
import shlex
import shutil
import sys
import time

from albert_tf.__main__ import main as albert_tf
from albert_tf.__main__ import quieten_tensorflow

_VOCAB_SIZE = 3000
_PRETRAINING = {
    "preset": "albert_tiny",
    "train_batch_size": 32,
    "num_train_steps": 1600,
    "num_warmup_steps": 150,
    "optimizer": "adamw",
    "bias_correction": "true",  # without it the first hundreds of steps are several times too large
    "learning_rate": 0.001,
    "eval_every_steps": 800,
}
# Of the kind that the model has read, yet none of them stands in its text.
_SENTENCES = (
    "The default value [MASK] used if the argument is omitted.",
    "The name of [MASK] class is given by the first argument.",
    "Return true if the object is a string[MASK]",
)


def main(folder: pathlib.Path) -> int:
    """Runs the demonstration in `folder` and returns the exit code: 0 when the model beats twice the baseline."""
    start = time.monotonic()
    for name in ("text", "vocab", "records", "run"):  # a demonstration starts from nothing
        shutil.rmtree(folder / name, ignore_errors=True)
    text, vocab, records, run = (folder / name for name in ("text", "vocab", "records", "run"))
    _gather(text)
    _command("train_vocab", input_file=text, output_dir=vocab, vocab_size=_VOCAB_SIZE)
    _command(
        "create_pretraining_data",
        input_file=text,
        output_dir=records,
        spm_model_file=vocab / "spiece.model",
        heldout_fraction=0.1,
        # Short rows and single pieces to fill in, not whole words: something to see after minutes, not hours.
        max_seq_length=32,
        do_whole_word_mask="false",
        ngram=1,
    )
    _command("pretrain", data_dir=records, output_dir=run, **_PRETRAINING)
    sentences = text / "masked-sentences"  # no .txt: not to be trained on
    sentences.write_text("".join(f"{sentence}\n" for sentence in _SENTENCES), encoding="utf-8")
    _command("fill_mask", model_dir=run, input_file=sentences, top_k=3)
    print()
    return _report(run, time.monotonic() - start)


def _gather(folder: pathlib.Path) -> None:
    from albert_tf.pretraining.prose import write_prose

    num_files, num_characters = write_prose(folder)
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"{folder}: {num_characters:,} characters of prose from Python {version}, {num_files} documents", flush=True)


def _command(name: str, **flag_values: object) -> None:
    """Prints and runs one command; a failure ends the demonstration with the command's exit code."""
    arguments = [name, *(f"--{flag}={value}" for flag, value in flag_values.items())]
    print(f"\n$ albert_tf {shlex.join(arguments)}", flush=True)
    code = albert_tf(["albert_tf", *arguments])
    if code:
        raise SystemExit(code)


def _report(run: pathlib.Path, seconds: float) -> int:
    """Prints what the run measured on held-out documents before and after."""
    from tpu.progress import METRICS_FILE, read_metrics

    evaluations = [line for line in read_metrics(run / METRICS_FILE) if line["kind"] == "evaluation"]
    before, after = evaluations[0], evaluations[-1]
    baseline = after["masked_lm_baseline_accuracy"]
    print(f"On held-out documents{'':19}step {before['step']:<10}step {after['step']}")
    print(f"  masked LM loss{'':24}{before['masked_lm_loss']:<15.3f}{after['masked_lm_loss']:.3f} nats")
    print(f"  masked LM accuracy{'':20}{before['masked_lm_accuracy']:<15.3f}{after['masked_lm_accuracy']:.3f}")
    print(f"    always the commonest piece{'':10}{baseline:<15.3f}{baseline:.3f}")
    orders = [f"{line['sentence_order_accuracy']:.3f} ± {line['sentence_order_error']:.3f}" for line in (before, after)]
    print(f"  sentence order accuracy{'':15}{orders[0]:<15}{orders[1]}  (one standard error; chance is 0.5)")
    print("    Minutes of training leave sentence order near chance, and whole words hardly guessed: hours do more.")
    print(f"\nModel: {run} (a --model_dir for every command), made in {seconds / 60:.1f} minutes.")
    if after["masked_lm_accuracy"] < 2 * baseline:
        print(
            f"FAILED: masked LM accuracy {after['masked_lm_accuracy']:.3f} is less than twice the {baseline:.3f} of "
            "always guessing the commonest piece",
            file=sys.stderr,
        )
        return 1
    print(f"Masked LM accuracy is {after['masked_lm_accuracy'] / baseline:.1f} times that of the commonest piece.")
    return 0


if __name__ == "__main__":
    quieten_tensorflow()
    sys.exit(main(pathlib.Path("demo")))

"""Writes lengths.json, which natural.py reads, from the files of GLUE; needed only if its tasks change.

python -m benchmarks.peers.count_lengths --glue_dir=$DATA/GLUE --spm_model_file=$DATA/sentencepiece/30k-clean.model
"""

import argparse
import collections
import json

from albert_tf import files
from albert_tf.tokenization import load_tokenizer
from benchmarks.peers import natural
from tasks.catalog import make_task
from tasks.features import make_features


def main() -> None:
    """Counts, for each task, how many training and dev rows have which number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--glue_dir", required=True)
    parser.add_argument("--spm_model_file", required=True)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.spm_model_file)
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name in natural.TASKS:
        task = make_task(name, max_seq_length=natural.RECIPE_LENGTH)
        paths = task.files(arguments.glue_dir)
        counts[name] = {}
        for split in ("train", "dev"):
            lengths = make_features(task, task.read(paths[split]), tokenizer).lengths
            counts[name][split] = {str(n): count for n, count in sorted(collections.Counter(lengths.tolist()).items())}
    lines = [
        f'"{name}": {{\n' + ",\n".join(f'  "{split}": {json.dumps(c)}' for split, c in splits.items()) + "\n}"
        for name, splits in counts.items()
    ]
    files.write_atomically(natural.LENGTHS_FILE, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

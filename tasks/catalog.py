"""Which tasks there are: names to factories, imported when asked for."""

import difflib
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.checkpoints import ModelInfo
    from tasks.task import Task

# Canonical name -> module. The module has make(name, **settings) -> Task; settings are those of Task.__init__ without
# the recipe, which the module knows.
TASKS = {
    **dict.fromkeys(
        ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli", "ax"),
        "tasks.glue",
    ),
    "classification": "tasks.own_data",
    "regression": "tasks.own_data",
    "squad": "tasks.squad",
    "squad1.1": "tasks.squad",
    "squad2.0": "tasks.squad",
    "race": "tasks.race",
    "race-middle": "tasks.race",
    "race-high": "tasks.race",
    "tokens": "tasks.tokens",
}
_ALIASES = {
    **dict.fromkeys(("squad1", "squadv1", "squadv1.1"), "squad1.1"),
    **dict.fromkeys(("squad2", "squadv2", "squadv2.0"), "squad2.0"),
    **{"ner": "tokens", "stsbenchmark": "sts-b"},
}


def canonical_name(name: str) -> str:
    """ "SST2", "sst_2" and "SST-2" are "sst-2".

    Raises UserError naming the nearest tasks.
    """
    plain = {_plain(known): known for known in TASKS} | {_plain(alias): known for alias, known in _ALIASES.items()}
    if _plain(name) not in plain:
        near = difflib.get_close_matches(_plain(name), plain, n=1)
        hint = f"did you mean {plain[near[0]]}? The" if near else "the"
        raise UserError(f"unknown task {name!r}; {hint} tasks are {', '.join(TASKS)}")
    return plain[_plain(name)]


def make_task(
    name: str,
    *,
    max_seq_length: int | None = None,
    labels: Sequence[str] | None = None,
    options: dict[str, Any] | None = None,
) -> "Task":
    """The task of that name, in any spelling of `canonical_name`.

    Raises UserError for an unknown name, an option that the task does not have, or an impossible length.
    """
    name = canonical_name(name)
    module = importlib.import_module(TASKS[name])
    return module.make(name, max_seq_length=max_seq_length, labels=labels, options=options)


def task_of(info: "ModelInfo", source: Any) -> "Task":
    """The task that a fine-tuned model folder was made for.

    Raises UserError where the model is not fine-tuned.
    """
    if info.task is None:
        heads = ", ".join(info.heads) or "none"
        raise UserError(
            f"{source} is not a fine-tuned model: it has no task (heads: {heads}); make one with albert_tf finetune"
        )
    return make_task(
        info.task, max_seq_length=info.max_seq_length, labels=info.labels, options=info.task_options or None
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())

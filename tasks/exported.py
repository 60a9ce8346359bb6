"""Predictions of an export: its signature on ids in place of a model, everything else as for a model folder."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.export import load_exported
from tasks import batching
from tasks.catalog import task_of
from tasks.evaluation import DEFAULT_BATCH_SIZE, check_finite
from tasks.features import FeatureCache, Features, tell_unknown
from tasks.finetuned import asked_task


class ExportedEnsemble:
    """One exported model, with the interface of finetuned.Ensemble.

    It computes as it was exported: precision and device are not chosen here.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        task_name: str | None = None,
        task_options: dict[str, Any] | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        cache_dir: str | None = None,
    ) -> None:
        """Loads the export.

        Raises UserError where it has no task or another one than `task_name`, or no tokeniser.
        """
        self._exported = load_exported(path)
        self.task = asked_task(task_of(self._exported.info, path), task_name, path)
        if self._exported.tokenizer is None:
            raise UserError(f"{path} was exported without a tokeniser; export a model folder that has one")
        self.task = self.task.replace(options=task_options or {})
        self._batch_size, self._cache = batch_size, FeatureCache(cache_dir)

    def predictions(self, examples: Sequence[Any], source: str | os.PathLike) -> list[Any]:
        """One prediction an example; `source` is the file that they were read from."""
        features = self._cache.features(self.task, examples, self._exported.tokenizer, source)
        tell_unknown(features, self._exported.tokenizer, source)
        predictions = self.task.predictions(self._outputs(features), features, examples)
        self._cache.keep()
        return predictions

    def _outputs(self, features: Features) -> list[dict[str, np.ndarray]]:
        shapes = batching.Shapes(max_seq_length=self.task.max_seq_length)
        rows: list[dict[str, np.ndarray]] = [{} for _ in range(len(features))]
        for numbers in batching.evaluation_batches(features.lengths, self._batch_size):
            batch = batching.padded_batch(features, numbers, shapes)
            mask = batch["input_mask"]
            if "choice_lengths" in batch:  # rows of one option each: those of shorter options are padded too
                mask = (np.arange(mask.shape[-1]) < batch["choice_lengths"][..., None]).astype(np.int32)
            outputs = self._exported.answer(
                {"input_ids": batch["input_ids"], "input_mask": mask, "segment_ids": batch["segment_ids"]}
            )
            check_finite(outputs)
            for row, number in enumerate(numbers):
                rows[number] = {name: value[row] for name, value in outputs.items()}
        return rows

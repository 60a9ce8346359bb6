"""ALBERT of transformers in PyTorch, with scaled_dot_product_attention.

Variants: "" is eager, "compiled" goes through torch.compile. bfloat16 is autocast, as its users have it.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import torch
from transformers import AlbertConfig, AlbertForPreTraining, AlbertForSequenceClassification, PreTrainedModel

from benchmarks.peers import natural, work
from benchmarks.peers.contract import STEP, Part

PACKAGES = ("torch", "transformers")


def prepare(case: work.Case, variant: str) -> dict[str, Part]:
    """See contract.py."""
    torch.set_num_threads(2)
    compiled = torch.compile if variant == "compiled" else lambda module: module
    if case.natural:
        return _natural(case)
    batch = {name: torch.tensor(x).long() for name, x in work.inputs(case).items()}
    model = AlbertForPreTraining(_config(case))
    inputs = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
    }
    if case.kind == "infer":
        encoder = compiled(model.eval().albert)
        return {STEP: Part(_inference(case, lambda: encoder(**inputs).pooler_output.sum()))}
    labels = torch.full((case.batch, case.length), -100)  # the value that the loss leaves out
    labels.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
    network = compiled(model.train())
    inputs.update(labels=labels, sentence_order_label=batch["sentence_labels"])
    step = _training(case, model)
    return {STEP: Part(lambda: step(lambda: network(**inputs).loss))}


def _config(case: work.Case) -> AlbertConfig:
    sizes = work.PRESETS[case.preset]
    return AlbertConfig(
        vocab_size=work.VOCABULARY,
        embedding_size=work.EMBEDDING,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        num_labels=2,
        attn_implementation="sdpa",
    )


def _natural(case: work.Case) -> dict[str, Part]:
    model = AlbertForSequenceClassification(_config(case))
    model.train(case.kind == "train")
    step = _training(case, model) if case.kind == "train" else None

    def run(batches: list[dict[str, torch.Tensor]]) -> float:
        for batch in batches:
            if step is None:
                value = _inference(case, lambda batch=batch: model(**batch).logits[0, 0])()
            else:
                value = step(lambda batch=batch: model(**batch).loss)
        return value

    parts = {}
    for name, plan in natural.peer_plans(case).items():
        batches = [_batch(natural.arrays(*one), case) for one in zip(plan.batches, plan.widths, strict=True)]
        parts[name] = Part(lambda batches=batches: run(batches), plan.scale, lambda batches=batches: run(batches[:1]))
    return parts


def _batch(arrays: dict[str, np.ndarray], case: work.Case) -> dict[str, torch.Tensor]:
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    if case.kind == "train":
        names["labels"] = "label"
    return {name: torch.tensor(arrays[source]).long() for name, source in names.items()}


def _precision(case: work.Case) -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16) if case.precision == "bfloat16" else contextlib.nullcontext()


def _inference(case: work.Case, forward: Callable[[], torch.Tensor]) -> Callable[[], float]:
    def run() -> float:
        with torch.inference_mode(), _precision(case):
            return forward().item()

    return run


def _training(case: work.Case, model: PreTrainedModel) -> Callable[[Callable[[], torch.Tensor]], float]:
    """One optimiser step for a function that gives the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), work.LEARNING_RATE)

    def step(loss_of: Callable[[], torch.Tensor]) -> float:
        with _precision(case):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step

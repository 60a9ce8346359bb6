"""Which systems there are, which cases, and which systems each case compares unless flags say otherwise."""

import dataclasses

from benchmarks.peers.work import Case

OURS = "ours"
LIMIT = "products"  # not a rival: the products of matrices alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """A module of benchmarks/peers/systems in one of its variants."""

    title: str  # as the report calls it
    module: str
    variant: str = ""
    own_python: bool = False  # runs in the peers' environment rather than the project's
    precisions: tuple[str, ...] = ("float32", "bfloat16")
    shapes: tuple[str, ...] = ("full", "natural")


SYSTEMS = {
    LIMIT: System(title="products of matrices alone", module="products", shapes=("full",)),
    OURS: System(title="albert_tf", module="ours"),
    "ours_jit": System(title="albert_tf, XLA", module="ours", variant="jit", shapes=("full",)),
    "ours_nojit": System(title="albert_tf, no XLA", module="ours", variant="nojit", shapes=("full",)),
    "ours_recompute": System(title="albert_tf, recompute", module="ours", variant="recompute", shapes=("full",)),
    "ours_accumulate": System(
        title="albert_tf, 8 micro-batches", module="ours", variant="accumulate", shapes=("full",)
    ),
    "pytorch": System(title="transformers, PyTorch eager", module="pytorch", own_python=True),
    "pytorch_compiled": System(
        title="transformers, PyTorch compiled", module="pytorch", variant="compiled", own_python=True, shapes=("full",)
    ),
    "transformers_tf": System(
        title="transformers, TensorFlow", module="transformers_tf", own_python=True, precisions=("float32",)
    ),
    "transformers_tf_jit": System(
        title="transformers, TensorFlow, XLA",
        module="transformers_tf",
        variant="jit",
        own_python=True,
        precisions=("float32",),
        shapes=("full",),
    ),
    "keras_hub_jit": System(
        title="keras-hub, XLA", module="keras_hub", variant="jit", own_python=True, shapes=("full",)
    ),
    "model_garden": System(title="model garden", module="model_garden"),
    "model_garden_jit": System(title="model garden, XLA", module="model_garden", variant="jit", shapes=("full",)),
}
OWN_VARIANTS = tuple(name for name in SYSTEMS if name.startswith(OURS))

_PEERS = ("pytorch", "transformers_tf", "keras_hub_jit", "model_garden_jit")
_SLOW_TO_COMPILE = ("pytorch_compiled", "transformers_tf_jit")  # at one of the shapes only, to save minutes
_FULL = {
    ("float32", 8, 128): (OURS, *_PEERS, *_SLOW_TO_COMPILE, LIMIT),
    ("float32", 2, 512): (OURS, *_PEERS, LIMIT),
    ("bfloat16", 8, 128): (OURS, "pytorch", "model_garden", LIMIT),
    ("bfloat16", 2, 512): (OURS, "pytorch", "model_garden", LIMIT),
}
_NATURAL = {"float32": (OURS, "pytorch", "transformers_tf"), "bfloat16": (OURS, "pytorch", "model_garden")}
_SAMPLE_TOKENS = {"infer": 4000, "train": 2000}


def _comparisons() -> dict[Case, tuple[str, ...]]:
    cases: dict[Case, tuple[str, ...]] = {}
    for (precision, batch, length), systems in _FULL.items():
        for kind in ("infer", "train"):
            cases[Case(kind=kind, precision=precision, batch=batch, length=length)] = systems
    for precision, systems in _NATURAL.items():
        for kind, tokens in _SAMPLE_TOKENS.items():
            cases[Case(kind=kind, precision=precision, sample_tokens=tokens)] = systems
    large = Case(kind="train", precision="float32", preset="albert_large", batch=4, length=512)
    cases[large] = (OURS, "ours_recompute")
    cases[dataclasses.replace(large, precision="bfloat16", preset="albert_xxlarge", batch=1)] = ("ours_recompute",)
    cases[Case(kind="train", precision="bfloat16", batch=64, length=128)] = (OURS, "ours_accumulate")
    return cases


CASES = {case.name: (case, systems) for case, systems in _comparisons().items()}


def fits(system: str, case: Case) -> bool:
    """Whether a system can take a case at all."""
    known = SYSTEMS[system]
    return case.precision in known.precisions and ("natural" if case.natural else "full") in known.shapes

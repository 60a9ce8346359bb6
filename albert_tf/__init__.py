"""ALBERT for TensorFlow 2: pretraining, fine-tuning, conversion and serving."""

import importlib
import importlib.util
import os
import sys
import types
import warnings
from typing import Any

from albert_tf.errors import UserError

__version__ = "0.1.0"

# Loaded at first use, so that `import albert_tf` needs no TensorFlow.
_LAZY = {
    "AlbertConfig": "albert_tf.config",
    "AlbertEncoder": "albert_tf.encoder",
    "load_model": "albert_tf.checkpoints",
    "load_tokenizer": "albert_tf.tokenization",
    "resize_vocabulary": "albert_tf.conversion.resizing",
}

__all__ = ["UserError", "__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))


def _unify_keras() -> None:
    """Makes `tf.keras` the Keras 2 of `tf_keras`, on which this package is built, or says why it is too late.

    TensorFlow decides at the first touch of `tf.keras`, by an environment variable; without it, it takes Keras 3.
    """
    variable = "TF_USE_LEGACY_KERAS"
    tensorflow = sys.modules.get("tensorflow")
    untouched = tensorflow is None or type(vars(tensorflow).get("keras")).__name__ == "KerasLazyLoader"
    if untouched:
        if os.environ.setdefault(variable, "1") in ("1", "true", "True"):
            if tensorflow is not None:
                _lead_submodule_imports_to_tf_keras(tensorflow)
            return
        reason = f"{variable}={os.environ[variable]} asks for it"
    elif "tf_keras" in (getattr(tensorflow.keras, "__file__", None) or "").split(os.sep):
        return
    else:
        reason = "it was used before albert_tf was imported"
    warnings.warn(
        f"tf.keras is Keras 3, because {reason}; albert_tf is built on tf_keras (Keras 2), and layers, optimizers and "
        f"callbacks of the two do not mix. Write `import tf_keras` in place of tf.keras, or set {variable}=1 before "
        "Python starts.",
        stacklevel=3,
    )


def _lead_submodule_imports_to_tf_keras(tensorflow: types.ModuleType) -> None:
    """Makes `from tensorflow.keras import ...` find tf_keras where TensorFlow was imported without the variable."""
    spec = importlib.util.find_spec("tf_keras")
    if spec is not None:
        folder = os.path.join(spec.submodule_search_locations[0], "api", "_v2")
        if folder not in tensorflow.__path__:
            tensorflow.__path__.insert(0, folder)


_unify_keras()

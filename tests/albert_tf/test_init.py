"""`import albert_tf` is light, its names load at first use, and it makes `tf.keras` tf_keras or says why not."""

import importlib
import os
import subprocess
import sys

import pytest

import albert_tf


def test_public_names_load():
    for name in albert_tf.__all__:
        assert getattr(albert_tf, name) is not None
        assert name in dir(albert_tf)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = albert_tf.no_such_name


def test_lazy_names_are_those_of_their_modules():
    for name, module in albert_tf._LAZY.items():
        assert getattr(albert_tf, name) is getattr(importlib.import_module(module), name)


def run_python(code, **environment):
    clean = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


SAME = "import tf_keras; assert tf.keras.layers.Layer is tf_keras.layers.Layer;"
SAME_SUBMODULE = "from tensorflow.keras.layers import Layer; assert Layer is tf_keras.layers.Layer;"


def test_import_is_light():
    run_python(
        "import sys, albert_tf; albert_tf.AlbertConfig; "
        "heavy = {'tensorflow', 'tf_keras', 'keras', 'numpy', 'absl'} & set(sys.modules); assert not heavy, heavy"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import albert_tf, tensorflow as tf;" + SAME + SAME_SUBMODULE,
        "import tensorflow as tf, albert_tf;" + SAME + SAME_SUBMODULE,
    ],
    ids=["albert_tf first", "tensorflow first"],
)
def test_tf_keras_is_tf_keras(code):
    assert "tf.keras is Keras 3" not in run_python(code)


@pytest.mark.parametrize(
    "code, environment, reason",
    [
        ("import tensorflow as tf; tf.keras.layers; import albert_tf", {}, "it was used before"),
        pytest.param(
            *("from tensorflow.keras import layers; import albert_tf", {}, "it was used before"),
            marks=pytest.mark.slow,
        ),
        ("import albert_tf", {"TF_USE_LEGACY_KERAS": "0"}, "TF_USE_LEGACY_KERAS=0 asks for it"),
    ],
    ids=["touched", "imported from", "asked for"],
)
def test_a_fixed_keras_3_is_told(code, environment, reason):
    errors = run_python(code, **environment)
    (line,) = [line for line in errors.splitlines() if "tf.keras is Keras 3" in line]
    assert reason in line and "import tf_keras" in line
    assert line.startswith("<string>:1: UserWarning")  # at the user's import, not inside this package


@pytest.mark.slow
def test_tf_keras_touched_early_is_fine():
    code = "import tensorflow as tf; tf.keras.layers; import albert_tf;" + SAME
    assert "Keras 3" not in run_python(code, TF_USE_LEGACY_KERAS="1")

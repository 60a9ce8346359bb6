"""The check does not trust the tables that it checks."""

import numpy as np
import pytest

from albert_tf.conversion import huggingface, release, verify
from albert_tf.conversion.convert import convert
from albert_tf.errors import UserError


def with_swapped_rows(table, one, other):
    """The table with the sources of two of our names exchanged."""
    by_ours = {row.ours: row for row in table}
    swapped = {one: by_ours[other].source, other: by_ours[one].source}
    return tuple(row._replace(source=swapped.get(row.ours, row.source)) for row in table)


SWAPS = [
    ("_ATTENTION", "query/kernel", "value/kernel"),
    ("_ATTENTION", "key/bias", "output/bias"),
    ("_ATTENTION", "layer_norm/gamma", "query/bias"),
    ("_FEED_FORWARD", "output/bias", "layer_norm/beta"),
]


@pytest.mark.parametrize(("table", "one", "other"), SWAPS)
@pytest.mark.parametrize(("kind", "module"), [("release", release), ("huggingface", huggingface)])
def test_two_swapped_rows_of_the_table_are_refused(
    tmp_path, write, random_model, monkeypatch, *, kind, module, table, one, other
):
    model = random_model()
    source, native = write(kind, model, "source"), write("native", model, "native")
    monkeypatch.setattr(module, table, with_swapped_rows(getattr(module, table), one, other))
    with pytest.raises(UserError, match="model and source .NumPy. do not agree"):
        convert(source, tmp_path / "read", "native")
    with pytest.raises(UserError, match=f"written {kind} folder and source .NumPy. do not agree"):
        convert(native, tmp_path / "written", kind)
    assert not (tmp_path / "read").exists() and not (tmp_path / "written").exists()


@pytest.mark.parametrize("kind", ["release", "huggingface"])
def test_a_forgotten_transpose_is_refused(tmp_path, write, random_model, monkeypatch, kind):
    module = {"release": release, "huggingface": huggingface}[kind]
    source = write(kind, random_model())
    rows = module._ATTENTION
    changed = (rows[0]._replace(transposed=not rows[0].transposed), *rows[1:])  # [H, H]: shapes do not tell
    monkeypatch.setattr(module, "_ATTENTION", changed)
    with pytest.raises(UserError, match="do not agree"):
        convert(source, tmp_path / "native", "native")


def test_another_activation_is_refused(tmp_path, write, random_model, monkeypatch):
    source = write("huggingface", random_model(hidden_act="gelu_erf"))
    monkeypatch.setitem(huggingface.ACTIVATIONS, "gelu", "gelu")
    with pytest.raises(UserError, match="do not agree"):
        convert(source, tmp_path / "native", "native")


def test_compare_prints_the_largest_difference_and_refuses_what_it_must():
    right = {"a": np.array([1.0, 2.0]), "b": np.array([100.0])}
    difference = verify.compare(right, {"a": np.array([1.0, 2.00001]), "b": np.array([100.00005])}, "x and y")
    assert difference.output == "a" and abs(difference.value - 1e-5) < 1e-9
    assert str(difference) == "x and y: largest difference 1.0e-05, in a"
    for wrong in ({"a": right["a"]}, {**right, "b": np.array([100.02])}, {**right, "a": np.array([1.0, np.nan])},
                  {**right, "a": np.array([[1.0, 2.0]])}):  # fmt: skip
        with pytest.raises(UserError, match="x and y do not agree"):
            verify.compare(right, wrong, "x and y")

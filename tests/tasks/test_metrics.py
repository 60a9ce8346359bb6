"""Scores equal the recorded ones, undefined cases included."""

import json
import math

import numpy as np
import pytest

from tasks import metrics


def test_golden_scores(shared):
    cases = json.loads((shared / "golden/metrics/metrics.json").read_text())["glue"]
    assert len(cases) > 20
    for case in cases:
        expected = {name: math.nan if value is None else value for name, value in case["metrics"].items()}
        if case["kind"] == "cls":
            binary = "f1" in expected
            found = metrics.classification_metrics(case["labels"], case["predictions"], binary=binary)
        else:
            found = metrics.regression_metrics(case["labels"], case["predictions"])
        assert set(found) == set(expected), case["name"]
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=f"{case['name']} {name}")


def test_scores_by_hand():
    found = metrics.classification_metrics([1, 1, 0, 0, 1], [1, 0, 0, 1, 1])  # tp 2, fn 1, fp 1, tn 1
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    found = metrics.regression_metrics([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0])
    assert found["spearman"] == pytest.approx(0.8) and found["pearson"] == pytest.approx(0.8)
    assert found["mse"] == pytest.approx(0.5)


def test_chance_depends_on_the_number_of_examples():
    assert metrics.is_chance(0.1, 100) and not metrics.is_chance(0.1, 1000)
    assert metrics.is_chance(-0.9, 1000) and metrics.is_chance(math.nan, 1000)

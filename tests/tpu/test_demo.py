"""The demonstration, with two steps in place of hundreds: it reports honestly that this is not enough."""

import re

import pytest

from albert_tf.pretraining import prose
from tpu import demo, progress


def test_demo_runs_and_admits_failure(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(prose, "docstrings", dict)  # the topics alone are quicker
    monkeypatch.setattr(demo, "_VOCAB_SIZE", 1000)
    monkeypatch.setitem(demo._PRETRAINING, "num_train_steps", 2)
    monkeypatch.setitem(demo._PRETRAINING, "num_warmup_steps", 1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").write_text("an earlier demonstration")
    assert demo.main(tmp_path) == 1
    out, err = capfd.readouterr()
    commands = re.findall(r"^\$ albert_tf (\w+) ", out, re.MULTILINE)
    assert commands == ["train_vocab", "create_pretraining_data", "pretrain", "fill_mask"]
    assert "step 0" in out and "step 2" in out and f"Model: {tmp_path / 'run'} " in out
    assert "FAILED: masked LM accuracy" in err
    assert not (tmp_path / "run" / "old").exists()


@pytest.mark.parametrize("accuracy, code", [(0.099, 1), (0.1, 0)])
def test_success_is_twice_the_baseline_of_the_run_itself(tmp_path, capsys, accuracy, code):
    values = {
        "masked_lm_loss": 5.0,
        "masked_lm_accuracy": 0.0,
        "masked_lm_baseline_accuracy": 0.05,
        "sentence_order_accuracy": 0.5,
        "sentence_order_error": 0.02,
    }
    log = progress.MetricsLog(tmp_path / progress.METRICS_FILE, 0)
    log.write({"kind": "evaluation", "step": 0, **values})
    log.write({"kind": "training", "step": 5})
    log.write({"kind": "evaluation", "step": 9, **values, "masked_lm_accuracy": accuracy})
    log.close()
    assert demo._report(tmp_path, 61.0) == code
    assert ("FAILED" in capsys.readouterr().err) == bool(code)


def test_a_failing_command_ends_the_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "_gather", lambda folder: folder.mkdir())  # no text at all
    with pytest.raises(SystemExit) as stopped:
        demo.main(tmp_path)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("albert_tf train_vocab: ") == 1

"""What a run tells of itself: a loss that jumps, a file of metrics that is damaged."""

import json

from tpu.progress import Progress, read_metrics


def test_a_loss_that_jumps_is_warned_of(tmp_path, capfd):
    progress = Progress(tmp_path, start=0, total=4, tokens_per_step=8)
    for step, loss in enumerate((6.0, 6.9, 8.0, 7.5), start=1):
        progress.training(step, {"loss": loss}, 0.0)
    progress.close()
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1 and "the loss rose from 6.9000 to 8.0000 between steps 2 and 3" in warnings[0]
    assert f"--init_checkpoint={tmp_path}/checkpoints/ckpt-STEP" in warnings[0]
    assert [line["loss"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [6.0, 6.9, 8.0, 7.5]


def test_lines_that_are_no_objects_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(json.dumps({"step": 1}).encode() + b'\n5\n\0\0\n\xff\n[]\n{"step": 2}\n{"step": 3, "lo')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]

"""The cost model's document says what its script computes, and how far that is from the paper."""

import pathlib
import re

import pytest

from benchmarks import scale_model

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.parametrize("name", ["work", "parts", "memory", "devices", "speed"])
def test_document_has_the_tables_of_the_script(name):
    tables = {
        "work": scale_model.work_table,
        "parts": scale_model.parts_table,
        "memory": scale_model.memory_table,
        "devices": lambda: scale_model.devices_table(50e12, 12.5e9),
        "speed": scale_model.speed_table,
    }
    (text,) = re.findall(rf"<!-- {name}: begin -->\n(.*?)\n<!-- {name}: end -->", DOCUMENT.read_text(), re.DOTALL)
    assert text.splitlines() == tables[name](), "python -m benchmarks.scale_model --write=docs/scale.md"


def test_paper_speeds_and_deviations():
    """Operations alone miss the paper's speeds; a cost of parameters explains the small models, not the wide ones."""
    speeds = {row.split("|")[1].strip(): row.split("|")[2:5] for row in scale_model.speed_table()[2:]}
    speeds = {name: [float(cell.strip().rstrip("x")) for cell in cells] for name, cells in speeds.items()}
    paper, operations, both = zip(*(speeds[name] for name in scale_model.NAMES), strict=True)
    assert dict(zip(scale_model.NAMES, paper, strict=True)) == scale_model.PAPER_SPEED
    assert speeds["albert_large"][2] == 1.7 and speeds["bert_large"] == [1.0, 1.0, 1.0]
    assert speeds["albert_base"][2] == pytest.approx(5.6, rel=0.03)
    for name in ("albert_xlarge", "albert_xxlarge", "bert_base"):
        assert 1.25 < speeds[name][0] / speeds[name][2] < 1.45  # faster on the paper's chips than predicted
    assert all(one < 0.75 * seen for seen, one in zip(paper[:4], operations[:4], strict=True))
    assert both[2] / both[3] == pytest.approx(paper[2] / paper[3], rel=0.06)


def test_renew_replaces_only_what_is_between_the_marks(tmp_path):
    document = tmp_path / "scale.md"
    document.write_text("before\n<!-- work: begin -->\nold\n<!-- work: end -->\nafter\n")
    scale_model.renew(document, {"work": ["| a |", "| b\\1 |"]})
    assert document.read_text() == "before\n<!-- work: begin -->\n| a |\n| b\\1 |\n<!-- work: end -->\nafter\n"
    with pytest.raises(SystemExit, match="no marks for the table 'speed'"):
        scale_model.renew(document, {"speed": []})


def test_prediction_for_processes_that_share_a_machine(monkeypatch):
    from benchmarks import scale_measured

    seen = {1: {"step": 3.0, "update": 0.2}, 2: {"step": 3.6, "exchange": 0.1}, 4: {"step": 5.0, "exchange": 0.7}}
    monkeypatch.setattr(scale_measured, "CASES", [("albert_base", 8, 128)])
    monkeypatch.setattr(scale_measured, "run_processes", lambda count, *_: seen[count])
    rows = [[cell.strip() for cell in row.split("|")[3:-1]] for row in scale_measured.measured_table()[2:]]
    # Two processes send every gradient once in 0.1 s, 2 G / 0.1 together; four send 4 x 1.5 G through the same.
    assert [row[:5] for row in rows] == [
        ["1", "3.00", "2.80", "0.000", "0.200"],
        ["2", "3.30", "2.80", "0.100", "0.400"],
        ["4", "3.90", "2.80", "0.300", "0.800"],
    ]
    assert [row[5:] for row in rows] == [["3.00", "1.00"], ["3.60", "0.92"], ["5.00", "0.78"]]


@pytest.mark.slow
def test_two_processes_measure_steps_updates_and_exchanges():
    from benchmarks.scale_measured import run_processes

    alone, pair = run_processes(1, "albert_tiny", 2, 16), run_processes(2, "albert_tiny", 1, 16)
    assert set(alone) == {"step", "update"} and set(pair) == {"step", "update", "exchange"}
    for times in (alone, pair):
        assert 0 < times["update"] < times["step"]

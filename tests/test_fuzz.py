"""No input makes a command fail in another way than by one line: the cases of benchmarks/fuzz."""

import pytest

from benchmarks.fuzz import cases, material, runner

SEED = 1


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "material"
    material.make(folder)
    return folder


def behaved(verdicts):
    """The verdicts, once none has a problem; `python -m benchmarks.fuzz --first=NUMBER --cases=1` runs one again."""
    lines = []
    verdicts = list(verdicts)
    runner.shown(verdicts, say=lines.append)
    assert not any(verdict.problem for verdict in verdicts), "\n".join(lines)
    return verdicts


def test_three_hundred_cases(store):
    found = behaved(runner.run(SEED, 0, 300, store))
    assert [verdict.number for verdict in found] == list(range(300))
    for kind, row in runner.counted(
        found
    ).items():  # every class has cases that the commands take, and that they do not
        assert row["accepted"] and row["refused"], (kind, row)


def test_command_lines(store):
    assert len(behaved(runner.run_command_lines(SEED, [16, 28, 61], store))) == 3


@pytest.mark.slow
def test_a_hundred_command_lines(store):
    assert len(behaved(runner.run_command_lines(SEED, list(range(20_000, 20_100)), store))) >= 95


def test_a_case_is_its_seed_and_number(store, tmp_path):
    def made(number, name):
        case = cases.make_case(SEED, number, material=store, folder=tmp_path / name)
        files = {path.relative_to(case.folder): path.read_bytes() for path in case.folder.rglob("*") if path.is_file()}
        return case.kind, case.arguments, files

    for number in range(40):
        first, second = made(number, "case"), made(number, "case")
        archives = [path for path in first[2] if path.suffix == ".gz"]  # gzip writes down the time
        for path in archives:
            del first[2][path], second[2][path]
        assert first == second, number

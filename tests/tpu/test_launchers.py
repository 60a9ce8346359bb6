"""Each launcher in a dry run: its command is one that `albert_tf` takes, and it is the paper's schedule."""

import json
import pathlib
import shlex
import subprocess

import pytest
import yaml
from absl import flags

from tpu import pretrain
from tpu.cluster import read_tf_config

LAUNCHERS = pathlib.Path(__file__).resolve().parents[2] / "tpu" / "launchers"
SCHEDULE = {
    "num_train_steps": 125_000,
    "train_batch_size": 4096,
    "max_seq_length": 512,
    "num_warmup_steps": 3125,
    "learning_rate": 0.00176,
    "optimizer": "lamb",
}
PLACES = {"DATA_DIR": "/data/my records", "OUTPUT_DIR": "/data/run's"}
DEVICES = {"tpu_vm": 8, "tpu_pod": 32, "gpus": 8, "worker": 32}


def launch(name, *arguments, path="", **environment):
    """What a launcher prints in a dry run."""
    environment = {"PATH": f"{path}:/usr/bin:/bin", "DRY_RUN": "1", **PLACES, **environment}
    command = ["bash", str(LAUNCHERS / f"{name}.sh"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def parsed(line, devices=None):
    """The flags of a printed command, as `albert_tf` reads them, and its TF_CONFIG."""
    words = shlex.split(line)
    cluster = json.loads(words.pop(0).removeprefix("TF_CONFIG=")) if words[0].startswith("TF_CONFIG=") else None
    assert words[:2] == ["albert_tf", "pretrain"]
    values = flags.FlagValues()
    pretrain.define_flags(values)
    assert values(["albert_tf", *words[2:]]) == ["albert_tf"]  # unknown flags raise
    assert {name: getattr(values, name) for name in SCHEDULE} == SCHEDULE
    assert values.data_dir == PLACES["DATA_DIR"] and values.output_dir == PLACES["OUTPUT_DIR"]
    if devices:
        assert values.train_batch_size // devices // values.grad_accum_steps == 32
    return values, cluster


@pytest.mark.parametrize(
    ("name", "environment", "expected"),
    [
        ("tpu_vm", {}, {"distribution": "tpu", "tpu_name": "local", "iterations_per_loop": 100}),
        ("tpu_pod", {"TPU_NAME": "my-slice"}, {"distribution": "tpu", "tpu_name": "my-slice"}),
        ("gpus", {"PRESET": "albert_xxlarge"}, {"distribution": "mirrored", "preset": "albert_xxlarge"}),
        ("worker", {"HOSTS": "a b", "INDEX": "1"}, {"distribution": "multi_worker", "preset": "albert_base"}),
    ],
)
def test_commands(name, environment, expected):
    values, cluster = parsed(launch(name, "--seed=7", "--weight_decay=0.02", **environment), DEVICES[name])
    assert {key: getattr(values, key) for key in expected} == expected
    assert values.seed == 7 and values.weight_decay == 0.02
    assert (cluster is not None) == (name == "worker")
    values, _ = parsed(launch(name, "--grad_accum_steps=3", **{**environment, "GRAD_ACCUM_STEPS": "5"}))
    assert values.grad_accum_steps == 3  # flags given win
    values, _ = parsed(launch(name, **{**environment, "GRAD_ACCUM_STEPS": "5"}))
    assert values.grad_accum_steps == 5


def test_cluster_of_workers(monkeypatch):
    line = launch("worker", HOSTS="node1 node2  node3", INDEX="2", PORT="4000")
    _, cluster = parsed(line)
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    found = read_tf_config()
    assert found.addresses == ("node1:4000", "node2:4000", "node3:4000") and found.index == 2


@pytest.fixture
def slurm(tmp_path):
    """Runs slurm.sh with stand-ins; gives what it printed, its exit code and whether the job was requeued.

    scontrol names two hosts and takes requeues; srun starts a task for each and ends with the greatest of their codes,
    as the real one does; the program ends with FIRST or SECOND.
    """
    stand_ins = {
        "scontrol": f'if [[ $1 == requeue ]]; then echo $2 >> {tmp_path}/requeued; else printf "n1\\nn2\\n"; fi',
        "srun": """
            greatest=0
            while [[ $1 == -* ]]; do shift; done
            for i in 0 1; do
              code=0
              SLURM_PROCID=$i "$@" || code=$?
              ((code <= greatest)) || greatest=$code
            done
            exit $greatest""",
        "program": """[[ $TF_CONFIG == *'"index": 0'* ]] && exit $FIRST || exit $SECOND""",
    }
    for name, lines in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    fixed = {"PATH": f"{tmp_path}:/usr/bin:/bin", **PLACES, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "17"}
    fixed |= {"SLURM_SUBMIT_DIR": str(LAUNCHERS.parents[1])}

    def run(**environment):
        command = ["bash", str(LAUNCHERS / "slurm.sh"), "--seed=7"]
        done = subprocess.run(
            command, env={**fixed, **environment}, capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert not done.stderr
        return done.stdout, done.returncode, (tmp_path / "requeued").exists()

    return run


def test_slurm_tasks(slurm):
    printed, code, requeued = slurm(DRY_RUN="1")
    assert code == 0 and not requeued
    lines = printed.splitlines()
    assert len(lines) == 2
    for index, line in enumerate(lines):
        values, cluster = parsed(line, DEVICES["worker"])
        assert values.distribution == "multi_worker" and values.seed == 7
        assert cluster["task"] == {"type": "worker", "index": index}
        assert cluster["cluster"]["worker"] == ["n1:2222", "n2:2222"]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, 0), (0, False)),
        ((2, 2), (2, False)),
        ((75, 2), (2, False)),  # what one worker was told is in the way of all; the others only lost it
        ((2, 143), (2, False)),
        ((1, 0), (1, False)),
        ((75, 1), (1, False)),
        ((75, 75), (75, True)),
        ((137, 75), (137, True)),
        ((75, 142), (142, True)),
        ((143, 143), (143, True)),
    ],
)
def test_slurm_starts_again_where_that_helps(slurm, tmp_path, codes, expected):
    first, second = map(str, codes)
    assert slurm(ALBERT_TF=str(tmp_path / "program"), FIRST=first, SECOND=second)[1:] == expected


@pytest.mark.parametrize("code", [143, 2, 0])
def test_slurm_task_hands_on_the_signal_and_the_code(tmp_path, code):
    """Slurm may signal the task alone; the program saves first, and its code comes out."""
    program = tmp_path / "program"
    stop = f"trap : TERM; echo saving; sleep 0.3; echo saved; exit {code}"
    program.write_text(f"#!/bin/bash\ntrap '{stop}' TERM\necho running\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", **PLACES, "HOSTS": "n1", "SLURM_PROCID": "0", "ALBERT_TF": str(program)}
    command = ["bash", str(LAUNCHERS / "slurm_task.sh")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as task:
        try:
            assert task.stdout.readline() == "running\n"
            task.terminate()
            assert task.stdout.readline() == "saving\n"
            task.terminate()  # once more, while it waits for the end
            assert task.stdout.readline() == "saved\n"
            assert task.wait(20) == {1: 199, 2: 200}.get(code, code)
        finally:
            task.kill()


def test_kubernetes():
    """The printed objects, and what each container's command comes to."""
    text = launch(
        "kubernetes", "--seed=7", "--init_checkpoint=it's", IMAGE="registry/albert_tf:1", WORKERS="2", NAME="b"
    )
    service, job = yaml.safe_load_all(text)
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    (container,) = pod["containers"]
    assert container["image"] == "registry/albert_tf:1"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    environment = {
        "PATH": "/usr/bin:/bin",
        "DRY_RUN": "1",
        **{each["name"]: each["value"] for each in container["env"]},
    }
    for index in range(2):
        done = subprocess.run(
            container["command"],
            env={**environment, "JOB_COMPLETION_INDEX": str(index)},
            cwd=LAUNCHERS.parents[1],
            capture_output=True,
            text=True,
            timeout=60,
        )
        values, cluster = parsed(done.stdout)
        assert values.distribution == "multi_worker" and values.seed == 7 and values.init_checkpoint == "it's"
        assert cluster["task"]["index"] == index and cluster["cluster"]["worker"] == ["b-0.b:2222", "b-1.b:2222"]


@pytest.mark.parametrize(
    ("name", "environment", "words"),
    [("gpus", {"DATA_DIR": ""}, "DATA_DIR"), ("tpu_pod", {}, "TPU_NAME"), ("worker", {"HOSTS": "a"}, "INDEX")],
)
def test_what_is_missing_is_named(name, environment, words):
    command = ["bash", str(LAUNCHERS / f"{name}.sh")]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **PLACES, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and f"{words}: is not set" in done.stderr

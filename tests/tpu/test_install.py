"""The packages that tpu/README.md installs on a TPU VM are enough for everything that pretraining imports."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Runs in a process of its own: hides every package that the README's steps would not bring, then imports. `tensorflow`
# stands for tensorflow-tpu, which is the same package with the same dependencies and libtpu.
PROGRAM = """
import importlib.metadata, pathlib, re, sys

def closure(names):
    found, waiting = set(), list(names)
    while waiting:
        name = re.sub("[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found.add(name)
            try:
                needs = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            waiting += [re.match("[A-Za-z0-9._-]+", need)[0] for need in needs if "extra ==" not in need]
    return found

lines = pathlib.Path("tpu/requirements-tpu.txt").read_text().splitlines()
listed = [line for line in lines if not line.startswith("#")]
brought = closure(["tensorflow", *(re.match("[A-Za-z0-9._-]+", line)[0] for line in listed)])
brought |= {"tf-models-official", "tensorflow-text", "tf-keras", "albert-tf"}  # without their dependencies
assert "tensorflow-hub" not in brought and "kaggle" not in brought
hidden = set()
for module, names in importlib.metadata.packages_distributions().items():
    if not {re.sub("[-_.]+", "-", name).lower() for name in names} & brought:
        hidden.add(module)

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

sys.meta_path.insert(0, Hide())
import tensorflow, tf_keras, tensorflow_text, orbit
import official.modeling.optimization
import tpu.pretraining, tpu.evaluation, tasks.finetuning, albert_tf.commands.fill_mask
import albert_tf.pretraining.creation, albert_tf.pretraining.vocabulary, albert_tf.conversion.convert
from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0
print("hidden", len(hidden))
"""


def test_the_listed_packages_are_enough():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1500:]
    assert int(done.stdout.split()[-1]) > 20


def test_the_list_follows_setup_cfg():
    import configparser

    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = {line for line in setup["options"]["install_requires"].splitlines() if line and not line.startswith("#")}
    lines = (ROOT / "tpu" / "requirements-tpu.txt").read_text().splitlines()
    apart = {line for line in wanted if line.startswith(("tensorflow", "tf"))}
    assert len(apart) == 4 and wanted - apart <= set(lines)
    readme = (ROOT / "tpu" / "README.md").read_text()
    for line in apart - {"tensorflow~=2.20.0"}:
        assert f"'{line}'" in readme

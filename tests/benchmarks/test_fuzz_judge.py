"""The judge of hostile input sees what it is there to see: each misdeed is committed once, by a command made for it."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.fuzz import watch

PROGRAM = """
import json, os, pathlib, sys, types
from absl import flags
from albert_tf import __main__ as table
from albert_tf.errors import UserError
from benchmarks.fuzz import judge, watch
from benchmarks.fuzz.cases import Case

scratch = pathlib.Path(sys.argv[1])
if "tensorflow" in sys.argv[2]:
    import tensorflow  # its start is no part of the case
watch.install(scratch / "outside")
judge.SECONDS = 1.0 if "while" in sys.argv[2] else 60.0
module = types.ModuleType("misdeeds")
module.define_flags = lambda values: flags.DEFINE_string("output_dir", "", "a folder", flag_values=values)
module.run = lambda values: exec(sys.argv[2], {"os": os, "sys": sys, "pathlib": pathlib, "UserError": UserError})
sys.modules["misdeeds"] = module
table.COMMANDS["misdeed"] = table.Command("misdeeds", "do one")
folder = scratch / "case"
case = Case(1, 0, "flags", ["misdeed"], folder)
verdict = judge.run_in_process(case)
print(json.dumps([verdict.code, verdict.problem]))
"""


@pytest.fixture
def verdict(tmp_path):
    """A function that gives [code, problem] of a command that runs these lines."""
    for name in ("in", "out", "tmp"):
        (tmp_path / "case" / name).mkdir(parents=True)
    (tmp_path / "case" / "in" / "text").write_text("text")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "bait").write_text("bait")

    def judge(lines):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path.resolve()), lines], cwd=root, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return judge


FAIL = "raise UserError('wrong: found this, expected that')"


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ("pathlib.Path('out/x').write_text('x'); open('in/text').read()", 0, None),
        (FAIL, 2, None),
        ("1 / 0", None, "raises ZeroDivisionError"),
        ("sys.exit(3)", None, "raises SystemExit"),
        ("print('Traceback (most recent call last)', file=sys.stderr)", 0, "prints a traceback"),
        (f"print('albert_tf: no', file=sys.stderr); {FAIL}", 2, "says 2 lines of error"),
        ("while True: pass", None, "takes more than 1 seconds"),
        ("pathlib.Path('in/text').write_text('x')", 0, "changes in/text"),
        ("pathlib.Path('tmp/x').write_text('x')", 0, "leaves tmp/x among the temporary files"),
        (f"pathlib.Path('out/x').write_text('x'); {FAIL}", 2, "leaves out/x although it failed"),
        ("pathlib.Path('out/.partial-x').write_text('x')", 0, "leaves out/.partial-x"),
        ("pathlib.Path('../x').write_text('x')", 0, "x outside the given paths"),
        ("open('/etc/passwd').read()", 0, "reads /etc/passwd outside the given paths"),
        ("os.utime('/dev/null')", 0, "writes /dev/null outside the given paths"),
        ("os.symlink('/etc/passwd', 'out/link'); open('out/link').read()", 0, "reads /etc/passwd outside"),
        ("import subprocess; subprocess.run(['/bin/true'])", 0, "starts /"),
        ("import tensorflow as tf; tf.io.read_file('../outside/bait')", 0, "reads bait outside the given paths"),
        ("import socket; socket.getaddrinfo('example.org', 80)", None, "raises gaierror|asks the network"),
        ("b'x' * (1 << 31)", 0, "GB of memory"),
    ],
)
def test_misdeeds_are_seen(verdict, lines, code, words, tmp_path):
    if "bait" in lines and not watch.bait_works(tmp_path / "outside"):
        pytest.skip("this file system does not note when files are read")
    found = verdict(lines)
    if words is None:
        assert found == [code, None]
    else:
        assert found[1] is not None and any(word in found[1] for word in words.split("|")), found
        assert found[0] == code or "gaierror" in words

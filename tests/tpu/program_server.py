"""Starts `albert_tf` programs for the tests: imports TensorFlow once, and gives each program a process by fork.

A line of JSON on standard input starts one: {"arguments", "environment", "devices", "log"}. The process id is the
answer; what the program says goes to the file `log`, and its exit code, once it has ended, to `log`.code.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback

import tensorflow as tf

import tasks.finetuning  # noqa: F401
import tpu.pretraining  # noqa: F401  slow to import
from albert_tf.__main__ import command_line


def become(arguments, environment, devices, log):
    """Turns this process into the program."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(descriptor, stream)
    os.environ.update(environment)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    sys.argv = ["albert_tf", *arguments]
    command_line()


def note_end(process, log):
    status = os.waitpid(process, 0)[1]
    running.discard(process)
    with open(f"{log}.partial", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))
    os.replace(file.name, f"{log}.code")


running = set()
for line in sys.stdin:
    program = json.loads(line)
    process = os.fork()
    if not process:
        try:
            become(**program)
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    running.add(process)
    threading.Thread(target=note_end, args=(process, program["log"]), daemon=True).start()
    print(process, flush=True)
for process in list(running):  # the tests were killed: no program outlives them
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)

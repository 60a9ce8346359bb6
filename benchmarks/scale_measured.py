"""Step times of 1, 2 and 4 processes on this machine beside the cost model's (benchmarks/scale_model.py --measure).

The processes share one machine, so n of them each get an n-th of its speed, of its bandwidth to itself, and n times the
time for an update that is bound by memory. What a process computes, exchanges and updates is measured once, at one or
two processes; the rest is prediction.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

from albert_tf import costs
from albert_tf.config import preset

COUNTS = (1, 2, 4)
CASES = [("albert_base", 8, 128), ("bert_base", 8, 128), ("albert_base", 16, 64)]  # rows of all processes together
REPEATS = 7


def measured_table() -> list[str]:
    """Measured and predicted seconds of a step, by case and processes."""
    head = "| model | global batch | processes | predicted, s | computing | exchange | update | measured, s | ratio |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for name, rows, length in CASES:
        results = {count: run_processes(count, name, rows // count, length) for count in COUNTS}
        predictions = max(1, round(0.15 * length))
        flops = sum(costs.training_flops(preset(name), rows=rows, length=length, predictions=predictions).values())
        alone, pair = results[1], results[2]
        rate = flops / (alone["step"] - alone["update"])
        gradients = costs.gradient_bytes(preset(name))
        machine_bandwidth = 2 * gradients / pair["exchange"]  # of two processes, each sending every gradient once
        for count in COUNTS:
            step = costs.step_time(
                device_flops=flops / count,
                flop_rate=rate / count,
                exchanged_bytes=gradients,
                devices=count,
                bandwidth=machine_bandwidth / count,
                update_seconds=alone["update"] * count,
            )
            seen = results[count]["step"]
            lines.append(
                f"| {name} | {rows} x {length} | {count} | {step.total:.2f} | {step.compute:.2f} | "
                f"{step.exchange:.3f} | {step.update:.3f} | {seen:.2f} | {step.total / seen:.2f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def run_processes(count: int, name: str, rows: int, length: int) -> dict[str, float]:
    """Medians of the first process: seconds of a `step`, of an `update`, of an `exchange` of all gradients."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(count)]
    processes = []
    with tempfile.TemporaryFile("w+") as output:
        for index in range(count):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.scale_measured", name, str(rows), str(length)],
                    env={**os.environ, "TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"},
                    stdout=output if index == 0 else subprocess.DEVNULL,
                )
            )
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{count} processes of {name} ended with codes {codes}")
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def work(name: str, rows: int, length: int) -> dict[str, float]:
    """One process's part, all of them at the same time."""
    import tensorflow as tf

    from albert_tf import optimization
    from tpu import measuring

    alone = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]) == 1
    where = tf.distribute.OneDeviceStrategy("/cpu:0") if alone else tf.distribute.MultiWorkerMirroredStrategy()
    config = preset(name).replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    case = measuring.Case(config=config, rows=rows, length=length, predictions=max(1, round(0.15 * length)))
    trainer = measuring.make_trainer(case, where)
    weights = list(trainer.model.named_variables().values())
    gradients = [tf.random.normal(variable.shape) for variable in weights]

    def update() -> None:
        clipped, _ = optimization.clip_by_global_norm(gradients)
        pairs = zip(clipped, weights, strict=True)
        trainer.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    def exchange() -> list[tf.Tensor]:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)

    updates = tf.function(lambda: where.run(update))
    exchanges = tf.function(lambda: [where.experimental_local_results(one)[0][..., :1] for one in where.run(exchange)])
    times = {"step": measuring.training_step(case, trainer), "update": updates}
    times |= {} if alone else {"exchange": lambda: [one.numpy() for one in exchanges()]}
    return {part: statistics.median(measuring.seconds(run, REPEATS)) for part, run in times.items()}


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))

"""The training stream of dataset.py, computed by the workers of a tf.data service.

What the service promises is not enough by itself: with dynamic sharding each piece of work is handed out once, so what
a killed worker held is lost, and results come in any order. So the pieces carry numbers. Piece n is window n of the
stream (up to 1024 rows that follow from n alone), the trainer puts the pieces in order again, drops what comes twice,
and computes by itself what is still missing when the pieces are 64 ahead. The batches are thus exactly those of
`pretraining_dataset`: each record once an epoch, none lost, none twice, whichever workers come, die or are replaced,
and a run may go on with or without the service.

Letters: n rows, C columns of a packed row.
"""

import re
import socket
from collections.abc import Callable

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining import dataset as stream
from albert_tf.pretraining.dataset import Batching, Rows
from albert_tf.pretraining.record_source import RecordSource

AHEAD = 64  # windows that are waited for; up to 7 MB each where a trainer takes all rows of 512 tokens
_ENDLESS = 2**62
_CONNECT_SECONDS = 10.0


def served_dataset(
    source: RecordSource, batching: Batching, *, service: str, start_position: int = 0
) -> tf.data.Dataset:
    """The elements of `pretraining_dataset` with the same arguments, computed at `service` (grpc://host:port).

    The workers of `batching` are the trainers; each has a job of its own at the service. The service's workers open
    the records under the same paths as the trainer.

    Raises UserError where the address is wrong, and as `pretraining_dataset` does.
    """
    service_place(service)
    batch = batching.rows
    window_rows = stream.window_function(source, batching, start_position=start_position)
    windows_an_epoch = -(-source.num_records // stream.WINDOW)
    epoch, offset = divmod(start_position, source.num_records)
    first = epoch * windows_an_epoch + offset // stream.WINDOW

    def packed(number: tf.Tensor) -> tf.Tensor:
        return _pack(window_rows(number // windows_an_epoch, number % windows_an_epoch))

    columns = _Columns(tf.function(window_rows).get_concrete_function(*[tf.TensorSpec([], tf.int64)] * 2))
    windows = tf.data.Dataset.range(first, _ENDLESS).map(
        lambda number: (number, packed(number)), num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    windows = windows.with_options(stream.stream_options())
    served = windows.apply(
        tf.data.experimental.service.distribute(tf.data.experimental.service.ShardingPolicy.DYNAMIC, service)
    )
    rows = in_order(served, packed, first=first, num_columns=columns.number)
    dataset = rows.rebatch(batch, drop_remainder=True).map(columns.unpack)
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(stream.stream_options())


def service_place(service: str) -> tuple[str, int]:
    """Host and port of grpc://host:port. Raises UserError for anything else."""
    match = re.fullmatch(r"grpc://([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", service)
    if match is None:
        raise UserError(f"data_service is {service!r}: expected grpc://host:port, as albert_tf data_service prints it")
    return match[1].strip("[]"), int(match[2])


def check_service(service: str) -> None:
    """Raises UserError where nothing listens at the address, within seconds."""
    place = service_place(service)
    try:
        socket.create_connection(place, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"no data service at {service} ({error.strerror or error}): start one with albert_tf data_service "
            "--role=dispatcher, or leave --data_service out"
        ) from error


def in_order(
    served: tf.data.Dataset, compute: Callable[[tf.Tensor], tf.Tensor], *, first: int, num_columns: int
) -> tf.data.Dataset:
    """Pieces (number int64 [], rows int32 [n, C]) in any order, some lost or double -> rows in the order of numbers.

    first: the number to begin with. compute: gives the rows of a number that is missing while one AHEAD further has
    come. Elements are int32 [n, C] with n of one or more pieces.
    """
    shape = [None, num_columns]
    nothing = tf.zeros([0, num_columns], tf.int32)

    # What waits is a list of tensors (variant []), as tf.data keeps no TensorArray from one element to the next.
    def kept(waiting: tf.Tensor, place: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.TensorListSetItem(input_handle=waiting, index=place, item=rows)

    def taken(waiting: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.TensorListGetItem(
            input_handle=waiting, index=place, element_shape=[-1, num_columns], element_dtype=tf.int32
        )

    def is_held(held: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return held[number % AHEAD] == number

    def step(state, piece):
        due, held, waiting = state  # number to give out next; number and rows in each of AHEAD places
        number, rows = piece

        def give(due, count, given, waiting):
            place = tf.cast(due % AHEAD, tf.int32)
            known = is_held(held, due)
            given = given.write(count, tf.cond(known, lambda: taken(waiting, place), lambda: compute(due)))
            return due + 1, count + 1, given, kept(waiting, place, nothing)

        def overdue(due, *_):
            return due <= number - AHEAD

        given = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=shape, infer_shape=False)
        state = due, tf.constant(0), given, waiting
        due, count, given, waiting = tf.while_loop(overdue, give, state)
        place = tf.cast(number % AHEAD, tf.int32)
        is_new = (number >= due) & ~is_held(held, number)
        waiting = tf.cond(is_new, lambda: kept(waiting, place, rows), lambda: waiting)
        held = tf.where(is_new & (tf.range(AHEAD) == place), number, held)
        due, count, given, waiting = tf.while_loop(
            lambda due, *_: is_held(held, due), give, (due, count, given, waiting)
        )
        together = tf.cond(count > 0, given.concat, lambda: nothing)
        return (due, held, waiting), tf.ensure_shape(together, shape)

    waiting = tf.raw_ops.TensorListReserve(element_shape=[-1, num_columns], num_elements=AHEAD, element_dtype=tf.int32)
    start = tf.constant(first, tf.int64), tf.fill([AHEAD], tf.constant(-1, tf.int64)), waiting
    return served.scan(start, step).filter(lambda rows: tf.shape(rows)[0] > 0)


def _pack(rows: Rows) -> tf.Tensor:
    """Features -> int32 [n, C], so that a window travels and waits as one tensor."""
    columns = [tf.bitcast(value, tf.int32) for _, value in sorted(rows.items())]
    return tf.concat([value if value.shape.rank == 2 else value[:, tf.newaxis] for value in columns], axis=1)


class _Columns:
    """Where each feature lies in a packed row."""

    def __init__(self, window_rows: Callable):
        self._specs = sorted(window_rows.structured_outputs.items())
        self.number = sum(self._width(spec) for _, spec in self._specs)

    def _width(self, spec: tf.TensorSpec) -> int:
        return spec.shape[1] if spec.shape.rank == 2 else 1

    def unpack(self, packed: tf.Tensor) -> Rows:
        parts = tf.split(packed, [self._width(spec) for _, spec in self._specs], axis=1)
        parts = [
            part if spec.shape.rank == 2 else part[:, 0] for part, (_, spec) in zip(parts, self._specs, strict=True)
        ]
        return {name: tf.bitcast(part, spec.dtype) for part, (name, spec) in zip(parts, self._specs, strict=True)}

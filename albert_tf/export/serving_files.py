"""What TensorFlow Serving reads beside a SavedModel: warm-up requests, batching and monitoring settings."""

import os
import pathlib

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.export.exported import EXTRA_FOLDER
from albert_tf.export.signatures import Arrays, Signature

WARMUP_FILE = "tf_serving_warmup_requests"
SETTINGS_FOLDER = "serving"  # in EXPORT_DIR: no number, so no version

_BATCHING = """# tensorflow_model_server --enable_batching --batching_parameters_file=THIS_FILE
# Requests are joined along the batch axis. Padding by the server is off on purpose: it repeats a row's first value, so
# that padded positions would get the mask of real tokens. Requests on text need none; requests on ids that are to be
# joined must come padded to the same length (input_mask 0 there).
max_batch_size { value: 32 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 256 }
num_batch_threads { value: %(threads)d }
pad_variable_length_inputs: false
"""
_MONITORING = """# tensorflow_model_server --rest_api_port=8501 --monitoring_config_file=THIS_FILE
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""
_MODELS = """# tensorflow_model_server --model_config_file=THIS_FILE; the path is the one that the server sees
model_config_list {
  config {
    name: "%(name)s"
    base_path: "/models/%(name)s"
    model_platform: "tensorflow"
    model_version_policy { latest { num_versions: 1 } }
  }
}
"""


def write_settings(export_dir: pathlib.Path, name: str) -> list[str]:
    """Writes EXPORT_DIR/serving/{batching,monitoring,models}.config where they are missing; returns those written.

    Files that are there stay: somebody may have tuned them.
    """
    values = {"name": name, "threads": max(2, os.cpu_count() or 2)}
    folder = export_dir / SETTINGS_FOLDER
    written = []
    for kind, text in (("batching", _BATCHING), ("monitoring", _MONITORING), ("models", _MODELS)):
        path = folder / f"{kind}.config"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            files.write_atomically(path, text % values)
            written.append(str(path))
    return written


def require_serving_api() -> None:
    """Raises UserError where the protocol buffers of TensorFlow Serving are not installed."""
    try:
        from tensorflow_serving.apis import predict_pb2  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--warmup needs tensorflow-serving-api: pip install '.[serving]' in the project's folder, or leave the "
            "flag out"
        ) from error


def write_warmup(folder: pathlib.Path, name: str, signatures: dict[str, Signature]) -> None:
    """Writes a request of one row and a request of several for every signature; a server runs them at loading.

    Raises UserError without tensorflow-serving-api.
    """
    require_serving_api()
    from tensorflow_serving.apis import prediction_log_pb2

    path = folder / EXTRA_FOLDER / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature_name, signature in signatures.items():
            first = {key: value[:1] for key, value in signature.request.items()}
            for inputs in (first, signature.request):
                request = predict_request(name, signature_name, inputs)
                log = prediction_log_pb2.PredictLog(request=request)
                writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def predict_request(name: str, signature_name: str, inputs: Arrays) -> object:
    """A PredictRequest of tensorflow-serving-api for the model `name`."""
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = signature_name
    for key, value in inputs.items():
        dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
        request.inputs[key].CopyFrom(
            tf.make_tensor_proto(value.tolist() if dtype == tf.string else value, dtype, value.shape)
        )
    return request

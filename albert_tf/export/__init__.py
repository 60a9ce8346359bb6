"""Exports: SavedModels for TensorFlow Serving and TF-Hub, TensorFlow Lite files, and what is written beside them.

Reading order: signatures (what a model answers), saved_model (writing it), clean_process and clean_run (the check of
every export), versions (numbered folders, manifest), serving_files (warm-up and configuration), hub, lite, exported
(reading an export back). What a task's answers look like is told by the tasks.
"""

from albert_tf.export.exported import ExportedModel, is_exported, load_exported

__all__ = ["ExportedModel", "is_exported", "load_exported"]

"""Where a case is made: whole material is taken from the store and damaged in the case's own folder."""

import dataclasses
import pathlib
import random
import shutil
from typing import Any

from benchmarks.fuzz import mutations

OUTSIDE = "outside"  # folder beside the cases' folders that no command may read


@dataclasses.dataclass(frozen=True)
class Workshop:
    """The case's dice, the store of whole material, and the folder with `in`, `out` and `tmp`."""

    rng: random.Random
    material: pathlib.Path
    folder: pathlib.Path

    def take(self, name: str) -> str:
        """Copies a file or folder of the store; gives its path as the command line is to name it."""
        target = self.folder / "in" / name
        if not target.exists():
            source = self.material / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
        return f"in/{name}"

    def path(self, name: str) -> pathlib.Path:
        """Where something taken lies."""
        self.take(name)
        return self.folder / "in" / name

    def damage(self, name: str) -> None:
        """Damages the bytes of a file."""
        path = self.path(name)
        path.write_bytes(mutations.damaged(self.rng, path.read_bytes()))

    def damage_json(self, name: str) -> None:
        """Damages a JSON file, in its values as a rule."""
        path = self.path(name)
        path.write_bytes(mutations.damaged_json(self.rng, path.read_bytes(), self.places()))

    def garble(self, name: str) -> None:
        """Damages a text file, in its lines as a rule."""
        path = self.path(name)
        if self.rng.random() < 0.25:
            self.damage(name)
        else:
            text = mutations.garbled(self.rng, path.read_text(encoding="utf-8"))
            path.write_bytes(text.encode("utf-8", "surrogatepass"))

    def places(self) -> list[Any]:
        """Names of files that the command was not given, absolute and relative."""
        outside = self.folder.parent / OUTSIDE
        names = ["records-00000-of-00002.tfrecord", "weights-0", "spiece.model", "rows.tsv"]
        return (
            [str(outside / name) for name in names] + [f"../../../{OUTSIDE}/{name}" for name in names] + ["/etc/passwd"]
        )

"""Opening .tar archives that somebody else made."""

import pathlib
import tarfile
import zlib

from albert_tf.errors import UserError

ENDINGS = (".tar.gz", ".tgz", ".tar")


def extract(archive: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Extracts a model archive into the empty folder `target`; returns the folder of the model.

    That is the one folder where the archive keeps everything, or `target` itself. Nothing is written where any member
    is a link or a device, or names a place outside of `target`.

    Raises UserError naming such a member, or where the archive is damaged.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                _check(member, archive)
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # the first Pythons 3.10 and 3.11 have none
            tar.extractall(target, members=members)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{archive} is truncated or no tar archive ({error}); copy it again") from error
    except OSError as error:
        raise UserError(f"cannot open {archive}: {error.strerror or error}; check the file and the disk") from error
    entries = [entry for entry in target.iterdir() if not entry.name.startswith("._")]  # macOS adds those
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else target


def _check(member: tarfile.TarInfo, archive: pathlib.Path) -> None:
    place = pathlib.PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts or "\\" in member.name:
        raise UserError(f"{archive} has a member outside its folder: {member.name!r}; do not trust the archive")
    if not (member.isfile() or member.isdir()):
        raise UserError(f"{archive} has a member that is a link or a device: {member.name!r}; do not trust the archive")

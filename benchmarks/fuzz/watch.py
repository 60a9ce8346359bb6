"""What a command touches: files it opens through Python, files that anybody reads, and memory.

Python tells every open, rename, connection and process by its audit events. TensorFlow's own reads do not pass there,
so the files beside the case's folder are bait: the kernel notes when one is read.
"""

import contextlib
import os
import pathlib
import resource
import shutil
import sys
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_READABLE = {str(_ROOT), sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
_READABLE |= {
    "/proc",
    "/sys",
    "/dev",
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
}
_READABLE |= {
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/os-release",
}
# Events that change what their arguments (by position) name.
_CHANGES = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
}
_CHANGES |= {"os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "shutil.rmtree": (0,)}
_LOCAL = ("127.0.0.1", "::1", "localhost", "")


class _Watch:
    """The hook of this process: it cannot be taken away again, so it looks only while there is a folder to keep to."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []

    def __call__(self, event: str, arguments: tuple) -> None:
        if self.folder is None:
            return
        folder, self.folder = self.folder, None  # what is looked up here is no business of the command
        try:
            if problem := _problem(event, arguments, folder):
                self.seen.append(problem)
        finally:
            self.folder = folder


_watch = _Watch()


def install(outside: pathlib.Path) -> None:
    """Begins to listen, for the rest of the process, and lays out the bait in `outside`."""
    sys.addaudithook(_watch)
    _watch.outside = outside


@contextlib.contextmanager
def watched(folder: pathlib.Path) -> Iterator[list[str]]:
    """Gives the list of what happens outside of the folder, complete once the block is left."""
    _lay_bait()
    _reset_peak()
    _watch.seen, _watch.folder = [], str(folder)
    try:
        yield _watch.seen
    finally:
        _watch.folder = None
        _watch.seen += [f"reads {path.name} outside the given paths" for path in _bait() if path.stat().st_atime > 1]


def make_outside(material: pathlib.Path, outside: pathlib.Path) -> None:
    """Puts files of every kind where no command is pointed to."""
    outside.mkdir()
    for name in ("records", "model", "vocab", "tables", "static"):
        for path in (material / name).iterdir():
            if path.is_file():
                shutil.copyfile(path, outside / path.name)


def _problem(event: str, arguments: tuple, folder: str) -> str | None:
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        return _strays(path, folder, writes)
    if event in ("os.listdir", "os.scandir"):
        return _strays(arguments[0], folder, False)
    if event in _CHANGES:
        found = (_strays(arguments[position], folder, True, devices=False) for position in _CHANGES[event])
        return next(filter(None, found), None)
    if event in ("socket.connect", "socket.getaddrinfo"):
        host = arguments[1][0] if event == "socket.connect" and isinstance(arguments[1], tuple) else arguments[0]
        if isinstance(host, (str, bytes)) and host not in _LOCAL:
            return f"asks the network for {host!r}"
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        program = os.path.realpath(os.fsdecode(arguments[0] or arguments[1][0]))
        if program != os.path.realpath(sys.executable):
            return f"starts {program}"
    return None


def _strays(path: object, folder: str, writes: bool, *, devices: bool = True) -> str | None:
    """What is wrong with touching `path`; `devices` may be read and written to, though not replaced or removed."""
    if not isinstance(path, (str, bytes, os.PathLike)):  # a descriptor, or None for the current folder
        return None
    place = os.path.realpath(os.fsdecode(path))
    if place == folder or place.startswith(f"{folder}/"):
        return None
    if devices and place.startswith(("/dev/", "/proc/self/")):
        return None
    if not writes and any(place == one or place.startswith(f"{one}/") for one in _READABLE):
        return None
    return f"{'writes' if writes else 'reads'} {place} outside the given paths"


def _bait() -> list[pathlib.Path]:
    return sorted(_watch.outside.iterdir())


def _lay_bait() -> None:
    """Times of reading long past: the kernel renews one that is before the time of writing, also if it is lazy."""
    for path in _bait():
        if path.stat().st_atime != 0:
            os.utime(path, (0, 1))


def bait_works(outside: pathlib.Path) -> bool:
    """Whether this file system notes times of reading at all."""
    probe = next(outside.iterdir())
    os.utime(probe, (0, 1))
    probe.read_bytes()
    return probe.stat().st_atime > 1


def resident_bytes() -> int:
    """Memory of this process now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most memory since `watched` began (since the start of the process where the kernel does not reset it)."""
    return _status("VmHWM")


def _status(name: str) -> int:
    try:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")

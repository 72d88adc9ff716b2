"""Where inputs lie: files of a file system that all nodes share, or objects in buckets."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass

from .. import _datapipes, _errors
from .._file import is_address, open_object
from .._paths import Path, texts_of
from ._order import refused


@dataclass(frozen=True)
class Source:
    """An input, as it was when the sort began."""

    path: str
    size: int
    version: tuple[int, int, int] | str
    """The times of change of a file's bytes and of its facts, and its number; the tag of an object."""

    def check(self) -> None:
        """Fail if it is not what it was: parts of it were or will be read by other tasks."""
        try:
            seen = _source(self.path)
        except _errors.NotFound:
            seen = None
        if seen != self:
            raise _errors.Corrupt(
                f"sort: {self.path} was changed while it was sorted",
                operation="sort",
                filename=self.path,
                advice="sort what nobody writes to",
            )


def sources_of(inputs: Path | Iterable[Path]) -> tuple[list[Source], list[str]]:
    """The files and objects to sort, in order, and the files of folders that are left out.

    A folder stands for the files in it, in the order of their names, and a pattern such as
    ``s3://bucket/prefix/*`` for objects. Files whose names begin with "." or "_" are marks that other
    programs leave, such as ``_SUCCESS``.
    """
    listed = [inputs] if isinstance(inputs, (str, bytes, os.PathLike)) else inputs
    found: list[Source] = []
    left_out: list[str] = []
    for path in texts_of(listed, "sort"):
        if is_address(path):
            found += [_source(address) for address in _datapipes.list_objects(path)]
            continue
        path = absolute(path)
        if os.path.isdir(path):
            try:
                names = sorted(os.listdir(path))
            except OSError as error:
                raise failed("list", path, error) from None
            for name in names:
                file = os.path.join(path, name)
                if name.startswith((".", "_")):
                    left_out.append(file)
                else:
                    found.append(_source(file))
        else:
            found.append(_source(path))
    if not found:
        raise refused("there is no file to sort")
    return found, left_out


def _source(path: str) -> Source:
    if is_address(path):
        with open_object(path) as seen_object:
            return Source(path, seen_object.size(), seen_object.version)
    try:
        seen = os.stat(path)
    except OSError as error:
        raise failed("open", path, error) from None
    if not os.path.isfile(path):
        raise refused(f"{path} is not a regular file, of which tasks could read parts")
    if seen.st_size == 0:
        _check_empty(path)
    # Whoever sets back the time of the bytes changes that of the facts. Numbers of devices differ by node.
    return Source(path, seen.st_size, (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino))


def _check_empty(path: str) -> None:
    """Fail if a file has bytes although the system says that it has none, as files in /proc do."""
    try:
        with open(path, "rb", buffering=0) as file:
            more = file.read(1)
    except OSError as error:
        raise failed("read", path, error) from None
    if more:
        raise refused(f"{path} does not say its length, so tasks cannot read parts of it: copy it first")


def absolute(
    path: str, takes: str = "inputs and outputs are files that all nodes share, or objects (s3://, gs://, az://)"
) -> str:
    """The path from the root on. Links behind which ".." stands are left to the system.

    ``takes`` is what the error says of an address.
    """
    if not path or "\0" in path:
        raise refused(f"{path!r} is no path")
    if "://" in path:
        raise _errors.Unsupported(f"sort: {path}: {takes}", operation="sort")
    return os.path.join(os.getcwd(), path)


def failed(what: str, path: str, error: OSError) -> _errors.Error:
    kinds = {errno.ENOENT: "NotFound", errno.EACCES: "PermissionDenied", errno.ENOSPC: "NoSpace"}
    kind = kinds.get(error.errno or 0, "System")
    return _errors._make(
        f"{what} {path}: {error.strerror}", kind=kind, errno=error.errno, filename=path, operation=what
    )


def exists(name: str) -> _errors.Error:
    return _errors._make(
        f"sort: {name} exists",
        kind="InvalidInput",
        errno=errno.EEXIST,
        filename=name,
        operation="sort",
        advice="give another name, or remove it first",
    )

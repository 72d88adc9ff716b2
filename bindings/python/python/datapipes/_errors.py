"""Exceptions: one class for each kind of error, and what an error says."""

from __future__ import annotations

import errno as _errno
import functools
import os
from typing import Any


class Error(OSError):
    """Base of all errors of this package.

    ``kind`` is the name of the class, ``errno`` the system's number or None, ``strerror`` what the
    number means, ``filename`` the file or folder where one is known, ``offset`` where it happened
    in bytes or None, ``bytes_done`` how many bytes were moved before it, ``operation`` what failed,
    ``advice`` what the caller can do, or None.
    """

    kind: str
    offset: int | None
    bytes_done: int
    operation: str
    advice: str | None

    def __init__(
        self,
        message: str = "",
        *,
        kind: str | None = None,
        errno: int | None = None,
        filename: str | None = None,
        offset: int | None = None,
        bytes_done: int = 0,
        operation: str = "",
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind if kind is not None else type(self).__name__
        self.errno = errno
        self.strerror = os.strerror(errno) if errno is not None else None
        self.filename = filename
        self.offset = offset
        self.bytes_done = bytes_done
        self.operation = operation
        self.advice = advice

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> Any:
        state = {
            "kind": self.kind,
            "errno": self.errno,
            "filename": self.filename,
            "offset": self.offset,
            "bytes_done": self.bytes_done,
            "operation": self.operation,
            "advice": self.advice,
        }
        kind = type(self)
        if kind is _class_of(self.kind, self.errno):
            return (_remake, (str(self), state))
        return (_restore, (kind, str(self), state))


class InvalidInput(Error, ValueError):
    """The arguments make no sense: change them."""


class OutOfRange(Error, ValueError, IndexError):
    """The bytes or rows lie outside the place: check offset and length."""


class Misaligned(Error, ValueError):
    """Offset, length or address do not meet an alignment that was required."""


class Busy(Error, BufferError):
    """The bytes are leased to another operation or a view, or a queue is full: wait, and try again."""


class Unsupported(Error):
    """No route or reader serves what was asked for."""


class Unavailable(Error):
    """The machine lacks something or refused it."""


class NotFound(Error, FileNotFoundError):
    """The named file or device does not exist."""


class PermissionDenied(Error, PermissionError):
    """The process lacks the permission."""


class NoSpace(Error):
    """The place is full."""


class OutOfMemory(Error, MemoryError):
    """Memory could not be allocated, or a budget does not suffice."""


class EndOfFile(Error, EOFError):
    """The source ended before the transfer did."""


class Device(Error):
    """The device failed."""


class Interrupted(Error):
    """The operation was stopped."""


class Corrupt(Error, ValueError):
    """Bytes are wrong: a checksum, a header or an order does not match."""


class System(Error):
    """Any other refusal by the operating system."""


class Forked(Error):
    """The object was made by the parent of this forked process: make a new one here."""


class Panicked(Error):
    """The library or code that it called panicked: please report it."""


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind
    for kind in (
        InvalidInput,
        OutOfRange,
        Misaligned,
        Busy,
        Unsupported,
        Unavailable,
        NotFound,
        PermissionDenied,
        NoSpace,
        OutOfMemory,
        EndOfFile,
        Device,
        Interrupted,
        Corrupt,
        System,
        Forked,
        Panicked,
    )
}


_ALSO: dict[int, type[OSError]] = {
    _errno.EEXIST: FileExistsError,
    _errno.EISDIR: IsADirectoryError,
    _errno.ENOTDIR: NotADirectoryError,
}
"""What Python raises for these numbers of the system, too."""


@functools.cache
def _class_of(kind: str, number: int | None) -> type[Error]:
    """The class of a kind, which is also what Python raises for the system's number."""
    known = _KINDS.get(kind, Error)
    also = _ALSO.get(number) if number is not None else None
    if also is None:
        return known
    return type(known.__name__, (known, also), {"__doc__": known.__doc__, "__module__": known.__module__})


def _make(message: str, *, kind: str, errno: int | None = None, **known: Any) -> Error:
    return _class_of(kind, errno)(message, kind=kind, errno=errno, **known)


def _restore(kind: type[Error], message: str, state: dict[str, Any]) -> Error:
    return kind(message, **state)


def of_file(error: Error, name: str) -> Error:
    """The error of opening a file, with its name. That a folder is no file has a number, too."""
    number = error.errno
    if number is None and error.kind == "InvalidInput" and os.path.isdir(name):
        number = _errno.EISDIR
    known = {"offset": error.offset, "bytes_done": error.bytes_done, "operation": error.operation}
    return _make(str(error), kind=error.kind, errno=number, filename=name, advice=error.advice, **known)


def _remake(message: str, state: dict[str, Any]) -> Error:
    return _make(message, **state)

"""Data Pipes for Python: declare where data is, connect two places, transfer.

Files into arrays past the page cache (`open`, `load_file`), rows of large tables through a cache
(`rows`), the external sort (`sort`), checkpoints (`checkpoint`), logs (`Log`), and why a route was
chosen (`explain`). `datapipes.fsspec` and `datapipes.torch` need the packages of those names.
"""

from __future__ import annotations

import atexit as _atexit
import os
import sys as _sys
from collections.abc import Callable, Sequence

# The compiled half is for the stable interface, which a build without the interpreter's lock lacks.
if "t" in _sys.abiflags:
    raise ImportError(
        "datapipes does not support the free-threaded build of CPython (3.13t, 3.14t): "
        "use the ordinary build"
    )

from . import _datapipes, checkpoint
from ._datapipes import Buffer, LogReader, Pending, __version__, parse_size
from ._errors import (
    Busy,
    Corrupt,
    Device,
    EndOfFile,
    Error,
    Forked,
    Interrupted,
    InvalidInput,
    Misaligned,
    NoSpace,
    NotFound,
    OutOfMemory,
    OutOfRange,
    Panicked,
    PermissionDenied,
    System,
    Unavailable,
    Unsupported,
)
from ._file import File, open
from ._load import Loaded, Stream, load_file, load_files, load_npy, stream
from ._log import Log, examine_log, read_log
from ._paths import Path, text_of
from ._pipe import Pipe, connect
from ._report import Report
from ._rows import Rows, rows

__all__ = [
    "Buffer",
    "Busy",
    "Corrupt",
    "Device",
    "EndOfFile",
    "Error",
    "File",
    "Forked",
    "Interrupted",
    "InvalidInput",
    "Loaded",
    "Log",
    "LogReader",
    "Misaligned",
    "NoSpace",
    "NotFound",
    "OutOfMemory",
    "OutOfRange",
    "Panicked",
    "Pending",
    "Pipe",
    "PermissionDenied",
    "Report",
    "Rows",
    "Stream",
    "System",
    "Unavailable",
    "Unsupported",
    "__version__",
    "checkpoint",
    "connect",
    "examine_log",
    "explain",
    "load_file",
    "load_files",
    "load_npy",
    "machine",
    "open",
    "parse_size",
    "read_log",
    "rows",
    "sort",
    "stream",
]

Place = File | Buffer | Path


_LEAST_MEMORY = 16 << 20
"""The program itself needs most of it."""


def machine() -> Report:
    """The hardware that was found: cores, caches, memory, instructions."""
    return Report._of("machine", _datapipes.machine_facts())


def explain(source: Place, target: Place) -> Report:
    """The route between two places: which primitive, why, and why not the others.

    A place is a File, a Buffer, a path, or a name such as "ssd:/data/x?access=direct" or "dram:1G".
    """
    return Report._of("route", _datapipes.explain(_place(source), _place(target)))


def _place(place: Place) -> File | Buffer | str:
    if isinstance(place, (File, Buffer)):
        return place
    if not isinstance(place, (str, bytes, os.PathLike)):
        why = 'a place is a File, a Buffer, a path, or a name such as "ssd:/path" or "dram:1G"'
        raise InvalidInput(f"explain: {why}", operation="explain")
    text = text_of(place)
    try:
        text.encode()
    except UnicodeEncodeError:  # Only the name of a file is no text.
        return open(text.removeprefix("ssd:"))
    return text


def sort(
    input: Path,
    output: Path,
    *,
    format: str = "lines",
    record: tuple[int, int, int] | None = None,
    reverse: bool = False,
    unique: bool = False,
    keys: Sequence[str] = (),
    separator: str | bytes | None = None,
    memory: int | str | None = None,
    progress: Callable[[int, int, int], object] | None = None,
) -> Report:
    """Sort a file, of any size, into another.

    ``format``: "lines" (in byte order, or by ``keys`` such as "2,2n" as of sort -k), "u32", "u64",
    "i64", "f64" (little-endian numbers), or "records" with ``record=(length, key offset, key
    length)``. ``memory`` is all that may be used: bytes, or "2G"; the least is 16 MiB. ``progress`` is called some times
    a second with (bytes of the input, read, written); an exception of it, or Ctrl-C, stops the
    sort, which then leaves no files behind.
    """
    if isinstance(keys, str):
        raise InvalidInput("sort: keys is a list of strings", operation="sort")
    if isinstance(separator, str):
        separator = os.fsencode(separator)
    if separator is not None and (not isinstance(separator, bytes) or len(separator) != 1):
        raise InvalidInput(f"sort: a separator is one byte, not {separator!r}", operation="sort")
    if format != "lines" and (keys or separator is not None):
        why = f'keys= and separator= are for format "lines", not {format!r}'
        raise InvalidInput(f"sort: {why}", operation="sort")
    if progress is not None and not callable(progress):
        raise InvalidInput("sort: progress is not callable", operation="sort")
    byte = separator[0] if separator is not None else None
    budget = parse_size(memory) if isinstance(memory, str) else memory
    if budget is not None and budget < _LEAST_MEMORY:
        raise InvalidInput(f"sort: memory={memory!r}: the least is 16 MiB", operation="sort")
    made = _datapipes.sort(
        text_of(input), text_of(output), format, record, reverse, unique, list(keys), byte, budget, progress
    )
    return Report._of("sort", made)


# Transfers in flight end before the interpreter does: their threads would find it half gone.
_atexit.register(_datapipes._shutdown)
# A child of fork has copies of what its parent's transfers fill, and may resize them.
os.register_at_fork(after_in_child=_datapipes._after_fork_in_child)

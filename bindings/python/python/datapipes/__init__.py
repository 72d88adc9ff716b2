"""Data Pipes for Python: declare where data is, connect two places, transfer.

Files into arrays past the page cache (`open`, `load_file`), rows of large tables through a cache
(`rows`), the external sort (`sort`), checkpoints (`checkpoint`), logs (`Log`), and why a route was
chosen (`explain`). `datapipes.fsspec` and `datapipes.torch` need the packages of those names.
"""

from __future__ import annotations

import atexit as _atexit
import json
import os
import sys as _sys
from typing import Any

# The compiled half is for the stable interface, which a build without the interpreter's lock lacks.
if "t" in _sys.abiflags:
    raise ImportError(
        "datapipes does not support the free-threaded build of CPython (3.13t, 3.14t): "
        "use the ordinary build"
    )

from . import _datapipes, checkpoint
from ._datapipes import Buffer, Hbm, HbmLease, LogReader, NewObject, Object, Pending, __version__, parse_size
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
from ._file import File, create_object, open, open_object
from ._load import Loaded, Stream, load_file, load_files, load_npy, stream
from ._log import Log, examine_log, read_log
from ._paths import Path, text_of
from ._pipe import Pipe, connect
from ._report import Report
from ._sort import sort
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
    "Hbm",
    "HbmLease",
    "Interrupted",
    "InvalidInput",
    "Loaded",
    "Log",
    "LogReader",
    "Misaligned",
    "NewObject",
    "NoSpace",
    "NotFound",
    "Object",
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
    "create_object",
    "examine_log",
    "explain",
    "gpus",
    "load_file",
    "load_files",
    "load_npy",
    "machine",
    "open",
    "open_object",
    "parse_size",
    "read_log",
    "rows",
    "sort",
    "stream",
]

Place = File | Buffer | Hbm | Path


"""The program itself needs most of it."""


def machine() -> Report:
    """The hardware that was found: cores, caches, memory, instructions."""
    return Report._of("machine", _datapipes.machine_facts())


def gpus() -> list[dict[str, Any]]:
    """The GPUs that the driver has. Where there is none, the error says what is absent."""
    found: list[dict[str, Any]] = json.loads(_datapipes.gpu_facts())
    return found


def explain(source: Place, target: Place) -> Report:
    """The route between two places: which primitive, why, and why not the others.

    A place is a File, a Buffer, an Hbm, a path, or a name such as "ssd:/data/x?access=direct" or "dram:1G".
    """
    return Report._of("route", _datapipes.explain(_place(source), _place(target)))


def _place(place: Place) -> File | Buffer | Hbm | str:
    if isinstance(place, (File, Buffer, Hbm)):
        return place
    if not isinstance(place, (str, bytes, os.PathLike)):
        why = 'a place is a File, a Buffer, an Hbm, a path, or a name such as "ssd:/path" or "dram:1G"'
        raise InvalidInput(f"explain: {why}", operation="explain")
    text = text_of(place)
    try:
        text.encode()
    except UnicodeEncodeError:  # Only the name of a file is no text.
        return open(text.removeprefix("ssd:"))
    return text


# Transfers in flight end before the interpreter does: their threads would find it half gone.
_atexit.register(_datapipes._shutdown)
# A child of fork has copies of what its parent's transfers fill, and may resize them.
os.register_at_fork(after_in_child=_datapipes._after_fork_in_child)

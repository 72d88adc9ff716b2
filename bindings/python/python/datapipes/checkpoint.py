"""Checkpoints: dicts of arrays that are saved and restored as a whole, atomic and verified."""

from __future__ import annotations

import builtins
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from . import _datapipes
from ._errors import Corrupt, InvalidInput, Unsupported
from ._load import _bytes_of, _view, check_array, described_dtype, dtype_text
from ._paths import Path, text_of
from ._report import Report

__all__ = ["Entry", "list", "restore", "save"]

_ARRAYS = "datapipes.arrays.v1"
"""The region with the dtypes and shapes of the others."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint of a folder."""

    number: int
    path: str
    nbytes: int | None
    """Bytes of its regions, or None where it is damaged."""
    damage: str | None
    """Why it is damaged, or None."""


def save(
    folder: Path, arrays: Mapping[str, npt.NDArray[Any]], *, keep: int | None = None
) -> Report:
    """Save arrays as the newest checkpoint of a folder; it exists as a whole or not at all.

    No thread may change an array meanwhile. With ``keep``, older checkpoints but so many are
    removed when this one is durable.
    """
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidInput(f"save: keep={keep!r}: give a number of checkpoints, 1 or more", operation="save")
    if not isinstance(arrays, Mapping):
        raise InvalidInput(f"save: a dict of arrays by name, not {type(arrays).__name__}", operation="save")
    described: dict[str, Any] = {}
    regions: builtins.list[tuple[str, Any]] = []
    for name, array in arrays.items():
        if not isinstance(name, str) or name == _ARRAYS:
            raise InvalidInput(f"save: {name!r} is no name of an array", operation="save")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"save: {name!r} is no text of Unicode", operation="save") from None
        whole = np.asarray(array)
        if whole.dtype.hasobject:
            raise Unsupported(f"save: {name!r} has objects of Python", operation="save")
        text = dtype_text(whole.dtype)
        if text is None:
            raise Unsupported(f"save: {name!r} is of {whole.dtype}", operation="save")
        described[name] = {"dtype": text, "shape": whole.shape}
        regions.append((name, np.ascontiguousarray(whole).reshape(-1).view(np.uint8)))
    regions.append((_ARRAYS, np.frombuffer(json.dumps(described).encode(), np.uint8)))
    made = json.loads(_datapipes.checkpoint_save(text_of(folder), regions, keep))
    return Report(f"checkpoint {made['number']}", f"checkpoint {made['number']}: {made['bytes']} bytes", made)


def restore(folder: Path, number: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Restore the arrays of a checkpoint, the newest if no number is given.

    Every MiB is checked. A damaged checkpoint is `Corrupt`; give the number of an older one.
    """
    name = text_of(folder)
    found, regions = _datapipes.checkpoint_restore(name, number)
    buffers = dict(regions)
    described = _described(name, found, buffers)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for array, (dtype, shape) in described.items():
        if array not in buffers or len(buffers[array]) != math.prod(shape) * dtype.itemsize:
            _corrupt(name, found, f"no {shape} of {dtype} by the name {array!r}")
        arrays[array] = _view(_bytes_of(buffers[array]), dtype, shape, 0)
    return arrays


def _corrupt(folder: str, number: int, why: str) -> NoReturn:
    raise Corrupt(f"restore: checkpoint {number}: {why}", filename=folder, operation="restore")


def _described(
    folder: str, number: int, buffers: dict[str, _datapipes.Buffer]
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """The types and shapes of the arrays. They are not trusted: others may have written them."""
    if _ARRAYS not in buffers:
        raise Unsupported(f"restore: checkpoint {number} was not saved by this package", operation="restore")
    described = {}
    try:
        for name, of in json.loads(bytes(memoryview(buffers[_ARRAYS]))).items():
            dtype = described_dtype(of["dtype"])
            described[name] = (dtype, check_array(dtype, of["shape"]))
    except ImportError as why:
        raise Unsupported(
            f"restore: checkpoint {number}: {why}", operation="restore", advice="install ml_dtypes"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as why:
        _corrupt(folder, number, str(why)[:500])
    return described


def list(folder: Path) -> builtins.list[Entry]:
    """The checkpoints of a folder, the oldest first, damaged ones included."""
    found = _datapipes.checkpoint_list(text_of(folder))
    return [Entry(number, os.fspath(path), size, why) for number, path, size, why in found]

"""Indexes of checkpoints in shards: which tensors there are, and which file each is taken from.

An index (`model.safetensors.index.json`) is a JSON object whose ``weight_map`` has the name of each
tensor and that of its file, which is in the folder of the index or below (links are followed, as
caches of checkpoints need it). It is not trusted: what does not fit is `Corrupt`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ._errors import Error
from ._file import open_file
from ._into import corrupt

END = ".index.json"
# Of a variant it is "model.safetensors.index.fp16.json".
_IS_INDEX = re.compile(r".*\.index(\.[^./]+)?\.json", re.IGNORECASE | re.DOTALL)
_MAX_INDEX = 100_000_000
"""The longest index: as long as a header of safetensors may be."""


@dataclass(frozen=True)
class Shard:
    """A file of tensors, and those of them that an index takes from it."""

    path: str
    index: str
    names: frozenset[str]

    def take(self, found: dict[str, Any]) -> None:
        """Leave the tensors of the index alone. One that is not there is `Corrupt`."""
        absent = self.names - found.keys()
        if absent:
            more = f", nor {len(absent) - 1} others" if len(absent) > 1 else ""
            corrupt(self.index, f"{self.path} has no tensor {_cut(min(absent))}{more}, which the index says it has")
        for name in found.keys() - self.names:
            del found[name]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors say which index the file is of."""
        try:
            yield
        except Error as error:
            if error.filename != self.index:
                error.add_note(f"{self.path} is a shard of {self.index}")
            raise


def files_of(paths: Iterable[str]) -> Iterator[tuple[str, Shard | None]]:
    """The files to read, in order: those of these paths, and the shards of those that are indexes."""
    for path in paths:
        if _IS_INDEX.fullmatch(path) is not None:
            for shard in _shards(path):
                yield shard.path, shard
        else:
            yield path, None


def _shards(index: str) -> list[Shard]:
    taken: dict[str, set[str]] = {}
    for name, file in _weight_map(index).items():
        if not isinstance(file, str):
            corrupt(index, f"the file of tensor {_cut(name)} is no text")
        if file not in taken and not _is_below(file):
            corrupt(index, f"the file of tensor {_cut(name)}, {_cut(file)}, is not in the folder of the index")
        taken.setdefault(file, set()).add(name)
    # Never empty: "s3:" would be no folder then.
    folder = os.path.dirname(index) or "."
    return [Shard(os.path.join(folder, file), index, frozenset(names)) for file, names in taken.items()]


def _is_below(file: str) -> bool:
    """Whether this is the name of a file in a folder, or below it."""
    try:
        os.fsencode(file)
    except UnicodeEncodeError:
        return False
    parts = PurePosixPath(file).parts
    return bool(parts) and not file.startswith("/") and ".." not in parts and "\0" not in file


def _cut(name: str) -> str:
    """A name as errors show it: of one that is long, the start."""
    return repr(name) if len(name) <= 200 else f"{name[:200]!r}..."


def _weight_map(index: str) -> dict[str, Any]:
    with open_file(index, "load") as file:
        size = file.size()
        if size > _MAX_INDEX:
            corrupt(index, f"an index of {size} bytes; at most {_MAX_INDEX} are read")
        text = bytearray(size)
        if file.readinto(text) != size:
            corrupt(index, "the file became shorter while it was read")
    try:
        found = json.loads(text.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as why:
        corrupt(index, f"no index of shards: {why}")
    names = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(names, dict) or not names:
        corrupt(index, 'no index of shards: it has no "weight_map" with names of tensors')
    return names


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the name {_cut(counts.most_common(1)[0][0])} is there twice")
    return found

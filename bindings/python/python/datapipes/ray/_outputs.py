"""Where the output lies until it is complete: files in a folder of another name, or objects that no
manifest names yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from .. import _datapipes, _errors
from .._file import create_object, is_address, open_object
from .._paths import Path, texts_of
from ._places import absolute, exists, failed

_MARK = ".dpipe-ray-"
_LOCK = ".lock"
_PART = "part-"
_MAX_BASE = 200

_BEGINNING = 60.0
"""Seconds after which a draft without a lock is one whose driver is gone."""

_CLEANING = 30.0
"""Seconds that the removal of a failed sort's objects may take: a server may not answer."""


@dataclass(frozen=True)
class Target:
    """Where tasks write parts of an output."""

    folder: str
    """A folder, or what the addresses of objects begin with."""
    sort: str
    """What is in the keys of the objects of one sort only."""

    def attempt(self, number: int, count: int) -> str:
        """The name under which an attempt of a task writes a range.

        Files have one for each attempt. An object appears as a whole, and all attempts write the same.
        """
        if is_address(self.folder):
            return f"{_PART}{self.sort}-{_digits(number, count)}"
        return f"range-{number:05}.{uuid.uuid4().hex}"

    def path_of(self, name: str) -> str:
        """The path or address of what has such a name."""
        return f"{self.folder}/{name}"

    def write_empty(self, name: str) -> None:
        """Write a part without records."""
        path = self.path_of(name)
        if is_address(path):
            with create_object(path) as empty:
                empty.publish(0)
            return
        with open(path, "xb") as made:
            os.fsync(made.fileno())


def draft_of(output: Path, *, single_file: bool) -> Draft | Prefix:
    """Begin the output of a sort."""
    (name,) = texts_of([output], "sort")
    if not is_address(name):
        return Draft(name)
    if single_file:
        raise _errors.Unsupported(
            f"sort: {name}: one object cannot be put together of parts; give a prefix for many", operation="sort"
        )
    return Prefix(name)


class Draft:
    """An output that is not yet there: a folder beside its name.

    ```text
    .NAME.dpipe-ray-ID/.lock      the driver holds it while it lives; so the next sort to the same name
                                  knows what a killed one left, and removes it
    .NAME.dpipe-ray-ID/parts/     tasks write their files here, and nowhere else
    .NAME.dpipe-ray-ID/whole/     takes the files that count, and then gets the output's name
    ```
    A task that goes on although it was given up may still have the folder of the tasks open. That one is
    never a part of the output.
    """

    def __init__(self, name: str) -> None:
        self.output = absolute(name).rstrip("/")
        parent, base = os.path.split(self.output)
        if base in ("", ".", "..") or os.path.lexists(self.output):
            raise exists(self.output or "/")
        self._parent = parent
        self._publishes = False
        # The draft's name is longer, and the system limits names.
        base = os.fsdecode(os.fsencode(base)[:_MAX_BASE])
        try:
            _remove_leftovers(parent, f".{base}{_MARK}")
            self._folder = os.path.join(parent, f".{base}{_MARK}{uuid.uuid4().hex[:12]}")
            os.mkdir(self._folder)
            # Tasks may be another user's of the same group. Nobody else looks at parts before they are whole.
            os.chmod(self._folder, stat.S_IMODE(os.stat(self._folder).st_mode) & ~stat.S_IRWXO)
            # It gets its name when it is held, for another sort removes drafts whose lock is free.
            lock = os.path.join(self._folder, _LOCK)
            self._lock: int | None = os.open(f"{lock}.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(f"{lock}.new", lock)
            self.target = Target(os.path.join(self._folder, "parts"), "")
            os.mkdir(self.target.folder)
        except OSError as error:
            raise failed("make the output in", parent, error) from None

    def check(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Fail unless the files that tasks wrote are there, as long as they say."""
        for name, size in zip(names, sizes, strict=True):
            path = self.target.path_of(name)
            try:
                seen = os.stat(path).st_size
            except OSError as error:
                raise failed("look at", path, error) from None
            if seen != size:
                raise _changed(path, seen, size)

    def publish(self, names: Sequence[str], *, single_file: bool) -> list[str]:
        """Give the output its name, with these files as its parts in this order. Return their names."""
        whole = os.path.join(self._folder, "whole")
        self._publishes = True
        try:
            if single_file:
                self._join(names, whole)
                return [os.path.basename(self.output)]
            os.mkdir(whole)
            parts = [f"{_PART}{_digits(number, len(names))}" for number in range(len(names))]
            for name, part in zip(names, parts, strict=True):
                os.rename(self.target.path_of(name), os.path.join(whole, part))
            _sync(whole)
            # An empty folder may have come to be at the name, and is replaced; nothing else is.
            os.rename(whole, self.output)
            _sync(self._parent)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR) and os.path.lexists(self.output):
                raise exists(self.output) from None
            raise failed("publish", self.output, error) from None
        return parts

    def _join(self, names: Sequence[str], whole: str) -> None:
        with open(whole, "xb", buffering=0) as target:
            for name in names:
                path = self.target.path_of(name)
                with open(path, "rb", buffering=0) as part:
                    left = os.fstat(part.fileno()).st_size
                    while left > 0:
                        done = os.copy_file_range(part.fileno(), target.fileno(), min(left, 1 << 30))
                        if done == 0:
                            raise OSError(errno.EIO, "the file became shorter")
                        left -= done
                # Room for the next one.
                os.remove(path)
            os.fsync(target.fileno())
        # Unlike a rename, this replaces nothing that has come to be at the name.
        os.link(whole, self.output)
        _sync(self._parent)

    def cause_of(self, error: _errors.Error) -> _errors.Error:
        """Why the sort failed: nobody else writes into this draft, so it is the error."""
        return error

    def is_there(self) -> bool:
        """Whether the output has its name, also where an interrupt came meanwhile."""
        return self._publishes and os.path.lexists(self.output)

    def discard(self) -> None:
        """Remove what is left of it. Tasks that may still run find no folder to write into."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)


class Prefix:
    """An output of objects whose keys begin with a prefix. Each appears as a whole, when its task is done.

    The keys have in them what only this sort has. The manifest appears last, only if there is none, and
    names all of them: without it, the output is not there. So of two sorts to one prefix one wins, and
    removes what the other one has written, which fails.
    """

    MANIFEST = "_manifest.json"

    def __init__(self, name: str) -> None:
        self.output = name.rstrip("/")
        self._published: bool | None = False
        """None where the server has not said it."""
        self.target = Target(self.output, uuid.uuid4().hex[:12])
        for address in _datapipes.list_objects(f"{self.output}/*"):
            # Parts without a manifest are those of a sort that failed, or of one that goes on.
            if not _is_part(address):
                raise exists(address)

    def check(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Fail unless the objects that tasks wrote are there, as long as they say."""
        for name, size in zip(names, sizes, strict=True):
            address = self.target.path_of(name)
            with open_object(address) as seen:
                if seen.size() != size:
                    raise _changed(address, seen.size(), size)

    def publish(self, names: Sequence[str], *, single_file: bool) -> list[str]:
        """Write the manifest. Return the names of the parts."""
        address = f"{self.output}/{self.MANIFEST}"
        self._published = None
        try:
            parts = []
            for name in names:
                with open_object(self.target.path_of(name)) as part:
                    parts.append({"name": name, "bytes": part.size(), "version": part.version})
            with create_object(address, only_new=True) as manifest:
                manifest.write(json.dumps({"parts": parts}, indent=1).encode() + b"\n")
        except _errors.Error:
            if address not in _datapipes.list_objects(f"{address}*"):
                raise
            # It is this sort's own where only the answer was lost.
            self._ask()
            if not self._published:
                raise exists(address) from None
        self._published = True
        return list(names)

    def cause_of(self, error: _errors.Error) -> _errors.Error:
        """Why the sort failed: another one to the prefix has won, and removes what others wrote; or the error.

        A server that does not answer is not asked again.
        """
        if isinstance(error, _errors.Unavailable):
            return error
        manifest = f"{self.output}/{self.MANIFEST}"
        with contextlib.suppress(_errors.Error):
            if self._published is False and manifest in _datapipes.list_objects(f"{manifest}*"):
                return exists(manifest)
        return error

    def is_there(self) -> bool | None:
        """Whether the manifest names what this sort wrote; None where the server did not say it."""
        return self._published

    def discard(self) -> None:
        """Remove what no manifest names: of this sort if it failed, else of sorts that failed before.

        A server that does not answer is not waited for.
        """
        cleaning = threading.Thread(target=self._clean, daemon=True)
        cleaning.start()
        cleaning.join(_CLEANING)

    def _ask(self) -> None:
        """Find out whether the manifest is this sort's: an interrupt or a lost answer may have left that open."""
        address = f"{self.output}/{self.MANIFEST}"
        try:
            with open_object(address) as manifest:
                parts = json.loads(bytes(manifest.read()))["parts"]
        except _errors.NotFound:
            self._published = False
        else:
            self._published = any(part["name"].startswith(f"{_PART}{self.target.sort}-") for part in parts)

    def _clean(self) -> None:
        if self._published is None:
            try:
                self._ask()
            except (_errors.Error, ValueError, LookupError, TypeError, AttributeError):
                # What a manifest may name is not removed. The next sort to the prefix does it.
                return
        own = f"{self.output}/{_PART}{self.target.sort}-"
        # Where this sort has won, all others to the prefix have failed, or will.
        keys = f"{self.output}/{_PART}*" if self._published else f"{own}*"
        with contextlib.suppress(_errors.Error):
            # Of tasks that were killed, or go on although they were given up.
            _datapipes.end_object_uploads(keys)
        with contextlib.suppress(_errors.Error):
            for address in _datapipes.list_objects(keys):
                if _is_part(address) and not (self._published and address.startswith(own)):
                    _datapipes.remove_object(address)


def _changed(path: str, seen: int, size: int) -> _errors.Corrupt:
    why = f"sort: {path} has {seen} bytes, but its task wrote {size}"
    return _errors.Corrupt(why, operation="sort", filename=path)


def _digits(number: int, count: int) -> str:
    """The number of a part, so that names are in the order of numbers."""
    return f"{number:0{max(5, len(str(count - 1)))}}"


def _is_part(address: str) -> bool:
    """Whether an object has such a key as parts of a sort have."""
    return re.fullmatch(rf"{_PART}[0-9a-f]{{12}}-[0-9]{{5,}}", address.rsplit("/", 1)[1]) is not None


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(parent: str, prefix: str) -> None:
    """Remove drafts of the same output whose driver is gone."""
    for name in os.listdir(parent):
        if not name.startswith(prefix):
            continue
        folder = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            try:
                lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                if time.time() - os.stat(folder).st_mtime > _BEGINNING:
                    shutil.rmtree(folder)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)

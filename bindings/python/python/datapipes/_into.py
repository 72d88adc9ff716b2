"""What a loader makes of the bytes of a file: arrays over memory of this package, or on a device."""

from __future__ import annotations

import contextlib
import importlib
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ._datapipes import Buffer
from ._errors import Corrupt, Error, InvalidInput, Unsupported
from ._file import File

_MAPPED_FROM = 1 << 20
"""Shorter payloads are copied: that is quicker than a mapping, and leaves them to the arrays."""
_MOSTLY = 0.9
"""The share of a file in the page cache from which it is mapped."""


def corrupt(path: str, why: str, offset: int = 0) -> NoReturn:
    raise Corrupt(f"load: {path}: {why}", filename=path, offset=offset, operation="load")


@dataclass(frozen=True)
class Into:
    """What is made of tensors, and where."""

    framework: str
    mapped: bool | None
    device: str | None

    def whole(self, path: str, file: File, at: int, length: int) -> Any:
        """The bytes of a payload: a Buffer, or an array of bytes on the device."""
        if self.device is None:
            return _payload(path, file, at, length, self.mapped)
        whole = module_of(self.framework).empty_bytes(length, self.device)
        if length and file.readinto(whole, at) != length:
            corrupt(path, "the file became shorter while it was read")
        return whole

    def tensor(self, whole: Any, kind: str, shape: tuple[int, ...], at: int, length: int) -> Any:
        """A tensor over some of these bytes, which it keeps alive."""
        if self.device is None:
            return module_of("torch").tensor_of(whole, kind, shape, at, length)
        return module_of(self.framework).view_of(whole, kind, shape, at, length)

    @property
    def is_numpy(self) -> bool:
        """Whether arrays of NumPy are made."""
        return self.framework == "numpy"


def _payload(path: str, file: File, at: int, length: int, mapped: bool | None) -> Buffer:
    """The bytes of a payload: read, or mapped where the page cache has them."""
    if mapped is None:
        share = file.cached_share() if length >= _MAPPED_FROM else None
        if share is not None and share >= _MOSTLY:
            with contextlib.suppress(Error):  # A file system may map no files.
                return file.map(at, length)
    elif mapped:
        return file.map(at, length)
    # Placed for the payload's offset: only its two edges bounce.
    buffer = file.buffer_for(at, length, prefault=False)
    if file.readinto(buffer, at) != length:
        corrupt(path, "the file became shorter while it was read")
    return buffer


def module_of(framework: str) -> Any:
    """The module of this package that makes the tensors of a framework."""
    name = {"torch": "datapipes.torch", "cupy": "datapipes._cupy"}[framework]
    try:
        return importlib.import_module(name)
    except ImportError as why:
        raise Unsupported(
            f"load: tensors of {framework} need {framework}: {why}",
            operation="load",
            advice=f"install {framework}",
        ) from None


def target_of(framework: str | None, mapped: bool | None, device: object) -> Into:
    """What the arguments of a loader mean."""
    if not isinstance(mapped, (bool, np.bool_, type(None))):
        raise InvalidInput(f"load: mapped={mapped!r}: give True, False or None", operation="load")
    name = None if device is None else str(device)  # A device of torch says its name as text.
    if name == "cpu":
        name = None
    if name is None:
        framework = framework or "numpy"
        if framework not in ("numpy", "torch"):
            raise InvalidInput(f'load: framework={framework!r}: give "numpy" or "torch"', operation="load")
        if framework == "torch":
            module_of("torch")
        return Into(framework, mapped, None)
    if name.isdecimal():
        name = f"cuda:{name}"
    if re.fullmatch(r"cuda(:[0-9]{1,4})?", name) is None:
        raise InvalidInput(f'load: device={device!r}: give "cuda:0", a number, or "cpu"', operation="load")
    framework = framework or "torch"
    if framework not in ("torch", "cupy"):
        why = f'framework={framework!r}: on a device, tensors are those of "torch" or "cupy"'
        raise InvalidInput(f"load: {why}", operation="load")
    if mapped:
        raise InvalidInput("load: mapped=True: the bytes of a device are no pages of a file", operation="load")
    module_of(framework)
    return Into(framework, mapped, name)

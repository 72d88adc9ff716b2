"""Rows that were gathered, into the memory of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._datapipes import Buffer, Hbm
from ._errors import InvalidInput
from ._into import module_of, target_of
from ._pipe import connect

_CUDA = 2
"""The GPUs of CUDA, as a type of device of DLPack."""
_LEAST = 64 << 10
"""Bytes of the smallest memory that is kept for gathered rows."""


def is_on_device(out: Any) -> bool:
    """Whether an object's bytes are on a GPU, as far as it says."""
    if isinstance(out, np.ndarray):
        return False
    if hasattr(out, "__dlpack_device__"):
        return bool(out.__dlpack_device__()[0] == _CUDA)
    return hasattr(out, "__cuda_array_interface__")


class Upload:
    """The way of a table's rows to a GPU: gathered into memory that is kept, and copied from there."""

    device: str | None

    def __init__(self, dtype: np.dtype[Any], device: object) -> None:
        self.device = None if device is None else target_of("torch", None, device).device
        self._dtype = dtype
        # Several threads may gather: each takes one, or makes one.
        self._kept: list[Buffer] = []

    def empty(self, shape: tuple[int, ...]) -> Any:
        """A tensor on the device, whose content is undefined."""
        length = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        torch = module_of("torch")
        return torch.view_of(torch.empty_bytes(length, self.device), self._kind(), shape, 0, length)

    def _kind(self) -> str:
        from ._load import kind_of

        kind = kind_of(self._dtype)
        if kind is None:
            raise InvalidInput(f"gather: there are no numbers of {self._dtype} on a device", operation="gather")
        return kind

    def fill(self, out: Any, shape: tuple[int, ...], gather: Callable[[npt.NDArray[Any]], object]) -> Any:
        """Fill an array on a device with what ``gather`` fills memory with."""
        name = str(getattr(out, "dtype", "")).rpartition(".")[2]
        if name != self._dtype.name or tuple(out.shape) != shape:
            found = f"{name} {tuple(out.shape)}"
            raise InvalidInput(f"gather: out is {found}, not {self._dtype} {shape}", operation="gather")
        length = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        if length == 0:
            return out
        try:
            buffer = self._kept.pop()
        except IndexError:
            buffer = Buffer(0)
        if len(buffer) < length:
            buffer = Buffer(max(length + length // 2, _LEAST))
        try:
            gather(np.frombuffer(memoryview(buffer), np.uint8, length))
            pipe = connect(buffer, Hbm.of(out), typical_len=length)
            pipe.transfer(len=length)
        finally:
            self._kept.append(buffer)
        return out

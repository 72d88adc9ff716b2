"""Arrays of cupy on a device. Needs cupy."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from ._errors import Unsupported
from ._load import _PLAIN


def empty_bytes(length: int, device: str) -> Any:
    """An array of bytes on a device, whose content is undefined."""
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        return cupy.empty(length, np.uint8)


def view_of(whole: Any, kind: str, shape: tuple[int, ...], at: int, length: int) -> Any:
    """An array over bytes of an array of bytes, which it keeps alive; ``kind`` is that of safetensors."""
    if kind not in _PLAIN:
        raise Unsupported(f"load: arrays of cupy have no {kind}; use framework='torch'", operation="load")
    dtype = np.dtype(_PLAIN[kind])
    with whole.device:
        if length == 0:
            return cupy.empty(shape, dtype)
        flat = whole[at : at + length]
        if at % dtype.itemsize:
            flat = flat.copy()  # It does not begin at a multiple of its numbers' size.
        return flat.view(dtype).reshape(shape)

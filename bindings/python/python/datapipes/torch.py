"""Tensors of torch over memory of this package or on a device, and tables as datasets. Needs torch."""

# pyright: reportAttributeAccessIssue=false
# Where torch is not installed, pyright takes this module for it.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ._datapipes import Buffer
from ._rows import Rows

__all__ = ["RowsDataset", "tensor_of", "tensor_of_array"]

_KINDS = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def tensor_of(buffer: Buffer, kind: str, shape: tuple[int, ...], at: int, length: int) -> Any:
    """A tensor over bytes of a buffer, which it keeps alive; ``kind`` is that of safetensors."""
    dtype = getattr(torch, _KINDS[kind])
    if length == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(np.frombuffer(memoryview(buffer), np.uint8, length, at))
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()  # A payload that does not begin at a multiple of its numbers' size.
    return flat.view(dtype).reshape(shape)


def empty_bytes(length: int, device: str) -> Any:
    """A tensor of bytes on a device, whose content is undefined."""
    return torch.empty(length, dtype=torch.uint8, device=device)


def view_of(whole: Any, kind: str, shape: tuple[int, ...], at: int, length: int) -> Any:
    """A tensor over bytes of a tensor of bytes, which it keeps alive; ``kind`` is that of safetensors."""
    dtype = getattr(torch, _KINDS[kind])
    if length == 0:
        return torch.empty(shape, dtype=dtype, device=whole.device)
    flat = whole[at : at + length]
    if at % dtype.itemsize:
        flat = flat.clone()  # It does not begin at a multiple of its numbers' size.
    return flat.view(dtype).reshape(shape)


def tensor_of_array(array: npt.NDArray[Any]) -> Any:
    """A tensor over the bytes of an array, which it keeps alive."""
    return torch.from_numpy(array)


_Dataset: Any = torch.utils.data.Dataset


class RowsDataset(_Dataset):  # type: ignore[misc]  # The checker may not have torch.
    """A table of `datapipes.rows` as a dataset: a batch is one gather, not a read for each row.

    Give ``collate_fn=dataset.collate`` to the DataLoader, since a batch is a tensor already.
    """

    def __init__(self, table: Rows) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Any:
        if row < 0:
            row += len(self)
        return torch.from_numpy(self.table[[row]])[0]

    def __getitems__(self, rows: Sequence[int]) -> Any:
        return torch.from_numpy(self.table[rows])

    @staticmethod
    def collate(batch: Any) -> Any:
        """A batch as it is; single rows are stacked."""
        return torch.stack(batch) if isinstance(batch, list) else batch

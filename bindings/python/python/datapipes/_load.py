"""Arrays from files: safetensors, GGUF, .npy, and those of torch.save.

Headers are not trusted. Every length, offset, shape and dtype is checked before memory is taken,
and what does not fit is `Corrupt`.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ._datapipes import Buffer
from ._errors import Busy, InvalidInput, Unsupported
from ._file import File, open_file
from ._into import Into, corrupt, module_of, target_of
from ._paths import Path, text_of, texts_of
from ._report import Report, moved
from ._shards import END, Shard, files_of
from ._torch_file import Archive, flat

Array = npt.NDArray[Any]
_MAX_HEADER = 100_000_000
"""The longest header of safetensors: that of its own reader."""
_MAX_DIMENSIONS = 64
_MAX_NPY_HEADER = 64 << 10
_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt")
"""Names of files that torch.save wrote."""
_PLAIN = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
_EXTENDED = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_SIZES = {
    **{name: np.dtype(plain).itemsize for name, plain in _PLAIN.items()},
    **{name: 2 if name == "BF16" else 1 for name in _EXTENDED},
}
"""Bytes of a number, by the name of its type in a header."""


def described_dtype(text: object) -> np.dtype[Any]:
    """The type of numbers by its text in a description, which is not trusted.

    Raises:
        ValueError: It is no type of plain numbers, dates or texts.
        ImportError: It needs the package ml_dtypes.
    """
    if not isinstance(text, str) or len(text) > 64:
        raise ValueError("a dtype is a short text")
    if text in _EXTENDED.values():
        return _extended(text)
    if re.fullmatch(r"[<>|=]?[?biufcmMSU][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?", text) is None:
        raise ValueError(f"no dtype of numbers: {text!r}")
    try:
        dtype: np.dtype[Any] = np.dtype(text)
    except (TypeError, ValueError) as why:
        raise ValueError(f"no dtype of numbers: {text!r}: {why}") from None
    if dtype.itemsize == 0:
        raise ValueError(f"elements of 0 bytes: {text!r}")
    return dtype


def kind_of(dtype: np.dtype[Any]) -> str | None:
    """The name of a type of numbers in headers of safetensors, or None."""
    extended = (kind for kind, name in _EXTENDED.items() if name == dtype.name)
    return next((kind for kind, plain in _PLAIN.items() if np.dtype(plain) == dtype), next(extended, None))


def dtype_text(dtype: np.dtype[Any]) -> str | None:
    """The text by which `described_dtype` finds the type again, or None."""
    if dtype.name in _EXTENDED.values() and dtype == _known_extended(dtype.name):
        return dtype.name
    try:
        return dtype.str if described_dtype(dtype.str) == dtype else None
    except ValueError:
        return None


def check_array(dtype: np.dtype[Any], shape: object) -> tuple[int, ...]:
    """The shape of an array by its description, which is not trusted.

    Raises:
        ValueError: No array of the type has the shape.
    """
    if not _is_shape(shape):
        raise ValueError(f"no valid shape: {str(shape)[:200]}")
    sizes: Sequence[int] = shape  # type: ignore[assignment]
    if dtype.hasobject or dtype.subdtype is not None or not _fits(sizes, dtype.itemsize):
        raise ValueError(f"no array of {dtype} has the shape {sizes}")
    return tuple(sizes)


def _extended(name: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    return found


def _known_extended(name: str) -> np.dtype[Any] | None:
    try:
        return _extended(name)
    except ImportError:
        return None


def _dtype(path: str, tensor: str, name: str) -> np.dtype[Any]:
    if name in _PLAIN:
        return np.dtype(_PLAIN[name])
    try:
        return _extended(_EXTENDED[name])
    except ImportError:
        raise Unsupported(
            f"load: {path}: tensor {tensor!r} is {name}, which NumPy lacks; install ml_dtypes",
            operation="load",
            advice="install ml_dtypes",
        ) from None


Described = tuple[str, str, list[int], int, int]
"""A tensor of a header that was checked: name, type, shape, and where its bytes begin and end."""


def _header(path: str, file: File) -> tuple[list[Described], int, dict[str, str]]:
    """The tensors in the order of their bytes, the offset of the first byte, and the file's metadata."""
    size = file.size()
    if size < 8:
        corrupt(path, f"{size} bytes are no safetensors file")
    first = bytearray(8)
    file.readinto(first)
    length = int.from_bytes(first, "little")
    if length > _MAX_HEADER:
        corrupt(path, f"a header of {length} bytes; at most {_MAX_HEADER} are read")
    if length > size - 8:
        corrupt(path, f"a header of {length} bytes in a file of {size}")
    payload = size - 8 - length
    found, metadata = file._tensors(length, payload, _SIZES)
    return found, 8 + length, metadata


def _is_shape(shape: object) -> bool:
    """Whether these are sizes of an array's dimensions."""
    return (
        isinstance(shape, (list, tuple))
        and len(shape) <= _MAX_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in shape)
    )


def _fits(shape: Sequence[int], itemsize: int) -> bool:
    """Whether NumPy can make an array of this shape: it multiplies empty dimensions out, too."""
    return itemsize > 0 and math.prod(max(size, 1) for size in shape) * itemsize < 2**62


def _bytes_of(buffer: Buffer) -> Array:
    """The bytes of a buffer, which the array keeps alive."""
    return np.frombuffer(memoryview(buffer), np.uint8) if len(buffer) else np.empty(0, np.uint8)


def _view(whole: Array, dtype: np.dtype[Any], shape: Sequence[int], at: int) -> Array:
    """An array over some of these bytes, which it keeps alive."""
    if 0 in shape:
        return np.empty(shape, dtype)
    array: Array = np.ndarray(shape, dtype, whole, at)
    # A payload that does not begin at a multiple of its numbers' size: legal, slow, and refused by
    # many users of arrays.
    return array if array.flags.aligned else array.copy()


def _dtypes(path: str, tensors: Iterable[tuple[str, str]]) -> dict[str, np.dtype[Any]]:
    """The types of tensors by their names in the file. One that cannot be made is told before a file is read."""
    found: dict[str, np.dtype[Any]] = {}
    for name, kind in tensors:
        if kind not in found:
            found[kind] = _dtype(path, name, kind)
    return found


class Loaded(dict[str, Any]):
    """Arrays (or tensors of torch) by name, and how they were read."""

    metadata: dict[str, Any]
    """The metadata of a file; of several, that of the first that has some."""
    types: dict[str, str]
    """The types of a GGUF file's tensors, such as "F32" or "Q4_K", by their names."""
    _report: Report

    def __init__(self) -> None:
        super().__init__()
        self.metadata = {}
        self.types = {}

    def report(self) -> Report:
        """What was moved, by primitive."""
        return self._report


def _arrays(
    path: str, tensors: Sequence[Described], into: Into, read: Callable[[], Any], first: int
) -> Iterator[tuple[str, Any]]:
    """Tensors by name, over the bytes from ``first`` on, which are read once their types are known."""
    if not into.is_numpy:
        read_bytes = read()
        for name, kind, shape, begin, end in tensors:
            yield name, into.tensor(read_bytes, kind, tuple(shape), begin - first, end - begin)
        return
    dtypes = _dtypes(path, (tensor[:2] for tensor in tensors))
    whole = _bytes_of(read())
    for name, kind, shape, begin, _ in tensors:
        yield name, _view(whole, dtypes[kind], shape, begin - first)


def _safetensors(path: str, file: File, into: Into) -> Loaded:
    tensors, at, metadata = _header(path, file)
    found = Loaded()
    found.metadata.update(metadata)
    length = tensors[-1][4] if tensors else 0
    found.update(_arrays(path, tensors, into, lambda: into.whole(path, file, at, length), 0))
    return found


def _gguf(path: str, file: File, into: Into) -> Loaded:
    metadata, tensors, first = file._gguf(file.size())
    found = Loaded()
    found.metadata = metadata
    found.types = {name: kind for name, kind, *_ in tensors}
    # Numbers of quantized tensors are known to nobody here: their blocks are bytes.
    plain = [
        (name, kind if kind in _SIZES else "U8", shape, begin, end) for name, kind, shape, begin, end in tensors
    ]
    at = min((begin for _, _, _, begin, _ in tensors), default=0)
    length = max((end for *_, end in tensors), default=at) - at
    found.update(_arrays(path, plain, into, lambda: into.whole(path, file, first + at, length), at))
    return found


def _torch_file(path: str, file: File, into: Into) -> Loaded:
    first = bytearray(4)
    file.readinto(first)
    if first != b"PK\x03\x04":
        raise Unsupported(
            f"load: {path}: no archive as torch.save writes it since version 1.6",
            operation="load",
            filename=path,
        )
    archive = Archive(path, file, _SIZES)
    tensors, others = flat(archive.content, path, archive.length)
    found = Loaded()
    found.metadata = others
    for name, tensor in tensors.items():
        if not _fits(tensor.shape, _SIZES[tensor.kind]):
            corrupt(path, f"the tensor {name!r} has the shape {tensor.shape}")
    if into.framework == "cupy":
        why = "tensors of torch.save become arrays of NumPy or tensors of torch"
        raise Unsupported(f"load: {path}: {why}", operation="load")
    dtypes = _dtypes(path, ((name, t.kind) for name, t in tensors.items())) if into.is_numpy else {}
    at = min((tensor.begin for tensor in tensors.values()), default=0)
    end = max((tensor.begin + tensor.nbytes for tensor in tensors.values()), default=at)
    buffer = into.whole(path, file, at, end - at)
    whole = _bytes_of(buffer) if into.is_numpy else np.empty(0, np.uint8)
    storages: dict[tuple[int, int, str], Any] = {}  # Tensors of one storage share its bytes.
    for name, tensor in tensors.items():
        size = _SIZES[tensor.kind]
        key = (tensor.begin, tensor.nbytes, tensor.kind)
        count = tensor.nbytes // size
        if key not in storages:
            of_buffer = (tensor.begin - at, count * size)
            storages[key] = (
                _view(whole, dtypes[tensor.kind], (count,), of_buffer[0])
                if into.is_numpy
                else into.tensor(buffer, tensor.kind, (count,), *of_buffer)
            )
        if not into.is_numpy:
            found[name] = storages[key].as_strided(tensor.shape, tensor.strides, tensor.first)
        elif math.prod(tensor.shape) == 0:
            found[name] = np.empty(tensor.shape, dtypes[tensor.kind])
        else:
            strides = tuple(stride * size for stride in tensor.strides)
            found[name] = np.lib.stride_tricks.as_strided(storages[key][tensor.first :], tensor.shape, strides)
    return found


def _npy_header_3(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """As NumPy's functions for the versions before, which give this one no name: names of fields are
    in UTF-8."""
    length = int.from_bytes(stream.read(4), "little")
    text = stream.read(length)
    if len(text) != length:
        raise ValueError(f"a header of {length} bytes, of which {len(text)} are there")
    described = ast.literal_eval(text.decode("utf-8"))
    shape, fortran = described["shape"], described["fortran_order"]
    if set(described) != {"descr", "fortran_order", "shape"} or not isinstance(fortran, bool):
        raise ValueError(f"the header has {sorted(described)}")
    return shape, fortran, np.lib.format.descr_to_dtype(described["descr"])


def _npy(path: str, file: File, into: Into) -> Any:
    size = file.size()
    head = bytes(memoryview(file.read(0, min(size, _MAX_NPY_HEADER))))
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        elif version == (3, 0):
            shape, fortran, dtype = _npy_header_3(stream)
        else:
            raise Unsupported(f"load: {path}: .npy version {version}", operation="load")
    except Unsupported:
        raise
    except Exception as why:  # Of a parser that was not made for hostile bytes.

        corrupt(path, f"no valid .npy header: {why}")
    if dtype.hasobject:
        raise Unsupported(
            f"load: {path}: objects of Python, whose loading would run code of the file", operation="load"
        )
    try:
        check_array(dtype, shape)
    except ValueError as why:
        corrupt(path, str(why))
    at, length = stream.tell(), math.prod(shape) * dtype.itemsize
    if length > size - at:
        corrupt(path, f"{shape} of {dtype} are {length} bytes, and there are {size - at}", at)
    if into.device is not None:
        return _npy_on_device(path, dtype, (shape, fortran), lambda: into.whole(path, file, at, length), into)
    whole = _bytes_of(into.whole(path, file, at, length))
    if fortran:
        return _view(whole, dtype, shape[::-1], 0).transpose()
    return _view(whole, dtype, shape, 0)


def _npy_on_device(
    path: str, dtype: np.dtype[Any], shaped: tuple[tuple[int, ...], bool], read: Callable[[], Any], into: Into
) -> Any:
    shape, fortran = shaped
    kind = kind_of(dtype)
    if kind is None:
        raise Unsupported(f"load: {path}: there are no numbers of {dtype} on a device", operation="load")
    length = math.prod(shape) * dtype.itemsize
    array = into.tensor(read(), kind, shape[::-1] if fortran else shape, 0, length)
    if not fortran:
        return array
    return array.permute(*range(len(shape))[::-1]) if into.framework == "torch" else array.transpose()


def _load(name: str, into: Into, shard: Shard | None) -> tuple[Any, dict[str, dict[str, Any]]]:
    end = name.lower()
    if shard is not None and not end.endswith((".safetensors", *_OF_TORCH)):
        corrupt(shard.index, f"{name} is of no kind that an index may name")
    with shard.named() if shard is not None else nullcontext(), open_file(name, "load") as file:
        if end.endswith(".npy"):
            found: Any = _npy(name, file, into)
            if into.framework == "torch" and into.device is None:
                found = module_of("torch").tensor_of_array(found)
        elif end.endswith(".safetensors"):
            found = _safetensors(name, file, into)
        elif end.endswith(".gguf"):
            found = _gguf(name, file, into)
        elif end.endswith(_OF_TORCH):
            found = _torch_file(name, file, into)
        else:
            known = ", ".join((".safetensors", ".gguf", ".npy", *_OF_TORCH, END))
            raise InvalidInput(f"load: {name}: the name has none of the ends that are known: {known}", operation="load")
        if shard is not None:
            shard.take(found)
        return found, json.loads(file._report())


def load_npy(path: Path, mapped: bool | None = None) -> Array:
    """Read a .npy file into an array. For ``mapped`` see `load_file`."""
    name = text_of(path)
    with open_file(name, "load") as file:
        found: Array = _npy(name, file, Into("numpy", mapped, None))
        return found


def load_file(
    path: Path, framework: str | None = None, mapped: bool | None = None, device: object = None
) -> Loaded:
    """Read a file of tensors: a dict of arrays, which stay valid as long as they are referenced.

    Files are .safetensors, .gguf, .npy, and what torch.save wrote (.pt, .pth, .bin, .ckpt): of the
    last, no code is run; dicts within dicts give names with dots, and other values are ``.metadata``.
    The index of a checkpoint in shards (.index.json) gives the tensors that it names, each from the
    file that it says. That the file has others, too, is no error.

    All of its bytes are one transfer into memory that the arrays share and keep. A .npy file gives
    a dict of one array, by the name "array". With ``framework="torch"`` they are tensors of torch.

    What the page cache has is not copied: the arrays are then over the pages of the file
    (``report()`` says "mapped"). They may be written, which changes no file. But a file that is
    truncated, or written in place, while they are used takes their bytes away: a truncated one ends
    the process (SIGBUS). Replace a file by renaming another to its name, or give ``mapped=False``:
    then all bytes are read into memory of the arrays' own. ``mapped=True`` maps whatever is cached.

    A GGUF file also has ``.metadata`` and ``.types``. Its tensors of plain numbers are arrays of these
    numbers. Quantized ones are arrays of bytes, whose last dimension is a row's blocks.

    With ``device="cuda:0"`` (a name, a number, a ``torch.device``) the bytes go to the memory of that
    GPU, and are there when this returns. Tensors are those of torch, or arrays of cupy with
    ``framework="cupy"``; those of a file share one allocation of that framework. Nothing is mapped.
    """
    return load_files([path], framework, mapped, device)


def load_files(
    paths: Iterable[Path], framework: str | None = None, mapped: bool | None = None, device: object = None
) -> Loaded:
    """Read several files into one dict: shards of a checkpoint, or their index. A name in two is refused.

    For ``mapped`` and ``device`` see `load_file`.
    """
    into = target_of(framework, mapped, device)
    loaded = Loaded()
    counters: dict[str, dict[str, Any]] = {}
    names = texts_of(paths, "load")
    for path, shard in files_of(names):
        found, done = _load(path, into, shard)
        arrays = found if isinstance(found, dict) else {"array": found}
        for name in arrays:
            if name in loaded:
                raise InvalidInput(f"load: {path}: the name {name!r} is in another file as well", operation="load")
        loaded.update(arrays)
        if isinstance(found, Loaded):
            loaded.types.update(found.types)
            loaded.metadata = loaded.metadata or found.metadata
        _add(counters, done)
    loaded._report = moved(f"load {', '.join(names)}", counters)
    return loaded


def _add(total: dict[str, dict[str, Any]], more: dict[str, dict[str, Any]]) -> None:
    for primitive, counters in more.items():
        of = total.setdefault(primitive, dict.fromkeys(counters, 0))
        for name, count in counters.items():
            most = name == "max_outstanding"
            of[name] = max(of[name], count) if most else of[name] + count


class Stream:
    """Arrays of several files, file by file; made by `stream`."""

    def __init__(
        self,
        paths: Iterable[Path],
        framework: str | None = None,
        mapped: bool | None = None,
        device: object = None,
    ) -> None:
        self._into = target_of(framework, mapped, device)
        self._one: Iterator[tuple[str, Any]] | None = None
        self._reading = threading.Lock()
        self._paths = texts_of(paths, "stream")
        self._counters: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._pairs()

    def __next__(self) -> tuple[str, Any]:
        if not self._reading.acquire(blocking=False):
            raise Busy("stream: another thread takes the next array", operation="stream")
        try:
            if self._one is None:
                self._one = self._pairs()
            return next(self._one)
        finally:
            self._reading.release()

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        for path, shard in files_of(self._paths):
            found, done = _load(path, self._into, shard)
            _add(self._counters, done)
            arrays = found if isinstance(found, dict) else {path: found}
            del found
            yield from arrays.items()

    def report(self) -> Report:
        """What was moved so far, by primitive."""
        return moved(f"stream of {len(self._paths)} files", self._counters)


def stream(
    paths: Iterable[Path], framework: str | None = None, mapped: bool | None = None, device: object = None
) -> Stream:
    """Read files one after the other and give (name, array) pairs.

    An array stays valid as long as it is referenced; the memory of a file is free when its last
    array is gone. For ``mapped`` and ``device`` see `load_file`.
    """
    return Stream(paths, framework, mapped, device)

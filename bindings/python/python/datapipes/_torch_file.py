"""Files of `torch.save`: a zip archive of plain entries, and a pickle that says what they are.

The pickle is not run. Its operations are taken one by one, and only those are known that put
together dicts, lists, numbers, texts and tensors: no name of the file is imported or called.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from ._errors import Corrupt, Unsupported
from ._file import File

_MAX_PICKLE = 100_000_000
"""The longest description that is read: as the longest header of safetensors."""
_MAX_DIMENSIONS = 64

_STORAGES = {
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ShortStorage": "I16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "ComplexFloatStorage": "C64",
    "UntypedStorage": "",
}
"""Types of numbers by the classes of storages; an untyped one has bytes."""
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


class Tensor(NamedTuple):
    """A tensor by its numbers' type, the bytes of its storage in the file, and its place in it."""

    kind: str
    begin: int
    """The offset of the storage in the file."""
    nbytes: int
    """The length of the storage in bytes."""
    first: int
    """The number of its first element in the storage."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""


class _Storage(NamedTuple):
    kind: str
    begin: int
    nbytes: int


class _Name(NamedTuple):
    """A name of the file, which is compared and never imported."""

    text: str


class _Mark:
    pass


_MARK = _Mark()


class Archive:
    """The entries of a file, and what its description says."""

    def __init__(self, path: str, file: File, sizes: dict[str, int]) -> None:
        self._path, self._file, self._sizes = path, file, sizes
        self._size = file.size()
        try:
            with open(file.fileno(), "rb", closefd=False) as plain, zipfile.ZipFile(plain) as archive:
                self._entries = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, ValueError, OSError, struct.error, NotImplementedError, UnicodeError) as why:
            self._corrupt(f"no valid archive: {why}")
        described = [name for name in self._entries if name.endswith("/data.pkl")]
        if len(described) != 1:
            raise Unsupported(
                f"load: {path}: an archive with {len(described)} descriptions (data.pkl) is none of torch.save",
                operation="load",
                filename=path,
            )
        self._folder = described[0].removesuffix("data.pkl")
        order = self._entries.get(self._folder + "byteorder")
        if order is not None and self._bytes_of(order, 16) != b"little":
            raise Unsupported(f"load: {path}: numbers that are not little-endian", operation="load", filename=path)
        description = self._bytes_of(self._entries[described[0]], _MAX_PICKLE)
        self.length = len(description)
        """Bytes of the description."""
        self.content = self._read(description)

    def _corrupt(self, why: str) -> NoReturn:
        raise Corrupt(f"load: {self._path}: {why}", filename=self._path, operation="load")

    def _unsupported(self, why: str) -> NoReturn:
        raise Unsupported(f"load: {self._path}: {why}", filename=self._path, operation="load")

    def _range_of(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        """The first byte of an entry and its length, which lie in the file."""
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            self._unsupported(f"the entry {info.filename!r} is compressed or encrypted")
        at, length = info.header_offset, info.file_size
        if at < 0 or length < 0 or length != info.compress_size or at + 30 > self._size:
            self._corrupt(f"the entry {info.filename!r} is not in the file")
        head = bytearray(30)
        self._file.readinto(head, at)
        if head[:4] != b"PK\x03\x04":
            self._corrupt(f"the entry {info.filename!r} has no head")
        name, extra = struct.unpack_from("<HH", head, 26)
        begin = at + 30 + name + extra
        if begin > self._size or length > self._size - begin:
            self._corrupt(f"the entry {info.filename!r} is not in the file")
        return begin, length

    def _bytes_of(self, info: zipfile.ZipInfo, most: int) -> bytes:
        begin, length = self._range_of(info)
        if length > most:
            self._corrupt(f"the entry {info.filename!r} has {length} bytes; at most {most} are read")
        found = bytearray(length)
        if self._file.readinto(found, begin) != length:
            self._corrupt("the file became shorter while it was read")
        return bytes(found)

    def _read(self, text: bytes) -> Any:
        try:
            return _Machine(self).run(text)
        except (IndexError, ValueError, TypeError, KeyError, AttributeError, UnicodeError, OverflowError) as why:
            self._corrupt(f"no valid description: {str(why)[:200]}")

    def storage(self, given: Any) -> _Storage:
        """The storage that a description refers to."""
        if not isinstance(given, tuple) or len(given) != 5 or given[0] != "storage":
            self._corrupt("a reference to something that is no storage")
        _, kind, key, _, count = given
        if not isinstance(kind, _Name) or not isinstance(key, str) or type(count) is not int or count < 0:
            self._corrupt("a storage without a type, a name or a length")
        module, _, name = kind.text.rpartition(" ")
        if module not in ("torch", "torch.storage") or name not in _STORAGES:
            self._unsupported(f"a storage of {kind.text!r}")
        info = self._entries.get(f"{self._folder}data/{key}")
        if info is None:
            self._corrupt(f"the storage {key!r} is missing")
        begin, length = self._range_of(info)
        size = self._sizes.get(_STORAGES[name], 1)
        if count * size > length:
            self._corrupt(f"the storage {key!r} has {length} bytes, not {count * size}")
        return _Storage(_STORAGES[name], begin, count * size)

    def tensor(self, storage: Any, first: Any, shape: Any, strides: Any, kind: str | None = None) -> Tensor:
        """A tensor in a storage. All of its elements lie in it."""
        if not isinstance(storage, _Storage):
            self._corrupt("a tensor without a storage")
        kind = kind or storage.kind
        if kind not in self._sizes:
            self._unsupported(f"a tensor of bytes without a type: {kind!r}")
        for numbers in (shape, strides):
            if not isinstance(numbers, tuple) or len(numbers) > _MAX_DIMENSIONS:
                self._corrupt("a tensor without a shape")
            if any(type(number) is not int or not 0 <= number < 1 << 48 for number in numbers):
                self._corrupt("a tensor with a shape that is none")
        if len(shape) != len(strides) or type(first) is not int or first < 0:
            self._corrupt("a tensor with a shape that is none")
        if math.prod(shape) > 0:
            last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            if last >= storage.nbytes // self._sizes[kind]:
                self._corrupt("a tensor that is longer than its storage")
        return Tensor(kind, storage.begin, storage.nbytes, first, shape, strides)

    def called(self, what: Any, given: Any) -> Any:
        """What a call that the description asks for would return, of those that are known."""
        if not isinstance(what, _Name) or not isinstance(given, tuple):
            self._corrupt("a call of something that is no name")
        known: dict[str, Callable[..., Any]] = {
            "collections OrderedDict": lambda *items: dict(*items),
            "torch._utils _rebuild_tensor_v2": lambda storage, first, shape, strides, *_: self.tensor(
                storage, first, shape, strides
            ),
            "torch._utils _rebuild_tensor_v3": lambda storage, first, shape, strides, _, __, dtype, *___: self.tensor(
                storage, first, shape, strides, self._kind(dtype)
            ),
            "torch._utils _rebuild_parameter": lambda data, *_: data,
            "torch._utils _rebuild_parameter_with_state": lambda data, *_: data,
            "torch Size": lambda sizes: tuple(sizes),
            "torch.serialization _get_layout": lambda name: name,
            "torch device": lambda *name: str(name),
        }
        if what.text not in known:
            self._unsupported(f"it asks for {what.text!r}, whose call would run code of the file")
        return known[what.text](*given)

    def _kind(self, dtype: Any) -> str:
        if not isinstance(dtype, _Name) or not dtype.text.startswith("torch "):
            self._corrupt("a tensor without a type")
        name = dtype.text.removeprefix("torch ")
        if name not in _DTYPES:
            self._unsupported(f"a tensor of {name!r}")
        return _DTYPES[name]


class _Machine:
    """Carries out the operations of a description that only put values together."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, text: bytes) -> Any:
        for operation, given, _ in pickletools.genops(text):
            name = operation.name
            if name == "STOP":
                return self._stack.pop()
            if name in _VALUES:
                self._stack.append(given)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name]())
            else:
                step = getattr(self, f"_{name.lower()}", None)
                if step is None:
                    raise Unsupported(f"load: the operation {name} of a pickle", operation="load")
                step(given)
        raise ValueError("the description has no end")

    def _above_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                above = self._stack[at + 1 :]
                del self._stack[at:]
                return above
        raise ValueError("no mark")

    def _take(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise ValueError("nothing to take")
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def _proto(self, given: Any) -> None: ...

    def _frame(self, given: Any) -> None: ...

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._above_mark()))

    def _tuple1(self, _: Any) -> None:
        self._stack.append(tuple(self._take(1)))

    def _tuple2(self, _: Any) -> None:
        self._stack.append(tuple(self._take(2)))

    def _tuple3(self, _: Any) -> None:
        self._stack.append(tuple(self._take(3)))

    def _global(self, given: str) -> None:
        self._stack.append(_Name(given))

    def _stack_global(self, _: Any) -> None:
        module, name = self._take(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a name that is no text")
        self._stack.append(_Name(f"{module} {name}"))

    def _put(self, given: int) -> None:
        self._memo[given] = self._stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, given: int) -> None:
        self._stack.append(self._memo[given])

    _binget = _long_binget = _get

    def _binpersid(self, _: Any) -> None:
        self._stack.append(self._archive.storage(self._stack.pop()))

    def _reduce(self, _: Any) -> None:
        what, given = self._take(2)
        self._stack.append(self._archive.called(what, given))

    def _build(self, _: Any) -> None:
        # The attributes of a dict, such as the versions of modules: they are not needed.
        self._stack.pop()

    def _setitem(self, _: Any) -> None:
        self._set(self._take(2))

    def _setitems(self, _: Any) -> None:
        self._set(self._above_mark())

    def _set(self, items: Sequence[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("items of something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A tuple of tuples of tuples would be hashed without a bound.
            if not isinstance(key, (str, int)):
                raise ValueError("a key that is neither a text nor a number")
            target[key] = value

    def _append(self, _: Any) -> None:
        self._extend(self._take(1))

    def _appends(self, _: Any) -> None:
        self._extend(self._above_mark())

    def _extend(self, items: Sequence[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise ValueError("an element of something that is no list")
        target.extend(items)


_VALUES = frozenset(
    "BININT BININT1 BININT2 INT LONG LONG1 BINFLOAT FLOAT BINUNICODE SHORT_BINUNICODE UNICODE".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


_MAX_VALUES = 10_000_000
_MAX_DEPTH = 100
"""Dicts and lists within one another: far more than any file of torch.save has."""


def flat(content: Any, path: str, most: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of dicts and lists within one another, by names that are joined with dots, and the
    other values. A tensor that is the whole content has the name "array".

    The same tuple or list may be a part of several others. So that one of two of two of two, or
    one that contains itself, comes to an end, no more than ``most`` values are taken: as many as
    the description has bytes is more than it can have without that.
    """
    tensors: dict[str, Tensor] = {}
    others: dict[str, Any] = {}
    taken = 0

    def refuse(why: str) -> NoReturn:
        raise Unsupported(f"load: {path}: {why}", filename=path, operation="load")

    left: list[tuple[str | None, int, Any]] = [(None, 0, content)]
    while left:
        name, depth, value = left.pop()
        taken += 1
        if taken > min(most, _MAX_VALUES) or depth > _MAX_DEPTH:
            refuse("its dicts and lists contain themselves, or one another very often, or more than 10 million values")
        if not isinstance(value, (Tensor, _Name, _Storage)) and isinstance(value, (dict, list, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            left.extend((str(key) if name is None else f"{name}.{key}", depth + 1, one) for key, one in items)
            continue
        known = "array" if name is None else name
        if known in tensors or known in others:
            refuse(f"two values have the name {known[:200]!r}, as keys with dots, or 1 and '1', do")
        if isinstance(value, Tensor):
            tensors[known] = value
        elif isinstance(value, _Name):
            # A type of numbers, such as torch.float16, by its name.
            others[known] = value.text.replace(" ", ".")
        elif isinstance(value, _Storage):
            refuse(f"{known[:200]!r} is a storage of bytes that is no tensor")
        elif value is None or isinstance(value, (bool, int, float, str)):
            others[known] = value
    return tensors, others

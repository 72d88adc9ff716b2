"""GGUF files, which these tests write byte by byte as the format's description says."""

from __future__ import annotations

import random
import struct

import datapipes as dp
import numpy as np
import pytest

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
PACKED = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "BF16": 30}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    if kind == TEXT:
        return text(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack("<" + PACKED[kind], content)


def pair(key, kind, content):
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def entry(name, kind, sizes, offset):
    """A tensor; the sizes are in the file's order, the contiguous one first."""
    number = TYPES.get(kind, kind)
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, offset)


def file_of(pairs=(), entries=(), payload=b"", *, alignment=32, version=3, counts=None, magic=b"GGUF"):
    tensors, keys = counts or (len(entries), len(pairs))
    header = magic + struct.pack("<IQQ", version, tensors, keys) + b"".join(pairs) + b"".join(entries)
    return header + b"\0" * (-len(header) % alignment) + payload


@pytest.fixture
def write(folder):
    def write(content, name="model.gguf"):
        (folder / name).write_bytes(content)
        return folder / name

    return write


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_type(write, version):
    numbers = {U8: 255, I8: -128, U16: 65535, I16: -32768, U32: 2**32 - 1, I32: -(2**31), U64: 2**64 - 1, I64: -(2**63)}
    pairs = [pair(f"number.{kind}", kind, number) for kind, number in numbers.items()]
    pairs += [pair("float", F32, 0.5), pair("double", F64, 0.1), pair("yes", BOOL, True), pair("no", BOOL, False)]
    pairs += [pair("name", TEXT, "größer"), pair("empty", TEXT, "")]
    pairs += [pair(f"array.{kind}", ARRAY, (kind, [number, 0])) for kind, number in numbers.items()]
    pairs += [pair("floats", ARRAY, (F32, [1.5, -2.5])), pair("bools", ARRAY, (BOOL, [True, False]))]
    pairs += [pair("texts", ARRAY, (TEXT, ["a", "", "ü"])), pair("none", ARRAY, (U32, []))]
    pairs += [pair("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (TEXT, ["x"]), (ARRAY, [(I64, [-1])])]))]
    loaded = dp.load_file(write(file_of(pairs, version=version)))
    assert dict(loaded) == {} and loaded.types == {}
    found = loaded.metadata
    assert all(found[f"number.{kind}"] == number for kind, number in numbers.items())
    assert (found["float"], found["double"], found["yes"], found["no"]) == (0.5, 0.1, True, False)
    assert (found["name"], found["empty"], found["texts"]) == ("größer", "", ["a", "", "ü"])
    for kind, number in numbers.items():
        array = found[f"array.{kind}"]
        assert array.dtype == np.dtype(PACKED[kind]).newbyteorder("<") and array.tolist() == [number, 0]
    assert found["floats"].tolist() == [1.5, -2.5] and found["bools"].tolist() == [True, False]
    assert found["none"].tolist() == [] and found["none"].dtype == np.uint32
    nested = found["nested"]
    assert nested[0].tolist() == [1, 2] and nested[1] == ["x"] and nested[2][0].tolist() == [-1]


def packed(arrays, alignment):
    """Tensors of arrays, as an entry each and the bytes of all."""
    entries, payload = [], b""
    for name, (kind, sizes, data) in arrays.items():
        payload += b"\0" * (-len(payload) % alignment)
        entries.append(entry(name, kind, sizes, len(payload)))
        payload += data
    return entries, payload


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_tensors(write, alignment):
    rng = np.random.default_rng(7)
    plain = {
        "f32": ("F32", rng.random((3, 5), "f4")),
        "f16": ("F16", rng.random(7, "f4").astype("f2")),
        "f64": ("F64", rng.random((2, 3, 4, 5))),
        "i8": ("I8", rng.integers(-128, 127, (5, 3), "i1")),
        "i16": ("I16", np.arange(9, dtype="i2")),
        "i32": ("I32", np.arange(6, dtype="i4").reshape(3, 2)),
        "i64": ("I64", np.arange(4, dtype="i8")),
        "scalar": ("F32", np.array(2.5, "f4")),
        "nothing": ("F32", np.zeros((0, 4), "f4")),
    }
    blocks = {"q8": ("Q8_0", [64, 3], rng.bytes(34 * 2 * 3)), "q4k": ("Q4_K", [256], rng.bytes(144))}
    arrays = {name: (kind, list(array.shape[::-1]), array.tobytes()) for name, (kind, array) in plain.items()}
    entries, payload = packed({**arrays, **blocks}, alignment)
    random.Random(7).shuffle(entries)  # Their order is not that of their bytes.
    pairs = [pair("general.alignment", U32, alignment)]
    loaded = dp.load_file(write(file_of(pairs, entries, payload, alignment=alignment)))
    for name, (kind, array) in plain.items():
        found = loaded[name]
        assert loaded.types[name] == kind
        assert found.dtype == array.dtype and found.shape == array.shape and (found == array).all()
        assert found.flags.aligned
    assert loaded["q8"].shape == (3, 68) and loaded["q8"].dtype == np.uint8
    assert loaded["q8"].tobytes() == blocks["q8"][2] and loaded["q4k"].tobytes() == blocks["q4k"][2]
    assert (loaded.types["q8"], loaded.types["q4k"]) == ("Q8_0", "Q4_K")
    assert sum(part["bytes"] for part in loaded.report().to_dict()["primitives"].values()) > 0


def test_bfloat16(write):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    loaded = dp.load_file(write(file_of((), [entry("x", "BF16", [4], 0)], array.tobytes())))
    assert loaded["x"].dtype == array.dtype and (loaded["x"] == array).all()


def test_arrays_stay_valid_and_files_are_joined(write):
    first = write(file_of([pair("a", U8, 1)], [entry("x", "F32", [2], 0)], b"\0" * 8), "1.gguf")
    second = write(file_of([pair("b", U8, 2)], [entry("y", "I8", [1], 0)], b"\5"), "2.gguf")
    loaded = dp.load_files([first, second])
    first.unlink()
    assert loaded.metadata == {"a": 1} and loaded.types == {"x": "F32", "y": "I8"}
    y = loaded["y"]
    del loaded
    assert y.tolist() == [5]
    with pytest.raises(dp.InvalidInput):
        dp.load_files([second, second])
    assert [name for name, _ in dp.stream([second])] == ["y"]


def test_long_headers_are_read_in_parts(write):
    tokens = [f"token {n}" for n in range(200_000)]
    pairs = [pair("tokens", ARRAY, (TEXT, tokens)), pair("scores", ARRAY, (F32, range(200_000)))]
    content = file_of(pairs, [entry("x", "I16", [2], 64)], b"\0" * 64 + b"\1\0\2\0")
    assert len(content) > 4 << 20
    loaded = dp.load_file(write(content))
    assert loaded.metadata["tokens"] == tokens and loaded.metadata["scores"][-1] == 199_999
    assert loaded["x"].tolist() == [1, 2]


FOUR = b"\0" * 64
ONE = [entry("x", "F32", [4], 0)]
HOSTILE = {
    "no magic": b"GGML" + file_of()[4:],
    "empty": b"",
    "many tensors": file_of(counts=(2**63, 0)),
    "more tensors than bytes": file_of(counts=(4, 0), payload=FOUR),
    "many pairs": file_of(counts=(0, 2**63)),
    "a long key": file_of([struct.pack("<Q", 2**63)], counts=(0, 1)),
    "a key to the end": file_of([struct.pack("<Q", 2**64 - 1)], counts=(0, 1)),
    "a long text": file_of([text("k") + struct.pack("<IQ", TEXT, 2**63)]),
    "a long array": file_of([text("k") + struct.pack("<IIQ", ARRAY, U64, 2**61)]),
    "a long array of texts": file_of([text("k") + struct.pack("<IIQ", ARRAY, TEXT, 2**60)]),
    "a long array of arrays": file_of([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 2**60)]),
    "deep arrays": file_of([text("k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 100_000]),
    "an unknown type": file_of([text("k") + struct.pack("<I", 13) + b"\0" * 8]),
    "an array of an unknown type": file_of([text("k") + struct.pack("<IIQ", ARRAY, 13, 0)]),
    "no truth": file_of([text("k") + struct.pack("<I", BOOL) + b"\2"]),
    "no truths": file_of([text("k") + struct.pack("<IIQ", ARRAY, BOOL, 1) + b"\2"]),
    "a key that is no text": file_of([pair(b"\xff", U8, 0)]),
    "a text that is none": file_of([pair("k", TEXT, b"\xc3\x28")]),
    "a key twice": file_of([pair("k", U8, 0)] * 2),
    "a tensor twice": file_of((), ONE + [entry("x", "F32", [4], 32)], FOUR),
    "alignment 0": file_of([pair("general.alignment", U32, 0)], ONE, FOUR),
    "alignment 24": file_of([pair("general.alignment", U32, 24)], ONE, FOUR),
    "alignment 2^40": file_of([pair("general.alignment", U64, 2**40)], ONE, FOUR),
    "alignment -32": file_of([pair("general.alignment", I32, -32)], ONE, FOUR),
    "alignment as text": file_of([pair("general.alignment", TEXT, "32" * 10**6)], ONE, FOUR),
    "an offset that is not aligned": file_of((), [entry("x", "F32", [4], 4)], FOUR),
    "beyond the file": file_of((), [entry("x", "F32", [17], 0)], FOUR),
    "an offset beyond the file": file_of((), [entry("x", "F32", [1], 64)], FOUR),
    "an offset beyond all": file_of((), [entry("x", "F32", [4], 2**64 - 32)], FOUR),
    "overlapping": file_of((), [entry("x", "F32", [9], 0), entry("y", "F32", [1], 32)], FOUR),
    "the same bytes": file_of((), [entry("x", "F32", [4], 0), entry("y", "F32", [4], 0)], FOUR),
    "beyond 64 bits": file_of((), [entry("x", "F32", [2**32, 2**32], 0)], FOUR),
    "beyond 64 bits and empty": file_of((), [entry("x", "F32", [2**63, 0], 0)], FOUR),
    "beyond 64 bits of blocks": file_of((), [entry("x", "Q4_K", [2**63, 2], 0)], FOUR),
    "five dimensions": file_of((), [entry("x", "F32", [1] * 5, 0)], FOUR),
    "many dimensions": file_of((), [text("x") + struct.pack("<I", 2**32 - 1)], FOUR, counts=(1, 0)),
    "half a block": file_of((), [entry("x", "Q8_0", [48], 0)], FOUR),
    "blocks without a row": file_of((), [entry("x", "Q8_0", [], 0)], FOUR),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_corrupt(write, case):
    with pytest.raises(dp.Corrupt) as raised:
        dp.load_file(write(HOSTILE[case]))
    assert len(str(raised.value)) < 1000


def test_every_beginning_of_a_file_is_corrupt(write):
    pairs = [pair("name", TEXT, "x"), pair("tokens", ARRAY, (TEXT, ["a", "b"])), pair("n", ARRAY, (U16, [1, 2]))]
    content = file_of(pairs, [entry("x", "F32", [4], 0), entry("y", "I8", [3], 32)], FOUR[:35])
    assert list(dp.load_file(write(content))) == ["x", "y"]
    for length in range(len(content)):
        with pytest.raises(dp.Corrupt):
            dp.load_file(write(content[:length]))


def test_changed_bytes_end_in_errors_or_arrays(write):
    pairs = [pair("general.alignment", U32, 8), pair("tokens", ARRAY, (TEXT, ["a", "b"]))]
    content = bytearray(file_of(pairs, [entry("x", "F32", [4], 0), entry("y", "Q8_0", [32], 16)], FOUR, alignment=8))
    changes = random.Random(11)
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(changes.randint(1, 3)):
            changed[changes.randrange(len(changed))] = changes.choice([0, 1, 127, 128, 255, changes.randrange(256)])
        try:
            loaded = dp.load_file(write(bytes(changed)))
        except (dp.Corrupt, dp.Unsupported):
            continue
        assert sum(array.nbytes for array in loaded.values()) <= len(changed)


@pytest.mark.parametrize(
    "content",
    [
        file_of(version=1),
        file_of(version=4),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        file_of((), [entry("x", 99, [4], 0)], FOUR),
        file_of((), [entry("x", 4, [32], 0)], FOUR),
    ],
    ids=["version 1", "version 4", "big-endian", "type 99", "a type that was given up"],
)
def test_what_is_not_known_is_unsupported(write, content):
    with pytest.raises(dp.Unsupported):
        dp.load_file(write(content))


def test_as_tensors_of_torch(write):
    torch = pytest.importorskip("torch")
    content = file_of((), [entry("x", "BF16", [2, 1], 0), entry("q", "Q8_0", [32], 32)], FOUR + FOUR)
    loaded = dp.load_file(write(content), framework="torch")
    assert loaded["x"].dtype == torch.bfloat16 and loaded["x"].shape == (1, 2)
    assert loaded["q"].dtype == torch.uint8 and loaded["q"].shape == (34,)

"""Files of arrays, rows, sort, checkpoints."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys

import datapipes as dp
import numpy as np
import pytest


def safetensors(header, payload=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def write(path, arrays, pad=8):
    """A file as the format's own writer makes it, with the payload at a multiple of `pad`."""
    kinds = {"float32": "F32", "int64": "I64", "uint8": "U8", "float16": "F16", "bool": "BOOL", "complex64": "C64"}
    header, payload = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        end = len(payload) + array.nbytes
        header[name] = {
            "dtype": kinds[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(payload), end],
        }
        payload += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % pad)
    path.write_bytes(safetensors(text, payload))


@pytest.fixture
def arrays():
    random = np.random.default_rng(3)
    return {
        "a": random.random((300, 700), np.float32),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 5), np.float16),
        "bytes": random.integers(0, 256, 100_003, np.uint8),
        "flags": np.array([True, False]),
        "c": np.arange(6, dtype=np.complex64).reshape(1, 2, 3),
    }


def test_safetensors(folder, arrays):
    path = folder / "model.safetensors"
    for pad in (8, 1):
        write(path, arrays, pad)
        loaded = dp.load_file(path)
        assert list(loaded) and set(loaded) == set(arrays)
        for name, array in arrays.items():
            assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
            assert np.array_equal(loaded[name], array)
            assert loaded[name].flags.writeable and loaded[name].flags.aligned
        assert str(sum(a.nbytes for a in arrays.values())) in str(loaded.report()) or "bytes" in str(loaded.report())
    one = loaded["a"]
    del loaded
    os.remove(path)
    one += 1
    assert np.array_equal(one, arrays["a"] + 1)  # It owns its memory.


def test_several_files_and_stream(folder, arrays):
    names = list(arrays)
    first, second = folder / "1.safetensors", folder / "2.safetensors"
    write(first, {name: arrays[name] for name in names[:2]})
    write(second, {name: arrays[name] for name in names[2:]})
    assert set(dp.load_files([first, second])) == set(arrays)
    with dp.stream([first, second]) as stream:
        found = dict(stream)
    assert all(np.array_equal(found[name], arrays[name]) for name in names)
    assert stream.report().to_dict()["primitives"]
    with pytest.raises(dp.InvalidInput, match="another file"):
        dp.load_files([first, first])
    with pytest.raises(dp.NotFound):
        dp.load_file(folder / "none.safetensors")
    with pytest.raises(dp.InvalidInput, match="none of the ends"):
        (folder / "x.dat").write_bytes(b"")
        dp.load_file(folder / "x.dat")


def index_of(folder, weight_map, name="model.safetensors.index.json"):
    path = folder / name
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def test_an_index_says_which_tensors_come_from_which_shard(folder, arrays):
    names = list(arrays)
    (folder / "parts").mkdir()
    write(folder / "1.safetensors", {name: arrays[name] for name in names[:2]})
    # The second has a tensor of the first as well, as checkpoints with tied weights do.
    again = {names[0]: np.zeros(3, np.uint8)}
    write(folder / "parts" / "2.safetensors", {name: arrays[name] for name in names[2:]} | again)
    files = {name: "1.safetensors" for name in names[:2]} | {name: "parts/2.safetensors" for name in names[2:]}
    path = index_of(folder, files)
    for found in (dp.load_file(path), dp.load_files([path]), dict(dp.stream([path]))):
        assert set(found) == set(arrays)
        assert all(np.array_equal(found[name], arrays[name]) for name in names)
    few = dp.load_file(index_of(folder, {names[3]: "parts/2.safetensors"}, "few.index.fp16.json"))
    assert list(few) == [names[3]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no index of shards"),
        ("[" * 100_000, "no index of shards"),
        ("[]", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": 1}}', "is no text"),
        ('{"weight_map": {"a": "1.safetensors", "a": "1.safetensors"}}', "the name 'a' is there twice"),
        ('{"weight_map": {"a": "\\ud800.safetensors"}}', "not in the folder"),
        ('{"weight_map": {"a": "../1.safetensors"}}', "not in the folder"),
        ('{"weight_map": {"a": "/1.safetensors"}}', "not in the folder"),
        ('{"weight_map": {"a": ""}}', "not in the folder"),
        ('{"weight_map": {"a": "1.safetensors\\u0000"}}', "not in the folder"),
        ('{"weight_map": {"a": "x.index.json"}}', "of no kind that an index may name"),
        ('{"weight_map": {"nowhere": "1.safetensors", "a": "1.safetensors"}}', "no tensor 'nowhere'"),
    ],
)
def test_an_index_is_not_trusted(folder, arrays, text, why):
    write(folder / "1.safetensors", {"a": np.arange(4, dtype=np.uint8)})
    path = folder / "x.index.json"
    path.write_text(text)
    for call in (dp.load_file, lambda path: dict(dp.stream([path]))):
        with pytest.raises(dp.Corrupt, match=re.escape(why)) as error:
            call(path)
        assert error.value.filename == str(path)
    index_of(folder, {"a": "gone.safetensors"}, "gone.index.json")
    with pytest.raises(dp.NotFound, match=re.escape("gone.safetensors")) as error:
        dp.load_file(folder / "gone.index.json")
    assert "is a shard of" in error.value.__notes__[0]
    index_of(folder, {"n" * 1_000_000: "1.safetensors"}, "long.index.json")
    with pytest.raises(dp.Corrupt) as error:
        dp.load_file(folder / "long.index.json")
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("shard", ["s3://bucket/x.safetensors", "https://host/x.safetensors"])
def test_an_index_reaches_no_network(folder, shard, monkeypatch):
    """An index without a folder in its path gave its shards' names as they were, and some are addresses."""
    monkeypatch.chdir(folder)
    index_of(folder, {"a": shard}, "x.index.json")
    for index in ("x.index.json", folder / "x.index.json"):
        with pytest.raises(dp.NotFound):
            dp.load_file(index)


def test_addresses_are_refused_by_loaders():
    for call in (dp.load_file, dp.load_npy, lambda path: next(dp.stream([path]))):
        for name in ("s3://bucket/x.safetensors", "gs://bucket/x.index.json", "https://host/x.npy"):
            with pytest.raises(dp.Unsupported, match="takes files"):
                call(name)


def test_what_is_no_choice_of_mapping_and_no_path_is_told(folder, arrays):
    write(folder / "1.safetensors", arrays)
    with pytest.raises(dp.InvalidInput, match="mapped='no'"):
        dp.load_file(folder / "1.safetensors", mapped="no")
    for call in (dp.open, dp.load_file, dp.read_log, lambda path: dp.sort(path, folder / "out")):
        with pytest.raises(dp.InvalidInput, match="cannot be encoded"):
            call("a\ud800.npy")


def test_a_stream_is_read_by_one_thread_at_a_time(folder, arrays):
    write(folder / "1.safetensors", arrays)
    stream = dp.stream([folder / "1.safetensors"])
    assert stream._reading.acquire(blocking=False)
    with pytest.raises(dp.Busy, match="another thread"):
        next(stream)
    stream._reading.release()
    assert len(list(iter(lambda: next(stream, None), None))) == len(arrays)


def entry(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


HOSTILE = {
    "nothing": b"",
    "short": b"1234567",
    "long header": safetensors(b"{}", length=1 << 62),
    "header of all bits": safetensors(b"{}", length=(1 << 64) - 1),
    "huge header": safetensors(b"{}", length=(100 << 20) + 1),
    "header beyond the end": safetensors(b"{}", length=3),
    "no JSON": safetensors(b"{"),
    "no UTF-8": safetensors(b'{"\xff": 1}'),
    "deep": safetensors(b"[" * 100_000),
    "deep value": safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "list": safetensors(b"[]"),
    "number": safetensors(b"1" * 5000),
    "twice": safetensors(b'{"a": {"dtype": "U8"}, "a": {"dtype": "U8"}}'),
    "twice and valid": safetensors(
        b'{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},'
        b' "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}',
        b"1234",
    ),
    "metadata twice": safetensors(b'{"__metadata__": {}, "__metadata__": {}}'),
    "twice inside": safetensors(b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [], "data_offsets": [0, 1]}}', b"x"),
    "no entry": safetensors({"a": 5}),
    "missing": safetensors({"a": {"dtype": "U8", "shape": [4]}}, b"1234"),
    "more": safetensors({"a": entry(extra=1)}, b"1234"),
    "dtype": safetensors({"a": entry(dtype="U9")}, b"1234"),
    "dtype no text": safetensors({"a": entry(dtype=["U8"])}, b"1234"),
    "object": safetensors({"a": entry(dtype="O")}, b"1234"),
    "size": safetensors({"a": entry(dtype="U16")}, b"1234"),
    "negative shape": safetensors({"a": entry(shape=(-2, -2))}, b"1234"),
    "fraction": safetensors({"a": entry(shape=(4.0,))}, b"1234"),
    "boolean": safetensors({"a": entry(shape=(True, 4))}, b"1234"),
    "overflow": safetensors({"a": entry(shape=(1 << 62, 4, 1 << 62))}, b"1234"),
    "beyond 63 bits": safetensors({"a": entry(shape=(1 << 64, 0))}, b"1234"),
    "empty and beyond memory": safetensors({"a": entry(shape=(0, 1 << 62, 4), offsets=(0, 0))}),
    "dimensions": safetensors({"a": entry(shape=(1,) * 65 + (4,))}, b"1234"),
    "beyond": safetensors({"a": entry(shape=(8,), offsets=(0, 8))}, b"1234"),
    "backward": safetensors({"a": entry(offsets=(4, 0))}, b"1234"),
    "negative offset": safetensors({"a": entry(offsets=(-4, 0))}, b"1234"),
    "one offset": safetensors({"a": entry(offsets=(4,))}, b"1234"),
    "overlap": safetensors({"a": entry(), "b": entry(offsets=(2, 6))}, b"123456"),
    "same": safetensors({"a": entry(), "b": entry()}, b"1234"),
    "gap": safetensors({"a": entry(), "b": entry(offsets=(5, 9))}, b"123456789"),
    "rest": safetensors({"a": entry()}, b"12345"),
    "NaN": safetensors(b'{"a": {"dtype": "U8", "shape": [NaN], "data_offsets": [0, 4]}}', b"1234"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_corrupt(folder, case):
    path = folder / "x.safetensors"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(dp.Corrupt) as caught:
        dp.load_file(path)
    assert isinstance(caught.value, ValueError) and str(path) in str(caught.value)


def test_random_bytes_never_do_worse_than_corrupt(folder, arrays):
    path = folder / "x.safetensors"
    write(path, {name: arrays[name] for name in ("scalar", "flags", "c")})
    good, random = path.read_bytes(), np.random.default_rng(11)
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(int(random.integers(1, 4))):
            bad[int(random.integers(0, len(bad)))] = int(random.integers(0, 256))
        del bad[len(bad) - int(random.integers(0, 3)) :]
        path.write_bytes(bad)
        try:
            dp.load_file(path)
        except (dp.Corrupt, dp.Unsupported):
            pass


def test_an_empty_file_of_tensors(folder):
    (folder / "x.safetensors").write_bytes(safetensors({}))
    assert dp.load_file(folder / "x.safetensors") == {}


def test_bfloat16(folder):
    path = folder / "x.safetensors"
    path.write_bytes(safetensors({"a": entry("BF16", (2,))}, struct.pack("<HH", 0x3F80, 0x4000)))
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        with pytest.raises(dp.Unsupported, match="ml_dtypes"):
            dp.load_file(path)
    else:
        assert dp.load_file(path)["a"].astype(np.float32).tolist() == [1, 2]


def test_npy(folder):
    random = np.random.default_rng(5)
    path = folder / "x.npy"
    for array in (
        random.random((300, 400)),
        np.asfortranarray(random.random((30, 40, 5))),
        np.array(3, ">i4"),
        np.zeros((0, 3), np.float32),
        np.array(["text", "more"]),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    ):
        np.save(path, array)
        loaded = dp.load_npy(path)
        assert loaded.dtype == array.dtype and loaded.shape == array.shape
        assert np.array_equal(loaded, array) and loaded.flags.f_contiguous == array.flags.f_contiguous
        assert np.array_equal(dp.load_file(path)["array"], array)
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(dp.Unsupported, match="objects"):
        dp.load_npy(path)


def npy(header):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x93NUMPY",
        npy(b""),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }")[:40],
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n") + b"12345678",
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n") + b"12345678",
        npy(b"{'descr': '|V0', 'fortran_order': False, 'shape': (5,), }\n"),
        npy(b"{'descr': '<U0', 'fortran_order': False, 'shape': (5,), }\n"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (18446744073709551616,), }\n"),
        npy(b"{'descr': '<f8', 'fortran_order': 3, 'shape': (1,), }\n"),
        npy(b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,), }\n"),
        npy(b"__import__('os').abort()\n"),
        npy(b"(" * 5000),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b"{}",
    ],
)
def test_a_bad_npy_is_corrupt(folder, bad):
    (folder / "x.npy").write_bytes(bad)
    with pytest.raises(dp.Corrupt):
        dp.load_npy(folder / "x.npy")


def test_rows(folder):
    table = np.random.default_rng(1).random((5000, 33), np.float32)
    (folder / "t").write_bytes(b"head" + table.tobytes() + b"tail of no whole row")
    rows = dp.rows(folder / "t", "float32", 33, cache="4M", offset=4)
    assert len(rows) == 5000 and rows.shape == (5000, 33) and rows.dtype == np.float32
    ids = np.random.default_rng(2).integers(0, 5000, 3000)
    for asked in (ids, ids.astype(np.int32), ids.astype(np.uint64), ids[::3], ids.tolist(), ids.reshape(30, 100)):
        assert np.array_equal(rows[asked], table[np.asarray(asked)])
    assert np.array_equal(rows[7], table[7]) and np.array_equal(rows.__getitems__([1, 1]), table[[1, 1]])
    assert rows[[]].shape == (0, 33)
    out = np.empty((3, 33), np.float32)
    assert rows.gather([4999, 0, 1], out=out) is out and np.array_equal(out, table[[4999, 0, 1]])
    metrics = rows.metrics()
    assert metrics["hits"] > 0 and metrics["device_bytes"] > 0
    for wrong in ([-1], [5000], [1 << 62], np.array([(1 << 64) - 1], np.uint64)):
        with pytest.raises(dp.OutOfRange) as caught:
            rows[wrong]
        assert isinstance(caught.value, IndexError)
    for wrong in ([1.5], ["a"], slice(0, 3), None):
        with pytest.raises((dp.InvalidInput, TypeError)):
            rows[wrong]
    for bad in (np.empty((3, 33)), np.empty((2, 33), np.float32), bytearray(396), np.empty((3, 66), np.float32)[:, ::2]):
        with pytest.raises(dp.InvalidInput):
            rows.gather([1, 2, 3], out=bad)
    for arguments in (("O", 3), ("f4", 0), ("f4", -1), ("f4", 1 << 40), ("f4", True)):
        with pytest.raises(dp.InvalidInput):
            dp.rows(folder / "t", *arguments)
    with pytest.raises(dp.Error):
        dp.rows(folder / "t", "f4", 33, cache=1)
    import pickle

    assert np.array_equal(pickle.loads(pickle.dumps(rows))[[5]], table[[5]])


def test_a_table_is_closed_and_read_whole(folder):
    table = np.arange(2_000, dtype=np.float32).reshape(500, 4)
    table.tofile(folder / "table")
    with dp.rows(folder / "table", "float32", 4, cache="4M") as rows:
        assert np.array_equal(np.asarray(rows), table) and np.asarray(rows, np.int64).dtype == np.int64
        assert not rows.closed
    assert rows.closed and "closed" in repr(rows)
    for use in (lambda: rows[[0]], lambda: len(rows), rows.metrics):
        with pytest.raises(dp.InvalidInput, match="closed"):
            use()
    rows.close()
    # A table that cannot be there is no empty table.
    assert len(dp.rows(folder / "table", "float32", 4, offset=8_000)) == 0
    with pytest.raises(dp.OutOfRange, match="8001"):
        dp.rows(folder / "table", "float32", 4, offset=8_001)
    with pytest.raises(dp.InvalidInput, match="dtype"):
        dp.rows(folder / "table", None, 4)


def test_rows_see_what_is_written(folder):
    (folder / "t").write_bytes(np.arange(1000, dtype=np.int64).tobytes())
    rows = dp.rows(folder / "t", "i8", 1, cache="4M")
    assert rows[[500]].item() == 500
    with dp.open(folder / "t", "r+") as file:
        file.write(np.array([-1], np.int64), 4000)
    assert rows[[500]].item() == -1


def test_sort(folder):
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 200_000, np.uint64)
    (folder / "in").write_bytes(numbers.tobytes())
    seen = []
    report = dp.sort(folder / "in", folder / "out", format="u64", memory="64M", progress=lambda *now: seen.append(now))
    assert np.array_equal(np.fromfile(folder / "out", np.uint64), np.sort(numbers))
    assert report.to_dict()["records"] == 200_000 and str(report) and seen and seen[-1][0] == numbers.nbytes
    dp.sort(folder / "in", folder / "out", format="u64", reverse=True)
    assert np.array_equal(np.fromfile(folder / "out", np.uint64), np.sort(numbers)[::-1])
    (folder / "lines").write_text("b 10\na 9\nc 9\nb 10\n")
    dp.sort(folder / "lines", folder / "out")
    assert (folder / "out").read_text() == "a 9\nb 10\nb 10\nc 9\n"
    dp.sort(folder / "lines", folder / "out", keys=["2,2n"], separator=" ", reverse=False)
    assert (folder / "out").read_text() == "a 9\nc 9\nb 10\nb 10\n"
    dp.sort(folder / "lines", folder / "out", reverse=True, unique=True)
    assert (folder / "out").read_text() == "c 9\nb 10\na 9\n"
    (folder / "records").write_bytes(b"xxb" b"xya" b"zza")
    dp.sort(folder / "records", folder / "out", format="records", record=(3, 2, 1))
    assert (folder / "out").read_bytes() in (b"xyazzaxxb", b"zzaxyaxxb")


def test_a_sort_has_places_threads_and_compression_and_its_advice_names_them(folder):
    numbers = np.random.default_rng(5).integers(0, 1 << 60, 3_000_000, np.uint64)
    numbers.tofile(folder / "in")
    (folder / "spill").mkdir()
    for spill in ([folder / "spill"], str(folder / "spill")):
        report = dp.sort(
            folder / "in", folder / "out", format="u64", memory="16M", spill=spill, threads=1, compression=True
        )
        assert (np.fromfile(folder / "out", np.uint64) == np.sort(numbers)).all()
        assert report.to_dict()["threads"] == 1
        assert str(folder / "spill") in str(report.to_dict()["spill"])
    for wrong in ({"spill": [folder / "none"]}, {"spill": "none"}, {"threads": 0}):
        with pytest.raises((dp.NotFound, dp.InvalidInput)):
            dp.sort(folder / "in", folder / "new", format="u64", **wrong)
    assert not (folder / "new").exists()
    # A record may be longer than the memory.
    (folder / "long").write_bytes(b"y" + b"x" * ((60 << 20) - 1))
    dp.sort(folder / "long", folder / "new", format="records", record=(30 << 20, 0, 10), memory="16M")
    assert (folder / "new").read_bytes() == b"x" * (30 << 20) + b"y" + b"x" * ((30 << 20) - 1)
    (folder / "new").unlink()
    # A line may be longer than the memory.
    (folder / "long").write_bytes(b"x" * (30 << 20) + b"\na\n")
    report = dp.sort(folder / "long", folder / "new", memory="16M", spill=[folder / "spill"])
    assert (folder / "new").read_bytes() == b"a\n" + b"x" * (30 << 20) + b"\n"
    assert report.to_dict()["long_lines"] == 1


def test_a_sort_waits_for_the_disk_unless_that_is_not_wanted(folder):
    (folder / "in").write_text("b\na\n")
    for asked, synced in (({}, True), ({"sync": True}, True), ({"sync": False}, False)):
        report = dp.sort(folder / "in", folder / "out", **asked)
        assert (folder / "out").read_text() == "a\nb\n"
        assert report.to_dict()["output"]["synced"] is synced
        assert ("not synced" in str(report)) is not synced
    with pytest.raises(TypeError):
        dp.sort(folder / "in", folder / "out", sync="no")


def test_a_folder_is_no_input_of_a_sort(folder):
    with pytest.raises(dp.InvalidInput) as told:
        dp.sort(folder, folder / "out")
    assert isinstance(told.value, IsADirectoryError)


def test_sort_refuses_and_stops(folder):
    (folder / "in").write_bytes(b"x\n" * 1000)
    wrong = [
        {"format": "u128"},
        {"format": "records"},
        {"format": "records", "record": (0, 0, 0)},
        {"format": "lines", "record": (3, 2, 1)},
        {"keys": ["nonsense"]},
        {"keys": "1,1"},
        {"separator": "ab"},
        {"progress": 5},
    ]
    for options in wrong:
        with pytest.raises(dp.InvalidInput):
            dp.sort(folder / "in", folder / "out", **options)
    with pytest.raises(dp.NotFound):
        dp.sort(folder / "none", folder / "out")

    def fails(*_now):
        raise KeyError("of the caller")

    before = set(os.listdir(folder))
    with pytest.raises(KeyError, match="of the caller"):
        dp.sort(folder / "in", folder / "out", progress=fails)
    assert set(os.listdir(folder)) - before <= {"out"}


def test_checkpoint(folder, arrays):
    store = folder / "store"
    with pytest.raises(dp.NotFound):
        dp.checkpoint.list(store)
    with pytest.raises(dp.NotFound):
        dp.checkpoint.restore(store)
    arrays["strided"] = np.arange(100.0).reshape(10, 10)[:, ::3]
    report = dp.checkpoint.save(store, arrays)
    assert report.to_dict()["number"] == 1
    arrays["scalar"] = np.array(8)
    dp.checkpoint.save(store, arrays)
    for number in (None, 2):
        restored = dp.checkpoint.restore(store, number)
        assert set(restored) == set(arrays)
        for name, array in arrays.items():
            assert restored[name].dtype == array.dtype and np.array_equal(restored[name], array)
            assert restored[name].shape == array.shape
    assert dp.checkpoint.restore(store, 1)["scalar"] == 7
    assert [(one.number, one.damage) for one in dp.checkpoint.list(store)] == [(1, None), (2, None)]
    dp.checkpoint.save(store, {}, keep=1)
    assert [one.number for one in dp.checkpoint.list(store)] == [3] and dp.checkpoint.restore(store) == {}
    for wrong in ({"a": np.array([{}], object)}, {"a": np.zeros(3, [("x", "i4")])}, {5: np.zeros(3)}):
        with pytest.raises((dp.Unsupported, dp.InvalidInput)):
            dp.checkpoint.save(store, wrong)
    with pytest.raises(dp.InvalidInput):
        dp.checkpoint.save(store, arrays, keep=0)


def test_a_damaged_checkpoint_is_corrupt(folder):
    dp.checkpoint.save(folder, {"a": np.arange(1 << 18)})
    path = dp.checkpoint.list(folder)[0].path
    whole = bytearray(open(path, "rb").read())
    whole[5000] ^= 1
    with open(path, "r+b") as file:
        file.write(whole)
    with pytest.raises(dp.Corrupt):
        dp.checkpoint.restore(folder)
    with open(path, "r+b") as file:
        file.truncate(10_000)
    with pytest.raises(dp.Corrupt):
        dp.checkpoint.restore(folder)
    assert dp.checkpoint.list(folder)[0].damage


def test_ctrl_c_stops_a_sort(folder):
    program = """
import _thread, os, sys, datapipes as dp
def progress(total, read, written):
    _thread.interrupt_main()
try:
    dp.sort(sys.argv[1], sys.argv[2], format="u64", progress=progress)
except KeyboardInterrupt:
    print("stopped")
"""
    np.random.default_rng(1).integers(0, 1 << 60, 40_000_000, np.uint64).tofile(folder / "in")
    command = [sys.executable, "-c", program, str(folder / "in"), str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)
    assert os.listdir(folder) == ["in"]


def test_a_name_that_no_text_has_is_refused(folder):
    with pytest.raises(dp.InvalidInput):
        dp.checkpoint.save(folder / "store", {"\udc80": np.zeros(3)})
    assert not (folder / "store").exists()


def test_npy_of_version_3(folder):
    array = np.zeros(3, np.dtype([("\u5b57", "<i4"), ("b", "<f8")]))
    array["\u5b57"] = [1, 2, 3]
    with pytest.warns(UserWarning, match="3.0"):
        np.save(folder / "a.npy", array)
    assert (folder / "a.npy").read_bytes()[6:8] == b"\x03\x00"
    loaded = dp.load_npy(folder / "a.npy")
    assert loaded.dtype == array.dtype and np.array_equal(loaded, array)
    # What is no header of it.
    whole = (folder / "a.npy").read_bytes()
    for bad in (whole[:9], whole[:40], whole[:12] + b"\xff" + whole[13:], whole[:12] + b"(" * 60_000):
        (folder / "b.npy").write_bytes(bad)
        with pytest.raises(dp.Corrupt):
            dp.load_npy(folder / "b.npy")

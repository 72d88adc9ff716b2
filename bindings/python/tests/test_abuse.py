"""What a caller should not do, and what it may do as with files of Python."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys

import datapipes as dp
import numpy as np
import pytest

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.dtype("m8[h]")  # As unknown to the formats of buffers.

MIB = 1 << 20
BOUND = 60
"""No wait of these tests is longer, in seconds."""
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def path(folder, pattern):
    (folder / "file").write_bytes(pattern(4 * MIB))
    return folder / "file"


def run(program, *arguments, timeout=BOUND):
    """The output of a program that may hang or abort."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_of_all_kinds_of_numbers(path, pattern):
    for kind in ("M8[s]", np.dtype([("a", "i4"), ("b", "f4")]), bfloat16, "S3"):
        table = dp.rows(path, kind, np.int64(4), cache="4M")
        width = 4 * np.dtype(kind).itemsize
        for ids in ([0, 5], [5]):
            want = b"".join(pattern(4 * MIB)[row * width :][:width] for row in ids)
            assert table[ids].tobytes() == want
    for width in (0, -1, True, 1.0, "4", 1 << 64):
        with pytest.raises(dp.InvalidInput):
            dp.rows(path, "f4", width)
    table = dp.rows(path, "f4", 4, cache="4M")
    assert table[0, 3].tobytes() == table[[0, 3]].tobytes()
    for row in (1 << 64, [0, 1 << 70], -(1 << 70)):
        with pytest.raises(dp.OutOfRange):
            table[row]


def test_a_view_that_is_refused_may_collect_another_view(folder):
    program = """
import gc, io, datapipes as dp
buffer = dp.Buffer(4096).toreadonly()
fill = io.BytesIO(b"abc").readinto
class Node: pass
gc.disable()
gc.collect()
node = Node()
node.me, node.view = node, memoryview(buffer)
node = None
gc.set_threshold(1, 1000, 1000)
gc.enable()
try:
    fill(buffer)
except (BufferError, TypeError):
    gc.collect()
    print(buffer.exports)
"""
    assert run(program) == "0\n"


def test_references_to_objects_are_no_bytes(path, folder):
    objects = np.array([object(), "text"], dtype=object)
    records = np.zeros(2, dtype=[("O", "i4"), ("reference", object)])
    numbers = np.zeros(2, dtype=[("O", "i8")])
    with dp.open(path) as file, dp.open(folder / "out", "w") as out:
        for array in (objects, records):
            held = array.tolist()
            for use in (file.readinto, file.pread, lambda a: file.read_ranges([(0, a.nbytes)], out=a), out.write):
                with pytest.raises(dp.InvalidInput, match="references to objects"):
                    use(array)
            assert array.tolist() == held
        assert file.readinto(numbers) == 16


def test_lengths_of_objects_are_not_believed(path):
    class Lies(list):
        def __len__(self):
            return 1 << 62

    with dp.open(path) as file:
        with pytest.raises(TypeError):
            file.read_ranges(range(1 << 40))
        assert len(file.read_ranges(Lies([(0, 64), (7, 3)]))) == 67
        assert len(file.read_ranges((at, 1) for at in range(9))) == 9
        assert len(file.read_ranges([[0, 64], [7, 3]])) == 67
        assert len(file.read_ranges(np.array([[0, 64], [7, 3]]))) == 67
        for odd in ([(1,)], [(1, 2, 3)]):
            with pytest.raises(dp.InvalidInput, match="an offset and a length"):
                file.read_ranges(odd)


@forks
def test_a_child_does_not_await_a_transfer_of_the_parent(folder):
    (folder / "big").write_bytes(bytes(16 * MIB))
    program = """
import asyncio, os, sys, datapipes as dp
async def main():
    with dp.open(sys.argv[1]) as file:
        with open(sys.argv[1], "r+b") as other:
            os.fsync(other.fileno())
            os.posix_fadvise(other.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        waits = asyncio.ensure_future(file.pread_async(bytearray(16 << 20)))
        await asyncio.sleep(0)
        child = os.fork()
        if child == 0:
            try:
                await waits
            except dp.Forked:
                os._exit(0)
            os._exit(1)
        print(await asyncio.wait_for(waits, 30))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
asyncio.run(main())
"""
    assert run(program, folder / "big") == f"{16 * MIB}\n0\n"


def test_a_sort_refuses_what_it_would_ignore(folder):
    (folder / "in").write_bytes(bytes(800))
    record = {"format": "records", "record": (8, 0, 8)}
    for options in (
        {"format": "u64", "keys": ["1"]},
        {"format": "u64", "separator": ","},
        {**record, "keys": ["1"]},
        {**record, "separator": b","},
        {"memory": 1},
        {"memory": "1M"},
        {"memory": (16 << 20) - 1},
        {"separator": 5},
        {"separator": b"ab"},
        {"separator": "é"},
    ):
        with pytest.raises(dp.InvalidInput):
            dp.sort(folder / "in", folder / "out", **options)
    assert not (folder / "out").exists()
    (folder / "text").write_bytes(b"a,2\nb,1\n")
    for separator in (",", b","):
        dp.sort(folder / "text", folder / "out", keys=["2,2"], separator=separator, memory="16M")
        assert (folder / "out").read_bytes() == b"b,1\na,2\n"


def test_paths_of_all_kinds(folder):
    np.save(folder / "x.npy", np.arange(5))
    odd = os.fsencode(folder) + b"/odd-\xff.npy"
    with open(odd, "wb") as file:
        np.save(file, np.arange(5))

    class Bytes:
        def __fspath__(self):
            return odd

    names = (odd, os.fsdecode(odd), Bytes(), pathlib.Path(os.fsdecode(odd)), os.fsencode(folder / "x.npy"))
    for name in names:
        assert dp.load_npy(name).tolist() == dp.load_file(name)["array"].tolist() == list(range(5))
        assert dp.load_files([name])["array"][4] == 4 and [array[4] for _, array in dp.stream([name])] == [4]
        with dp.open(name) as file:
            assert isinstance(file.path, pathlib.Path) and os.fsencode(file.path) == os.fsencode(name)
            assert file.report().to_dict() == {"primitives": {}}
        assert len(dp.rows(name, "u1", 8)) == os.stat(name).st_size // 8
        assert str(dp.explain(name, "dram:1M"))
    assert str(dp.explain(b"ssd:" + odd, "dram:1M"))
    dp.sort(odd, odd + b".sorted")
    store, log = os.fsencode(folder / "store"), os.fsencode(folder / "log")
    dp.checkpoint.save(store, {"a": np.arange(3)})
    assert dp.checkpoint.restore(store)["a"][2] == 2 and len(dp.checkpoint.list(store)) == 1
    with dp.Log(log) as opened:
        opened.append_durable(b"x")
    assert list(dp.read_log(log)) == [(1, b"x")] and dp.examine_log(log)
    for one in (folder / "x.npy", str(folder / "x.npy"), odd):
        for call in (dp.load_files, dp.stream):
            with pytest.raises(dp.InvalidInput, match="one path"):
                call(one)
    for wrong in (5, None, object()):
        with pytest.raises(TypeError):
            dp.open(wrong)
        with pytest.raises(dp.InvalidInput):
            dp.explain(wrong, "dram:1M")


def test_errors_are_also_those_of_open(folder):
    (folder / "x").write_bytes(b"x")

    def check(call, kind, builtin, number, name):
        with pytest.raises(builtin) as caught:
            call()
        error = caught.value
        assert isinstance(error, kind) and error.errno == number and error.filename == str(name)
        assert error.strerror == os.strerror(number) and error.operation in str(error)
        again = pickle.loads(pickle.dumps(error))
        known = (type(error), str(error), error.filename, error.errno)
        assert (type(again), str(again), again.filename, again.errno) == known

    x, none = folder / "x", folder / "none"
    check(lambda: dp.open(x, "x"), dp.System, FileExistsError, 17, x)
    for mode in ("r", "r+", "w"):
        check(lambda mode=mode: dp.open(folder, mode), dp.Error, IsADirectoryError, 21, folder)
    check(lambda: dp.open(x / "y"), dp.NotFound, NotADirectoryError, 20, x / "y")
    for call in (lambda: dp.open(none), lambda: dp.load_npy(none)):
        check(call, dp.NotFound, FileNotFoundError, 2, none)

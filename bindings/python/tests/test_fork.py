"""What a child made by fork may use of its parent's objects: what is safe; else `Forked`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys

import datapipes as dp
import numpy as np
import pytest
from conftest import in_child

MIB = 1 << 20
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def path(folder, pattern):
    (folder / "file").write_bytes(pattern(4 * MIB))
    return folder / "file"


def test_files_are_read_and_the_parent_goes_on(path, pattern):
    expected = pattern(4 * MIB)
    with dp.open(path) as file:
        file.pread(bytearray(2 * MIB)).result(60)  # The runtime of the parent runs.
        under_way = [file.pread(bytearray(2 * MIB)) for _ in range(8)]

        def child():
            target = np.empty(MIB, np.uint8)
            for one in (file, dp.open(path)):
                assert one.readinto(target, 5) == MIB and target.tobytes() == expected[5 : MIB + 5]
                assert one.pread(target, 7).result(60) == MIB and target.tobytes() == expected[7 : MIB + 7]
            assert len(dp.load_file.__doc__) > 0
            for parents in under_way:
                with pytest.raises(dp.Forked):
                    parents.result(60)
                assert parents.done()
            under_way.clear()

            async def wait():
                return await file.pread_async(bytearray(100_000))

            assert asyncio.run(wait()) == 100_000

        in_child(child)
        assert [one.result(60) for one in under_way] == [2 * MIB] * 8


def test_a_loop_of_the_parent_is_refused(path):
    async def parent():
        with dp.open(path) as file:
            from datapipes._aio import notifier_of

            loop = asyncio.get_running_loop()
            notifier_of(loop)  # What is cached is read without it.
            await file.pread_async(bytearray(100_000))

            def child():
                with pytest.raises(dp.Forked):
                    file._start(bytearray(2 * MIB), 0, notifier_of(loop).notifier)

            in_child(child)
            assert await file.pread_async(bytearray(100_000)) == 100_000

    asyncio.run(parent())


def test_writes_of_the_child(path):
    file = dp.open(path, "r+")

    def child():
        assert file.write(b"Child", 0) == 5
        with dp.open(path, "r+") as own:
            assert own.write(b"c", 0) == 1
        file.close()

    in_child(child)
    assert bytes(memoryview(file.read(0, 5))) == b"child"


def test_views_and_buffers(path):
    buffer = dp.Buffer(100_000)
    view = np.asarray(buffer)
    view[:] = 1

    def child():
        view[:] = 2
        with pytest.raises(dp.Busy), dp.open(path) as file:
            file.readinto(buffer)
        with dp.open(path) as file:
            assert file.readinto(view) == 100_000
            assert file.readinto(dp.Buffer(100_000)) == 100_000

    in_child(child)
    assert (view == 1).all()


def test_rows_are_opened_again(path, pattern):
    table = np.frombuffer(pattern(4 * MIB), np.uint8).reshape(-1, 64)
    rows = dp.rows(path, "u1", 64, cache="4M")
    ids = np.arange(0, 60_000, 7)
    assert np.array_equal(rows[ids], table[ids])

    def child():
        assert np.array_equal(rows[ids], table[ids])

    in_child(child)
    in_child(child)
    assert np.array_equal(rows[ids], table[ids])


_rows = None


def _work(start):
    return int(_rows[np.arange(start, start + 100)].sum())


def test_workers_of_a_pool(path, pattern):
    """As workers of a DataLoader."""
    global _rows
    table = np.frombuffer(pattern(4 * MIB), np.uint8).reshape(-1, 64)
    _rows = dp.rows(path, "u1", 64, cache="4M")
    _work(0)
    starts = list(range(0, 60_000, 1000))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        sums = pool.map_async(_work, starts).get(120)
    assert sums == [int(table[start : start + 100].sum()) for start in starts]
    _rows = None


def test_a_child_that_ends_as_an_interpreter(path):
    file = dp.open(path)
    under_way = [file.pread(bytearray(2 * MIB)) for _ in range(8)]
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(sys.executable, [sys.executable, "-c", "import datapipes"])
    assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if child == 0:
        # What `atexit` calls, in a child that has none of the parent's threads.
        try:
            dp._datapipes._shutdown()
            del under_way, file
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert [one.result(60) for one in under_way] == [2 * MIB] * 8


def test_sort_and_checkpoint_in_a_child(folder):
    np.arange(1000, dtype=np.uint64)[::-1].tofile(folder / "in")
    dp.checkpoint.save(folder / "store", {"a": np.arange(5)})

    def child():
        dp.sort(folder / "in", folder / "out", format="u64")
        dp.checkpoint.save(folder / "store", {"a": dp.checkpoint.restore(folder / "store")["a"] + 1})

    in_child(child)
    assert np.fromfile(folder / "out", np.uint64)[0] == 0
    assert dp.checkpoint.restore(folder / "store")["a"].tolist() == [1, 2, 3, 4, 5]


def test_a_log_stays_the_parents(folder):
    with dp.Log(folder / "log") as log:
        log.append_durable(b"one")
        reader = iter(log)

        def work():
            for call in (lambda: log.append(b"x"), lambda: log.sync(), lambda: log.read(1), lambda: next(reader)):
                with pytest.raises(dp.Forked):
                    call()
            assert list(dp.read_log(folder / "log")) == [(1, b"one")]
            log.close()

        in_child(work)
        assert log.append_durable(b"two") == 2
    assert list(dp.read_log(folder / "log")) == [(1, b"one"), (2, b"two")]


@pytest.mark.parametrize("leaves", ["returns", "raises"])
def test_a_child_of_the_function_that_is_told_of_a_sort(folder, leaves):
    program = """
import os, sys, datapipes as dp
children = []
def progress(total, read, written):
    if not children:
        children.append(os.fork())
        if children[0] == 0 and sys.argv[3] == "raises":
            raise KeyError("child")
try:
    dp.sort(sys.argv[1], sys.argv[2], format="u64", progress=progress)
except dp.Forked if sys.argv[3] == "returns" else KeyError:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 1_000_000, np.uint64)
    numbers.tofile(folder / "in")
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder / "in"), str(folder / "out"), leaves]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("7\n", "", 0)
    assert (np.fromfile(folder / "out", np.uint64) == np.sort(numbers)).all()


def test_pipes_and_readers_of_logs_stay_the_parents(folder, path, pattern):
    buffer = dp.Buffer(4096)
    with dp.open(path) as file, dp.Log(folder / "log") as log:
        log.append_durable(b"one")
        pipe, reader = dp.connect(file, buffer), dp.read_log(folder / "log")

        def child():
            with pytest.raises(dp.Forked):
                pipe.transfer(0, 0, 64)
            with pytest.raises(dp.Forked):
                next(reader)

        in_child(child)
        pipe.transfer(0, 0, 64)
        assert next(reader) == (1, b"one")
    assert buffer.tobytes()[:64] == pattern(4 * MIB)[:64]


def test_loaded_arrays_and_streams_go_on_in_the_child(folder):
    arrays = [np.arange(500_000, dtype=np.float64) + at for at in range(3)]
    paths = [folder / f"{at}.npy" for at in range(3)]
    for one, array in zip(paths, arrays, strict=True):
        np.save(one, array)
    loaded = dp.load_file(paths[0], mapped=False)
    stream = dp.stream(paths)
    first = next(stream)[1]

    def rest():
        return [found for _, found in iter(lambda: next(stream, None), None)]

    def child():
        assert np.array_equal(loaded["array"], arrays[0]) and np.array_equal(first, arrays[0])
        assert "bytes" in str(loaded.report())
        # Each of both reads what is left of its own.
        assert [np.array_equal(a, b) for a, b in zip(arrays[1:], rest(), strict=True)] == [True, True]

    in_child(child)
    assert [np.array_equal(a, b) for a, b in zip(arrays[1:], rest(), strict=True)] == [True, True]

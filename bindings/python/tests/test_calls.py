"""How short, started and shared reads are carried out."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import datapipes as dp
import numpy as np
import pytest
from conftest import eventually, in_child
from datapipes import _aio

MIB = 1 << 20


def forget(path):
    """Has the page cache forget a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def path(folder, pattern):
    made = folder / "file"
    made.write_bytes(pattern(5 * MIB + 17))
    return made


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_an_empty_file_is_true(folder):
    with dp.open(folder / "empty", "w") as file:
        assert file and len(file) == 0
    assert file


def test_short_writes(folder, pattern):
    data = pattern(65537)
    for length in (1, 511, 4096, 65536, 65537):
        with dp.open(folder / "out", "w") as file:
            assert file.write(data[:length], 3) == length
            moved = file.report().to_dict()["primitives"]
            assert ("pwrite" in moved) == (length <= 65536), moved
            assert sum(of["bytes"] for of in moved.values()) == length
        assert (folder / "out").read_bytes() == bytes(3) + data[:length]
    with dp.open(folder / "out") as file, pytest.raises(dp.Error):
        file.write(b"x")
    with dp.open(folder / "out", "r+") as file:
        with pytest.raises(dp.OutOfRange):
            file.write(b"x", (1 << 63) - 1)
        with pytest.raises(dp.OutOfRange):
            file.write(b"x", (1 << 64) - 1)
        buffer = dp.Buffer(100)
        with memoryview(buffer), pytest.raises(dp.Busy):
            file.write(buffer)


def test_a_full_disk_is_told_of_short_writes(folder):
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
    program = limit + (
        "import sys, datapipes as dp\n"
        "file = dp.open(sys.argv[1], 'w')\n"
        "try: file.write(bytes(2000), 0)\n"
        "except dp.Error as error: print(error.errno, error.bytes_done, error.offset)"
    )
    done = subprocess.run([sys.executable, "-c", program, folder / "x"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "27 1000 1000\n", done.stdout + done.stderr


def test_what_cannot_be_written_leaves_no_folder(folder):
    program = """
import resource, signal, sys, datapipes as dp, numpy as np
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
for make in (dp.checkpoint.save, lambda name, _: dp.Log(name)):
    try:
        make(sys.argv[1] + "/new/deep", {"a": np.zeros(5000)})
    except dp.Error as error:
        print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
dp.Log(sys.argv[1] + "/log").close()
"""
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60)
    assert done.stdout == "27\n27\n", done.stdout + done.stderr
    assert os.listdir(folder) == ["log"]


def test_caches_hear_of_short_writes(folder):
    table = np.arange(1000 * 4, dtype="<f4").reshape(1000, 4)
    (folder / "table").write_bytes(table.tobytes())
    rows = dp.rows(folder / "table", "float32", 4, cache="4M")
    for _ in range(3):
        assert rows[[7, 8]].tolist() == table[[7, 8]].tolist()
    with dp.open(folder / "table", "r+") as file:
        file.write(np.full(4, -1, "<f4"), 7 * 16)
    assert rows[[7, 8]].tolist() == [[-1.0] * 4, table[8].tolist()]


@pytest.mark.parametrize("warm", [True, False])
def test_futures_of_all_lengths(path, pattern, warm):
    expected = pattern(5 * MIB + 17)
    lengths = (1, 511, 4096, 65536, 65537, 300_001, MIB, MIB + 1, 2 * MIB + 3)
    for own in (True, False):
        with dp.open(path) as file:
            for length in lengths:
                for offset in (0, 1, 4095, 10_007, 5 * MIB - 100):
                    if not warm:
                        forget(path)
                    target = dp.Buffer(length) if own else bytearray(length)
                    want = expected[offset : offset + length]
                    assert file.pread(target, offset).result(60) == len(want)
                    assert bytes(memoryview(target)[: len(want)]) == want


def test_more_futures_than_slots(path, pattern):
    expected = pattern(5 * MIB + 17)
    random = np.random.default_rng(3)
    forget(path)
    with dp.open(path) as file:
        asked = [(int(random.integers(0, 4 * MIB)), int(random.integers(1, 200_000))) for _ in range(400)]
        targets = [bytearray(length) for _, length in asked]
        under_way = [file.pread(target, at) for target, (at, _) in zip(targets, asked)]
        assert [one.result(60) for one in under_way] == [length for _, length in asked]
        assert all(target == expected[at : at + length] for target, (at, length) in zip(targets, asked))


def test_futures_share_a_pipe(path):
    with dp.open(path) as file:
        target = bytearray(100_000)
        forget(path)  # What the page cache has needs no pipe.
        file.pread(target).result(60)
        before = descriptors()
        under_way = []
        for _ in range(50):
            forget(path)
            under_way.append(file.pread(bytearray(100_000)))
        assert descriptors() < before + 10  # The runtime may make one of its own; a pipe has several.
        assert [one.result(60) for one in under_way] == [100_000] * 50
        del under_way
    gc.collect()
    eventually(lambda: descriptors() < before)


def test_a_future_holds_the_lease_of_its_buffer(path):
    buffer = dp.Buffer(100_000)
    with dp.open(path) as file:
        for _ in range(20):
            forget(path)
            under_way = file.pread(buffer)
            try:
                memoryview(buffer).release()
            except dp.Busy:
                pass  # Still under way.
            assert under_way.result(60) == 100_000
            memoryview(buffer).release()


def test_a_file_may_be_closed_with_futures_under_way(path, pattern):
    for _ in range(10):
        forget(path)
        file = dp.open(path)
        targets = [bytearray(50_000) for _ in range(100)]
        under_way = [file.pread(target, i * 40_000) for i, target in enumerate(targets)]
        file.close()
        del file
        assert [one.result(60) for one in under_way] == [50_000] * 100
    assert targets[3] == pattern(5 * MIB + 17)[120_000:170_000]


def test_a_child_has_pipes_of_its_own(path, pattern):
    expected = pattern(5 * MIB + 17)
    with dp.open(path) as file:
        forget(path)
        file.pread(bytearray(100_000)).result(60)
        file.pread(bytearray(1000), 4 * MIB).result(60)

        def work():
            for length in (1000, 100_000, 2 * MIB):
                forget(path)
                target = bytearray(length)
                assert file.pread(target, 5).result(30) == length
                assert target == expected[5 : 5 + length]
            file.close()

        in_child(work)
        target = bytearray(1000)
        assert file.pread(target, 9).result(60) == 1000 and target == expected[9:1009]


def test_a_loop_that_is_closed_amid_a_transfer_leaves_nothing(path):
    file = dp.open(path)

    async def begin():
        forget(path)
        task = asyncio.ensure_future(file.pread_async(bytearray(MIB)))
        await asyncio.sleep(0)
        return task

    def once():
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(begin())
        task._log_destroy_pending = False
        notifier = weakref.ref(_aio.notifier_of(loop))
        loop.close()
        return weakref.ref(loop), notifier

    once()
    before = descriptors()
    gone = [once() for _ in range(10)]
    gc.collect()
    assert all(loop() is None and notifier() is None for loop, notifier in gone)

    def is_gone():
        file.pread(bytearray(2 * MIB)).result(60)  # Whoever reads next lets go of what is done.
        return descriptors() <= before + 1

    eventually(is_gone)


def test_a_loop_awaits_one_read_after_the_other(path):
    """A transfer that is done before anybody waits is told later, and must not end another."""

    async def many():
        target = bytearray(256 << 10)
        for at in range(500):
            forget(path)  # What the page cache has is read at once.
            assert await file.pread_async(target, at % 4 * len(target)) == len(target)

    with dp.open(path) as file:
        asyncio.run(many())


def test_what_is_cached_is_read_at_once(path, pattern):
    path.read_bytes()
    with dp.open(path) as file:
        target = bytearray(4096)
        assert file.pread(target, 8192).done() and target == pattern(5 * MIB + 17)[8192:12288]
        before, most = descriptors(), bytearray(MIB)
        assert file.pread(most, 1).done() and most == pattern(5 * MIB + 17)[1 : MIB + 1]
        assert descriptors() == before  # No pipe was made for it.

        async def read():
            return await file.pread_async(target, 1)

        assert asyncio.run(read()) == 4096 and target == pattern(5 * MIB + 17)[1:4097]


def test_several_cores_read_what_is_cached(folder, pattern):
    data = pattern(64 * MIB + 4321)
    path = folder / "large"
    path.write_bytes(data)
    with dp.open(path) as file:
        for offset in (0, 10_007):
            buffer = file.read(offset)
            assert memoryview(buffer) == memoryview(data)[offset:]
            del buffer
        moved = file.report().to_dict()["primitives"]
        assert sum(of["bytes"] for of in moved.values()) == 2 * len(data) - 10_007
        if len(os.sched_getaffinity(0)) > 1:
            assert set(moved) == {"pread-cached"} and moved["pread-cached"]["transfers"] == 17
        array = np.zeros(40 * MIB, np.uint8)
        assert file.readinto(array, 3) == 40 * MIB
        assert array.tobytes() == data[3 : 3 + 40 * MIB]
        busy = dp.Buffer(40 * MIB)
        with memoryview(busy), pytest.raises(dp.Busy):
            file.readinto(busy)
        assert threading.active_count() == 1


def test_uvloop(path, pattern):
    uvloop = pytest.importorskip("uvloop")
    file, expected = dp.open(path), pattern(5 * MIB + 17)

    async def many():
        forget(path)

        async def read(at):
            target = bytearray(70_000)
            assert await file.pread_async(target, at) == 70_000
            assert target == expected[at : at + 70_000]

        await asyncio.gather(*(read(i * 10_007) for i in range(64)))

    for _ in range(3):
        uvloop.run(many())


def test_a_miss_is_not_read_twice(path, pattern):
    """After a read that missed the page cache, the next ones that miss do not begin to fill it."""
    with dp.open(path) as file:
        forget(path)
        if file.cached_share() != 0.0:
            pytest.skip("the file system keeps its files in memory, or the kernel does not tell")
        target = bytearray(4096)
        file.pread(target, 0).result(60)

        def is_forgotten():
            forget(path)  # What is being read ahead stays.
            return file.cached_share() == 0.0

        eventually(is_forgotten)
        for at in range(1, 40):
            assert file.pread(target, at * 65536).result(60) == 4096
            assert target == pattern(5 * MIB + 17)[at * 65536 :][:4096]
        assert file.cached_share() < 0.05
        path.read_bytes()
        for at in range(40):  # What is cached is read at once again.
            assert file.pread(target, at * 65536).done()


def test_a_loop_watches_one_read_itself(path, pattern):
    """Reads of many lengths, offsets and loops, one at a time and several, are whole."""
    expected = pattern(5 * MIB + 17)

    async def read(file, at, length):
        target = bytearray(length)
        found = await file.pread_async(target, at)
        assert found == len(expected[at : at + length]) and target[:found] == expected[at : at + length], (at, length)

    async def many(file):
        forget(path)
        random = np.random.default_rng(3)
        for _ in range(60):
            await read(file, int(random.integers(0, 5 * MIB + 17)), int(random.integers(0, 70_000)))
        forget(path)
        places = [(int(random.integers(0, 5 * MIB)), int(random.integers(1, 70_000))) for _ in range(64)]
        await asyncio.gather(*(read(file, *place) for place in places))
        assert await file.pread_async(bytearray(10), 5 * MIB + 17) == 0
        assert await file.pread_async(bytearray(10), 1 << 40) == 0

    before = descriptors()
    with dp.open(path) as file:
        for _ in range(3):
            asyncio.run(many(file))
        threads = [threading.Thread(target=lambda: asyncio.run(many(file))) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    gc.collect()
    assert descriptors() <= before + 8  # Those of the runtime, which a process starts once.


def test_a_read_that_its_loop_watches_outlives_the_loop(path):
    """A target is busy until its read is done, whoever asks for that after the loop is gone."""
    file, target = dp.open(path), dp.Buffer(4096)

    async def begin():
        forget(path)
        asyncio.ensure_future(file.pread_async(target, MIB))
        await asyncio.sleep(0)

    for _ in range(50):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()
        gc.collect()

        def is_read():
            try:
                return file.pread(target, 0).result(60) == 4096
            except dp.Busy:
                return False

        eventually(is_read)


@pytest.mark.parametrize("how", ["cold", "cold, many files", "cached", "cached, a future", "at the end"])
def test_reads_that_are_done_at_once_let_the_loop_go_on(path, pattern, how):
    """Cached reads, and quick ones, need no turn of the loop, which has one every millisecond or so all the same."""
    expected = pattern(5 * MIB + 17)

    async def read_until(files, few, reads):
        """Reads until another task had a few turns, which no number of reads keeps from it."""
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        target = bytearray(4096)
        for at in range(reads):
            if turns >= few:
                break
            offset = at % 1200 * 4096 + 1
            if "cold" in how and at % 1200 == 0:
                forget(path)
            if how == "at the end":
                assert await files[0].pread_async(target, len(expected)) == 0
                continue
            if "future" in how:
                assert await files[0].pread(target, offset) == 4096
            else:
                assert await files[at % len(files)].pread_async(target, offset) == 4096
            assert target == expected[offset:][:4096]
        beside.cancel()
        return turns

    files = [dp.open(path) for _ in range(50 if "many" in how else 1)]
    if "cold" not in how:
        path.read_bytes()
    else:
        forget(path)
        if files[0].cached_share() != 0.0:
            pytest.skip("the file system keeps its files in memory, or the kernel does not tell")
    assert asyncio.run(read_until(files, 8, 1_000_000)) >= 8
    for file in files:
        file.close()


def test_a_result_that_nobody_takes_is_not_under_way(path):
    """A read that is done, and whose result was not taken, is no reason to go by way of the loop."""
    with dp.open(path) as file:
        forget(path)
        if file.cached_share() != 0.0:
            pytest.skip("the file system keeps its files in memory, or the kernel does not tell")
        kept = file.pread(bytearray(2 * MIB), 0)
        while not kept.done():
            time.sleep(0.001)

        async def suspended():
            """How many of 500 cold reads go by way of the loop: those are told to its notifier."""
            notifier, told = _aio.notifier_of(asyncio.get_running_loop()), 0
            wait = notifier.wait

            def counted(*arguments):
                nonlocal told
                told += 1
                return wait(*arguments)

            notifier.wait = counted
            for at in range(500):
                await file.pread_async(bytearray(4096), (at + 600) * 4096)
            return told

        # Only some reads are looked for, and a disk may be quick in one half alone.
        for _ in range(6):
            with_it = asyncio.run(suspended())
            kept.result()
            forget(path)
            if with_it < 500 or asyncio.run(suspended()) == 500:
                return
            kept = file.pread(bytearray(2 * MIB), 0)
            while not kept.done():
                time.sleep(0.001)
            forget(path)
        raise AssertionError("a result that nobody took switched it off")


def test_a_child_leaves_the_read_that_the_parents_loop_watches(path, pattern):
    async def many(file):
        for at in range(20):
            forget(path)
            target = bytearray(4096)
            pending = asyncio.ensure_future(file.pread_async(target, at * 4096))
            await asyncio.sleep(0)
            if at % 5 == 0:

                def work():
                    gc.collect()
                    own = bytearray(4096)
                    assert file.pread(own, 4096).result(30) == 4096
                    file.close()

                in_child(work)
            assert await pending == 4096 and target == pattern(5 * MIB + 17)[at * 4096 :][:4096]

    with dp.open(path) as file:
        asyncio.run(many(file))


def test_anyio(path, pattern):
    anyio = pytest.importorskip("anyio")
    file, expected = dp.open(path), pattern(5 * MIB + 17)

    async def read(at):
        target = bytearray(70_000)
        assert await file.pread_async(target, at) == 70_000
        assert target == expected[at : at + 70_000]

    async def many():
        forget(path)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for at in range(32):
                    group.start_soon(read, at * 10_007)
        # A scope that is cancelled stops waiting, and the read goes on.
        with anyio.move_on_after(0):
            forget(path)
            await file.pread_async(bytearray(MIB), 0)

    anyio.run(many, backend="asyncio")

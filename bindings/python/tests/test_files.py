"""Files and buffers: what is moved, who holds the bytes, what is refused."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref

import datapipes as dp
import numpy as np
import pytest

MIB = 1 << 20


@pytest.fixture
def file(folder, pattern):
    path = folder / "file"
    path.write_bytes(pattern(3 * MIB + 17))
    with dp.open(path) as opened:
        yield opened


def test_readinto_fills_what_has_a_buffer(file, pattern):
    expected = pattern(3 * MIB + 17)
    for length in (1, 100, 65536, 65537, 2 * MIB + 3):
        for offset in (0, 1, 4096, 10_007):
            want = expected[offset : offset + length]
            own, array, text = dp.Buffer(length), np.zeros(length, np.uint8), bytearray(length)
            for target in (own, array, text, memoryview(bytearray(length))):
                assert file.readinto(target, offset) == len(want)
                assert bytes(memoryview(target)[: len(want)]) == want
    numbers = np.zeros((4, 8), "<f8")
    assert file.readinto(numbers, 8) == 256
    assert numbers.tobytes() == expected[8:264]


def test_read_ends_at_the_end(file, pattern):
    expected = pattern(3 * MIB + 17)
    assert bytes(memoryview(file.read())) == expected
    assert bytes(memoryview(file.read(3 * MIB, 1000))) == expected[3 * MIB :]
    assert len(file.read(1 << 60, 10)) == 0
    assert len(file.read(0, 0)) == 0
    assert file.readinto(bytearray(5), 1 << 60) == 0
    assert file.readinto(bytearray(0)) == 0
    assert len(file) == file.size() == 3 * MIB + 17


def test_what_is_read_at_an_odd_offset_does_not_bounce(folder, pattern):
    path = folder / "odd"
    path.write_bytes(pattern(8 * MIB))
    with open(path, "rb") as written:
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with dp.open(path) as file:
        buffer = file.read(10_007, 7 * MIB)
        assert bytes(memoryview(buffer)) == pattern(8 * MIB)[10_007 : 10_007 + 7 * MIB]
        assert buffer.address % 4096 == 10_007 % 4096
        for counters in file.report().to_dict()["primitives"].values():
            assert counters["bounced_bytes"] < 2 * 4096
        assert str(7 * MIB) in str(file.report())


def test_write_and_read_back(folder, pattern):
    data = pattern(MIB + 5)
    own = dp.Buffer(len(data))
    memoryview(own)[:] = data
    for source in (data, bytearray(data), np.frombuffer(data, np.uint8), own):
        with dp.open(folder / "out", "w") as file:
            assert file.write(source, 100) == len(data)
            assert file.write(b"", 5) == 0
            file.fsync()
            assert bytes(memoryview(file.read(100))) == data
        assert (folder / "out").read_bytes() == bytes(100) + data
    with dp.open(folder / "out", "r+") as file:
        file.truncate(10)
        assert file.size() == 10


def test_ranges_are_read_one_behind_the_other(file, pattern):
    expected = pattern(3 * MIB + 17)
    random = np.random.default_rng(1)
    ranges = [(int(at), int(n)) for at, n in zip(random.integers(0, 3 * MIB, 500), random.integers(0, 17, 500))]
    want = b"".join(expected[at : at + n] for at, n in ranges)
    assert bytes(memoryview(file.read_ranges(ranges))) == want
    out = bytearray(len(want))
    assert file.read_ranges(ranges, out=out) is out
    assert out == want
    assert len(file.read_ranges([])) == 0
    with pytest.raises(dp.InvalidInput, match="bytes to fill"):
        file.read_ranges([(0, 10)], out=bytearray(11))
    with pytest.raises(dp.EndOfFile, match="span 1") as caught:
        file.read_ranges([(0, 10), (3 * MIB, 100)])
    assert caught.value.offset == 3 * MIB + 17 and isinstance(caught.value, EOFError)
    with pytest.raises(dp.InvalidInput):
        file.read_ranges([(0, 1 << 63), (0, 1 << 63)])
    with pytest.raises((dp.OutOfMemory, dp.OutOfRange)):
        file.read_ranges([(0, 1 << 62)])


def test_errors_say_what_python_expects(folder):
    with pytest.raises(FileNotFoundError) as caught:
        dp.open(folder / "none")
    error = caught.value
    assert isinstance(error, dp.NotFound) and isinstance(error, dp.Error) and error.errno == 2
    assert error.kind == "NotFound" and "none" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.errno, again.kind) == (dp.NotFound, str(error), 2, "NotFound")
    for name in dp.__all__:
        kind = getattr(dp, name)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            assert issubclass(kind, OSError)
    assert issubclass(dp.OutOfMemory, MemoryError) and issubclass(dp.InvalidInput, ValueError)
    with pytest.raises(MemoryError):
        dp.Buffer(1 << 60)
    with pytest.raises(ValueError):
        dp.open(folder / "none", "a")
    with pytest.raises(TypeError):
        dp.open(3)
    with pytest.raises(dp.InvalidInput):
        dp.open(folder)


def test_a_full_device_is_no_space():
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with pytest.raises(dp.InvalidInput):
        dp.open("/dev/full", "r+")


def test_use_after_close(folder):
    file = dp.open(folder / "x", "w")
    file.close()
    file.close()
    assert file.closed and "closed" in repr(file)
    calls = [
        lambda: file.read(),
        lambda: file.readinto(bytearray(1)),
        lambda: file.write(b"x"),
        lambda: file.pread(bytearray(1)),
        lambda: file.read_ranges([(0, 1)]),
        lambda: file.fsync(),
        lambda: file.size(),
        lambda: file.fileno(),
        lambda: file.truncate(0),
        lambda: file.buffer_for(0, 1),
        lambda: file.__enter__(),
        lambda: dp.explain(file, "dram:1M"),
        lambda: asyncio.run(file.pread_async(bytearray(1))),
    ]
    for call in calls:
        with pytest.raises(dp.InvalidInput, match="is closed"):
            call()


def test_buffers_that_cannot_be_used(file):
    for target in (b"constant", np.zeros(4, np.uint8).tobytes(), dp.Buffer(4).toreadonly()):
        with pytest.raises(dp.InvalidInput, match="read-only"):
            file.readinto(target)
        with pytest.raises(dp.InvalidInput, match="read-only"):
            file.pread(target)
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(dp.InvalidInput, match="read-only"):
        file.readinto(frozen)
    with pytest.raises(dp.InvalidInput, match="side by side"):
        file.readinto(np.zeros((8, 8))[:, ::2])
    for target in (None, 5, "text", [1, 2]):
        with pytest.raises(TypeError):
            file.readinto(target)
    for offset in (-1, 1 << 64, 1.5, "0"):
        with pytest.raises((OverflowError, TypeError)):
            file.readinto(bytearray(1), offset)
    with pytest.raises(dp.Error):
        file.write(b"read only file")


def test_views_hold_the_lease(file):
    buffer = dp.Buffer(100_000)
    array = np.asarray(buffer)
    assert array.dtype == np.uint8 and array.shape == (100_000,) and array.flags.writeable
    assert array.ctypes.data == buffer.address and buffer.exports == 1
    second = memoryview(buffer)
    assert buffer.exports == 2
    with pytest.raises(dp.Busy) as caught:
        file.readinto(buffer)
    assert isinstance(caught.value, BufferError)
    with pytest.raises(dp.Busy):
        file.readinto(buffer.part(10, 10))
    with pytest.raises(dp.Busy):
        np.asarray(buffer.part(10, 10))
    assert file.readinto(array) == 100_000  # By the view, whose owner we are.
    array[0] = 1
    assert second[0] == 1
    del array
    second.release()
    assert buffer.exports == 0
    assert file.readinto(buffer) == 100_000


def test_read_only_views_are_shared(folder):
    buffer = dp.Buffer(70_000)
    memoryview(buffer)[:3] = b"abc"
    fixed = buffer.toreadonly()
    with memoryview(fixed) as view, dp.open(folder / "x", "w") as file:
        assert view.readonly and view[:3] == b"abc" and fixed.address == buffer.address
        assert file.write(buffer) == 70_000  # Readers share.
        with memoryview(buffer.toreadonly()):
            pass
        with pytest.raises(dp.Busy):
            file.readinto(buffer)
        with pytest.raises(dp.Busy):
            memoryview(buffer)
        with pytest.raises(TypeError):
            view[0] = 1
    memoryview(buffer).release()
    with pytest.raises((BufferError, TypeError)):
        ctypes.c_char.from_buffer(fixed)


def test_memory_lives_as_long_as_its_views():
    buffer = dp.Buffer(1 << 20)
    gone = weakref.ref(buffer)
    array = np.frombuffer(buffer, np.int64)
    array[:] = 5
    del buffer
    gc.collect()
    assert gone() is not None and array.sum() == 5 * (1 << 17)
    del array
    assert gone() is None


def test_dlpack_shares_the_memory(file, pattern):
    buffer = file.read(0, 100_000)
    array = np.from_dlpack(buffer)
    assert array.ctypes.data == buffer.address and buffer.__dlpack_device__() == (1, 0)
    assert array.tobytes() == pattern(3 * MIB + 17)[:100_000]
    assert buffer.exports == 1
    del array
    assert buffer.exports == 0

    class OnlyDlpack:
        """As a tensor without the buffer protocol."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    target = np.zeros(50_000, np.uint8)
    assert file.readinto(OnlyDlpack(target), 3) == 50_000
    assert target.tobytes() == pattern(3 * MIB + 17)[3:50_003]


def test_an_array_of_a_busy_buffer_is_an_error_and_no_object_array():
    buffer = dp.Buffer(10)
    whole = buffer.part(0, 10)
    view = memoryview(whole)
    with pytest.raises(BufferError):
        np.asarray(buffer)
    view.release()
    assert np.asarray(buffer).shape == (10,)
    assert np.array(buffer, np.float32).dtype == np.float32


def test_parts_and_lengths():
    buffer = dp.Buffer(100)
    part = buffer.part(90, 10)
    assert part.address == buffer.address + 90 and len(part) == part.nbytes == 10
    for offset, length in ((91, 10), (101, 0), (0, 101), ((1 << 64) - 1, 2)):
        with pytest.raises(dp.OutOfRange):
            buffer.part(offset, length)
    assert len(dp.Buffer(0)) == 0 and np.asarray(dp.Buffer(0)).size == 0
    for length in (-1, 1 << 64, 1.5):
        with pytest.raises((OverflowError, TypeError)):
            dp.Buffer(length)


def test_a_buffer_has_bytes_and_slices():
    buffer = dp.Buffer(10)
    memoryview(buffer)[:] = bytes(range(10))
    assert buffer.tobytes() == bytes(range(10)) and list(buffer) == list(range(10))
    assert (buffer[0], buffer[-1], buffer[np.int64(3)]) == (0, 9, 3)
    part = buffer[2:-2]
    assert isinstance(part, dp.Buffer) and part.address == buffer.address + 2 and part.tobytes() == bytes(range(2, 8))
    memoryview(part)[:2] = b"ab"
    assert buffer.tobytes()[2:4] == b"ab" and buffer[5:5].tobytes() == b"" and len(buffer[:]) == 10
    for at in (10, -11):
        with pytest.raises(IndexError):
            buffer[at]
    with pytest.raises(dp.InvalidInput):
        buffer[::2]
    with pytest.raises(TypeError):
        buffer["x"]


def test_futures(file, pattern):
    expected = pattern(3 * MIB + 17)
    targets = [(bytearray(100_000), i * 50_001) for i in range(32)]
    under_way = [file.pread(target, at) for target, at in targets]
    assert [one.result(60) for one in under_way] == [100_000] * 32
    for target, at in targets:
        assert target == expected[at : at + 100_000]
    assert under_way[0].done() and under_way[0].exception() is None and under_way[0].result() == 100_000
    end = file.pread(bytearray(100), 3 * MIB)
    assert end.result() == 17
    assert file.pread(bytearray(0)).result() == 0
    bytearray_is_free = targets[0][0]
    bytearray_is_free.append(1)  # A buffer that is held cannot grow.


def test_a_future_that_is_dropped_keeps_its_buffer(file):
    target = bytearray(2 * MIB)
    for _ in range(20):
        file.pread(target)
        gc.collect()
    file.pread(bytearray(1)).result(60)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            target.append(1)
            break
        except BufferError:  # Still held by a transfer under way.
            file.pread(bytearray(1)).result(60)
    assert len(target) == 2 * MIB + 1


def test_a_future_of_a_busy_buffer(file):
    buffer = dp.Buffer(100_000)
    view = memoryview(buffer)
    with pytest.raises(dp.Busy):
        file.pread(buffer).result(60)
    view.release()
    assert file.pread(buffer).result(60) == 100_000


def test_asyncio(file, pattern):
    expected = pattern(3 * MIB + 17)
    threads = threading.active_count()

    async def read(at):
        target = bytearray(70_000)
        assert await file.pread_async(target, at) == 70_000
        assert target == expected[at : at + 70_000]

    async def many():
        await asyncio.gather(*(read(i * 10_007) for i in range(64)))
        with pytest.raises(dp.InvalidInput):
            await file.pread_async(b"constant")
        assert await file.pread_async(bytearray(0)) == 0

    for _ in range(3):
        asyncio.run(many())
    assert threading.active_count() == threads  # No thread of Python polls.


def test_asyncio_cancelled(file):
    async def cancel():
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        task = asyncio.ensure_future(file.pread_async(bytearray(3 * MIB)))
        await asyncio.sleep(0)
        under_way = task.cancel()  # It may be done already.
        if under_way:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await file.pread_async(bytearray(100_000)) == 100_000
        return under_way

    assert any(asyncio.run(cancel()) for _ in range(500))


def test_a_pending_transfer_is_awaited(file, pattern):
    expected = pattern(3 * MIB + 17)

    async def wait(pending):
        return await pending

    async def one(round):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        target = bytearray(3 * MIB)
        pending = file.pread(target, 5)
        tasks = [asyncio.ensure_future(wait(pending)) for _ in range(3)]
        await asyncio.sleep(0)
        # One task that gives up leaves the transfer to the others.
        was_cancelled = not tasks[1].done() and tasks[1].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert ends[0] == ends[2] == 3 * MIB
        assert isinstance(ends[1], asyncio.CancelledError) if was_cancelled else ends[1] == 3 * MIB
        assert target == expected[5 : 5 + 3 * MIB]
        assert await pending == 3 * MIB == pending.result()  # As often as one likes.
        return was_cancelled

    async def many():
        return [await one(round) for round in range(100)]

    assert any(asyncio.run(many()))


def test_the_error_of_a_transfer_comes_to_all_who_await_it(folder):
    path = folder / "short"
    path.write_bytes(bytes(8 * MIB))
    with dp.open(path) as file:

        async def read():
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            pending = file.pread(bytearray(8 * MIB))
            os.truncate(path, 4096)
            return await asyncio.gather(*(asyncio.wait_for(pending, 60) for _ in range(2)), return_exceptions=True)

        ends = asyncio.run(read())
        if ends[0] != 8 * MIB:  # It was not read before the file became shorter.
            assert all(isinstance(end, dp.EndOfFile) for end in ends), ends


def test_many_threads_use_one_file(file, pattern):
    expected = pattern(3 * MIB + 17)
    failed = []

    def work(seed):
        try:
            random = np.random.default_rng(seed)
            for _ in range(40):
                at, n = int(random.integers(0, 2 * MIB)), int(random.integers(1, 200_000))
                target = np.empty(n, np.uint8)
                assert file.readinto(target, at) == n
                assert target.tobytes() == expected[at : at + n]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed


def test_the_lock_is_released(file):
    """Another thread runs while this one is in a transfer; a lock held would count nothing."""
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        target = dp.Buffer(3 * MIB)
        before = counted[0]
        until = time.monotonic() + 60
        while counted[0] == before and time.monotonic() < until:
            file.readinto(target)
        assert counted[0] > before
    finally:
        stop.set()
        thread.join(60)


def test_nothing_is_left_behind(file):
    target, own = np.zeros(100_000, np.uint8), dp.Buffer(100_000)

    def once():
        file.readinto(target)
        file.readinto(own)
        file.pread(target).result(60)
        np.asarray(own)
        np.from_dlpack(own)
        file.read_ranges([(0, 5), (9, 70_000)], out=target[:70_005])
        with pytest.raises(dp.InvalidInput):
            file.readinto(b"x")

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        once()
    references, open_ones = sys.getrefcount(target), descriptors()
    for _ in range(30):
        once()
    gc.collect()
    assert sys.getrefcount(target) == references
    assert own.exports == 0
    assert descriptors() <= open_ones + 2


def test_cycles_are_collected(folder):
    class Holder:
        pass

    (folder / "x").write_bytes(b"x" * 100)
    gone = []
    for _ in range(5):
        holder = Holder()
        holder.file, holder.buffer = dp.open(folder / "x"), dp.Buffer(100)
        holder.view, holder.me = np.asarray(holder.buffer), holder
        gone.append(weakref.ref(holder.buffer))
    del holder
    gc.collect()
    assert all(ref() is None for ref in gone)


EXITS = """
import sys, datapipes as dp
file = dp.open(sys.argv[1])
kept = [file.pread(dp.Buffer(3 << 20)) for _ in range(30)]
foreign = [file.pread(bytearray(3 << 20)) for _ in range(30)]
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "del kept, foreign", "import gc; gc.disable()"])
def test_an_interpreter_may_end_with_transfers_in_flight(file, end):
    command = [sys.executable, "-X", "faulthandler", "-c", EXITS.format(end=end), str(file.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_explain_and_machine(file):
    buffer = dp.Buffer(1 << 20)
    for source, target in ((file, buffer), (str(file.path), "dram:1M"), (f"ssd:{file.path}?access=cached", buffer)):
        route = dp.explain(source, target)
        assert route.to_dict()["hops"][0]["primitive"] in str(route)
        assert route._repr_html_().startswith("<details") and "&gt;" in route._repr_html_()
    facts = dp.machine()
    assert facts.to_dict()["cores"] and str(facts)
    for wrong in ("tape:0", "numa:0?len=1M"):
        with pytest.raises(dp.Error):
            dp.explain(wrong, "dram:1M")
    with pytest.raises(dp.InvalidInput):
        dp.explain(5, "dram:1M")

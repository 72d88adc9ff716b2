"""What a caller should not do, and what it may do as with files of Python."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import time

import datapipes as dp
import numpy as np
import pytest
from conftest import in_child

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


def test_the_build_without_the_lock_is_refused_by_name():
    program = "import sys; sys.abiflags = 't'; import datapipes"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ImportError: datapipes does not support the free-threaded build of CPython" in done.stderr


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
    dated = np.zeros(2, dtype=[("reference", object), ("when", "M8[s]")])
    numbers = np.zeros(2, dtype=[("O", "i8")])
    with dp.open(path) as file, dp.open(folder / "out", "w") as out, dp.Log(folder / "log") as log:
        uses = (file.readinto, file.pread, lambda a: file.read_ranges([(0, 16)], out=a), out.write, log.append)
        for array in (objects, records, dated):
            held = array.tolist()
            for use in uses:
                with pytest.raises(dp.InvalidInput, match="references to objects"):
                    use(array)
            assert array.tolist() == held
        for use in uses:
            for array in (memoryview(objects), (ctypes.py_object * 2)(None, None)):
                with pytest.raises(dp.InvalidInput, match="references to objects"):
                    use(array)
        assert file.readinto(numbers) == 16


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double)]


def test_whatever_has_a_buffer_is_filled_and_written(folder, path, pattern):
    expected = pattern(4 * MIB)
    targets = [
        np.zeros(()),
        ctypes.c_int(),
        Point(),
        (ctypes.c_int * 4)(),
        (ctypes.c_int * 2 * 3)(),
        np.zeros(4, "M8[s]"),
        np.zeros((2, 3), "m8[ns]"),
        np.zeros(5, bfloat16),
        np.zeros((), bfloat16),
        np.zeros(3, [("a", "i4"), ("when", "M8[s]")]),
        np.zeros((3, 2), order="F").T,
    ]
    with dp.open(path) as file, dp.open(folder / "out", "w") as out, dp.Log(folder / "log") as log:
        for target in targets:

            def content(target=target):
                return target.tobytes() if isinstance(target, np.ndarray) else bytes(target)

            length = len(content())
            assert file.readinto(target, 3) == length and content() == expected[3 : 3 + length]
            assert file.pread(target, 5).result(BOUND) == length and content() == expected[5 : 5 + length]
            file.read_ranges([(7, length)], out=target)
            assert content() == expected[7 : 7 + length]
            assert out.write(target) == length
            assert bytes(memoryview(out.read(0, length))) == content()
            assert log.read(log.append_durable(target)) == content()
        for target in (np.zeros((4, 4), "M8[s]")[:, ::2], np.zeros(8, bfloat16)[::2], np.zeros(8)[::2]):
            with pytest.raises(dp.InvalidInput, match="contiguous|side by side"):
                file.readinto(target)
        for constant in (np.zeros(4, "M8[s]"), np.zeros(4)):
            constant.flags.writeable = False
            with pytest.raises(dp.InvalidInput, match="read-only"):
                file.readinto(constant)
        with pytest.raises(dp.InvalidInput, match="read-only"):
            file.readinto(b"constant")
        with pytest.raises(TypeError):
            file.readinto("text")


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


def _resizable(data):
    try:
        data.append(1)
        data.pop()
    except BufferError:
        return False
    return True


def _forget(path):
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _soon_resizable(data, file):
    """Whether it is free at once, or, where a thread is kept from letting it go, with a later call."""
    until = time.monotonic() + BOUND
    while not _resizable(data):
        if time.monotonic() > until:
            return False
        file.size()
    return True


def test_an_array_is_free_when_its_transfer_is_done(path):
    data = bytearray(3 * MIB)
    with dp.open(path) as file:
        for _ in range(300):
            assert file.pread(data).result(BOUND) == 3 * MIB
            assert _soon_resizable(data, file)

        async def main():
            for _ in range(300):
                assert await asyncio.wait_for(file.pread_async(data), BOUND) == 3 * MIB
                assert _soon_resizable(data, file)

        asyncio.run(main())


def test_an_array_of_a_dropped_transfer_is_free_with_the_next_call(path):
    data = bytearray(3 * MIB)
    with dp.open(path) as file:
        for _ in range(100):
            pending = file.pread(data)
            assert pending.exception(BOUND) is None
            pending = file.pread(data)
            del pending
            assert _soon_resizable(data, file)


@forks
def test_a_child_may_resize_what_transfers_of_the_parent_fill(path, pattern):
    data, abandoned = bytearray(4 * MIB), bytearray(4 * MIB)
    with dp.open(path) as file:
        _forget(path)
        pending = file.pread(data)
        file.pread(abandoned)

        def child():
            assert _resizable(data) and _resizable(abandoned)
            with pytest.raises(dp.Forked):
                pending.result(BOUND)
            with dp.open(path) as own:
                assert own.pread(data, 5).result(BOUND) == 4 * MIB - 5
            assert _resizable(data)

        in_child(child)
        in_child(child)
        assert pending.result(BOUND) == 4 * MIB
        assert data == pattern(4 * MIB) and _resizable(data)


@forks
def test_a_child_has_the_buffers_of_transfers_under_way(path, pattern):
    expected = pattern(4 * MIB)
    whole, other, plain = dp.Buffer(4 * MIB), dp.Buffer(4 * MIB), dp.Buffer(4096)
    part, constant = whole.part(MIB, MIB), other.toreadonly()
    view, shown = np.asarray(plain), memoryview(constant)
    with dp.open(path) as file:
        _forget(path)
        pending = file.pread(whole)

        def child():
            memoryview(whole)[:] = bytes(4 * MIB)
            with dp.open(path) as own:
                assert own.readinto(part, 5) == MIB
                assert bytes(memoryview(whole)[MIB : 2 * MIB]) == expected[5 : 5 + MIB]
                held = memoryview(part)
                with pytest.raises(dp.Busy):
                    own.readinto(whole)
                held.release()
                assert own.pread(whole).result(BOUND) == 4 * MIB and bytes(memoryview(whole)) == expected
                for leased in (plain, other):
                    with pytest.raises(dp.Busy):
                        own.readinto(leased)
                view[:] = 7
                assert (whole.exports, plain.exports, constant.exports) == (0, 1, 1)
                shown.release()
                assert own.readinto(other) == 4 * MIB
            with pytest.raises(dp.Forked):
                pending.result(BOUND)
            in_child(grandchild)

        def grandchild():
            with dp.open(path) as own:
                assert own.readinto(whole, 9) == 4 * MIB - 9
                with pytest.raises(dp.Busy):
                    own.readinto(plain)

        in_child(child)
        in_child(child)
        assert pending.result(BOUND) == 4 * MIB
        assert bytes(memoryview(whole)) == expected
        assert (view == 0).all()
        del view
        assert file.readinto(plain) == 4096


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


def test_a_long_header_costs_no_more_than_its_tensors(folder):
    empty = b'{"t":[' + b"[]," * 10_000_000 + b"[]]}"
    metadata = b'{"__metadata__":{' + b'"a":"b",' * 4_000_000 + b'"a":"b"}}'
    shape = b'{"t":{"dtype":"U8","shape":[' + b"1," * 10_000_000 + b'1],"data_offsets":[0,0]}}'
    nested = b'{"__metadata__":' + b"[" * 30_000_000
    program = """
import resource, sys, datapipes as dp
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(dict(dp.load_file(sys.argv[1])))
except dp.Corrupt:
    print("Corrupt")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 150 << 10, grown
"""
    for header, end in ((empty, "Corrupt"), (metadata, "{}"), (shape, "Corrupt"), (nested, "Corrupt")):
        (folder / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        assert run(program, folder / "x.safetensors") == f"{end}\n"


def test_a_header_is_bounded_as_by_its_own_reader(folder):
    path = folder / "x.safetensors"
    for length, why in ((100_000_000, "in a file of"), (100_000_001, "at most")):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(dp.Corrupt, match=why):
            dp.load_file(path)


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
    check(lambda: dp.rows(folder, "f4", 1), dp.Error, IsADirectoryError, 21, folder)
    check(lambda: dp.sort(x, folder), dp.Error, IsADirectoryError, 21, folder)
    check(lambda: dp.open(x / "y"), dp.NotFound, NotADirectoryError, 20, x / "y")
    check(lambda: dp.Log(x), dp.System, FileExistsError, 17, x)
    check(lambda: dp.checkpoint.save(x, {"a": np.zeros(1)}), dp.System, FileExistsError, 17, x)
    for call in (
        lambda: dp.open(none),
        lambda: dp.load_npy(none),
        lambda: dp.rows(none, "f4", 1),
        lambda: dp.sort(none, folder / "out"),
        lambda: dp.sort(none, folder / "out", format="u64"),
        lambda: dp.checkpoint.restore(none),
        lambda: dp.read_log(none),
        lambda: dp.examine_log(none),
    ):
        check(call, dp.NotFound, FileNotFoundError, 2, none)


def test_errors_name_the_file(folder):
    x, y = folder / "x", folder / "y"
    x.write_bytes(b"x")
    with dp.open(x) as file:
        for call in (lambda: file.write(b"y"), lambda: file.truncate(0), lambda: dp.connect(dp.Buffer(1), file)):
            with pytest.raises(dp.InvalidInput, match=f"{x} is open for reading only") as caught:
                call()
            assert "r+" in caught.value.advice and caught.value.filename == str(x)
        with pytest.raises(dp.EndOfFile) as caught:
            file.read_ranges([(0, 100)])
        assert caught.value.filename == str(x) and caught.value.strerror is None
    with pytest.raises(dp.InvalidInput, match="is closed") as caught:
        file.read(0, 1)
    assert caught.value.filename == str(x)
    assert x.read_bytes() == b"x"
    x.rename(folder / "x.safetensors")
    with pytest.raises(dp.Corrupt) as caught:
        dp.load_file(folder / "x.safetensors")
    assert caught.value.filename == str(folder / "x.safetensors")
    with dp.Log(y) as log:
        log.append_durable(b"the first record")
        log.append_durable(b"the second record")
    (segment,) = (part for part in y.rglob("*") if part.is_file() and b"the first" in part.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(b"the first", b"not first"))
    for call in (lambda: list(dp.read_log(y)), lambda: dp.Log(y)):
        with pytest.raises(dp.Corrupt) as caught:
            call()
        assert caught.value.filename == str(y)


def test_ranges_that_do_not_end_are_stopped(path):
    program = """
import itertools, os, resource, signal, sys, threading, datapipes as dp
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    dp.open(sys.argv[1]).read_ranges(itertools.repeat((0, 0)))
except KeyboardInterrupt:
    print("stopped")
"""
    assert run(program, path) == "stopped\n"
    with dp.open(path) as file:
        for text in (b"ab", "ab"):
            with pytest.raises(dp.InvalidInput, match="not a text"):
                file.read_ranges([text])


def limited(program, *arguments):
    """Run a program that may map little more than it has."""
    limit = (
        "import resource, sys\n"
        "import numpy as np, datapipes as dp\n"
        "{before}\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + {room}, used + {room}))\n"
    )
    before, room, work = program
    text = limit.format(before=before, room=room) + work
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_record_that_is_too_long_is_not_copied(folder):
    before = "log = dp.Log(sys.argv[1]); record = np.ones(300_000_000, np.uint8)"
    work = "try: log.append(record)\nexcept dp.InvalidInput as why: print(why)\n"
    done = limited((before, 200 << 20, work), folder / "log")
    assert "takes at most" in done.stdout, done.stdout + done.stderr


def test_a_record_of_a_lost_page_is_an_error(folder):
    program = (
        "import os, sys, numpy as np, datapipes as dp\n"
        "path = sys.argv[1] + '/mapped'\n"
        "np.zeros(100_000, np.uint8).tofile(path)\n"
        "array = np.memmap(path, np.uint8, 'r')\n"
        "log = dp.Log(sys.argv[1] + '/log')\n"
        "os.truncate(path, 0)\n"
        "try: log.append(array)\nexcept dp.Error as why: print(why.kind)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60)
    wanted = "Device\n" if os.uname().machine == "x86_64" else ""
    assert done.stdout == wanted, done.stdout + done.stderr


@pytest.mark.parametrize("length", [4096, 200_000])
@pytest.mark.parametrize("how", ["readinto", "pread", "await", "read_ranges", "save", "write"])
def test_an_array_whose_file_was_cut_off_is_an_error(folder, how, length):
    """As the target of a read, and as a source, in a process that has mapped nothing by this package."""
    calls = {
        "readinto": "file.readinto(array, 0)",
        "pread": "file.pread(array, 0).result(60)",
        "await": "asyncio.run(file.pread_async(array, 0))",
        "read_ranges": f"file.read_ranges([(0, {length})], array)",
        "save": "dp.checkpoint.save(sys.argv[1] + '/saved', {'a': array})",
        "write": "dp.open(sys.argv[1] + '/new', 'w').write(array)",
    }
    program = (
        "import asyncio, os, sys, numpy as np, datapipes as dp, datapipes.checkpoint\n"
        "path, read = sys.argv[1] + '/mapped', sys.argv[1] + '/read'\n"
        "np.ones(300_000, np.uint8).tofile(read)\n"
        f"np.zeros({length}, np.uint8).tofile(path)\n"
        "array, file = np.memmap(path, np.uint8, 'r+'), dp.open(read)\n"
        "os.truncate(path, 0)\n"
        "if {cold}: os.sync(); os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)\n"
        f"try: {calls[how]}\nexcept dp.Error as why: print(why.kind)\n"
    )
    wanted = "Device\n" if os.uname().machine == "x86_64" else ""
    for cold in (False, True):
        command = [sys.executable, "-c", program.replace("{cold}", str(cold)), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
        assert done.stdout == wanted, f"cold {cold}: {done.returncode} {done.stdout}{done.stderr}"


def test_memory_that_is_not_there_is_an_error(folder):
    (folder / "table").write_bytes(bytes(1 << 20))
    before = "table = dp.rows(sys.argv[1] + '/table', 'uint8', 1, cache='2M'); ids = np.zeros(40_000_000, np.int64)"
    before += "; out = np.empty((40_000_000, 1), np.uint8)"
    work = "try: table.gather(ids, out=out)\nexcept MemoryError as why: print('told')\n"
    done = limited((before, 100 << 20, work), folder)
    assert done.stdout == "told\n", done.stdout + done.stderr
    entry = b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b",".join(entry % i for i in range(400_000)) + b"}"
    (folder / "many.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    work = "try: dp.load_file(sys.argv[1] + '/many.safetensors')\nexcept MemoryError as why: print('told')\n"
    done = limited(("", 60 << 20, work), folder)
    assert done.stdout == "told\n", done.stdout + done.stderr


def test_types_and_texts_of_safetensors(folder):
    def file(header, payload=b""):
        text = json.dumps(header).encode()
        (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + payload)
        return folder / "x.safetensors"

    for kind in ("F4", "F6_E2M3", "F6_E3M2"):
        with pytest.raises(dp.Unsupported, match=kind):
            dp.load_file(file({"x": {"dtype": kind, "shape": [4], "data_offsets": [0, 2]}}, b"12"))
    with pytest.raises(dp.Corrupt):
        dp.load_file(file({"x": {"dtype": "F9", "shape": [1], "data_offsets": [0, 1]}}, b"1"))
    texts = {"format": "pt", "made by": "a test"}
    assert dp.load_file(file({"__metadata__": texts})).metadata == texts
    with pytest.raises(dp.Corrupt):
        dp.load_file(file({"__metadata__": {"format": 7}}))


def test_a_cache_has_no_more_memory_than_its_table(folder):
    (folder / "table").write_bytes(bytes(1 << 20))
    program = (
        "import resource, sys, datapipes as dp\n"
        "dp.machine()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "table = dp.rows(sys.argv[1], 'float32', 32, cache='1G')\n"
        "table[[1, 2, 3]]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, folder / "table"], capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 100 << 10, done.stdout + done.stderr  # In KiB.


def test_what_no_memory_has_is_refused_before_it_is_read(folder):
    path = folder / "hole.safetensors"
    header = json.dumps({"x": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    try:
        os.truncate(path, 8 + len(header) + (1 << 40))
    except OSError:
        pytest.skip("the file system has no files of 1 TiB")
    with pytest.raises(MemoryError):
        dp.load_file(path)
    with dp.open(path) as file, pytest.raises(MemoryError):
        file.read()


def test_files_whose_length_is_not_known():
    with dp.open("/proc/cpuinfo") as file:
        with pytest.raises(dp.Unsupported, match="length"):
            file.read()
        with pytest.raises(dp.Unsupported):
            file.readinto(bytearray(1 << 20))


def test_names_and_iterators(folder):
    path = folder / "X.NPY"
    with open(path, "wb") as out:
        np.save(out, np.arange(5))
    assert dp.load_file(path)["array"].tolist() == [0, 1, 2, 3, 4]
    stream = dp.stream([path])
    assert next(stream)[1].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(StopIteration):
        next(stream)
    (folder / "table").write_bytes(bytes(4000))
    assert "10 float32, 100 of them" in repr(dp.rows(folder / "table", "float32", 10, cache="2M"))


def test_a_subinterpreter_is_refused_and_keeps_nobody_from_ending():
    program = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
made = interpreters.create()
code = "try:\\n import datapipes\\nexcept ImportError as why:\\n print(why)"
interpreters.run_string(made, code) if hasattr(interpreters, "run_string") else interpreters.exec(made, code)
import datapipes
print("here", datapipes.Buffer(3))
"""
    said = run(program)
    # From 3.12 on, CPython refuses it with words of its own.
    assert "does not support" in said and "subinterpreters" in said and "here <datapipes.Buffer of 3 bytes>" in said, said

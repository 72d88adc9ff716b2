"""Sorts of what the program gives, into what it takes."""

from __future__ import annotations

import gc
import gzip
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import datapipes as dp
import numpy as np
import pytest

RANDOM = np.random.default_rng(39)
NUMBERS = RANDOM.integers(0, 1 << 63, 3_000_000, np.uint64)
SORTED = np.sort(NUMBERS).tobytes()


def pieces(data, most=300_000):
    at = 0
    while at < len(data):
        length = int(RANDOM.integers(0, most))
        yield data[at : at + length]
        at += length


@pytest.mark.parametrize("memory", [None, "16M"])  # In memory, and by runs on the disk.
def test_pieces_into_a_function(memory):
    taken = []
    report = dp.sort(pieces(NUMBERS.tobytes()), taken.append, format="u64", memory=memory)
    assert b"".join(taken) == SORTED
    assert all(type(piece) is bytes for piece in taken)
    assert "sort" in repr(report)


def test_every_kind_of_source_and_sink(folder):
    data = NUMBERS[:100_000]
    want = np.sort(data).tobytes()
    (folder / "in").write_bytes(data.tobytes())
    with gzip.open(folder / "in.gz", "wb", 1) as file:
        file.write(data.tobytes())

    class Given:
        """It has `read` alone."""

        def __init__(self):
            self.file = io.BytesIO(data.tobytes())

        def read(self, most):
            return self.file.read(min(most, 7777))

    class Short(io.RawIOBase):
        """It takes some of what it is given."""

        def __init__(self):
            super().__init__()
            self.all = bytearray()

        def write(self, piece):
            part = bytes(piece[: max(1, len(piece) // 2)])
            self.all += part
            return len(part)

    class Silent(list):
        write = list.append

    buffer = dp.Buffer(data.nbytes)
    memoryview(buffer)[:] = data.tobytes()
    sources = {
        "path": lambda: folder / "in",
        "file": lambda: open(folder / "in", "rb"),
        "raw": lambda: open(folder / "in", "rb", buffering=0),
        "gzip": lambda: gzip.open(folder / "in.gz", "rb"),
        "BytesIO": lambda: io.BytesIO(data.tobytes()),
        "read": Given,
        "array": lambda: data,
        "bytearray": lambda: bytearray(data.tobytes()),
        "Buffer": lambda: buffer,
        "list": lambda: [data[:10], b"", bytearray(data[10:500].tobytes()), data[500:].reshape(-1, 2)],
    }
    for name, source in sources.items():
        short, silent, whole = Short(), Silent(), io.BytesIO()
        for sink in (short, silent, whole, folder / "out"):
            given = source()
            dp.sort(given, sink, format="u64")
            if hasattr(given, "close") and not isinstance(given, dp.Buffer):
                given.close()
        got = (bytes(short.all), b"".join(silent), whole.getvalue(), (folder / "out").read_bytes())
        assert all(one == want for one in got), name


def test_lines_and_nothing():
    taken = []
    dp.sort([b"b\na", b"\nc"], taken.append)
    assert b"".join(taken) == b"a\nb\nc\n"
    for nothing in ([], [b"", b""], io.BytesIO(), bytearray()):
        dp.sort(nothing, lambda _: pytest.fail("there is nothing"), format="u64")


@pytest.mark.parametrize("after", [0, 1, 40])
def test_what_the_source_raises_is_raised(folder, after):
    def fails():
        for _ in range(after):
            yield bytes(800_000)
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke"):
        dp.sort(fails(), lambda _: pytest.fail("it must not write"), format="u64", memory="16M")
    with pytest.raises(LookupError, match="the source broke"):
        dp.sort(fails(), folder / "out", format="u64", memory="16M", spill=[folder])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("memory", [None, "16M"])
def test_what_the_sink_raises_is_raised(memory):
    calls = []

    def fails(piece):
        calls.append(len(piece))
        if len(calls) == 3:
            raise LookupError("the sink broke")

    with pytest.raises(LookupError, match="the sink broke"):
        dp.sort(NUMBERS, fails, format="u64", memory=memory)
    assert len(calls) == 3


def test_what_is_no_source_and_no_sink_is_refused(folder):
    (folder / "in").write_bytes(b"a\n")
    for source, words in [
        (None, "give a path"),
        (7, "give a path"),
        ([1, 2], "gave int, not bytes"),
        (["text"], "gave str, not bytes"),
        ([np.zeros(4)[::2]], "not bytes"),
        (io.StringIO("a"), "binary"),
        (dp.open(folder / "in"), "pass its path"),
    ]:
        with pytest.raises(dp.InvalidInput, match=words):
            dp.sort(source, [].append)
    for sink, words in [(None, "give a path"), (io.StringIO(), "binary"), (dp.open(folder / "in", "r+"), "its path")]:
        with pytest.raises(dp.InvalidInput, match=words):
            dp.sort([b"a\n"], sink)

    class Lies:
        def __init__(self, count):
            self.count = count

        def readinto(self, room):
            return self.count

        def write(self, piece):
            return self.count

    for count in (-1, 1 << 40, None):
        with pytest.raises(dp.InvalidInput):
            dp.sort(Lies(count), [].append)
    for count in (-1, 0, 1 << 40):
        with pytest.raises(dp.System, match=f"took {count} of"):
            dp.sort([b"a\n"], Lies(count))
    with pytest.raises(dp.Error, match="what the program gives"):
        dp.sort([b"123"], [].append, format="u64")
    with pytest.raises(dp.NotFound):
        dp.sort(folder / "absent", [].append)
    with pytest.raises(dp.InvalidInput):
        dp.sort([b"a"], folder)


def test_progress_runs_in_the_calling_thread():
    told, where = [], set()

    def progress(*counts):
        told.append(counts)
        where.add(threading.get_ident())

    def slowly():
        for piece in pieces(NUMBERS[:200_000].tobytes()):
            where.add(threading.get_ident())
            time.sleep(0.03)
            yield piece

    dp.sort(slowly(), lambda _: where.add(threading.get_ident()), format="u64", progress=progress)
    assert told and told[-1][1:] == (1_600_000, 1_600_000)
    assert where == {threading.get_ident()}

    def stops(*_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        dp.sort(pieces(NUMBERS.tobytes()), lambda _: None, format="u64", progress=stops)


def test_sorts_within_a_sort_and_in_threads():
    def inner():
        taken = []
        dp.sort([b"b\n", b"a\n"], taken.append)
        yield from taken

    results = []

    def one():
        taken = []
        dp.sort(inner(), taken.append)
        results.append(b"".join(taken))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"a\nb\n"] * 8


@pytest.mark.parametrize("where", ["source", "sink"])
def test_a_child_neither_takes_part_nor_keeps_the_sort_from_ending(where):
    """It lives on with copies of all descriptors, and learns that the sort is the parent's."""
    code = f"""
import os, sys, datapipes as dp
ready = os.pipe()
children = []
def fork():
    child = os.fork()
    if child:
        children.append(child)
    return child
def source():
    for i in range(30):
        yield bytes(80_000)
        if i == 3 and "{where}" == "source":
            fork()
taken = []
def sink(piece):
    taken.append(len(piece))
    if "{where}" == "sink" and len(taken) == 2:
        fork()
try:
    dp.sort(source(), sink, format="u64")
except dp.Forked:
    assert not children
    os.write(ready[1], b"f")
    os.read(ready[0], 0)
    import signal
    signal.pause()
os.close(ready[1]) if not children else None
assert sum(taken) == 2_400_000, sum(taken)
told = os.read(ready[0], 1)
import signal
os.kill(children[0], signal.SIGKILL)
assert told == b"f", told
print("held")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.stdout == "held\n", run.stderr


@pytest.mark.parametrize("where", ["source", "sink", "sort"])
def test_ctrl_c_stops_it(folder, where):
    code = f"""
import os, signal, sys, time, datapipes as dp
def source():
    for i in range(300):
        if i == 5 and "{where}" == "source":
            os.kill(os.getpid(), signal.SIGINT)
        yield os.urandom(80_000)
    if "{where}" == "sort":
        os.kill(os.getpid(), signal.SIGINT)
def sink(piece):
    if "{where}" == "sink":
        os.kill(os.getpid(), signal.SIGINT)
try:
    dp.sort(source(), sink, format="u64", memory="16M", spill=[{str(folder)!r}])
except KeyboardInterrupt:
    print("stopped", len(os.listdir({str(folder)!r})))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.stdout == "stopped 0\n", run.stderr


def test_nothing_is_left_behind():
    def one():
        dp.sort([b"b\n", b"a\n"], [].append)
        with pytest.raises(dp.Error):
            dp.sort([b"123"], [].append, format="u64")
        with pytest.raises(ZeroDivisionError):
            dp.sort([b"a\n"], lambda _: 1 / 0)

    def open_descriptors():
        gc.collect()  # Objects of other tests may go at any time.
        return len(os.listdir("/proc/self/fd"))

    one()
    before, threads = open_descriptors(), threading.active_count()
    for _ in range(20):
        one()
    assert open_descriptors() <= before
    assert threading.active_count() <= threads  # Timers of other tests may end.


def test_a_stream_that_ends_nobody_waits_for():
    """A socket as the source and the sink: the other side is a thread."""
    ours, other = socket.socketpair()

    def serve():
        other.sendall(b"b\na\n")
        other.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours, ours.makefile("rb") as source:
        dp.sort(source, ours.sendall)
    thread.join()
    with other:
        assert other.recv(100) == b"a\nb\n"


def test_signals_that_do_not_raise_change_nothing():
    hits = []
    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        taken = []
        dp.sort(pieces(NUMBERS.tobytes()), taken.append, format="u64", memory="16M")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert b"".join(taken) == SORTED and hits


def test_streams_that_the_program_closes_and_signals_of_broken_ones():
    code = """
import os, signal, datapipes as dp
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
def ends(place, words):
    try:
        dp.sort(*place, format="records", record=(8, 0, 4))
    except dp.Error as error:
        assert words in str(error), error
    else:
        assert False, words
# The sort fails and closes its end before all is given: a signal would end the program.
ends(([bytes(1 << 20)] * 50, "/nonexistent/folder/out"), "/nonexistent/folder")
def source():
    yield bytes(800_000)
    os.closerange(3, 300)
    yield bytes(800_000)
ends((source(), lambda _: None), "Bad file descriptor")
print("held")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.stdout == "held\n", run.stderr

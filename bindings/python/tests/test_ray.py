"""The sort on a real cluster of Ray: several raylets on this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import datapipes as dp
import numpy as np
import pytest

ray = pytest.importorskip("ray")

import datapipes.ray as dpray  # noqa: E402
from datapipes.ray import _direct, _keepers, _outputs, _sort, _store, _tasks  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

MIB = 1 << 20
STORE = 120 * MIB
SIZES = {"num_cpus": 1, "object_store_memory": STORE, "memory": 2 << 30}


def started(head):
    """A cluster. On a machine that is busy with other tests, Ray may find that its start takes too long."""
    for attempt in range(3):
        try:
            return Cluster(initialize_head=True, head_node_args=head)
        except Exception as error:
            if attempt == 2 or "timed out during startup" not in str(error):
                raise


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with a processor each."""
    os.environ["RAY_DEDUP_LOGS"] = "0"
    # A node that is gone is known to be gone soon.
    config = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 10}
    made = started({**SIZES, "_system_config": config})
    for _ in range(2):
        made.add_node(**SIZES)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def whole(output: Path) -> bytes:
    """The parts of an output, which must be all that is in the folder."""
    names = sorted(os.listdir(output))
    assert names == [f"part-{i:05}" for i in range(len(names))]
    return b"".join((output / name).read_bytes() for name in names)


def left(folder: Path) -> list[str]:
    """What a sort left beside its inputs."""
    return [name for name in os.listdir(folder) if name != "in"]


def some_lines(count: int, seed: int = 5, values: int = 1 << 40) -> bytes:
    chosen = random.Random(seed)
    return b"".join(b"%d %d\n" % (chosen.randrange(values), i) for i in range(count))


def alone(inputs: list[Path], options: list[str]) -> bytes:
    """What GNU sort makes of them."""
    command = ["sort", "--parallel=1", *options, *map(str, inputs)]
    return subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=True).stdout


LINES = {
    "plain": ({}, []),
    "reverse": ({"reverse": True}, ["-r"]),
    "keyed": ({"keys": ["2,2n"], "separator": " "}, ["-k2,2n", "-t", " "]),
    "stable": ({"keys": ["1,1.1"], "stable": True}, ["-s", "-k1,1.1"]),
    "unique": ({"keys": ["1,1.2"], "unique": True}, ["-u", "-k1,1.2"]),
    "letters": ({"letters": "n"}, ["-n"]),
}


@pytest.mark.parametrize(
    "case, shuffle", [*((case, "store") for case in LINES), ("keyed", "direct"), ("unique", "direct")]
)
def test_lines(cluster, folder, case, shuffle):
    options, words = LINES[case]
    inputs = [
        put(folder, "in/a", some_lines(3000)),
        put(folder, "in/b", b""),
        put(folder, "in/c", some_lines(40_000, 6, 50)[:-1]),  # The last line lacks its newline.
        put(folder, "in/d", b"x"),
        put(folder, "in/e", some_lines(1)),
    ]
    report = dpray.sort(inputs, folder / "out", partitions=7, shuffle=shuffle, **options)
    assert whole(folder / "out") == alone(inputs, words)
    data = report.to_dict()
    assert data["shuffle"] == shuffle
    assert data["partitions"] == 7 and data["records"] == 43_002 and data["records_out"] <= data["records"]
    assert len(data["nodes"]) == 1 and data["bytes_out"] == len(whole(folder / "out"))
    assert left(folder) == ["out"] and "43002 records" in str(report)


def test_zero_terminated_and_a_folder_of_parts(cluster, folder):
    lines = [b"%d" % i for i in range(5000)]
    put(folder, "in/part-1", b"\0".join(lines[:2000]) + b"\0")
    put(folder, "in/part-0", b"\0".join(lines[2000:]))
    put(folder, "in/_SUCCESS", b"not of the data")
    report = dpray.sort(folder / "in", folder / "out", zero_terminated=True, partitions=3)
    assert report.to_dict()["left_out"] == [str(folder / "in/_SUCCESS")] and "left out 1 file" in str(report)
    assert whole(folder / "out") == b"".join(line + b"\0" for line in sorted(lines))


@pytest.mark.parametrize(
    "keys, shuffle",
    [*((keys, "store") for keys in ("random", "few", "equal", "zipf", "sorted")), ("equal", "direct"), ("zipf", "direct")],
)
def test_records(cluster, folder, keys, shuffle):
    chosen, count = np.random.default_rng(4), 60_000
    records = chosen.integers(0, 256, (count, 100), np.uint8)
    if keys != "random":
        values = {
            "few": chosen.integers(0, 3, count),
            "equal": np.zeros(count, np.int64),
            "zipf": chosen.zipf(1.3, count) % 1000,
            "sorted": np.arange(count),
        }[keys]
        records[:, :10] = 0
        records[:, 2:10] = values.astype(">u8").view(np.uint8).reshape(count, 8)
    path = put(folder, "in/records", records.tobytes())
    options = {"records": (100, 0, 10), "partitions": 5, "memory_per_task": "64M", "shuffle": shuffle}
    report = dpray.sort(path, folder / "out", **options).to_dict()
    dp.sort(path, folder / "alone", format="records", record=(100, 0, 10))
    # Records of equal keys keep their order, also where a key is divided among parts.
    assert whole(folder / "out") == (folder / "alone").read_bytes()
    assert report["records"] == report["records_out"] == count
    if keys in ("random", "sorted"):
        assert max(part["bytes"] for part in report["parts"]) < 1.6 * records.nbytes / 5


def dpipe():
    """The command of this tree, where it is built: the tests of the whole project build it first."""
    built = [Path(__file__).parents[3] / "target" / kind / "dpipe" for kind in ("debug", "release")]
    found = [program for program in built if program.exists()]
    if not found:
        pytest.skip("dpipe is not built in this tree")
    return max(found, key=lambda program: program.stat().st_mtime)


@pytest.mark.parametrize("shuffle", ["store", "direct"])
def test_dpipe_check_examines_the_parts_and_their_borders(cluster, folder, shuffle):
    records = np.random.default_rng(8).integers(0, 256, (30_000, 100), np.uint8).tobytes()
    path = put(folder, "in/records", records)
    dpray.sort(path, folder / "out", records=(100, 0, 10), partitions=4, memory_per_task="64M", shuffle=shuffle)
    parts = [str(folder / "out" / name) for name in sorted(os.listdir(folder / "out"))]
    assert len(parts) == 4

    def check(*files):
        ran = subprocess.run([dpipe(), "check", "records", "--json", *files], capture_output=True, check=False)
        return ran.returncode, json.loads(ran.stdout)

    (_, before), (code, after) = check(str(path)), check(*parts)
    assert code == 0 and after["sorted"] and after["files"] == 4
    assert [after[what] for what in ("records", "checksum")] == [before[what] for what in ("records", "checksum")]
    code, swapped = check(parts[1], parts[0], *parts[2:])
    assert code == 1 and swapped["first_unordered_file"] == parts[0]


@pytest.mark.parametrize(
    "format, shuffle", [("u32", "store"), ("u64", "store"), ("i64", "store"), ("f64", "store"), ("f64", "direct")]
)
def test_numbers(cluster, folder, format, shuffle):
    kind = {"u32": np.uint32, "u64": np.uint64, "i64": np.int64, "f64": np.float64}[format]
    numbers = np.random.default_rng(9).integers(-(1 << 31), 1 << 31, 200_000).astype(kind)
    path = put(folder, "in/numbers", numbers.tobytes())
    dpray.sort([path], folder / "out", format=format, partitions=3, shuffle=shuffle)
    assert whole(folder / "out") == np.sort(numbers).tobytes()


@pytest.mark.parametrize("content", [b"", b"x", b"\n", b"ab\n"])
def test_inputs_of_a_byte(cluster, folder, content):
    path = put(folder, "in/x", content)
    for partitions, shuffle in ((None, None), (5, "direct" if len(content) == 1 else None)):
        report = dpray.sort([path], folder / "out", partitions=partitions, shuffle=shuffle).to_dict()
        want = content if content.endswith(b"\n") or not content else content + b"\n"
        assert whole(folder / "out") == want
        assert len(os.listdir(folder / "out")) == (partitions or 1) == report["partitions"]
        subprocess.run(["rm", "-r", folder / "out"], check=True)


def test_long_lines_and_one_that_spans_parts(cluster, folder):
    lines = [b"z" * (20 * MIB), b"a" * (20 * MIB), *(b"%d" % i for i in range(1000)), b"m" * 70_000]
    path = put(folder, "in/x", b"\n".join(lines))
    report = dpray.sort([path], folder / "out", partitions=4, memory_per_task="256M").to_dict()
    assert whole(folder / "out") == b"".join(line + b"\n" for line in sorted(lines))
    assert report["maps"] > 1


def test_one_file_progress_and_the_account(cluster, folder):
    path, seen = put(folder, "in/x", some_lines(50_000)), []
    report = dpray.sort(
        [path], folder / "out", single_file=True, partitions=4, progress=lambda *now: seen.append(now)
    ).to_dict()
    assert (folder / "out").read_bytes() == alone([path], [])
    assert left(folder) == ["out"]
    size = path.stat().st_size
    assert seen[0] == (size, 0, 0) and seen[-1] == (size, size, size)
    assert [phase["name"] for phase in report["phases"]] == ["sample", "map", "reduce", "publish"]
    assert report["parts"] == [{"name": "out", "records": 50_000, "bytes": size}]


def test_what_is_refused(cluster, folder):
    path = put(folder, "in/x", b"a\n")
    put(folder, "in/odd", b"abc")
    for inputs, options, why in (
        ([path], {"letters": "R"}, "random order"),
        ([path], {"letters": "q"}, "no order has the letters"),
        ([path], {"keys": ["x"]}, "x"),
        ([path], {"keys": "1,1"}, "list of strings"),
        ([path], {"separator": "ab"}, "one byte"),
        ([path], {"format": "u16"}, "u16"),
        ([path], {"records": (10, 5, 6)}, "key of 6 bytes at 5"),
        ([path], {"records": (10, 0, 1), "keys": ["1"]}, "for lines"),
        ([path], {"memory_per_task": "1M"}, "the least is"),
        ([path], {"memory_per_task": "1000G"}, "no node of the cluster"),
        ([path], {"parallelism": 0}, "the least is 1"),
        ([path], {"partitions": 0}, "the least is 1"),
        ([path], {"progress": 5}, "not callable"),
        (["ftp://bucket/x"], {}, "files that all nodes share"),
        ([path], {"memory_per_task": 1.5e8}, "no whole number"),
        ([path], {"partitions": True}, "no whole number"),
        ([path], {"spill": folder / "none"}, "is no folder"),
        ([path], {"spill": ""}, "no path"),
        ([path], {"spill": "s3://bucket/x"}, "s3://bucket/x: sorted parts and runs are files in a folder of each node"),
        ([], {}, "no file to sort"),
        (["a\0b"], {}, "no path"),
        ([path], {"records": (1 << 70, 0, 1)}, "length, key offset"),
        ([path], {"shuffle": "disk"}, 'give "direct" or "store"'),
        ([folder / "in" / "none"], {}, "No such file"),
        (["/dev/null"], {}, "not a regular file"),
        (["/proc/cpuinfo"], {}, "does not say its length"),
        ([folder / "in" / "odd"], {"records": (2, 0, 1)}, "not a multiple"),
        ([folder / "in" / "odd"], {"format": "u32"}, "not a multiple"),
    ):
        with pytest.raises(dp.Error, match=why):
            dpray.sort(inputs, folder / "out", **options)
        assert left(folder) == []
    (folder / "out").mkdir()
    with pytest.raises(FileExistsError):
        dpray.sort([path], folder / "out")
    with pytest.raises(dp.NotFound):
        dpray.sort([path], folder / "none" / "out")


def test_an_input_that_changes_is_an_error(cluster, folder):
    path = put(folder, "in/x", some_lines(1000))

    def change(total, read, written):
        if read and not written:
            # After the parts were sorted: a task that must be run again would sort other bytes.
            os.utime(path, ns=(1, 1))

    dpray.sort([path], folder / "out", progress=change)
    subprocess.run(["rm", "-r", folder / "out"], check=True)
    with pytest.raises(dp.Corrupt, match="was changed"):
        dpray.sort([path], folder / "out", progress=lambda *now: path.write_bytes(b"other\n"))
    assert left(folder) == []


def test_an_exception_of_progress_stops_the_sort(cluster, folder):
    path = put(folder, "in/x", some_lines(1000))

    def fails(total, read, written):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        dpray.sort([path], folder / "out", progress=fails)
    assert left(folder) == []


# Faults.


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        found.append(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(stat.rsplit(")", 1)[1].split()[1])
    return found


def workers_of(task: str, under: int) -> list[int]:
    """The workers that run such a task, below this process."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{name}/cmdline").read_bytes().startswith(f"ray::{task}".encode()):
                    if under in ancestors(int(name)):
                        found.append(int(name))
    return found


def running(task: str, under: int) -> int | None:
    """One of them."""
    return next(iter(workers_of(task, under)), None)


class When(threading.Thread):
    """Does something once a worker runs such a task."""

    def __init__(self, task, under, act):
        super().__init__(daemon=True)
        self.task, self.under, self.act, self.over, self.done = task, under, act, False, False
        self.start()

    def run(self):
        while not self.over:
            if (pid := running(self.task, self.under)) is not None:
                self.act(pid)
                self.done = True
                return
            time.sleep(0.001)

    def ended(self) -> bool:
        self.over = True
        self.join()
        return self.done


MUCH = 800_000
"""Records of `much`."""


@pytest.fixture(scope="module")
def much(tmp_path_factory):
    """So much that each task takes a while, and that each of four nodes gets one: a part has 16 MiB at least."""
    folder = tmp_path_factory.mktemp("much")
    numbers = np.random.default_rng(3).integers(0, 256, (MUCH, 100), np.uint8)
    path = folder / "records"
    path.write_bytes(numbers.tobytes())
    dp.sort(path, folder / "sorted", format="records", record=(100, 0, 10))
    return path, (folder / "sorted").read_bytes()


OPTIONS = {"records": (100, 0, 10), "memory_per_task": "64M", "partitions": 6}


TASKS = [(task, shuffle) for shuffle in ("direct", "store") for task in ("dpipe-sort", "dpipe-merge")]


class Held:
    """Has one task of a kind wait for what is done to it, so that no test depends on how long tasks take."""

    FUNCTIONS: ClassVar = {"dpipe-sample": "sample", "dpipe-sort": "sort_part", "dpipe-merge": "merge_range"}

    def __init__(self, monkeypatch, task, mark, act, node=None):
        """Hold one on `node`, or the first one. Call `act` with its process."""
        run = getattr(_tasks, self.FUNCTIONS[task])

        # Local functions are sent to workers by value.
        def wait(*arguments):
            if node in (None, ray.get_runtime_context().get_node_id()):
                with contextlib.suppress(FileExistsError):
                    written = mark.with_name(f"{mark.name}-{os.getpid()}")
                    written.write_text(str(os.getpid()))
                    os.link(written, mark)
                    while True:
                        time.sleep(1)
            begin = time.monotonic()
            while not mark.exists():
                # Only against waiting for ever.
                assert time.monotonic() - begin < 200, "no task of this kind came to the node"
                time.sleep(0.01)
            return run(*arguments)

        monkeypatch.setattr(_tasks, self.FUNCTIONS[task], wait)
        self.mark, self.act, self.over = mark, act, False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.mark.exists():
            if self.over:
                return
            time.sleep(0.01)
        self.act(int(self.mark.read_text()))

    def ended(self) -> bool:
        self.over = True
        self.thread.join()
        return self.mark.exists()


@pytest.mark.parametrize("task, shuffle", [("dpipe-sample", "store"), ("dpipe-sample", "direct"), *TASKS])
def test_a_killed_worker_is_replaced(cluster, folder, much, monkeypatch, tmp_path_factory, task, shuffle):
    mark = tmp_path_factory.mktemp("held") / "mark"
    held = Held(monkeypatch, task, mark, lambda pid: os.kill(pid, signal.SIGKILL))
    dpray.sort([much[0]], folder / "out", **OPTIONS, shuffle=shuffle)
    assert held.ended()
    assert whole(folder / "out") == much[1] and left(folder) == ["out"]


@pytest.mark.parametrize("task, shuffle", TASKS)
def test_a_killed_node_is_done_without(cluster, folder, much, monkeypatch, tmp_path_factory, task, shuffle):
    mark = tmp_path_factory.mktemp("held") / "mark"
    doomed = cluster.add_node(**SIZES)
    cluster.wait_for_nodes()
    try:
        # What the node had is lost, and made again.
        remove = partial(cluster.remove_node, doomed, allow_graceful=False)
        held = Held(monkeypatch, task, mark, lambda _: remove(), doomed.node_id)
        dpray.sort([much[0]], folder / "out", shuffle=shuffle, **OPTIONS)
        assert held.ended()
    finally:
        if doomed in cluster.list_all_nodes():
            cluster.remove_node(doomed)
    assert whole(folder / "out") == much[1] and left(folder) == ["out"]


@pytest.mark.parametrize("shuffle", ["direct", "store"])
def test_a_node_that_is_killed_while_samples_are_taken(cluster, folder, much, monkeypatch, tmp_path_factory, shuffle):
    mark = tmp_path_factory.mktemp("held") / "mark"
    content = much[0].read_bytes()
    step = len(content) // 16
    parts = [put(folder, f"in/{at:02}", content[at * step : (at + 1) * step]) for at in range(16)]
    doomed = cluster.add_node(**SIZES)
    cluster.wait_for_nodes()
    try:
        remove = partial(cluster.remove_node, doomed, allow_graceful=False)
        # All others wait for it, so one of so many comes there.
        monkeypatch.setattr(_sort, "_SAMPLES_A_TASK", 20)
        held = Held(monkeypatch, "dpipe-sample", mark, lambda _: remove(), doomed.node_id)
        dpray.sort(parts, folder / "out", shuffle=shuffle, **OPTIONS)
        assert held.ended()
    finally:
        if doomed in cluster.list_all_nodes():
            cluster.remove_node(doomed)
    assert whole(folder / "out") == much[1] and left(folder) == ["out"]


def test_an_object_that_cannot_be_made_again_is_an_error(cluster, folder, much, monkeypatch):
    merge = _store.Store.merge_ranges

    @ray.remote(num_cpus=0)
    class Owner:
        def put(self, block):
            return [ray.put(block)]

    def lose(store, *arguments):
        # No task made this one, so there is none to run again when its owner is gone.
        owner = Owner.remote()
        (store._blocks[2][0],) = ray.get(owner.put.remote(ray.get(store._blocks[2][0])))
        ray.kill(owner)
        return merge(store, *arguments)

    monkeypatch.setattr(_store.Store, "merge_ranges", lose)
    with pytest.raises(dp.Unavailable, match="a task was lost"):
        dpray.sort([much[0]], folder / "out", **OPTIONS)
    assert left(folder) == []


def test_a_record_that_is_lost_between_tasks_is_corrupt(cluster, folder, much, monkeypatch):
    merge = _store.Store.merge_ranges

    def lose(store, *arguments):
        first = store._blocks[1][0]
        store._blocks[1] = [ray.put(ray.get(first)[:-100]), *store._blocks[1][1:]]
        return merge(store, *arguments)

    monkeypatch.setattr(_store.Store, "merge_ranges", lose)
    with pytest.raises(dp.Corrupt, match=f"sorted {MUCH} records .* merged {MUCH - 1}"):
        dpray.sort([much[0]], folder / "out", **OPTIONS)
    assert left(folder) == []


def test_records_of_another_range_are_corrupt(cluster, folder, much, monkeypatch):
    merge = _store.Store.merge_ranges

    def swap(store, *arguments):
        blocks = store._blocks
        blocks[1], blocks[2] = blocks[2], blocks[1]
        return merge(store, *arguments)

    monkeypatch.setattr(_store.Store, "merge_ranges", swap)
    with pytest.raises(dp.Corrupt, match="another range"):
        dpray.sort([much[0]], folder / "out", **OPTIONS)
    assert left(folder) == []


def test_a_keeper_that_is_killed_loses_nothing(cluster, folder, much, monkeypatch):
    again = []
    monkeypatch.setattr(_keepers, "_IDLE", 0.1)

    def kill_one(_):
        again.append(running("_NodeKeeper", os.getpid()))
        os.kill(again[0], signal.SIGKILL)

    when = When("dpipe-merge", os.getpid(), kill_one)
    dpray.sort([much[0]], folder / "out", shuffle="direct", **OPTIONS)
    assert when.ended() and again[0] is not None
    assert whole(folder / "out") == much[1] and left(folder) == ["out"]
    # None is left a while after the last sort.
    until(lambda: running("_NodeKeeper", os.getpid()) is None)


@pytest.fixture
def slow_keepers(monkeypatch, tmp_path_factory):
    """Keepers that start when the driver has looked three times whether their node lives, if `comes`."""
    mark, looks = tmp_path_factory.mktemp("keepers") / "mark", []
    alive, kept = _keepers._is_alive, _keepers._NodeKeeper

    # A local class is sent to workers by value.
    class Slow(kept):
        def __init__(self):
            while not mark.exists():
                time.sleep(0.01)
            super().__init__()

    def look(node):
        looks.append(node)
        if len(looks) == 3 and slow_keepers.comes:
            mark.write_text("")
        return alive(node)

    slow_keepers.comes = True
    monkeypatch.setattr(_keepers, "_IDLE", 0.1)
    session = _keepers._session()
    for node in list(session.actors):
        session.end(node)
    monkeypatch.setattr(_keepers, "_NodeKeeper", Slow)
    monkeypatch.setattr(_keepers, "_is_alive", look)
    monkeypatch.setattr(_keepers, "_LOOK", 0.05)
    yield slow_keepers
    mark.write_text("")
    for node in list(session.actors):
        session.end(node)


def test_keepers_that_start_slowly_are_waited_for(cluster, folder, much, slow_keepers):
    dpray.sort([much[0]], folder / "out", shuffle="direct", **OPTIONS)
    assert whole(folder / "out") == much[1] and left(folder) == ["out"]


def test_a_keeper_that_never_starts_is_an_error(cluster, folder, much, monkeypatch, slow_keepers):
    slow_keepers.comes = False
    monkeypatch.setattr(_keepers, "_STARTING", 0.3)
    with pytest.raises(dp.Unavailable, match="no process can be started on node"):
        dpray.sort([much[0]], folder / "out", shuffle="direct", **OPTIONS)
    assert left(folder) == []


def test_keepers_serve_further_sorts(cluster, folder, much, monkeypatch):
    monkeypatch.setattr(_keepers, "_IDLE", 1000.0)
    (folder / "spill").mkdir()
    options = {**OPTIONS, "shuffle": "direct", "spill": folder / "spill"}

    def files():
        """The sorted parts that are kept, which have no names."""
        found = 0
        for keeper in workers_of("_NodeKeeper", os.getpid()):
            for fd in os.listdir(f"/proc/{keeper}/fd"):
                # It may have closed it meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    found += os.readlink(f"/proc/{keeper}/fd/{fd}").startswith(str(folder / "spill"))
        return found

    dpray.sort([much[0]], folder / "one", **options)
    first = workers_of("_NodeKeeper", os.getpid())
    # They have let go of what they kept, and serve two sorts at once.
    until(lambda: files() == 0)
    assert len(first) == len(cluster.list_all_nodes())
    with concurrent.futures.ThreadPoolExecutor() as threads:
        for done in [threads.submit(dpray.sort, [much[0]], folder / name, **options) for name in ("two", "three")]:
            done.result()
    assert workers_of("_NodeKeeper", os.getpid()) == first
    # One that was killed between two sorts is replaced.
    os.kill(first[0], signal.SIGKILL)
    dpray.sort([much[0]], folder / "four", **options)
    assert all(whole(folder / name) == much[1] for name in ("one", "two", "three", "four"))
    until(lambda: files() == 0)
    again = workers_of("_NodeKeeper", os.getpid())
    assert len(again) == len(first) and len(set(again) & set(first)) == len(first) - 1
    monkeypatch.setattr(_keepers, "_IDLE", 0.1)
    dpray.sort([much[0]], folder / "five", **options)
    until(lambda: not workers_of("_NodeKeeper", os.getpid()))


def until(true):
    """Wait, but not for ever: a run that hangs says nothing."""
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.05)


PLACE = _direct.BlockPlace
WRONG = {
    # What is asked for, instead of a block of a sorted part, and what comes of it.
    "no such part": (lambda at: replace(at, file=999), dp.Unavailable, "a task was lost"),
    "too little": (lambda at: replace(at, end=at.end - 100), dp.Corrupt, f"sorted {MUCH} records .* merged"),
    "another range": (lambda at: replace(at, start=0, end=at.end), dp.Corrupt, "another range"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_block_is_no_output(cluster, folder, much, monkeypatch, case):
    wrong, kind, why = WRONG[case]
    monkeypatch.setattr(_direct, "RETRIES", 1)
    monkeypatch.setattr(_direct, "BlockPlace", lambda *fields: wrong(PLACE(*fields)))
    with pytest.raises(kind, match=why):
        dpray.sort([much[0]], folder / "out", shuffle="direct", **OPTIONS)
    assert left(folder) == []


def command(cluster, *arguments):
    program = "from datapipes.ray._command import main; raise SystemExit(main())"
    return [sys.executable, "-c", program, "sort", "--address", cluster.address, *map(str, arguments)]


@pytest.mark.parametrize("task, shuffle", TASKS)
def test_a_killed_driver_leaves_no_output_and_the_next_one_cleans_up(cluster, folder, much, task, shuffle):
    arguments = [much[0], "-o", folder / "out", "--records", "--memory-per-task=64M", "--partitions=6"]
    (folder / "in").mkdir()
    arguments += ["--shuffle", shuffle, "-T", folder / "in"]
    driver = subprocess.Popen(command(cluster, *arguments))
    when = When(task, os.getpid(), lambda _: driver.kill())
    assert driver.wait(timeout=120) == -signal.SIGKILL
    assert when.ended()
    assert not (folder / "out").exists() and len(left(folder)) == 1
    assert os.listdir(folder / "in") == []
    until(lambda: running("_NodeKeeper", os.getpid()) is None)
    dpray.sort([much[0]], folder / "out", **OPTIONS)
    assert whole(folder / "out") == much[1] and left(folder) == ["out"]


def test_a_draft_of_a_sort_that_goes_on_is_left_alone(cluster, folder):
    path, names = put(folder, "in/x", some_lines(1000)), []

    def second(total, read, written):
        if not names:
            names.extend(left(folder))
            dpray.sort([path], folder / "out")

    with pytest.raises(FileExistsError, match="out exists"):
        dpray.sort([path], folder / "out", progress=second)
    assert len(names) == 1 and whole(folder / "out") == alone([path], []) and left(folder) == ["out"]


def test_a_task_that_was_given_up_cannot_add_to_the_output(cluster, folder):
    path, late = put(folder, "in/x", some_lines(1000)), []

    def open_their_folder(total, read, written):
        (draft,) = left(folder)
        late.append(os.open(folder / draft / "parts", os.O_RDONLY))
        # Nobody but the owner and the group looks at parts that are not whole.
        assert os.stat(folder / draft).st_mode & 0o007 == 0
        assert os.stat(folder / draft / ".lock").st_mode & 0o777 == 0o600

    for single in (False, True):
        dpray.sort([path], folder / "out", partitions=2, progress=open_their_folder, single_file=single)
        for descriptor in late:
            with pytest.raises(FileNotFoundError):
                os.open("range-00000", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)
            os.close(descriptor)
        late.clear()
        if single:
            assert (folder / "out").read_bytes() == alone([path], [])
        else:
            assert whole(folder / "out") == alone([path], [])
            assert (folder / "out").stat().st_mode == folder.joinpath("in").stat().st_mode
            subprocess.run(["rm", "-r", folder / "out"], check=True)
    assert left(folder) == ["out"]


@pytest.fixture
def small_disk(tmp_path_factory):
    """A file system of few bytes."""
    place = tmp_path_factory.mktemp("small")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True)
    if mount.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_of_the_output(cluster, folder, much, small_disk):
    with pytest.raises(dp.NoSpace):
        dpray.sort([much[0]], small_disk / "out", **OPTIONS)
    assert os.listdir(small_disk) == []


def test_a_full_disk_for_sorted_parts(cluster, folder, much, small_disk):
    with pytest.raises(dp.NoSpace):
        dpray.sort([much[0]], folder / "out", shuffle="direct", spill=small_disk, **OPTIONS)
    assert left(folder) == [] and os.listdir(small_disk) == []


def test_a_full_disk_for_runs(cluster, folder, small_disk):
    # The longer lines make the sample expect fewer of them, so a part of short ones does not fit.
    path = put(folder, "in/x", (b"x" * 400 + b"\n") * 150_000 + b"ab\n" * 8_000_000)
    with pytest.raises(dp.NoSpace):
        dpray.sort([path], folder / "out", memory_per_task="64M", spill=small_disk)
    assert left(folder) == [] and os.listdir(small_disk) == []
    dpray.sort([path], folder / "out", memory_per_task="64M", spill=folder / "in", single_file=True)
    assert (folder / "out").read_bytes() == b"ab\n" * 8_000_000 + (b"x" * 400 + b"\n") * 150_000


def test_the_command(cluster, folder):
    path = put(folder, "in/x", some_lines(2000))
    done = subprocess.run(
        command(cluster, path, "-o", folder / "out", "-n", "-k2,2", "--partitions=3", "--json"),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["records_out"] == 2000
    assert whole(folder / "out") == alone([path], ["-n", "-k2,2"])
    again = subprocess.run(command(cluster, path, "-o", folder / "out"), capture_output=True, text=True)
    assert again.returncode == 2 and again.stdout == "" and "out exists" in again.stderr, again.stderr


@pytest.mark.parametrize(
    "words, why",
    [
        (["-m", "x", "-o", "y"], "files in order"),
        (["-S1G", "x", "-o", "y"], "--memory-per-task"),
        (["--parallel=2", "x", "-o", "y"], "--parallelism"),
        (["-c", "x", "-o", "y"], "lines, records and numbers"),
        (["--sort=random", "x", "-o", "y"], "a random order"),
        (["--sort=size", "x", "-o", "y"], "say one of"),
        (["-", "-o", "y"], "standard input"),
        (["", "-o", "y"], "standard input"),
        (["x"], "-o/--output"),
        (["--records", "-o", "y"], "FILE"),
    ],
)
def test_words_that_are_refused(capsys, words, why):
    from datapipes.ray._command import main

    with pytest.raises(SystemExit) as ended:
        main(["sort", *words])
    assert ended.value.code == 2 and why in capsys.readouterr().err


def test_words_stand_as_for_sort(capsys):
    from datapipes.ray._command import _arguments, main

    given = _arguments(["sort", "a", "--sort=numeric", "-o", "out", "-r", "b", "--records", "c", "--", "--records"])
    assert (given.inputs, given.output, given.reverse) == (["a", "b", "c", "--records"], "out", True)
    assert (given.letters, given.records) == (["n"], (100, 0, 10))
    assert _arguments(["sort", "a", "-o", "b", "--records=8:2", "-Vn", "-t", "\\0"]).records == (8, 2, 6)
    for words in (["--version"], ["sort", "--version"], ["sort", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and "dpipe-ray" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no.such.host.:6379"])
def test_a_cluster_that_is_not_there(cluster, folder, address):
    path = put(folder, "in/x", b"a\n")
    words = command(cluster, path, "-o", folder / "out", "--address", address)
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 2 and "no cluster answers" in ended.stderr and ended.stderr.count("\n") == 1, ended
    assert left(folder) == []


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_signal_ends_the_command_in_a_line(cluster, folder, much, number):
    arguments = [much[0], "-o", folder / "out", "--records", "--memory-per-task=64M", "--partitions=6"]
    driver = subprocess.Popen(command(cluster, *arguments), stderr=subprocess.PIPE)
    when = When("dpipe-sort", os.getpid(), lambda _: driver.send_signal(number))
    said = driver.communicate()[1].decode()
    assert when.ended()
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert (driver.returncode, said) == (128 + number, f"dpipe-ray sort: {how}; nothing was left\n")
    assert left(folder) == []


def test_a_signal_that_a_destructor_throws_away_is_seen():
    from datapipes.ray._command import _Signals

    signals = _Signals()
    signals.check()
    with contextlib.suppress(KeyboardInterrupt):
        signals._note(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        signals.check()
    assert signals.outcome(is_there=False) == ("ended by SIGTERM; nothing was left", 143)


@pytest.mark.parametrize("number, pause", [(signal.SIGINT, 0), (signal.SIGTERM, 0.2), (signal.SIGINT, 0.4)])
def test_a_signal_when_the_output_is_there_ends_the_command_as_well(cluster, folder, number, pause):
    path, output = put(folder, "in/x", b"b\na\n"), folder / "out"
    driver = subprocess.Popen(command(cluster, path, "-o", output), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    until(output.exists)
    time.sleep(pause)
    driver.send_signal(number)
    said = driver.communicate()[1].decode()
    outcomes = {0: "", 128 + number: "the work was done, and the output is there"}
    assert driver.returncode in outcomes and outcomes[driver.returncode] in said, (driver.returncode, said)
    assert "Traceback" not in said and left(folder) == ["out"], said


def test_an_interrupt_while_a_draft_is_removed_leaves_nothing(cluster, folder, monkeypatch):
    path, output = put(folder, "in/x", b"b\na\n"), folder / "out"
    remove, calls = _outputs.shutil.rmtree, []

    def interrupt(folder, *words, **more):
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(folder, *words, **more)

    monkeypatch.setattr(_outputs.shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        dpray.sort(path, output, partitions=1)
    assert raised.value.is_done and len(calls) == 2
    assert (output / "part-00000").read_bytes() == b"a\nb\n" and left(folder) == ["out"]


def test_two_drafts_of_one_output_leave_each_other_alone(folder):
    def begin(_):
        for _ in range(300):
            _outputs.Draft(str(folder / "out")).discard()

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        list(threads.map(begin, range(3)))
    assert left(folder) == []
    # What was begun and never held a lock is removed once it is old.
    begun = folder / f".out{_outputs._MARK}old"
    begun.mkdir()
    _outputs.Draft(str(folder / "out")).discard()
    assert begun.exists()
    os.utime(begun, (0, 0))
    _outputs.Draft(str(folder / "out")).discard()
    assert not begun.exists()


@pytest.mark.parametrize("single_file", [False, True])
def test_a_signal_after_the_output_has_its_name(cluster, folder, monkeypatch, single_file):
    path, output = put(folder, "in/x", b"b\na\n"), folder / "out"
    sync = _outputs._sync

    def interrupt(synced):
        if output.exists():
            raise KeyboardInterrupt
        sync(synced)

    monkeypatch.setattr(_outputs, "_sync", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        dpray.sort(path, output, partitions=1, single_file=single_file)
    assert raised.value.is_done
    assert (output if single_file else output / "part-00000").read_bytes() == b"a\nb\n"
    assert left(folder) == ["out"]


@pytest.mark.parametrize("address", ["foo", ""])
def test_an_address_that_makes_no_sense(cluster, folder, address):
    path = put(folder, "in/x", b"a\n")
    words = command(cluster, path, "-o", folder / "out")
    before = dict(os.environ)
    if address:
        words = [word for word in words if word not in ("--address", cluster.address)]
        before["RAY_ADDRESS"] = address
    else:
        words += ["--address", address]
    ended = subprocess.run(words, capture_output=True, text=True, env=before)
    named = f"RAY_ADDRESS={address!r}" if address else "''"
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert ended.stderr.count("\n") == 1 and named in ended.stderr and "HOST:PORT" in ended.stderr, ended.stderr


def test_an_interrupt_while_modules_are_imported(cluster, folder):
    # Ray's modules take a second. What is imported first is held up for as long as the test needs.
    (folder / "ray").mkdir()
    (folder / "ray/__init__.py").write_text("import sys, time\nprint('imported', flush=True)\ntime.sleep(1000)\n")
    words = command(cluster, folder / "x", "-o", folder / "out")
    before = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=before)
    assert driver.stdout.readline() == b"imported\n"
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate()
    assert (driver.returncode, said) == (130, b"dpipe-ray sort: interrupted; nothing was left\n")


def test_the_cluster_file_of_the_documentation_is_one():
    """Ray's launcher takes it, as far as it looks before it starts machines."""
    yaml = pytest.importorskip("yaml")
    launcher = pytest.importorskip("ray.autoscaler._private.util")
    path = Path(__file__).parents[3] / "docs" / "ray-cluster.yaml"
    config = yaml.safe_load(path.read_text())
    launcher.validate_config(launcher.prepare_config(config))
    with pytest.raises(Exception, match="provider"):
        launcher.validate_config({name: value for name, value in config.items() if name != "provider"})

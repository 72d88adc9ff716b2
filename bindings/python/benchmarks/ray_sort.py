"""The sort on Ray beside `dpipe sort` and other engines, in turns: wall time, processor time, memory.

    python ray_sort.py FOLDER --bytes 2G [--turns N] [--only NAMES] [--dpipe PROGRAM]

The processor time is that of all processes that a contestant started, also those that have ended, by
a control group (version 1 or 2; needs root). It is counted once the engine runs: the cluster of Ray is
two raylets (`--nodes`) with a processor each on this machine. Lines are `KEY,REST`: 10 and 88 characters.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LINE = 100
STORE, MEMORY = 3 << 30, 4 << 30


def folders_of(pid: int) -> list[Path]:
    """The control groups of a contestant: of processor time and of memory, or one for both."""
    root, name = Path("/sys/fs/cgroup"), f"datapipes-bench-{pid}"
    return [root / kind / name for kind in ("cpuacct", "memory")] if (root / "cpuacct").is_dir() else [root / name]


class Group:
    """A control group with this process and all that it starts."""

    def __init__(self) -> None:
        self._folders = folders_of(os.getpid())
        self._v1 = len(self._folders) > 1
        for folder in self._folders:
            folder.mkdir()
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def cpu(self) -> float:
        if self._v1:
            return int((self._folders[0] / "cpuacct.usage").read_text()) / 1e9
        stat = dict(line.split() for line in (self._folders[0] / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) / 1e6

    def memory(self) -> int:
        """Bytes that are not a cache of files: of processes, and shared."""
        stat = dict(line.split() for line in (self._folders[-1] / "memory.stat").read_text().splitlines())
        names = ("total_rss", "total_shmem") if self._v1 else ("anon", "shmem")
        return sum(int(stat[name]) for name in names)


def end_group(pid: int) -> None:
    """End what a contestant left, and remove its groups."""
    for folder in folders_of(pid):
        for _ in range(50):
            with suppress(OSError, ValueError):
                for left in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(left), signal.SIGKILL)
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


class Peak(threading.Thread):
    """Looks at the memory of a group five times a second."""

    def __init__(self, group: Group) -> None:
        super().__init__(daemon=True)
        self.group, self.most, self.over = group, 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.most = max(self.most, self.group.memory())

    def end(self) -> int:
        self.over.set()
        self.join()
        return self.most


@contextmanager
def ray_cluster() -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": STORE, "memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    for _ in range(1, int(os.environ.get("NODES", "2"))):
        cluster.add_node(**size)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


Sort = Callable[[str, str], Any]


@contextmanager
def direct() -> Iterator[Sort]:
    with ours("direct") as sort:
        yield sort


@contextmanager
def store() -> Iterator[Sort]:
    with ours("store") as sort:
        yield sort


@contextmanager
def ours(shuffle: str) -> Iterator[Sort]:
    with ray_cluster():
        import datapipes.ray

        folder = os.environ.get("SPILL") or None
        yield lambda source, target: datapipes.ray.sort(
            [source], target, records=(LINE, 0, 10), memory_per_task="1G", shuffle=shuffle, spill=folder
        ).to_dict()


@contextmanager
def dpipe() -> Iterator[Sort]:
    yield lambda source, target: subprocess.run(
        [os.environ["DPIPE"], "sort", "--records=100:0:10", "-S", "1G", source, "-o", target], check=True
    )


@contextmanager
def ray_data() -> Iterator[Sort]:
    with ray_cluster():
        import ray
        from pyarrow import csv

        def sort(source: str, target: str) -> None:
            read = csv.ReadOptions(column_names=["key", "rest"])
            ray.data.DataContext.get_current().enable_progress_bars = False
            ray.data.read_csv(source, read_options=read).sort("key").write_csv(target)

        yield sort


@contextmanager
def dask() -> Iterator[Sort]:
    import dask.dataframe as frames
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=None) as cluster:
        with Client(cluster):
            yield lambda source, target: (
                frames.read_csv(source, header=None, names=["key", "rest"])
                .sort_values("key")
                .to_csv(target, header=False, index=False)
            )


@contextmanager
def daft() -> Iterator[Sort]:
    import daft as engine

    yield lambda source, target: (
        engine.read_csv(source, has_headers=False).sort("column_1").write_csv(target).to_pydict()
    )


@contextmanager
def pyspark() -> Iterator[Sort]:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", os.environ.get("SPILL") or "/var/tmp")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    yield lambda source, target: spark.read.csv(source).sort("_c0").write.csv(target)
    spark.stop()


CONTESTANTS = {of.__name__: of for of in (dpipe, direct, store, ray_data, dask, daft, pyspark)}
AGAIN = {"direct", "store"}
"""They sort twice: in a new cluster, and in one that has sorted before."""


def generate(path: Path, size: int) -> None:
    """Write random lines. Keys have 36 characters to choose from."""
    import numpy as np

    chosen = np.random.default_rng(1)
    letters = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", np.uint8)
    with open(path, "xb") as file:
        left = size // LINE
        while left > 0:
            count = min(left, 200_000)
            lines = letters[chosen.integers(0, 36, (count, LINE), np.uint8)]
            lines[:, 10], lines[:, -1] = ord(","), ord("\n")
            file.write(lines.tobytes())
            left -= count


def in_order(target: Path, size: int) -> None:
    """Fail unless the lines of an output are in order, and as many as they should be."""
    files = [target] if target.is_file() else sorted(path for path in target.rglob("*") if path.is_file())
    files = [path for path in files if path.name[0] not in "._"]
    last, total = b"", 0
    for path in files:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines):
                key = line[:10]
                total += 1
                if key < last and not (number == 0 and line.startswith((b"key", b'"key'))):
                    raise SystemExit(f"{path}: line {number} is not in order")
                last = max(key, last) if number else key if key >= last else last
    if not size <= total * LINE <= size + LINE * len(files):
        raise SystemExit(f"{target} has {total} lines of {size // LINE}")


def one(name: str, folder: Path, check: bool) -> None:
    group = Group()
    source, target = folder / "input", folder / f"sorted-{name}"
    found = []
    with CONTESTANTS[name]() as sort:
        for _ in range(2 if name in AGAIN else 1):
            subprocess.run(["rm", "-rf", target], check=True)
            peak, used, began = Peak(group), group.cpu(), time.monotonic()
            account = sort(str(source), str(target))
            wall, used = time.monotonic() - began, group.cpu() - used
            row: dict[str, Any] = {"wall": wall, "cpu": used, "peak": peak.end()}
            if isinstance(account, dict) and "task_cpu_seconds" in account:
                row["tasks"] = account["task_cpu_seconds"]
                row["phases"] = account["phases"]
            found.append(row)
    if check:
        in_order(target, source.stat().st_size)
    subprocess.run(["rm", "-rf", target], check=True)
    print("RESULT " + json.dumps(found))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("folder", type=Path)
    parse.add_argument("--bytes", default="500M")
    parse.add_argument("--turns", type=int, default=1)
    parse.add_argument("--nodes", type=int, default=2, help="raylets of Ray's cluster")
    parse.add_argument("--only", default=",".join(CONTESTANTS))
    parse.add_argument("--dpipe", default=shutil.which("dpipe") or "dpipe")
    parse.add_argument("--limit", type=float, default=170, help="seconds that a contestant may take")
    parse.add_argument("--check", action="store_true", help="check the order of the outputs")
    parse.add_argument("--one", help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.one:
        one(given.one, given.folder, given.check)
        return
    import datapipes

    size = datapipes._datapipes.parse_size(given.bytes) // LINE * LINE
    source = given.folder / "input"
    if not source.exists() or source.stat().st_size != size:
        source.unlink(missing_ok=True)
        generate(source, size)
    environment = {**os.environ, "DPIPE": given.dpipe, "NODES": str(given.nodes)}
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(given.turns):
        for name in given.only.split(","):
            command = [sys.executable, __file__, str(given.folder), "--one", name, *(["--check"] if given.check else [])]
            said = given.folder / "said"
            with open(said, "w") as out:
                run = subprocess.Popen(
                    command, stdout=out, stderr=out, env=environment, start_new_session=True
                )
                try:
                    run.wait(given.limit)
                except subprocess.TimeoutExpired:
                    print(f"turn {turn}: {name}: not done after {given.limit} s", flush=True)
            end_group(run.pid)
            run.wait()
            line = next((line for line in said.read_text().splitlines() if line.startswith("RESULT ")), None)
            if line is None:
                print(f"turn {turn}: {name}: no result: {said.read_text()[-600:]}", flush=True)
                continue
            for number, row in enumerate(json.loads(line[7:])):
                label = name if number == 0 else f"{name}, again"
                found.setdefault(label, []).append(row)
                print(f"turn {turn}: {label}: {json.dumps(row)}", flush=True)
    print("\n| contestant | wall s | CPU s | CPU s of the tasks | peak MiB |\n|---|---|---|---|---|")
    for label, rows in found.items():
        cells = [", ".join(f"{row[key]:.1f}" for row in rows if key in row) for key in ("wall", "cpu", "tasks")]
        median = statistics.median(row["cpu"] for row in rows)
        peak = max(row["peak"] for row in rows) >> 20
        print(f"| {label} | {cells[0]} | {cells[1]} (median {median:.1f}) | {cells[2]} | {peak} |")


if __name__ == "__main__":
    main()

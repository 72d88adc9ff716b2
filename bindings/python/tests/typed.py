"""A program that the type checker reads; it is not run."""

from __future__ import annotations

import asyncio
import pathlib

import datapipes as dp
import numpy as np
import numpy.typing as npt


def load(path: str) -> npt.NDArray[np.float32]:
    tensors = dp.load_file(path)
    print(tensors.report().to_dict()["primitives"])
    array: npt.NDArray[np.float32] = tensors["weights"]
    return array


def files(path: str) -> int:
    with dp.open(path) as file:
        buffer: dp.Buffer = file.read(10_007, 1 << 20)
        count: int = file.readinto(np.empty(100, np.float64), offset=8)
        under_way: dp.Pending = file.pread(bytearray(100))
        file.read_ranges([(0, 10), (100, 10)], out=bytearray(20))
        return count + len(buffer) + under_way.result(timeout=5.0)


def names(path: bytes, out: pathlib.Path) -> pathlib.Path:
    with dp.open(path) as file:
        part = file.read(0, 8)
        array: npt.NDArray[np.uint8] = np.frombuffer(memoryview(part), np.uint8)
        file.readinto(np.zeros(4, "M8[s]"))
        file.read_ranges(np.array([[0, 10]]))
        file.read_ranges([range(2), [0, int(array[0])]])
        dp.sort(path, out, separator=b",")
        print(dp.load_files([path, out, "x"]), memoryview(part))
        return file.path


async def serve(path: str) -> int:
    with dp.open(path) as file:
        return await file.pread_async(bytearray(100), 0)


def rows(path: str) -> npt.NDArray[np.float32]:
    table = dp.rows(path, "float32", 128, cache="256M")
    return table[np.array([1, 2, 3])]


def devices(path: str) -> int:
    memory = dp.Hbm("cuda:0", 4096)
    with dp.open(path) as file, memory[:64].lease() as lease:
        count: int = file.readinto(memory) + file.write(memory.part(0, 64)) + lease.pointer
        dp.connect(file, memory).transfer(len=64)
        dp.connect(memory, dp.Buffer(4096)).transfer()
    out: dp.Hbm = dp.rows(path, "float32", 16, device="cuda:0").gather([1], out=memory)
    tensors = dp.load_file(path, device="cuda:0")
    print([gpu["name"] for gpu in dp.gpus()], tensors, dp.stream([path], device=0), dp.explain(path, out))
    return count


def pipes(path: str) -> dict[str, object]:
    with dp.open(path) as file:
        pipe: dp.Pipe = dp.connect(file, dp.Buffer(4096), typical_len=64)
        pipe.transfer(source=5, len=64)
        print(pipe.route())
        return pipe.report().to_dict()


def logs(folder: str) -> list[bytes]:
    with dp.Log(folder, segment_bytes=1 << 20) as log:
        number: int = log.append(b"one") + log.append_durable(np.zeros(3))
        log.sync()
        print(number, log.read(1), log.stats()["records"], dp.examine_log(folder))
        return [record for _, record in log] + [record for _, record in dp.read_log(folder, start=2)]


def main() -> None:
    try:
        print(dp.sort("in", "out", format="u64", memory="2G", progress=lambda *counts: None))
        taken: list[bytes] = []
        dp.sort((line for line in (b"b", b"a")), taken.append)
    except dp.NoSpace as error:
        print(error.kind, error.errno, error.offset, error.bytes_done)
    dp.checkpoint.save("folder", {"a": np.zeros(3)}, keep=2)
    print([entry.number for entry in dp.checkpoint.list("folder")], dp.checkpoint.restore("folder")["a"])
    print(dp.explain("ssd:/data/x", "dram:1G"), dp.machine())
    asyncio.run(serve("in"))


def cluster(paths: list[str]) -> dict[str, object]:
    import datapipes.ray

    report = datapipes.ray.sort(paths, "sorted", keys=["2,2n"], memory_per_task="1G", parallelism=8)
    datapipes.ray.sort("x", pathlib.Path("y"), records=(100, 0, 10), progress=lambda *now: print(now))
    return report.to_dict()

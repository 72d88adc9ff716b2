"""Memory of GPUs: of a real one where there is one, else of a model of NVIDIA's driver."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys

import datapipes as dp
import numpy as np
import pytest
from conftest import in_child


@pytest.fixture(autouse=True)
def _driver(gpu_driver):
    """Each test here needs one."""


def filled(folder, data, name="given"):
    (folder / name).write_bytes(data)
    return folder / name


def content(memory, folder):
    """The bytes of memory of a device, by way of a file."""
    with dp.open(folder / "content", "w") as file:
        file.write(memory)
    return (folder / "content").read_bytes()


def hbm_of(data, folder):
    memory = dp.Hbm(0, len(data))
    with dp.open(filled(folder, data)) as file:
        assert file.readinto(memory) == len(data)
    return memory


class ByDlpack:
    """A tensor of another library, by DLPack."""

    def __init__(self, memory, versions=True, device=None):
        self.memory, self.versions, self.device, self.asked = memory, versions, device, []

    def __dlpack_device__(self):
        return self.device or self.memory.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **more):
        if more and not self.versions:
            raise TypeError("no such argument")
        self.asked.append((stream, more))
        return self.memory.__dlpack__(stream=stream, **more)


class ByInterface:
    """An array of another library, by `__cuda_array_interface__`."""

    def __init__(self, memory, **other):
        self.memory = memory
        self.__cuda_array_interface__ = {**memory.__cuda_array_interface__, **other}


@pytest.mark.parametrize("length", [1, 4096, (1 << 20) + 7, 20_000_003])
def test_from_a_file_and_back(folder, pattern, length):
    data = pattern(length)
    memory = hbm_of(data, folder)
    assert len(memory) == memory.nbytes == length and memory.device == 0
    assert content(memory, folder) == data
    with dp.open(folder / "given") as file:
        assert file.readinto(memory, offset=length // 2) == length - length // 2
        assert file.report().to_dict()["primitives"]
    assert content(memory, folder) == data[length // 2 :] + data[length - length // 2 :]


def test_parts_are_the_same_bytes(folder, pattern):
    data = pattern(10_000)
    memory = hbm_of(data, folder)
    part = memory[1000:3000].part(500, 100)
    assert content(part, folder) == data[1500:1600] and len(memory[5:5]) == 0
    with dp.open(filled(folder, b"x" * 100)) as file:
        file.readinto(part)
    assert content(memory, folder) == data[:1500] + b"x" * 100 + data[1600:]
    with pytest.raises(dp.OutOfRange):
        memory.part(9000, 1001)
    with pytest.raises(dp.InvalidInput, match="step"):
        memory[::2]


def test_pipes(pattern):
    data = pattern(3 << 20)
    here, there, third = dp.Buffer(len(data)), dp.Hbm("cuda:0", len(data)), dp.Hbm(0, len(data))
    np.frombuffer(memoryview(here), np.uint8)[:] = np.frombuffer(data, np.uint8)
    gc.collect()
    up = dp.connect(here, there)
    assert "gpu-upload" in str(up.route()), up.route()
    up.transfer()
    dp.connect(there, third).transfer()
    back = dp.Buffer(len(data))
    dp.connect(third, back).transfer(len=len(data) - 1)
    assert back.tobytes() == data[:-1] + b"\0"
    assert "gpu" in str(dp.explain(there, here))


def test_views_hold_the_lease(folder, pattern):
    memory = hbm_of(pattern(5000), folder)
    capsule = memory.__dlpack__()
    assert memory.exports == 1
    with dp.open(folder / "given") as file, pytest.raises(dp.Busy):
        file.readinto(memory)
    more = memory.__dlpack__(max_version=(1, 3), stream=1)
    assert memory.exports == 2
    del capsule
    assert memory.exports == 1
    del more
    gc.collect()
    assert memory.exports == 0
    with dp.open(folder / "given") as file:
        file.readinto(memory)
    assert memory.__dlpack_device__() == (2, 0)
    for refused in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError):
            memory.__dlpack__(**refused)
    assert memory.exports == 0


def test_a_view_outlives_its_object(folder, pattern):
    data = pattern(5000)
    tensor = ByDlpack(hbm_of(data, folder))
    capsule = tensor.memory.__dlpack__()

    class Only:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **_):
            return capsule

    del tensor
    gc.collect()
    assert content(Only(), folder) == data


@pytest.mark.parametrize("versions", [True, False])
def test_tensors_are_places(folder, pattern, versions):
    data = pattern(9000)
    memory = dp.Hbm(0, 9000)
    tensor = ByDlpack(memory, versions)
    with dp.open(filled(folder, data)) as file:
        assert file.readinto(tensor) == 9000
        assert file.read_ranges([(8000, 1000), (0, 8000)], out=tensor) is tensor
        assert content(tensor, folder) == data[8000:] + data[:8000]
        assert file.pread(tensor).result(timeout=60) == 9000
    assert content(tensor, folder) == data
    # What its library has under way comes before work of the default stream.
    assert {stream for stream, _ in tensor.asked} == {1} and memory.exports == 0
    assert all(more == ({"max_version": (1, 0)} if versions else {}) for _, more in tensor.asked)


def test_arrays_are_places(folder, pattern):
    data = pattern(9000)
    memory = dp.Hbm(0, 9000)
    with dp.open(filled(folder, data)) as file:
        for other in ({}, {"stream": 1}, {"shape": (10, 225), "typestr": "<f4", "strides": (900, 4)}):
            array = ByInterface(memory, **other)
            assert file.readinto(array) == 9000
            assert content(array, folder) == data
        for other, why in (
            ({"data": (memory.__cuda_array_interface__["data"][0], True)}, "read-only"),
            ({"shape": (10, 100), "typestr": "<f4", "strides": (900, 4)}, "side by side"),
            ({"typestr": "?"}, "typestr"),
            ({"mask": array}, "mask"),
            ({"data": (64, False)}, "GPU|device"),
        ):
            with pytest.raises(dp.InvalidInput, match=why):
                file.readinto(ByInterface(memory, **other))


def test_capsules_are_looked_at(folder):
    class Liar(ByDlpack):
        def __dlpack__(self, **_):
            return 5

    memory = dp.Hbm(0, 100)
    with dp.open(filled(folder, b"x" * 100)) as file:
        with pytest.raises(dp.InvalidInput, match="capsule"):
            file.readinto(Liar(memory))
        used = ByDlpack(memory)
        kept = memory.__dlpack__()
        used.__class__ = type("Twice", (ByDlpack,), {"__dlpack__": lambda *_, **__: kept})
        assert file.readinto(used) == 100
        with pytest.raises(dp.InvalidInput, match="capsule"):
            file.readinto(used)


def test_hbm_over_a_tensor(folder, pattern):
    data = pattern(5000)
    tensor = ByDlpack(hbm_of(data, folder))
    over = dp.Hbm.of(tensor)
    assert content(over[4000:], folder) == data[4000:] and "cuda:0" in repr(over)
    with pytest.raises(dp.InvalidInput, match="no tensor"):
        dp.Hbm.of(b"x")
    weak = tensor.memory
    assert weak.exports == 1  # It is kept as long as there is a place over it.
    del over
    gc.collect()
    assert weak.exports == 0


def test_leases(folder, pattern):
    memory = hbm_of(pattern(5000), folder)
    with memory.lease() as lease:
        assert lease.pointer == memory.__cuda_array_interface__["data"][0] and len(lease) == 5000
        lease.order_before(0)
        with dp.open(folder / "given") as file, pytest.raises(dp.Busy):
            file.readinto(memory)
        lease.order_after(0)
    assert content(memory, folder) == pattern(5000)
    with pytest.raises(dp.InvalidInput, match="released"):
        lease.pointer  # noqa: B018


def test_await(folder, pattern):
    data = pattern(2_000_000)
    memory = dp.Hbm(0, len(data))

    async def reads():
        with dp.open(filled(folder, data)) as file:
            assert await file.pread_async(memory) == len(data)
            assert await file.pread_async(memory[:10], offset=100) == 10

    asyncio.run(reads())
    assert content(memory, folder) == data[100:110] + data[10:]


def test_rows_into_a_device(folder):
    table = np.arange(1000 * 8, dtype="<f4").reshape(1000, 8)
    rows = dp.rows(filled(folder, table.tobytes()), "float32", 8, cache="4M")
    ids = np.array([[5, 3], [5, 999]])

    class Array(ByInterface):
        shape, dtype = (2, 2, 8), "float32"

    out = Array(dp.Hbm(0, 2 * 2 * 8 * 4), shape=(2, 2, 8), typestr="<f4")
    assert rows.gather(ids, out=out) is out
    assert content(out, folder) == table[ids].tobytes()
    out.dtype = "float64"
    with pytest.raises(dp.InvalidInput, match="float64"):
        rows.gather(ids, out=out)


def test_calls_for_the_processors_memory_refuse_it(folder):
    tensor = ByDlpack(dp.Hbm(0, 100))
    with dp.Log(folder / "log") as log, pytest.raises(dp.InvalidInput, match="on a GPU"):
        log.append(tensor)


def test_wrong_devices():
    for device in ("cpu", "cuda:x", -1, "cuda:-1", None, 1.5):
        with pytest.raises(dp.InvalidInput, match="cuda:0"):
            dp.Hbm(device, 10)
    with pytest.raises(dp.NotFound):
        dp.Hbm(1000, 10)
    with pytest.raises(dp.OutOfMemory):
        dp.Hbm(0, 1 << 60)
    assert len(dp.Hbm(0, 0)) == 0 and dp.gpus()[0]["total_bytes"] > 0
    with pytest.raises(dp.InvalidInput, match="mapped"):
        dp.load_file("x.safetensors", mapped=True, device="cuda:0")
    for device in ("rocm:0", "cuda:", object()):
        with pytest.raises(dp.InvalidInput, match="cuda:0"):
            dp.load_file("x.safetensors", device=device)


def test_children_of_fork_are_refused(folder):
    memory = hbm_of(b"x" * 100, folder)

    def work():
        with pytest.raises(dp.Forked):
            dp.Hbm(0, 10)
        with pytest.raises(dp.Forked), dp.open(folder / "given") as file:
            file.readinto(memory)

    in_child(work)


def test_an_absent_driver_is_named(folder):
    code = """
import datapipes as dp
for call in (dp.gpus, lambda: dp.Hbm(0, 10)):
    try:
        call()
    except dp.Unavailable as why:
        print(why)
"""
    absent = {**os.environ, "DATAPIPES_CUDA_DRIVER": str(folder / "libabsent.so")}
    done = subprocess.run([sys.executable, "-c", code], env=absent, capture_output=True, text=True, check=True)
    assert done.stdout.count("libabsent.so") == 2, done

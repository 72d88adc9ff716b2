"""Tensors of torch and arrays of cupy on a GPU. A model of the driver cannot carry these: they need one."""

from __future__ import annotations

import gc

import datapipes as dp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

from test_torch import KINDS, write  # noqa: E402


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_tensors_of_all_kinds(folder, padding):
    given = {
        name: torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).to(kind) for name, kind in KINDS.items()
    }
    raw = {name: (name, (2, 3, 4), of.view(torch.uint8).numpy().tobytes()) for name, of in given.items()}
    raw["odd"] = ("U8", (3,), b"abc")
    raw["empty"] = ("F32", (0, 3), b"")
    raw["scalar"] = ("F64", (), np.float64(2.5).tobytes())
    path = write(folder / "m.safetensors", raw, padding)
    for loaded in (dp.load_file(path, device="cuda:0"), dict(dp.stream([path], device=torch.device("cuda", 0)))):
        assert set(loaded) == set(raw)
        for name, of in given.items():
            found = loaded[name]
            assert found.is_cuda and found.dtype == of.dtype and found.shape == of.shape
            assert found.data_ptr() % of.element_size() == 0
            assert torch.equal(found.cpu().view(torch.uint8), of.view(torch.uint8)), name
        assert loaded["empty"].shape == (0, 3) and loaded["scalar"].item() == 2.5
        assert bytes(loaded["odd"].cpu().numpy()) == b"abc"


@pytest.mark.parametrize("length", [1000, 100_000_003])
def test_tensors_keep_their_memory(folder, pattern, length):
    data = pattern(length)
    path = write(folder / "m.safetensors", {"a": ("U8", (length,), data)})
    loaded = dp.load_file(path, device=0)
    assert "gpu-upload" in str(loaded.report()), loaded.report()
    tensor = loaded["a"]
    del loaded
    gc.collect()
    other = torch.zeros(length, dtype=torch.uint8, device="cuda:0")
    assert tensor.cpu().numpy().tobytes() == data and int(other.sum()) == 0


def test_other_formats(folder):
    np.save(folder / "c.npy", np.arange(6, dtype="<f8").reshape(2, 3))
    np.save(folder / "f.npy", np.asfortranarray(np.arange(6, dtype="<f4").reshape(2, 3)))
    for name in "cf":
        tensor = dp.load_file(folder / f"{name}.npy", device="cuda:0")["array"]
        assert tensor.is_cuda and tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    base = torch.arange(12, dtype=torch.bfloat16)
    torch.save({"a": base[2:8].reshape(2, 3), "b": {"c": base[1::2]}, "n": 5}, folder / "x.pt")
    found = dp.load_file(folder / "x.pt", device="cuda:0")
    assert found["a"].is_cuda and found["a"].tolist() == [[2, 3, 4], [5, 6, 7]]
    assert found["b.c"].tolist() == [1, 3, 5, 7, 9, 11] and found.metadata["n"] == 5


def test_tensors_are_places(folder, pattern):
    data = pattern(1 << 20)
    (folder / "given").write_bytes(data)
    tensor = torch.zeros(1 << 17, dtype=torch.float64, device="cuda:0")
    with dp.open(folder / "given") as file:
        assert file.readinto(tensor) == len(data)
        assert tensor.cpu().numpy().tobytes() == data
        tensor.zero_()
        assert file.pread(tensor).result(timeout=60) == len(data)
        with pytest.raises(dp.InvalidInput, match="side by side"):
            file.readinto(tensor.view(1 << 7, 1 << 10).t())
        pinned = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
        assert file.readinto(pinned) == len(data)
    with dp.open(folder / "taken", "w") as file:
        file.write(tensor)
        file.write(tensor[1:2], offset=0)
    assert (folder / "taken").read_bytes() == data[8:16] + data[8:] and bytes(pinned.numpy()) == data


@pytest.mark.parametrize("side", [False, True])
def test_transfers_come_after_the_current_stream(folder, side):
    """Work that was queued before a transfer is done before it, on the default stream and others."""
    numbers, stream = 1 << 24, torch.cuda.Stream() if side else torch.cuda.default_stream()
    (folder / "given").write_bytes(np.full(numbers, 7, "<f4").tobytes())
    # Elsewhere, as the first use of a kernel synchronizes.
    torch.zeros(8, device="cuda:0").add_(1).mul_(2)
    torch.cuda._sleep(1000)
    for _ in range(3):
        with torch.cuda.stream(stream), dp.open(folder / "given") as given, dp.open(folder / "taken", "w") as taken:
            tensor = torch.zeros(numbers, device="cuda:0")
            torch.cuda.synchronize()
            torch.cuda._sleep(200_000_000)  # Some 0.1 s.
            tensor.add_(1)
            taken.write(tensor)
            torch.cuda._sleep(200_000_000)
            tensor.zero_()
            given.readinto(tensor)
            assert float(tensor.sum()) == 7 * numbers
        assert (np.fromfile(folder / "taken", "<f4") == 1).all()


def test_hbm_as_a_tensor(folder, pattern):
    data = pattern(10_000)
    (folder / "given").write_bytes(data)
    memory = dp.Hbm("cuda:0", len(data))
    with dp.open(folder / "given") as file:
        file.readinto(memory)
        tensor = torch.from_dlpack(memory)
        assert tensor.device == torch.device("cuda", 0) and tensor.cpu().numpy().tobytes() == data
        with pytest.raises(dp.Busy):
            file.readinto(memory)
        tensor += 1
        del tensor
        file.readinto(memory)
    also = torch.as_tensor(memory, device="cuda:0")
    assert also.data_ptr() == memory.__cuda_array_interface__["data"][0]
    assert also.cpu().numpy().tobytes() == data


def test_rows_on_a_device(folder):
    table = np.arange(1000 * 8, dtype="<f4").reshape(1000, 8)
    (folder / "table").write_bytes(table.tobytes())
    ids = np.array([[5, 3], [5, 999]])
    with dp.rows(folder / "table", "float32", 8, cache="4M", device="cuda:0") as rows:
        found = rows[ids]
        assert found.is_cuda and found.tolist() == table[ids].tolist()
        out = torch.zeros(2, 2, 8, device="cuda:0")
        assert rows.gather(ids, out=out) is out and torch.equal(out, found)
        assert rows[[]].shape == (0, 8)
        assert np.array_equal(np.asarray(rows), table)


def test_arrays_of_cupy(folder, pattern):
    cupy = pytest.importorskip("cupy")
    data = pattern(1 << 20)
    (folder / "given").write_bytes(data)
    with dp.open(folder / "given") as file:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            array = cupy.zeros((512, 512), np.float32)
            assert file.readinto(array) == len(data)
            assert array.get().tobytes() == data
    memory = dp.Hbm.of(array)
    assert bytes(cupy.asarray(memory).get()) == data and bytes(cupy.from_dlpack(memory).get()) == data
    four = np.arange(4, dtype="<f4").tobytes()
    raw = {"a": ("F32", (4,), four), "b": ("U8", (1,), b"x"), "c": ("I64", (1,), bytes(8))}
    loaded = dp.load_file(write(folder / "m.safetensors", raw), framework="cupy", device="cuda:0")
    assert isinstance(loaded["a"], cupy.ndarray) and loaded["a"].tolist() == [0, 1, 2, 3]
    assert loaded["c"].tolist() == [0]


def test_a_device_that_is_absent(folder):
    path = write(folder / "m.safetensors", {"a": ("U8", (3,), b"abc")})
    with pytest.raises(Exception, match="(?i)invalid device|device"):
        dp.load_file(path, device="cuda:99")

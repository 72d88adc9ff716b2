"""Tensors of torch."""

from __future__ import annotations

import gc
import json

import datapipes as dp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from datapipes.torch import RowsDataset  # noqa: E402


def write(path, tensors, padding=0):
    """A safetensors file, written by hand: name -> (kind, shape, bytes)."""
    header, at = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(of[2] for of in tensors.values()))
    return path


KINDS = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("padding", [0, 1, 2, 3, 4, 5, 6, 7])
def test_tensors_of_all_kinds(folder, padding):
    given = {
        name: torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).to(kind) for name, kind in KINDS.items()
    }
    raw = {name: (name, (2, 3, 4), of.view(torch.uint8).numpy().tobytes()) for name, of in given.items()}
    raw["empty"] = ("F32", (0, 3), b"")
    raw["scalar"] = ("F32", (), np.float32(2.5).tobytes())
    loaded = dp.load_file(write(folder / "m.safetensors", raw, padding), framework="torch")
    assert set(loaded) == {*given, "empty", "scalar"}
    for name, of in given.items():
        assert loaded[name].dtype == of.dtype and loaded[name].shape == of.shape
        assert loaded[name].data_ptr() % of.element_size() == 0
        assert torch.equal(loaded[name].view(torch.uint8), of.view(torch.uint8)), name
    assert loaded["empty"].shape == (0, 3) and loaded["scalar"].item() == 2.5


def test_tensors_keep_their_memory(folder, pattern):
    data = pattern(1 << 20)
    path = write(folder / "m.safetensors", {"a": ("U8", (1 << 20,), data)})
    tensor = dp.load_file(path, framework="torch")["a"]
    gc.collect()
    assert tensor.numpy().tobytes() == data
    tensor += 1  # They are writable, as those of torch.load.
    ((name, streamed),) = dp.stream([path], framework="torch")
    assert name == "a" and streamed.numpy().tobytes() == data


def test_as_safetensors_does(folder):
    save_file = pytest.importorskip("safetensors.torch").save_file
    load_file = pytest.importorskip("safetensors.torch").load_file
    given = {"a": torch.randn(100, 30, dtype=torch.bfloat16), "b": torch.arange(7), "c": torch.zeros(0, 2)}
    save_file(given, folder / "m.safetensors")
    ours, theirs = dp.load_file(folder / "m.safetensors", framework="torch"), load_file(folder / "m.safetensors")
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)


def test_npy(folder):
    np.save(folder / "x.npy", np.arange(6, dtype="<f8").reshape(2, 3))
    tensor = dp.load_file(folder / "x.npy", framework="torch")["array"]
    assert tensor.dtype == torch.float64 and tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_readinto_a_tensor(folder, pattern):
    (folder / "x").write_bytes(pattern(8000))
    tensor = torch.zeros(1000, dtype=torch.float64)
    with dp.open(folder / "x") as file:
        assert file.readinto(tensor) == 8000
    assert tensor.numpy().tobytes() == pattern(8000)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_as_a_dataset(folder, workers):
    table = np.arange(1000 * 8, dtype="<f4").reshape(1000, 8)
    (folder / "table").write_bytes(table.tobytes())
    dataset = RowsDataset(dp.rows(folder / "table", "float32", 8, cache="4M"))
    assert len(dataset) == 1000 and dataset[3].tolist() == table[3].tolist() == dataset[-997].tolist()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=64, shuffle=True, collate_fn=dataset.collate, num_workers=workers, timeout=60 * (workers > 0)
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [64] * 15 + [40]
    rows = torch.cat(batches)
    assert np.array_equal(rows[rows[:, 0].argsort()].numpy(), table)

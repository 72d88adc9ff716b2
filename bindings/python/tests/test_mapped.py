"""Tensors over the pages of a file that the page cache has."""

from __future__ import annotations

import os
import subprocess
import sys

import datapipes as dp
import numpy as np
import pytest
from conftest import in_child
from test_calls import forget
from test_products import write

MIB = 1 << 20


@pytest.fixture
def model(folder):
    arrays = {f"layer.{i}": np.random.default_rng(i).random((512, 512), np.float32) for i in range(4)}
    path = folder / "model.safetensors"
    write(path, arrays)
    return path, arrays


def mapped_bytes(loaded):
    return loaded.report().to_dict()["primitives"].get("mapped", {}).get("bytes", 0)


def same(found, arrays):
    return set(found) == set(arrays) and all(np.array_equal(found[name], of) for name, of in arrays.items())


def test_what_is_cached_is_mapped_and_what_is_not_is_read(model):
    path, arrays = model
    with dp.open(path) as file:
        if file.cached_share() is None:
            pytest.skip("the kernel does not tell what the page cache has")
        forget(path)
        if file.cached_share() > 0.5:
            pytest.skip("the file system keeps all of its files in memory")
    cold = dp.load_file(path)
    assert same(cold, arrays) and mapped_bytes(cold) == 0
    path.read_bytes()
    warm = dp.load_file(path)
    assert same(warm, arrays) and mapped_bytes(warm) == 4 * MIB
    own = dp.load_file(path, mapped=False)
    assert same(own, arrays) and mapped_bytes(own) == 0
    forget(path)
    asked = dp.load_file(path, mapped=True)
    assert same(asked, arrays) and mapped_bytes(asked) == 4 * MIB


def test_what_is_written_to_an_array_stays_there(model):
    path, arrays = model
    before = path.read_bytes()
    found = dp.load_file(path, mapped=True)
    found["layer.1"][3] = -1
    assert found["layer.1"][3, 5] == -1 and found["layer.1"][4, 5] == arrays["layer.1"][4, 5]
    assert path.read_bytes() == before
    assert same(dp.load_file(path, mapped=True), arrays)


def test_an_array_keeps_its_pages_and_all_of_them_go(model):
    path, arrays = model

    def maps():
        with open("/proc/self/maps") as text:
            return sum(str(path) in line for line in text)

    found = dp.load_file(path, mapped=True)
    one = found["layer.2"]
    del found
    path.unlink()  # Replaced or removed, a file keeps its bytes.
    assert np.array_equal(one, arrays["layer.2"]) and maps() > 0
    del one
    assert maps() == 0


def test_a_child_has_the_pages_too(model):
    path, arrays = model
    found = dp.load_file(path, mapped=True)
    found["layer.0"][0, 0] = 7

    def work():
        assert found["layer.0"][0, 0] == 7
        found["layer.0"][0, 0] = 8
        assert same({"x": found["layer.3"]}, {"x": arrays["layer.3"]})

    in_child(work)
    assert found["layer.0"][0, 0] == 7


def test_a_checkpoint_of_pages_that_are_gone_is_an_error(model, folder):
    path, _ = model
    store = folder / "checkpoints"
    found = dp.load_file(path, mapped=True)
    others = np.memmap(path, np.uint8, "r", 4096, (1 << 20,))
    dp.checkpoint.save(store, {"x": found["layer.3"], "y": others})
    os.truncate(path, 0)
    for arrays in ({"x": found["layer.3"]}, {"y": others}):
        with pytest.raises(dp.Error) as raised:
            dp.checkpoint.save(store, arrays)
        assert raised.value.kind == "Device", raised.value
    assert [(one.number, one.damage) for one in dp.checkpoint.list(store)] == [(1, None)]


def test_small_files_and_numbers_that_are_not_aligned(folder):
    arrays = {"x": np.arange(100, dtype=np.float32)}
    path = folder / "small.safetensors"
    write(path, arrays)
    path.read_bytes()
    assert mapped_bytes(dp.load_file(path)) == 0
    odd = {"x": np.random.default_rng(1).random(MIB // 4, np.float32)}
    write(path, odd, pad=7)
    found = dp.load_file(path, mapped=True)
    assert same(found, odd) and found["x"].flags.aligned
    empty = folder / "empty.npy"
    np.save(empty, np.empty((0, 3)))
    assert dp.load_npy(empty, mapped=True).shape == (0, 3)


def test_npy_and_a_part_of_a_file(folder, pattern):
    array = np.asfortranarray(np.random.default_rng(1).random((600, 700)))
    np.save(folder / "x.npy", array)
    assert np.array_equal(dp.load_npy(folder / "x.npy", mapped=True), array)
    data = pattern(100_000)
    (folder / "part").write_bytes(data)
    with dp.open(folder / "part") as file:
        part = file.map(10_007, 50_000)
        assert memoryview(part) == data[10_007:60_007]
        file.readinto(part, 0)
        assert memoryview(part) == data[:50_000]
        assert len(file.map(5, 0)) == 0
        for wrong in ((0, 100_001), (100_000, 1), (1 << 63, 1)):
            with pytest.raises(dp.OutOfRange):
                file.map(*wrong)
    assert (folder / "part").read_bytes() == data


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only there are lost pages told")
def test_a_lost_page_is_an_error_of_a_transfer_and_ends_who_touches_it(model):
    path, _ = model
    with dp.open(path) as file:
        buffer = file.map(0, 4 * MIB)
        os.truncate(path, MIB)
        target = dp.Buffer(4096)
        with pytest.raises(dp.Error) as lost:
            dp.connect(buffer, target).transfer(3 * MIB, 0, 4096)
        assert lost.value.kind == "Device" and lost.value.offset >= 3 * MIB - 4096
    program = (
        "import sys, os, datapipes as dp\n"
        "array = dp.load_npy(sys.argv[1], mapped=True)\n"
        "os.truncate(sys.argv[1], 1000)\n"
        "array.sum()\n"
    )
    np.save(path.with_suffix(".npy"), np.ones(MIB))
    command = [sys.executable, "-c", program, path.with_suffix(".npy")]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == -7, done.stderr  # As the documentation says: SIGBUS.

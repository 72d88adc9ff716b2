"""Descriptions of arrays in checkpoints and .npy files are not trusted."""

from __future__ import annotations

import json

import datapipes as dp
import numpy as np
import pytest

DESCRIPTIONS = {
    "too many zeros": {"x": {"dtype": "<f4", "shape": [0, 2**62]}},
    "beyond 64 bits": {"x": {"dtype": "<f4", "shape": [2**70, 0]}},
    "dimensions": {"x": {"dtype": "<f4", "shape": [1] * 64 + [0]}},
    "no bytes S": {"x": {"dtype": "S0", "shape": [5]}},
    "no bytes U": {"x": {"dtype": "U0", "shape": [5]}},
    "no bytes V": {"x": {"dtype": "V0", "shape": [5]}},
    "subarray": {"x": {"dtype": "(2,)f4", "shape": [0]}},
    "fields": {"x": {"dtype": "f4,f4", "shape": [0]}},
    "old letter": {"x": {"dtype": "a", "shape": [0]}},
    "object": {"x": {"dtype": "O", "shape": [0]}},
    "dtype no text": {"x": {"dtype": ["<f4"], "shape": [0]}},
    "long dtype": {"x": {"dtype": "S" + "9" * 5000, "shape": [0]}},
    "boolean": {"x": {"dtype": "<f4", "shape": [False]}},
    "negative": {"x": {"dtype": "<f4", "shape": [-1, 0]}},
    "text": {"x": {"dtype": "<f4", "shape": "0"}},
    "no shape": {"x": {"dtype": "<f4"}},
    "no dict": {"x": 5},
    "list": [],
    "deep": "[" * 100_000,
    "long number": "1" * 5000,
    "length": {"x": {"dtype": "<f4", "shape": [1]}},
    "name": {"y": {"dtype": "<f4", "shape": [0]}},
}


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_a_hostile_description_of_a_checkpoint_is_corrupt(folder, case):
    described = DESCRIPTIONS[case]
    text = (described if isinstance(described, str) else json.dumps(described)).encode()
    regions = [("x", np.zeros(0, "u1")), ("datapipes.arrays.v1", np.frombuffer(text, "u1"))]
    dp._datapipes.checkpoint_save(folder, regions, None)
    with pytest.raises(dp.Corrupt):
        dp.checkpoint.restore(folder)


def test_checkpoints_of_all_numbers(folder):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {
        kind: np.arange(6).reshape(2, 3).astype(kind)
        for kind in ("?", "i1", ">i4", "f2", "c16", "M8[ns]", "m8[3s]", "S3", "U4", np.dtype("longdouble").str)
    }
    arrays["bf"] = np.arange(6).astype(ml_dtypes.bfloat16)
    arrays["f8"] = np.arange(6).astype(ml_dtypes.float8_e4m3fn).reshape(3, 2)
    dp.checkpoint.save(folder, arrays)
    restored = dp.checkpoint.restore(folder)
    for name, array in arrays.items():
        assert restored[name].dtype == array.dtype and restored[name].shape == array.shape
        assert restored[name].tobytes() == array.tobytes()
    for wrong in (ml_dtypes.int4, ml_dtypes.float8_e4m3b11fnuz):
        with pytest.raises(dp.Unsupported):
            dp.checkpoint.save(folder, {"x": np.zeros(3, wrong)})


def test_what_a_checkpoint_does_not_take(folder):
    for arrays, keep in (([np.zeros(3)], None), ({}, "3"), ({}, 1.5), ({}, True), ({}, 0), (np.zeros(3), None)):
        with pytest.raises(dp.InvalidInput):
            dp.checkpoint.save(folder, arrays, keep=keep)


def npy(header):
    text = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4096)


def test_subarrays_of_npy_are_corrupt(folder):
    for descr in ("('<f4', (3,))", "('<f4', (0,))"):
        text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4,), }}".encode()
        (folder / "x.npy").write_bytes(npy(text))
        with pytest.raises(dp.Corrupt):
            dp.load_npy(folder / "x.npy")

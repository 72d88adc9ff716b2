"""Files of torch.save, without torch: their archives and descriptions are made here, hostile ones too."""

from __future__ import annotations

import math
import struct
import zipfile

import datapipes as dp
import numpy as np
import pytest


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def numbers(values):
    return b"(" + b"".join(number(value) for value in values) + b"t"


def name(value):
    module, _, attribute = value.rpartition(".")
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def storage(key, kind, count):
    return b"(" + text("storage") + name(f"torch.{kind}") + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(key, kind, count, first, shape, strides):
    given = storage(key, kind, count) + number(first) + numbers(shape) + numbers(strides)
    hooks = name("collections.OrderedDict") + b")R"
    return name("torch._utils._rebuild_tensor_v2") + b"(" + given + b"\x89" + hooks + b"tR"


def saved(items):
    return b"\x80\x02" + name("collections.OrderedDict") + b")R(" + b"".join(text(k) + v for k, v in items) + b"u."


@pytest.fixture
def write(folder):
    def make(pickled, storages, compression=zipfile.ZIP_STORED, order=b"little", file="model.pt"):
        path = folder / file
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("model/data.pkl", pickled)
            archive.writestr("model/byteorder", order)
            for key, content in storages.items():
                archive.writestr(f"model/data/{key}", content)
            archive.writestr("model/version", b"3\n")
        return path

    return make


FLOATS = np.arange(24, dtype="<f4")


@pytest.mark.parametrize("mapped", [False, True])
def test_tensors_of_an_archive(write, mapped):
    halves = np.arange(5, dtype="<f2")
    parameter = name("torch._utils._rebuild_parameter") + b"("
    parameter += tensor("1", "HalfStorage", 5, 0, (5,), (1,)) + b"\x88" + name("collections.OrderedDict") + b")RtR"
    inner = b"}(" + text("bias") + tensor("0", "FloatStorage", 24, 20, (2, 2), (2, 1)) + text("step") + number(7) + b"u"
    path = write(
        saved(
            [
                ("whole", tensor("0", "FloatStorage", 24, 0, (2, 3, 4), (12, 4, 1))),
                ("transposed", tensor("0", "FloatStorage", 24, 1, (4, 2), (1, 4))),
                ("empty", tensor("0", "FloatStorage", 24, 0, (0, 9), (9, 1))),
                ("one", tensor("0", "FloatStorage", 24, 23, (), ())),
                ("parameter", parameter),
                ("layer", inner),
                ("list", b"](" + tensor("1", "HalfStorage", 5, 4, (1,), (1,)) + b"Ne"),
            ]
        ),
        {"0": FLOATS.tobytes(), "1": halves.tobytes()},
    )
    found = dp.load_file(path, mapped=mapped)
    assert set(found) == {"whole", "transposed", "empty", "one", "parameter", "layer.bias", "list.0"}
    assert found["whole"].tolist() == FLOATS.reshape(2, 3, 4).tolist()
    assert found["transposed"].tolist() == [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]
    assert found["empty"].shape == (0, 9) and found["one"].item() == 23.0 and found["one"].shape == ()
    assert found["parameter"].dtype == np.float16 and found["parameter"].tolist() == [0, 1, 2, 3, 4]
    assert found["layer.bias"].tolist() == [[20.0, 21.0], [22.0, 23.0]] and found["list.0"].tolist() == [4]
    assert found.metadata == {"layer.step": 7, "list.1": None}
    found["whole"][0, 0, 1] = -1  # Tensors of one storage share it.
    assert found["transposed"][0, 0] == -1
    again = dp.load_file(path, mapped=False)
    assert again["whole"][0, 0, 1] == 1  # The file did not change.
    assert ("mapped" in found.report().to_dict()["primitives"]) == mapped


SYSTEM = b"\x80\x02" + name("os.system") + b"(" + text("touch pwned") + b"tR."
HOSTILE = {
    "a call of the system": (SYSTEM, {}, dp.Unsupported),
    "a call by protocol 4": (b"\x80\x04" + text("os") + text("system") + b"\x93(" + text("x") + b"tR.", {}, dp.Unsupported),
    "an object": (b"\x80\x02" + name("builtins.object") + b")\x81.", {}, dp.Unsupported),
    "an instance": (b"(" + text("x") + b"ios\nsystem\n.", {}, dp.Unsupported),
    "an extension": (b"\x80\x02\x82\x01.", {}, dp.Unsupported),
    "a call of a text": (b"\x80\x02" + text("x") + b")R.", {}, dp.Corrupt),
    "no end": (b"\x80\x02}", {}, dp.Corrupt),
    "nothing": (b"", {}, dp.Corrupt),
    "an empty stack": (b"\x80\x02.", {}, dp.Corrupt),
    "no mark": (b"\x80\x02t.", {}, dp.Corrupt),
    "a text beyond the end": (b"\x80\x02X\xff\xff\xff\x7fabc.", {}, dp.Corrupt),
    "memory that was not put": (b"\x80\x02h\x07.", {}, dp.Corrupt),
    "a key that is a list": (b"\x80\x02}]K\x01s.", {}, dp.Corrupt),
    "a key of nested tuples": (b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.", {}, dp.Corrupt),
    "a missing storage": (saved([("x", tensor("9", "FloatStorage", 1, 0, (1,), (1,)))]), {}, dp.Corrupt),
    "a path": (saved([("x", tensor("../../byteorder", "FloatStorage", 1, 0, (1,), (1,)))]), {}, dp.Corrupt),
    "a short storage": (saved([("x", tensor("0", "FloatStorage", 9, 0, (9,), (1,)))]), {"0": b"1234"}, dp.Corrupt),
    "a shape beyond the storage": (saved([("x", tensor("0", "FloatStorage", 1, 0, (2,), (1,)))]), {"0": b"1234"}, dp.Corrupt),
    "a stride beyond it": (saved([("x", tensor("0", "FloatStorage", 2, 0, (2,), (2,)))]), {"0": b"12345678"}, dp.Corrupt),
    "a first element beyond it": (saved([("x", tensor("0", "FloatStorage", 1, 1, (1,), (1,)))]), {"0": b"1234"}, dp.Corrupt),
    "a negative stride": (saved([("x", tensor("0", "FloatStorage", 2, 1, (2,), (-1,)))]), {"0": b"12345678"}, dp.Corrupt),
    "a negative size": (saved([("x", tensor("0", "FloatStorage", 1, 0, (-1,), (1,)))]), {"0": b"1234"}, dp.Corrupt),
    "more strides than sizes": (saved([("x", tensor("0", "FloatStorage", 1, 0, (1,), (1, 1)))]), {"0": b"1234"}, dp.Corrupt),
    "a storage of nothing known": (saved([("x", tensor("0", "QInt8Storage", 1, 0, (1,), (1,)))]), {"0": b"1"}, dp.Unsupported),
    "a huge empty tensor": (
        saved([("x", tensor("0", "FloatStorage", 0, 0, (0,) + (2**31 - 1,) * 5, (1,) * 6))]),
        {"0": b""},
        dp.Corrupt,
    ),
    "a dict in itself": (b"\x80\x02}q\x00" + text("x") + b"h\x00s.", {}, dp.Unsupported),
    "a dict of doubles": (
        b"\x80\x02}q\x00" + text("x") + b"Ns" + b"".join(
            b"}q" + bytes([i]) + b"(" + text("a") + b"h" + bytes([i - 1]) + text("b") + b"h" + bytes([i - 1]) + b"u"
            for i in range(1, 60)
        ) + b".",
        {},
        dp.Unsupported,
    ),
    "one name twice": (
        b"\x80\x02}(" + text("a") + b"}" + text("b") + b"K\x01s" + text("a.b") + b"K\x02u.",
        {},
        dp.Unsupported,
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_description_runs_nothing(write, case, monkeypatch, folder):
    pickled, storages, expected = HOSTILE[case]
    path = write(pickled, storages)
    monkeypatch.chdir(folder)
    with pytest.raises(expected) as raised:
        dp.load_file(path)
    assert raised.value.operation == "load"
    assert not (folder / "pwned").exists()


def test_each_value_has_a_name_of_its_own(write):
    storages = {"0": FLOATS[:1].tobytes(), "1": FLOATS[5:6].tobytes()}
    one, two = (tensor(key, "FloatStorage", 1, 0, (1,), (1,)) for key in "01")
    for items in ([("", one), ("array", two)], [("array", two), ("", one)]):
        found = dp.load_file(write(saved(items), storages))
        assert sorted(found) == ["", "array"] and found[""][0] == 0 and found["array"][0] == 5
    assert list(dp.load_file(write(b"\x80\x02" + one + b".", storages))) == ["array"]
    # A tuple that two others share, as the groups of an optimizer share one, and a type of numbers.
    pair = b"(K\x01K\x02tq\x00"
    shared = b"\x80\x02}(" + text("a") + pair + text("b") + b"h\x00" + text("kind") + name("torch.float16") + b"u."
    found = dp.load_file(write(shared, {}))
    assert found.metadata == {"a.0": 1, "a.1": 2, "b.0": 1, "b.1": 2, "kind": "torch.float16"}
    with pytest.raises(dp.Unsupported, match="no tensor"):
        dp.load_file(write(b"\x80\x02}" + text("x") + storage("0", "FloatStorage", 1) + b"s.", storages))


def test_archives_that_are_none(write, folder):
    good = saved([("x", tensor("0", "FloatStorage", 24, 0, (24,), (1,)))])
    storages = {"0": FLOATS.tobytes()}
    with pytest.raises(dp.Unsupported, match="compressed"):
        dp.load_file(write(good, storages, zipfile.ZIP_DEFLATED))
    with pytest.raises(dp.Unsupported, match="little-endian"):
        dp.load_file(write(good, storages, order=b"big"))
    whole = write(good, storages).read_bytes()
    path = folder / "changed.bin"
    for why in (b"", b"P", b"\x80\x02}.", b"PK\x03\x04" + bytes(100)):
        path.write_bytes(why)
        with pytest.raises(dp.Error):
            dp.load_file(path)
    # Every beginning, and changed bytes, end in arrays or in an error of this package.
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(dp.Error):
            dp.load_file(path)
    random = np.random.default_rng(11)
    for _ in range(600):
        changed = bytearray(whole)
        for at in random.integers(0, len(whole), random.integers(1, 4)):
            changed[at] = random.integers(0, 256)
        path.write_bytes(changed)
        try:
            found = dp.load_file(path)
        except dp.Error:
            continue
        for array in found.values():
            assert array.nbytes <= math.prod(array.shape) * 16
            array.sum()


def test_what_torch_writes(folder):
    torch = pytest.importorskip("torch")
    base = torch.arange(100, dtype=torch.float32)
    state = {
        "weight": base.reshape(10, 10),
        "view": base[5:50:3],
        "transposed": base.reshape(4, 25).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "small": torch.ones(3).to(torch.float8_e4m3fn),
        "wide": torch.ones(2, dtype=torch.uint16),
        "none": torch.empty(0, 4),
        "module": torch.nn.Linear(3, 2).state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "epoch": 3,
    }
    torch.save(state, folder / "x.pt")
    for mapped in (False, True):
        found = dp.load_file(folder / "x.pt", framework="torch", mapped=mapped)
        wanted = torch.load(folder / "x.pt", weights_only=True)
        assert found.metadata == {"epoch": 3}
        flat = {k: v for k, v in wanted.items() if k not in ("module", "epoch")}
        flat.update({f"module.{k}": v for k, v in wanted["module"].items()})
        assert set(found) == set(flat)
        for key, of in flat.items():
            assert found[key].dtype == of.dtype and found[key].stride() == of.stride()
            assert torch.equal(found[key].to(torch.float64), of.detach().to(torch.float64)), key

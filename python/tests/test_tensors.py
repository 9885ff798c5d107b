"""Arrays of files, by their names: files that NumPy wrote, and .safetensors by hand."""

import io
import json
import os
import random
import struct
import sys
import threading
import types
import zipfile

import numpy as np
import pytest

import unimem
from unimem import MemoryManager, TensorInfo, open_tensors

GIB = 1 << 30
SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32", "uint64": "U64",
    "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
}  # fmt: skip


def write_safetensors(path, arrays, metadata=None, padding=8):
    """By hand, as the format's page has it: a length, JSON, and the bytes one behind another."""
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": SAFETENSORS[array.dtype.name], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % padding)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def arrays_of_every_type():
    generator = np.random.default_rng(2026)
    arrays = {f"{name}/x": generator.integers(0, 256, 24 * np.dtype(name).itemsize, np.uint8).view(name).reshape(2, 3, 4) for name in SAFETENSORS}
    arrays["bool/x"] = generator.integers(0, 2, (2, 3, 4)).astype(bool)
    arrays["scalar"] = np.array(7, np.int64)
    arrays["none"] = np.zeros((3, 0, 2), np.float32)
    arrays["../é\n"] = np.arange(3)
    return arrays


def assert_same(buffer, array):
    assert buffer.shape == array.shape and buffer.dtype == array.dtype
    assert buffer.host.tobytes() == array.tobytes() and buffer.host.flags.aligned


def read_by_us():
    with open("/proc/self/io") as counts:
        return int(counts.readline().split()[1])


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_row_82_arrays_are_those_that_were_written(tmp_path, device, form):
    arrays = arrays_of_every_type()
    path = tmp_path / f"all.{form}"
    if form == "npz":
        arrays["complex128/x"] = np.arange(4) * 1j
        np.savez(path, **arrays)
        assert_same(open_tensors(path)["complex128/x"], np.load(path)["complex128/x"])
    else:
        write_safetensors(path, arrays)
    manager = MemoryManager()
    tensors = open_tensors(path, device=device, manager=manager)
    assert set(tensors) == set(arrays) and len(tensors) == len(arrays)
    for name, array in arrays.items():
        info = tensors.info(name)
        assert info == TensorInfo(array.dtype.name, array.shape, array.nbytes, info.offset)
        assert path.read_bytes()[info.offset :][: array.nbytes] == array.tobytes()
    assert manager.statistics.file_read_bytes == 0
    for name, array in arrays.items():
        buffer = tensors[name]
        assert buffer.name == name and buffer.default_device.id.startswith(device)
        if device == "sim" and array.size:
            buffer.sync_to_device()
            assert buffer.valid_on(device) and buffer.device.to_numpy().tobytes() == array.tobytes()
        assert_same(buffer, array)
    assert manager.statistics.file_read_bytes >= sum(one.nbytes for one in arrays.values())


def test_an_npy_is_one_that_is_called_as_its_file(tmp_path):
    array = np.arange(12, dtype=np.complex128).reshape(3, 4)
    np.save(tmp_path / "a.b.npy", array)
    tensors = open_tensors(tmp_path / "a.b.npy")
    assert list(tensors) == ["a.b"] and tensors.info("a.b").dtype == "complex128"
    assert_same(tensors["a.b"], array)
    np.save(tmp_path / "half.npy", np.arange(5, dtype=np.float16))
    assert_same(open_tensors(str(tmp_path / "half.npy"))["half"], np.arange(5, dtype=np.float16))


def test_the_mapping_is_immutable_and_lazy(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"b": np.arange(4), "a": np.arange(3.0)}, {"format": "np", "é": ""})
    tensors = open_tensors(path)
    assert list(tensors) == ["a", "b"] and "a" in tensors and "c" not in tensors and 1 not in tensors
    assert tensors.path == str(path) and dict(tensors.metadata) == {"format": "np", "é": ""}
    assert repr(tensors) == f"Tensors({str(path)!r}: 'a', 'b')"
    assert tensors["a"] is tensors["a"] and tensors.get("a") is tensors["a"] and tensors.get("c") is None
    assert tensors == tensors and tensors != open_tensors(path) and len({tensors, tensors}) == 1
    for change in ("tensors['a'] = 1", "del tensors['a']", "tensors.a = 1", "tensors.metadata['a'] = ''"):
        with pytest.raises((TypeError, AttributeError)):
            exec(change, {"tensors": tensors})
    with pytest.raises(unimem.NotFound, match=r"no tensor 'c': there are 'a', 'b'; in .*m\.safetensors") as caught:
        tensors["c"]
    assert isinstance(caught.value, KeyError) and caught.value.available == ("a", "b")
    with pytest.raises(unimem.NotFound):
        tensors.info("c")
    with pytest.raises(TypeError, match="open the file again"):
        __import__("copy").copy(tensors)
    assert json.loads(tensors.info("a").to_json()) == {"dtype": "float64", "shape": [3], "nbytes": 24, "offset": tensors.info("a").offset}


def test_threads_get_the_same_buffer(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {str(i): np.arange(i + 1) for i in range(100)})
    tensors = open_tensors(path)
    found = [[] for _ in range(8)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(tensors.values())) for mine in found]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for mine in found:
        assert len(mine) == 100 and all(a is b for a, b in zip(mine, found[0], strict=True))


def test_modes_are_those_of_memmap(tmp_path):
    arrays = {"a": np.arange(10, dtype=np.int32), "b": np.arange(10.0)}
    path = write_safetensors(tmp_path / "m.safetensors", arrays)
    with pytest.raises(unimem.UnsupportedOperation):
        open_tensors(path)["a"].fill(1)
    copied = open_tensors(path, "c")
    copied["a"].fill(1)
    assert copied["a"].host.sum() == 10 and np.array_equal(open_tensors(path)["a"].host, arrays["a"])
    written = open_tensors(path, mode="r+")
    written["a"].fill(2)
    written["a"].flush()
    assert_same(open_tensors(path)["a"], np.full(10, 2, np.int32))
    assert_same(written["b"], arrays["b"])  # the file has changed, and what is in it has not
    with pytest.raises(unimem.InvalidArgument, match="mode"):
        open_tensors(path, "w")


def test_archives_are_not_written_to(tmp_path):
    """NumPy compares their checksums."""
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3))
    with pytest.raises(unimem.UnsupportedOperation, match="a checksum of each array"):
        open_tensors(path, "r+")["a"]
    open_tensors(path, "c")["a"].fill(1)
    assert np.load(path)["a"].tolist() == [0, 1, 2]


def test_another_file_of_that_name_is_not_read(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"a": np.arange(10)})
    reading, writing = open_tensors(path), open_tensors(path, "r+")
    os.replace(write_safetensors(tmp_path / "n.safetensors", {"a": np.ones(10, np.int64)}), path)
    assert_same(reading["a"], np.arange(10))
    with pytest.raises(unimem.IoError, match="is another file by now"):
        writing["a"]
    assert_same(open_tensors(path)["a"], np.ones(10, np.int64))
    changed = open_tensors(path)
    write_safetensors(path, {"a": np.ones(11, np.int64)})
    with pytest.raises(unimem.IoError, match="has changed since its tensors were looked up"):
        changed["a"]


def test_types_that_numpy_has_not_are_those_of_ml_dtypes(tmp_path, monkeypatch):
    class NumpyAlone:  # another test's library may have told NumPy of them, for good
        __version__ = np.__version__

        @staticmethod
        def dtype(name):
            if name == "bfloat16":
                raise TypeError
            return np.dtype(name)

    monkeypatch.setattr(unimem._tensors, "np", NumpyAlone)
    text = b'{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"f":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\x80\x3f\x00\x40" + struct.pack("<f", 1.5))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as where it is not installed
    tensors = open_tensors(path)
    assert tensors.info("b").dtype == "bfloat16"
    assert tensors["f"].host[0] == 1.5
    with pytest.raises(unimem.UnsupportedOperation, match=r"opening tensor 'b' .* of bfloat16.*pip install ml_dtypes"):
        tensors["b"]
    stand_in = types.ModuleType("ml_dtypes")
    monkeypatch.setitem(sys.modules, "ml_dtypes", stand_in)
    with pytest.raises(unimem.UnsupportedOperation, match="in a version that has bfloat16"):
        tensors["b"]
    stand_in.bfloat16 = np.dtype([("bits", "<u2")])
    assert tensors["b"].host["bits"].tolist() == [0x3F80, 0x4000]


def test_an_archive_of_more_than_4_gib(tmp_path):
    """ZIP64 as NumPy's own writer has it: by `force_zip64` for each member, and for one beyond 4 GiB, which is a hole."""
    path = tmp_path / "large.npz"
    count = 5 * GIB // 4
    with open(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("first.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.arange(10))
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<u4", "fortran_order": False, "shape": (count,)})
        with archive.open("large.npy", "w", force_zip64=True) as member:
            member.write(head.getvalue())
            # The member's bytes as a hole: what the archive would have written of them, it is told.
            archive.fp.seek(4 * count - 4, os.SEEK_CUR)
            archive.fp.write(b"last")
            member._file_size += 4 * count
        with archive.open("behind.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.arange(20.0))
    assert os.path.getsize(path) > 5 * GIB and os.stat(path).st_blocks * 512 < GIB
    manager = MemoryManager()
    before = read_by_us()
    tensors = open_tensors(path, manager=manager)
    assert read_by_us() - before < 65536
    assert list(tensors) == ["behind", "first", "large"]
    assert_same(tensors["behind"], np.arange(20.0))
    assert_same(tensors["first"], np.arange(10))
    assert tensors["large"].shape == (count,)
    assert tensors["large"].slice(count - 2, 2).host.tobytes() == b"\0\0\0\0last"
    assert manager.statistics.file_read_bytes == 160 + 80 + 8


def test_a_stream_takes_one_by_its_name(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"a": np.arange(5, dtype=np.int16), "w": np.arange(12.0).reshape(3, 4)}, padding=1)
    result = unimem.stream_file(f"{path}#w", unimem.statistics())
    assert result.element == "f64" and result.result.count == 12 and result.result.max == 11
    unimem.stream_file(f"{path}#w", unimem.affine(2, 1), output=tmp_path / "out.npy", device="sim")
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.arange(12.0).reshape(3, 4) * 2 + 1)
    with pytest.raises(unimem.NotFound, match="no tensor 'v'"):
        unimem.stream_file(f"{path}#v", unimem.statistics())


def test_files_that_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "c.npz", a=np.zeros(1000))
    with pytest.raises(unimem.IoError, match=r"'a\.npy' is compressed: write it with numpy\.savez instead of numpy\.savez_compressed"):
        open_tensors(tmp_path / "c.npz")
    np.save(tmp_path / "f.npy", np.asfortranarray(np.zeros((3, 4))))
    with pytest.raises(unimem.IoError, match="Fortran order"):
        open_tensors(tmp_path / "f.npy")
    for dtype, said in ((">f4", "big-endian"), ("<U3", "dtype '<U3'"), ("<M8[s]", "dtype '<M8"), ([("a", "<f4")], "structured")):
        np.save(tmp_path / "d.npy", np.zeros(3, dtype))
        with pytest.raises(unimem.IoError, match=said):
            open_tensors(tmp_path / "d.npy")
    for path in (tmp_path / "missing.npz", tmp_path):
        with pytest.raises(unimem.Error):
            open_tensors(path)
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(unimem.InvalidArgument, match=r"ending in \.npy, \.npz or \.safetensors"):
        open_tensors(tmp_path / "a.bin")


def test_a_member_that_is_refused_leaves_the_others(tmp_path):
    values = np.arange(12.0).reshape(3, 4)
    odd = {
        "fortran": (np.asfortranarray(values), "Fortran order"),
        "big": (np.arange(3, dtype=">f4"), "big-endian dtype '>f4'"),
        "text": (np.array("hi"), "dtype '<U2'"),
        "bytes": (np.array(b"hi"), r"dtype '\|S2'"),
        "fields": (np.zeros(3, [("a", "<f4")]), "structured dtype"),
        "time": (np.zeros(3, "<M8[s]"), "dtype '<M8"),
        "object": (np.array([None, {}]), r"dtype '\|O'"),
        "long": (np.zeros(3, np.longdouble), "dtype '<f16'"),
    }
    np.savez(tmp_path / "n.npz", c=values, **{name: array for name, (array, _) in odd.items()})
    tensors = open_tensors(tmp_path / "n.npz")
    assert sorted(tensors) == sorted(["c", *odd])
    assert np.array_equal(tensors["c"].to_numpy(), values)
    assert unimem.stream_file(f"{tmp_path}/n.npz#c", unimem.statistics()).result.mean == values.mean()
    for name, (_, said) in odd.items():
        for use in (
            lambda name=name: tensors[name],
            lambda name=name: tensors.info(name),
            lambda name=name: unimem.stream_file(f"{tmp_path}/n.npz#{name}", unimem.statistics()),
        ):
            with pytest.raises(unimem.IoError, match=rf"n\.npz#{name}: unsupported \.npy: {said}"):
                use()
    with pytest.raises(unimem.NotFound, match="no tensor 'w'"):
        tensors["w"]


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
def test_damaged_files_are_refused_or_read(tmp_path, form):
    """Cut off at every length it is refused; with a bit turned over it is refused, or has arrays that lie in the file."""
    path = tmp_path / f"x.{form}"
    if form == "npy":
        np.save(path, np.arange(6, dtype=np.uint8))
    elif form == "npz":
        np.savez(path, a=np.arange(6, dtype=np.uint8), b=np.arange(2, dtype=np.int16))
    else:
        write_safetensors(path, {"a": np.arange(6, dtype=np.uint8), "b": np.arange(2, dtype=np.int16)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(unimem.IoError, match=str(path)):
            open_tensors(path)
    seed = 2026
    chance = random.Random(seed)
    read = 0
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            tensors = open_tensors(path)
        except unimem.IoError:
            continue
        read += 1
        for name in tensors:
            try:
                info = tensors.info(name)
            except unimem.IoError as refused:  # a dtype that it was turned into, or Fortran order
                assert f"{path}#{name}: unsupported .npy: " in str(refused)
                continue
            assert info.offset + info.nbytes <= len(whole), f"seed {seed}"
            assert tensors[name].host.tobytes() == bytes(damaged[info.offset :][: info.nbytes]), f"seed {seed}"
    assert read > 0

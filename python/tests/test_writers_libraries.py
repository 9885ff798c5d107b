"""The same as test_writers.py of what compiled code and other packages write: Cython, Numba, HDF5, the codecs of zarr, Arrow. `./dev check` fetches them
(tools/formats-wheels.txt, tools/interop-wheels.txt)."""

import importlib.util
import subprocess
import sys
import sysconfig
from functools import cache

import numpy as np
import pytest
from sample_buffers import check_both, synced
from writer_cases import NEW, OLD, READ_TO_ASK, REFUSED, UNNOTICED, Case, all_forms, check

from unimem import BufferState, MapMode, UnifiedBuffer

pytestmark = pytest.mark.check

S = BufferState


def package(name):
    return pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed: ./dev check fetches it")


CYTHON = """
# cython: language_level=3
def fill(double[:] x, double[:] values):
    cdef Py_ssize_t i
    for i in range(x.shape[0]):
        x[i] = values[i]

def fill_contiguous(double[::1] x, double[:] values):
    x[:] = values

def total(const double[:] x):
    cdef double sum = 0
    for i in range(x.shape[0]):
        sum += x[i]
    return sum

def fill_table(double[:, :] x, double value):
    x[:, :] = value

cdef double[:] kept
def keep(double[:] x):
    global kept
    kept = x
def write_kept(double value):
    kept[:] = value
def let_go():
    global kept
    kept = None
"""


@pytest.fixture(scope="module")
def cython(tmp_path_factory):
    """The functions of CYTHON, compiled."""
    package("Cython")
    folder = tmp_path_factory.mktemp("cython")
    (folder / "compiled.pyx").write_text(CYTHON)
    module = folder / ("compiled" + sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.run([sys.executable, "-m", "cython", folder / "compiled.pyx"], check=True, timeout=100)
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-w", "-I", sysconfig.get_path("include"), folder / "compiled.c", "-o", module], check=True, timeout=100
    )
    spec = importlib.util.spec_from_file_location("compiled", module)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("function", ["fill", "fill_contiguous"])
@pytest.mark.parametrize("form", ["buffer", "host", "view"])
def test_typed_memoryviews_of_cython_are_noticed(cython, discrete, function, form, tmp_path, moved):
    check(Case(lambda target, folder: getattr(cython, function)(target, NEW)), form, discrete, tmp_path, moved)


def test_constant_memoryviews_of_cython_read(cython, discrete, moved):
    buffer = synced(discrete, OLD)
    buffer.device.copy_from(NEW)
    buffer.mark_device_dirty()
    count = moved(buffer)
    assert [cython.total(one) for one in (buffer, buffer.host, memoryview(buffer))] == [NEW.sum()] * 3
    assert buffer.state is S.SYNCHRONIZED and count.since() == (0, 0, 1, NEW.nbytes)


def test_parts_by_cython(cython, discrete, moved):
    table = np.arange(1000.0 * 400).reshape(1000, 400)
    buffer = synced(discrete, table)
    count = moved(buffer)
    cython.fill_table(buffer.host[:, 7:8], 5.0)
    cython.fill(buffer.slice(0, 3), NEW[:3])
    table[:, 7] = 5
    table[0, :3] = NEW[:3]
    buffer.sync_to_device()
    check_both(buffer, table)
    assert count.since()[1] == 8 * 1003 and count.since()[2:] == (0, 0)


def test_a_memoryview_that_cython_keeps_counts_when_it_goes(cython, discrete):
    buffer = synced(discrete, OLD)
    cython.keep(buffer.host)
    cython.write_kept(4.0)
    assert buffer.state is S.SYNCHRONIZED
    cython.let_go()
    assert buffer.state is S.HOST_DIRTY
    assert (buffer.device.to_numpy() == 4).all()


@cache
def compiled():
    numba = package("numba")

    @numba.njit
    def fill(x, values):
        for i in range(x.size):
            x[i] = values[i]

    @numba.njit
    def total(x):
        result = 0.0
        for i in range(len(x)):
            result += x[i]
        return result

    return fill, total, numba.TypingError


NUMBA = {
    # It writes by the address. Which arrays, nobody can know before it is compiled.
    "host": UNNOTICED,
    "view": REFUSED,
    # Numba asks for memory to write to learn whether there is such, and takes it for read-only all the same.
    "buffer": READ_TO_ASK,
}


@pytest.mark.parametrize("form", NUMBA)
def test_numba_writes_by_the_address(discrete, form, tmp_path, moved):
    fill, _, error = compiled()
    check(Case(lambda target, folder: fill(target, NEW), **NUMBA, raises=error), form, discrete, tmp_path, moved)


def test_what_numba_is_given_to_read_and_to_write(discrete, moved):
    fill, total, _ = compiled()
    buffer = synced(discrete, OLD)
    count = moved(buffer)
    assert total(buffer.host) == total(np.asarray(buffer)) == total(memoryview(buffer)) == OLD.sum()
    assert buffer.state is S.SYNCHRONIZED and count.since() == (0, 0, 0, 0)
    with buffer.map(MapMode.DISCARD) as array:
        fill(array, NEW)
    assert buffer.state is S.HOST_DIRTY
    check_both(buffer, NEW)


def by_hdf5(target, folder):
    with package("h5py").File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=NEW, chunks=(10,)).read_direct(target)


def by_arrow(target, folder):
    arrow = package("pyarrow")
    NEW.tofile(folder / "data")
    with arrow.OSFile(str(folder / "data")) as file:
        assert file.readinto(target) == NEW.nbytes


def by_codec(name):
    def decode(target, folder):
        codec = getattr(package("numcodecs"), name)()
        codec.decode(codec.encode(NEW), out=target)

    return decode


LIBRARIES = {
    "h5py": Case(by_hdf5, buffer=REFUSED, host=UNNOTICED),
    "pyarrow": Case(by_arrow, buffer=REFUSED, host=REFUSED),
    **{f"numcodecs {name}": Case(by_codec(name), buffer=REFUSED, host=UNNOTICED) for name in ("Zlib", "GZip", "BZ2", "LZMA")},
    # These write to memory that they asked for, and were given, to read.
    **{f"numcodecs {name}": Case(by_codec(name), buffer=UNNOTICED, host=UNNOTICED, view=UNNOTICED) for name in ("Blosc", "LZ4", "Zstd")},
}  # fmt: skip


@pytest.mark.parametrize(("case", "form"), all_forms(LIBRARIES))
def test_a_write_of_a_package_is_noticed_refused_or_listed(discrete, case, form, tmp_path, moved):
    check(case, form, discrete, tmp_path, moved)


def test_a_mapping_takes_what_nobody_can_notice(sim, tmp_path):
    for write in (by_hdf5, by_arrow, *map(by_codec, ("Zlib", "Zstd", "Blosc", "LZ4"))):
        buffer = synced(sim, OLD)
        with buffer.map(MapMode.DISCARD) as array:
            write(array, tmp_path)
        assert buffer.state is S.HOST_DIRTY
        check_both(buffer, NEW)


def test_zarr_decodes_into_an_array_that_notices(sim, tmp_path, moved):
    zarr = package("zarr")
    array = zarr.create_array(tmp_path / "x.zarr", data=NEW, chunks=(10,))
    buffer = UnifiedBuffer(NEW.shape, NEW.dtype, device=sim)
    buffer.host[...] = OLD
    buffer.sync_to_device()
    count = moved(buffer)
    array.get_basic_selection(np.s_[10:30], out=package("zarr.buffer.cpu").NDBuffer(buffer.host[10:30]))
    buffer.sync_to_device()
    expected = OLD.copy()
    expected[10:30] = NEW[10:30]
    check_both(buffer, expected)
    assert count.since()[:2] == (1, 160)

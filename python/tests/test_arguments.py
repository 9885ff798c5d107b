"""What a source kernel takes from Python: by dtype, intent and value, before anything moves."""

import functools

import numpy as np
import pytest
from unimem import InvalidArgument, Kernel, KernelError, UnifiedBuffer, launch, read, readwrite, write

NUMBERS = ["i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
LANGUAGE = {"i": "unimem_i", "u": "unimem_u", "f": "unimem_f"}


def named(dtype):
    return LANGUAGE[dtype[0]] + str(8 * int(dtype[1]))


def kernels(pointer, scalars="", store="5", const=False):
    """The same kernel in the portable form and in plain OpenCL C."""
    words = ("const " if const else "") + pointer
    macro = f"UNIMEM_{'CONST_' if const else ''}BUFFER({pointer}, x)"
    portable = "" if const else f"UNIMEM_DATA({pointer}, x)[0] = {store};"
    plain = "" if const else f"x[0] = {store};"
    return [
        Kernel("f").source(f"UNIMEM_KERNEL f({macro}{scalars}) {{ {portable} }}"),
        Kernel("f").source(f"__kernel void f(__global {words}* x{scalars}) {{ {plain} }}"),
    ]


def made(device, dtype, count=8):
    buffer = UnifiedBuffer(count, dtype, device=device, name="given")
    buffer.host[:] = np.zeros(count, dtype)
    return buffer


def untouched(buffer):
    return buffer.statistics.host_to_device_copies == 0 and buffer.state.value == "host_dirty"


@pytest.mark.parametrize("wanted", NUMBERS)
def test_buffers_go_by_dtype(opencl, wanted):
    if wanted == "f8" and not opencl._info()["doubles"]:
        pytest.skip("no doubles on this device")
    for kernel in kernels(named(wanted)):
        for given in NUMBERS:
            buffer = made(opencl, given)
            if given == wanted:
                launch(kernel, 1, readwrite(buffer)).wait()
                assert buffer.to_numpy()[0] == 5
            else:
                with pytest.raises(KernelError, match=r"argument 1 \('given'\) for parameter 'x'"):
                    launch(kernel, 1, readwrite(buffer))
                assert untouched(buffer), (wanted, given)


def test_complex_numbers_go_with_pairs_of_theirs(opencl):
    kernel = Kernel("f").source("UNIMEM_KERNEL f(UNIMEM_BUFFER(unimem_f32x4, x)) { UNIMEM_DATA(unimem_f32x4, x)[0].x = 5; }")
    pairs, wide = made(opencl, "c8"), made(opencl, "c16")
    launch(kernel, 1, readwrite(pairs)).wait()
    assert pairs.to_numpy().tolist() == [5] + 7 * [0]
    with pytest.raises(KernelError, match="the kernel takes f32 × 4"):
        launch(kernel, 1, readwrite(wide))
    assert untouched(wide)


def test_unsigned_bytes_are_bytes_of_any_meaning(opencl):
    for kernel in kernels("float"):
        buffer = made(opencl, "u1", 16)
        launch(kernel, 1, readwrite(buffer)).wait()
        assert buffer.to_numpy().view("f4")[0] == 5
        with pytest.raises(KernelError, match="has 13 bytes, no multiple of the element's 4"):
            launch(kernel, 1, readwrite(buffer, 0, 13))


def test_structures_go_by_size(opencl):
    for kernel in kernels("float2", store="(float2)(1, 2)"):
        buffer = made(opencl, "c8")
        launch(kernel, 1, readwrite(buffer)).wait()
        assert buffer.to_numpy()[0] == 1 + 2j
        other = made(opencl, "c16")
        with pytest.raises(KernelError, match="is a buffer of f64 × 2, the kernel takes f32 × 2"):
            launch(kernel, 1, readwrite(other))
        assert untouched(other)


def test_intents_go_with_qualifiers(opencl):
    for kernel in kernels("float"):
        buffer = made(opencl, "f4")
        with pytest.raises(KernelError, match="passed as read, and the parameter may be written"):
            launch(kernel, 1, read(buffer))
        assert untouched(buffer)
        launch(kernel, 1, write(buffer, 0, 1)).wait()
        assert buffer.to_numpy()[0] == 5
    for kernel in kernels("float", const=True):
        buffer = made(opencl, "f4")
        with pytest.raises(KernelError, match="passed as write, and the parameter is const"):
            launch(kernel, 1, write(buffer))
        assert untouched(buffer)


@pytest.mark.parametrize("type_, value, stored", [("float", 2, 2), ("float", 2.5, 2.5), ("int", 7, 7), ("uint", 2**32 - 1, 2**32 - 1)])
def test_pythons_numbers_become_what_the_kernel_takes(opencl, type_, value, stored):
    dtype = {"float": "f4", "int": "i4", "uint": "u4"}[type_]
    for kernel in kernels(type_, f", {type_} value", "value"):
        buffer = made(opencl, dtype)
        launch(kernel, 1, readwrite(buffer), value).wait()
        assert buffer.to_numpy()[0] == stored


def test_a_scalar_that_does_not_fit_is_refused(opencl):
    plain = kernels("int", ", int value", "value")[1]
    buffer = made(opencl, "i4")
    for value, why in [(2.5, "is 2.5 of type double"), (2**31, "is 2147483648, which i32 does not hold"), (np.float32(2), "of type float")]:
        with pytest.raises(KernelError, match=why):
            launch(plain, 1, readwrite(buffer), value)
        assert untouched(buffer)


def test_a_finite_number_does_not_become_infinite(opencl):
    for kernel in (*kernels("float", ", float value", "value"), kernels("unimem_f32", ", unimem_f32 value", "value")[0]):
        buffer = made(opencl, "f4")
        for value in (1e300, -1e39):
            with pytest.raises(InvalidArgument, match="within the kernel's float32"):
                launch(kernel, 1, readwrite(buffer), value)
            assert untouched(buffer)
        launch(kernel, 1, readwrite(buffer), float("inf")).wait()
        assert np.isinf(buffer.to_numpy()[0])


def test_an_integer_is_not_rounded(opencl):
    portable, plain = kernels("float", ", float value", "value")
    buffer = made(opencl, "f4")
    for kernel, given in ((portable, (2**24 + 1, -(2**53) - 1, np.int64(2**24 + 1), np.uint32(2**32 - 1), 10**30)), (plain, (2**24 + 1, 2**63 - 1))):
        for value in given:
            with pytest.raises(InvalidArgument, match="an integer that the kernel's float32 has"):
                launch(kernel, 1, readwrite(buffer), value)
            assert untouched(buffer)
        for value in (2**24 + 2, -3, 2.0**24 + 1):
            launch(kernel, 1, readwrite(buffer), value).wait()
            assert buffer.to_numpy()[0] == np.float32(value)
            buffer = made(opencl, "f4")


def test_integers_beyond_the_kernels_name_its_limits(opencl):
    portable = kernels("int", ", unimem_i8 value", "value")[0]
    buffer = made(opencl, "i4")
    with pytest.raises(InvalidArgument, match="invalid argument 2 '200': must be within the kernel's int8, -128 to 127"):
        launch(portable, 1, readwrite(buffer), 200)
    assert untouched(buffer)


def test_a_missing_scalar_is_refused(opencl):
    plain = kernels("float", ", ulong count", "count")[1]
    buffer = made(opencl, "f4")
    with pytest.raises(KernelError, match="launched with 1 arguments, takes 2"):
        launch(plain, 1, readwrite(buffer))
    assert untouched(buffer)


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize(
    ("function", "takes", "others"),
    [
        (lambda x, a: None, "2", [0, 1, 3]),
        (lambda x, a=1: None, "1 to 2", [0, 3]),
        (lambda x, a, *rest: None, "at least 2", [0, 1]),
        (functools.partial(lambda a, x, b: None, 1), "2", [1, 3]),
    ],
)
def test_another_number_than_a_python_function_takes_is_refused(device, function, takes, others):
    buffer = made(device, "f4")
    kernel = Kernel("f").host(function)
    for count in others:
        arguments = [readwrite(buffer), 1.0, 2.0][:count]
        with pytest.raises(KernelError, match=f"launched with {count} arguments, takes {takes}$"):
            launch(kernel, 1, *arguments, device=device)
        assert untouched(buffer)
    launch(kernel, 1, readwrite(buffer), 1.0, device=device).wait()


def test_a_function_that_does_not_say_what_it_takes_is_called():
    x = made("cpu", "f4")
    x.host[:] = 7
    launch(Kernel("f").host(np.negative), 1, read(x), readwrite(x), device="cpu").wait()
    assert (x.to_numpy() == -7).all()


def test_integers_are_taken_up_to_64_bits(opencl):
    for kernel in kernels("unimem_u64", ", unimem_u64 v", "v"):
        buffer = made(opencl, "u8")
        launch(kernel, 1, readwrite(buffer), (1 << 64) - 1).wait()
        assert buffer.to_numpy()[0] == (1 << 64) - 1
    for value in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(InvalidArgument, match="argument 2 .*64 bits"):
            launch(kernel, 1, readwrite(made(opencl, "u8")), value)
    for kernel in kernels("unimem_i64", ", unimem_i64 v", "v"):
        with pytest.raises((InvalidArgument, KernelError), match="argument 2"):
            launch(kernel, 1, readwrite(made(opencl, "i8")), 1 << 63)


@pytest.mark.parametrize(
    ("foreign", "pointer"), [(">f4", "float"), (">i2", "short"), (">c8", "float2"), ([("a", ">i4"), ("b", "f4")], "float2")], ids=str
)
def test_compiled_kernels_refuse_the_other_byte_order(opencl, foreign, pointer):
    for kernel in kernels(pointer):
        buffer = made(opencl, foreign)
        with pytest.raises(InvalidArgument, match="argument 1 .*byte order"):
            launch(kernel, 1, readwrite(buffer))
        assert untouched(buffer)
        launch(kernel, 1, readwrite(buffer.view("u1"))).wait()
        assert (buffer.to_numpy().view("u1").reshape(-1)[: np.dtype(foreign).itemsize] != 0).any()


def test_functions_get_the_other_byte_order(sim):
    buffer = made(sim, ">f4")
    launch(Kernel("f").host(lambda x: np.add(x, 1, out=x)), 1, readwrite(buffer)).wait()
    assert (buffer.to_numpy() == 1).all()


@pytest.mark.parametrize("before", ["// {}\n", "/* {} */\n", "#if 0\n{}\n#endif\n"], ids=["line", "comment", "left out"])
@pytest.mark.parametrize(("aside", "real", "value"), [("float", "int", 3), ("int", "float", 3.5)])
def test_numbers_have_the_compiled_kernels_type(opencl, before, aside, real, value):
    head = "UNIMEM_KERNEL f(UNIMEM_BUFFER(float, x), {} a)"
    text = before.format(head.format(aside) + "{}") + head.format(real) + "{ UNIMEM_DATA(float, x)[0] = a; }"
    buffer = made(opencl, "f4")
    launch(Kernel("f").source(text), 1, readwrite(buffer), value).wait()
    assert buffer.to_numpy()[0] == value

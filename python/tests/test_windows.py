"""Rectangular blocks, whose rows alone move, and two buffers by turns."""

import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from sample_buffers import adding, check_both

import unimem
from unimem import BufferState, DoubleBuffer, UnifiedBuffer

S = BufferState
IMAGE = np.arange(64 * 100, dtype=np.int32).reshape(64, 100)


@pytest.fixture
def image(discrete):
    """On the device alone."""
    buffer = UnifiedBuffer(IMAGE.shape, IMAGE.dtype, device=discrete)
    buffer.device.copy_from(IMAGE)
    buffer.mark_device_dirty()
    return buffer


def test_a_block_brings_its_rows_alone(image, counted):
    seen = counted(image)
    np.testing.assert_array_equal(image.block((10, 20), (5, 30)).to_numpy(), IMAGE[10:15, 20:50])
    assert seen.since()[3] == 5 * 30 * 4
    np.testing.assert_array_equal(np.asarray(image.block((0, 0), (64, 100))), IMAGE)
    assert image.block((64, 100), (0, 0)).to_numpy().shape == (0, 0) and image.block((3, 0), (0, 7)).size == 0


def test_a_written_block_is_all_that_goes_back(discrete, counted):
    expected = np.arange(8 * 100_000, dtype=np.int32).reshape(8, 100_000)  # rows so far apart that each is a copy of its own
    image = UnifiedBuffer(expected.shape, expected.dtype, device=discrete)
    image.copy_from(expected)
    image.synchronize()
    seen = counted(image)
    patch = -np.arange(12, dtype=np.int32).reshape(3, 4)
    image.block((4, 90), (3, 4)).copy_from(patch)
    assert image.state is S.HOST_DIRTY and seen.since() == (0, 0, 0, 0)
    image.sync_to_device()
    moved = seen.since()[1]
    assert moved == 48 if discrete.backend == "sim" else moved >= 48, "where a copy costs much, gaps go along"
    expected[4:7, 90:94] = patch
    check_both(image, expected)


def test_nothing_between_a_blocks_rows_is_written(image):
    image.synchronize()
    image.slice(8 * 100, 10).on().copy_from(np.full(10, -1))  # a row that the block goes through
    image.reshape(64 * 100).mark_device_dirty(8 * 100, 10)
    image.block((7, 90), (3, 4)).copy_from(np.full((3, 4), 5))
    assert image.state is S.MIXED
    image.synchronize()
    expected = IMAGE.copy()
    expected[8, :10] = -1
    expected[7:10, 90:94] = 5
    check_both(image, expected)


def test_a_block_goes_to_another_on_the_device(image, counted):
    target = UnifiedBuffer((4, 6, 8), np.int32, device=image.default_device).zeros()
    target.sync_to_device()
    flat = target.reshape(24, 8)
    seen, there = counted(image), unimem.transfers(image.default_device).device_to_host_bytes
    unimem.copy(image.block((50, 3), (5, 8)), flat.block((10, 0), (5, 8)))
    assert seen.since_by_buffer()[2:] == (0, 0) and unimem.transfers(image.default_device).device_to_host_bytes == there
    expected = np.zeros((24, 8), np.int32)
    expected[10:15] = IMAGE[50:55, 3:11]
    check_both(flat, expected)


def test_three_dimensions_at_random(discrete):
    seed = np.random.SeedSequence().entropy
    rng = np.random.default_rng(seed)
    plain = rng.integers(0, 1000, (5, 6, 7), np.int16)
    buffer = UnifiedBuffer(plain.shape, plain.dtype, device=discrete)
    buffer.copy_from(plain)
    for _ in range(50):
        begin = [int(rng.integers(0, extent + 1)) for extent in plain.shape]
        count = [int(rng.integers(0, extent - first + 1)) for first, extent in zip(begin, plain.shape, strict=True)]
        where = tuple(slice(first, first + number) for first, number in zip(begin, count, strict=True))
        block = buffer.block(begin, count)
        if rng.integers(2):
            data = rng.integers(0, 1000, count, np.int16)
            block.copy_from(data)
            plain[where] = data
        if rng.integers(2):
            buffer.sync_to_device()
        np.testing.assert_array_equal(block.to_numpy(), plain[where], err_msg=f"seed {seed}")
    check_both(buffer, plain)


def test_blocks_that_overlap_are_copied_as_if_aside(image):
    unimem.copy(image.block((0, 0), (10, 10)), image.block((2, 3), (10, 10)))
    expected = IMAGE.copy()
    expected[2:12, 3:13] = IMAGE[0:10, 0:10]
    check_both(image, expected)
    image.block((1, 0), (5, 100)).copy_from(image.host[0:5])
    expected[1:6] = expected[0:5].copy()
    check_both(image, expected)


@pytest.mark.parametrize("begin, count", [((60, 0), (5, 1)), ((0, 99), (1, 2)), ((65, 0), (0, 0)), ((0,), (1,)), ((0, 0), (-1, 1)), ((0, 0), (2**62, 4))])
def test_blocks_outside_are_refused(image, begin, count):
    with pytest.raises(unimem.InvalidArgument):
        image.block(begin, count)


def test_blocks_of_other_shapes_and_dtypes_are_refused(image):
    block = image.block((0, 0), (2, 3))
    for wrong, error in (
        (image.block((0, 0), (2, 4)), unimem.SizeMismatch), (image.block((0, 0), (3, 2)), unimem.InvalidArgument), (image, unimem.InvalidArgument),
        (UnifiedBuffer((2, 3), np.float32).block((0, 0), (2, 3)), unimem.InvalidArgument),
    ):  # fmt: skip
        with pytest.raises(error):
            unimem.copy(block, wrong)
    with pytest.raises(unimem.SizeMismatch):
        block.copy_from(np.zeros((2, 4), np.int32))
    with pytest.raises(unimem.InvalidArgument):
        block.copy_from(np.zeros((2, 3), np.float64))
    np.testing.assert_array_equal(image.to_numpy(), IMAGE)


def test_every_frame_is_seen_once_and_in_order(discrete):
    frames, add = DoubleBuffer(1000, np.int32, device=discrete), adding("int")
    failures = []

    def produce():
        try:
            for number in range(50):
                back = frames.back()
                back.fill(number)
                unimem.launch(add, back.size, unimem.readwrite(back), np.int32(1))
                frames.publish()
            frames.close()
        except BaseException as error:
            failures.append(error)
            frames.close()

    producer = threading.Thread(target=produce)
    producer.start()
    seen = []
    for front in frames:
        values = front.to_numpy()
        assert (values == values[0]).all()
        seen.append(int(values[0]))
    producer.join(60)
    assert not producer.is_alive() and not failures and seen == list(range(1, 51))
    assert frames.closed and frames.back() is None and frames.front() is None


def test_turns_are_held_to(sim):
    frames = DoubleBuffer((2, 3), np.uint8, device=sim, name="turns")
    with pytest.raises(unimem.InvalidArgument):
        frames.publish()
    with pytest.raises(unimem.InvalidArgument):
        frames.release()
    assert frames.try_front() is None
    first = frames.back()
    assert first is frames.back() and (first.name, first.shape, first.default_device) == ("turns", (2, 3), sim)
    frames.publish()
    second = frames.back()
    assert second is not first
    frames.publish()
    assert frames.try_back() is None and frames.front() is first
    frames.release()
    assert frames.try_back() is first and frames.front() is second
    alone = DoubleBuffer(3)
    for _ in range(3):
        back = alone.back()
        alone.swap()
        assert alone.front() is back


def test_a_consumer_that_leaves_ends_the_producer():
    frames, left = DoubleBuffer(3), []

    def produce():
        while frames.back() is not None:
            frames.publish()
        left.append(True)

    producer = threading.Thread(target=produce)
    producer.start()
    for _ in frames:
        break
    frames.close()
    producer.join(60)
    assert left == [True]


def test_ctrl_c_ends_the_waiting_for_a_turn():
    code = """
        import unimem
        frames = unimem.DoubleBuffer(3)
        try:
            print("waiting", flush=True)
            frames.front()
        except KeyboardInterrupt:
            print("ended")
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "ended\n"

"""What a way of writing into a buffer comes to, by what it is given."""

from dataclasses import dataclass

import numpy as np
import pytest
from sample_buffers import check_both, synced

from unimem import BufferState

OLD = np.arange(64, dtype=np.float64)
NEW = OLD * 3 + 1

NOTICED = "noticed"
REFUSED = "refused"  # an error, and nothing has changed
UNNOTICED = "unnoticed"  # to be declared
READ_TO_ASK = "refused, and counted"  # it asked for memory to write, wrote nothing, and was refused otherwise

FORMS = {"buffer": lambda buffer: buffer, "host": lambda buffer: buffer.host, "view": memoryview}


@dataclass
class Case:
    """`write(target, folder)` writes `values` to the target. What it comes to given the buffer, `.host`, and `memoryview(buffer)`."""

    write: object
    buffer: str = NOTICED
    host: str = NOTICED
    view: str = REFUSED
    values: np.ndarray = None
    raises: type = TypeError  # if it is neither this nor one of what Python's own code raises of memory to read


def check(case, form, device, folder, moved):
    buffer, values = synced(device, OLD), NEW if case.values is None else case.values
    count, target, expected = moved(buffer), FORMS[form](buffer), getattr(case, form)
    if expected in (REFUSED, READ_TO_ASK):
        with pytest.raises((case.raises, TypeError, ValueError, AttributeError, BufferError)):
            case.write(target, folder)
        assert buffer.state is (BufferState.SYNCHRONIZED if expected == REFUSED else BufferState.HOST_DIRTY)
        assert count.since() == (0, 0, 0, 0)
        check_both(buffer, OLD)
        return
    case.write(target, folder)
    assert buffer.state is (BufferState.HOST_DIRTY if expected == NOTICED else BufferState.SYNCHRONIZED)
    assert count.since() == (0, 0, 0, 0)
    np.testing.assert_array_equal(buffer.host, values)
    if expected == UNNOTICED:
        np.testing.assert_array_equal(buffer.device.to_numpy(), OLD)
        buffer.mark_host_dirty()
    buffer.sync_to_device()
    assert count.since() == (1, OLD.nbytes, 0, 0)
    check_both(buffer, values)
    assert count.since() == (0, 0, 0, 0)


def all_forms(cases):
    return [pytest.param(case, form, id=f"{name}-{form}") for name, case in cases.items() for form in FORMS]

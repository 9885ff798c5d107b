"""Short runs of the random programs; `--long` runs them for longer, and random_programs.py by itself for as long as one likes."""

import random

import pytest
import random_programs

pytestmark = pytest.mark.check


@pytest.mark.parametrize("device", random_programs.DEVICES)
def test_random_programs_end_and_hold_what_numpy_holds(device, request):
    seed = random.SystemRandom().randrange(2**32)
    for one in range(200 if request.config.getoption("--long") else 6):
        wrong = random_programs.run_apart(seed + one, device)
        assert wrong is None, wrong


def test_a_hanging_program_shows_stacks_and_seed(monkeypatch):
    monkeypatch.setenv("UNIMEM_TEST_SECONDS", "1")
    wrong = random_programs.run_apart(7, "cpu", steps=10**9)
    assert wrong is not None and "--seed 7" in wrong and "Timeout" in wrong and "random_programs.py" in wrong

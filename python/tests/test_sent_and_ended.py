"""What multiprocessing sends of processes that end before it is received, and how much of it waits."""

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import sending
from keepers import PATIENCE, keepers_for, wait_for_no_keeper, wait_until, wait_until_all_is_received
from sending import SIZE

import unimem
from unimem import DataLost, UnifiedBuffer

pytestmark = [
    pytest.mark.filterwarnings("ignore:os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAYS = ["spawn", "fork", "forkserver"]


@pytest.fixture(params=WAYS)
def ways(request):
    return multiprocessing.get_context(request.param)


@pytest.fixture(autouse=True)
def _no_keeper_stays():
    """What a test has not received is kept as long as this process runs: it ends those keepers itself."""
    yield
    for pid in keepers_for(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    wait_for_no_keeper()


def end(process):
    process.join(PATIENCE)
    assert process.exitcode == 0


def run(ways, target, *args):
    process = ways.Process(target=target, args=args)
    process.start()
    return process


def sent_by(pids):
    return [one for one in unimem.shared_on_this_host().sent if one.pid in pids]


def test_a_sender_ends_whose_receiver_is_gone(ways):
    receiver, sender = ways.Pipe(duplex=False)
    go = ways.Event()
    process = run(ways, sending.send_to_nobody, sender, go)
    sender.close()
    receiver.close()
    go.set()
    end(process)


def test_a_sender_ends_before_it_is_received(ways):
    queue = ways.Queue()
    end(run(ways, sending.put, queue, 4))
    (keeper,) = keepers_for(os.getpid())
    (sent,) = sent_by([keeper])
    assert (sent.command, sent.copies, sent.copied_bytes, sent.shared) == ("unimem keeper", 1, 4 * SIZE, 0)
    assert queue.get(timeout=PATIENCE).to_numpy().sum() == 4 * SIZE
    wait_for_no_keeper()


def test_what_is_received_at_once_needs_no_keeper(ways):
    queue = ways.Queue()
    process = run(ways, sending.put_and_fail_where_it_is_kept, queue, 4)
    assert queue.get(timeout=PATIENCE).to_numpy().sum() == 4 * SIZE
    end(process)


def test_buffers_made_for_others_are_kept_as_they_are(ways):
    queue = ways.Queue()
    end(run(ways, sending.put_shared, queue, 7))
    first, same, part = queue.get(timeout=PATIENCE)
    assert first.to_numpy().tolist() == [7] * 1000
    first.host[500] = 1
    assert same.host[500] == 1, "the same memory"
    assert part.to_numpy().sum() == 7 * SIZE
    wait_for_no_keeper()


def test_many_are_kept(ways):
    queue = ways.Queue()
    end(run(ways, sending.put_many, queue, 100))
    assert sum(one.shared for one in sent_by(keepers_for(os.getpid()))) == 100
    for i in range(100):
        assert queue.get(timeout=PATIENCE).host[0] == i
    wait_for_no_keeper()


def test_a_receiver_that_was_killed_holds_nobody_up(ways):
    queue = ways.Queue()
    receiver = run(ways, sending.sleep_for_ever)
    process = run(ways, sending.put, queue, 3)
    os.kill(receiver.pid, signal.SIGKILL)
    receiver.join(PATIENCE)
    end(process)


def test_children_of_children_are_kept_for_the_first(ways):
    queue = ways.Queue()
    end(run(ways, sending.start_one_that_puts, ways.get_start_method(), queue, 6))
    assert len(keepers_for(os.getpid())) == 1, "for this process, which is the first"
    assert queue.get(timeout=PATIENCE).to_numpy().sum() == 6 * SIZE
    wait_for_no_keeper()


def test_the_keeper_is_a_process_apart(ways):
    queue = ways.Queue()
    end(run(ways, sending.put, queue, 4))
    (keeper,) = keepers_for(os.getpid())
    assert os.getsid(keeper) == keeper, "no terminal's signals"
    assert os.readlink(f"/proc/{keeper}/cwd") == "/"
    wait_until(lambda: len(os.listdir(f"/proc/{keeper}/fd")) <= 6, "it holds what is not its own")
    opened = sorted(os.readlink(f"/proc/{keeper}/fd/{one}") for one in os.listdir(f"/proc/{keeper}/fd"))
    assert [one for one in opened if one == "/dev/null"] == ["/dev/null"] * 3
    assert not [one for one in opened if one.startswith("pipe:")]
    assert len([one for one in opened if "memfd" in one]) == 1
    assert "numpy" not in open(f"/proc/{keeper}/maps").read()
    queue.get(timeout=PATIENCE)
    wait_for_no_keeper()


def test_workers_of_pools_and_executors_end_before_it_is_received(ways):
    queue = ways.Queue()
    with ways.Pool(1, sending.use_queue, (queue,)) as pool:
        assert pool.map(sending.put_in_the_queue, range(3)) == [0, 1, 2]
        pool.close()
        pool.join()
    assert len(keepers_for(os.getpid())) == 1
    assert sorted(queue.get(timeout=PATIENCE).host[0] for _ in range(3)) == [0, 1, 2]
    with concurrent.futures.ProcessPoolExecutor(1, ways, sending.use_queue, (queue,)) as executor:
        results = [executor.submit(sending.filled, i) for i in range(4)]
        executor.submit(sending.put_in_the_queue, 7)
    assert [one.result(PATIENCE).host[0] for one in results] == list(range(4))
    assert queue.get(timeout=PATIENCE).host[0] == 7
    wait_for_no_keeper()


def test_daemons_leave_what_they_sent(ways):
    queue = ways.Queue()
    process = ways.Process(target=sending.put, args=(queue, 4), daemon=True)
    process.start()
    end(process)
    assert queue.get(timeout=PATIENCE).to_numpy().sum() == 4 * SIZE


def test_who_is_terminated_leaves_nothing(ways):
    queue = ways.Queue()
    sent = ways.Event()
    process = run(ways, sending.put_and_sleep, queue, 4, sent)
    assert sent.wait(PATIENCE)
    process.terminate()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGTERM
    with pytest.raises(DataLost, match="ended before it was received"):
        queue.get(timeout=PATIENCE).to_numpy()


PROGRAM = """
import multiprocessing, os, sys, time
import sending
if __name__ == "__main__":
    ways = multiprocessing.get_context(sys.argv[1])
    queue = ways.Queue()
    process = ways.Process(target=sending.put, args=(queue, 4))
    process.start()
    process.join()
    print("joined", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
    if sys.argv[2] == "received":
        assert queue.get(timeout=30).to_numpy().sum() == 4 * sending.SIZE
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    here = os.path.dirname(__file__)
    package = os.path.dirname(os.path.dirname(unimem.__file__))

    def start(*arguments, flags=(), **environment):
        return subprocess.Popen(
            [sys.executable, *flags, "-c", f"import runpy, sys; sys.path[:0] = {[here, package]!r}; sys.argv = {['', *arguments]!r}\n"
             f"runpy.run_path({str(file)!r}, run_name='__main__')"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip

    return start


@pytest.mark.parametrize("how", ["received", "returns", "killed"])
@pytest.mark.parametrize("way", WAYS)
def test_a_keeper_ends_with_who_may_receive(way, how, program):
    with program(way, how) as one:
        assert one.stdout.readline() == "joined\n"
        assert len(keepers_for(one.pid)) == 1
        out, error = one.communicate("go on\n", timeout=PATIENCE)  # until all that hold its output have ended
        assert (one.returncode, out) == (-9 if how == "killed" else 0, "")
        assert how == "killed" or error == "", "multiprocessing has a word on semaphores of who was killed"
        wait_for_no_keeper(one.pid)


@pytest.mark.parametrize("flags", [["-I"], ["-E"], ["-s", "-B"], ["-W", "error"], ["-X", "dev", "-W", "ignore"], ["-O", "-u"]], ids=" ".join)
def test_keepers_start_as_the_interpreter_was(flags, program):
    with program("fork", "received", flags=flags, PYTHONWARNINGS="ignore") as one:
        assert one.stdout.readline() == "joined\n"
        assert len(keepers_for(one.pid)) == 1
        assert one.communicate("go on\n", timeout=PATIENCE)[1] == ""
        assert one.returncode == 0


@pytest.mark.parametrize("why", ["it is no Python", "it cannot be run"])
def test_without_a_keeper_the_sender_waits_and_says_so(why, tmp_path):
    program = tmp_path / "python"
    if why == "it is no Python":
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o700)
    ways = multiprocessing.get_context("fork")
    queue, said = ways.Queue(), ways.SimpleQueue()
    process = run(ways, sending.put_without_a_keeper, queue, 4, str(program), said)
    message = said.get()
    assert "waits for the receivers" in message
    assert (str(program) if why == "it cannot be run" else "handing over what was sent") in message
    assert process.is_alive()
    assert queue.get(timeout=PATIENCE).to_numpy().sum() == 4 * SIZE
    end(process)


def test_no_more_waits_than_the_limit(ways):
    """Eight buffers of 8 MiB are 64 MiB; the ninth goes by the pipe, which is too small for it."""
    with ways.Pool(1) as pool:
        pool.apply_async(sending.sum_of, (np.ones(1),)).get(PATIENCE)
        gate = sending.Gate()
        with gate:
            results = pool.imap(sending.sum_when_open, ((gate.path, UnifiedBuffer(2 << 20, np.float32).fill(i)) for i in range(20)))
            wait_until(lambda: unimem._unimem._sent_and_not_received()[1] >= 56 << 20, "it sends less than it may")
            time.sleep(0.3)  # in which all twenty would have been sent
            (sent,) = sent_by([os.getpid()])
            assert 56 << 20 <= sent.copied_bytes <= 64 << 20
        assert list(results) == [i * (2 << 20) for i in range(20)]
    wait_until_all_is_received()


def test_what_goes_beyond_the_limit_is_in_the_message():
    reductions = multiprocessing.reduction.ForkingPickler
    full = [reductions.dumps(UnifiedBuffer(2 << 20, np.float32).fill(i)) for i in range(9)]
    shared = reductions.dumps(UnifiedBuffer(2 << 20, np.float32, shared=True).fill(5))
    try:
        assert [len(one) > 8 << 20 for one in full] == [False] * 8 + [True]
        assert len(shared) < 4096, "the same memory, whatever waits"
        assert unimem._unimem._sent_and_not_received() == (9, 64 << 20)
    finally:
        loaded = [multiprocessing.reduction.ForkingPickler.loads(one) for one in [*full, shared]]
    assert [one.host[0] for one in loaded] == [*range(9), 5]
    wait_until_all_is_received()
    large = UnifiedBuffer(20 << 20, np.float32).fill(2)
    message = reductions.dumps(large)
    assert len(message) < 4096, "one of any size goes by memory"
    small = UnifiedBuffer(1 << 20, np.float32).fill(1)
    assert len(reductions.dumps(small)) > 4 << 20
    assert reductions.loads(message).to_numpy().sum() == 40 << 20
    wait_until_all_is_received()
    again = reductions.dumps(small)
    assert len(again) < 4096, "it has been received"
    reductions.loads(again)

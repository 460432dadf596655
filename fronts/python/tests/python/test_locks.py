"""Locks of byte ranges: what they keep out, with whom they end, and waits for them."""

import errno
import os
import signal
import sys
import threading
import time

import pytest
from threads import in_threads

import weft


def test_a_lock_keeps_others_from_its_range(raw, theirs):
    raw.lock([(0, 10), (20, 0)])
    theirs.lock([(10, 10)], wait=False)
    for ranges in ([(5, 1)], [(0, 0)], [(1 << 40, 1)], [(10, 1), (9, 1)]):
        for exclusive in (True, False):
            with pytest.raises(BlockingIOError) as told:
                theirs.lock(ranges, exclusive=exclusive, wait=False)
            assert told.value.errno == errno.EAGAIN
    raw.unlock([(0, 10)])
    theirs.lock([(0, 10)], wait=False)
    with pytest.raises(BlockingIOError):
        theirs.lock([(20, 1)], wait=False)


def test_locks_are_all_or_none(raw, theirs):
    raw.lock([(50, 1)])
    with pytest.raises(BlockingIOError):
        theirs.lock([(0, 1), (50, 1)], wait=False)
    raw.lock([(0, 1)], wait=False)


def test_shared_locks_go_together(raw, theirs):
    raw.lock(exclusive=False)
    theirs.lock(exclusive=False, wait=False)
    with pytest.raises(BlockingIOError):
        theirs.lock(wait=False)
    raw.unlock()
    theirs.lock(wait=False)


def test_locks_belong_to_the_open_file_and_end_with_it(connection, raw, path):
    with connection.open(path, "r+b", 0) as second:
        raw.lock()
        with pytest.raises(BlockingIOError):
            second.lock(wait=False)
        raw.close()
        second.lock(wait=False)


def test_a_lock_of_no_ranges_is_invalid(raw):
    with pytest.raises(OSError) as told:
        raw.lock([])
    assert told.value.errno == errno.EINVAL


def test_what_is_written_under_a_lock_is_seen_by_the_next_that_has_it(raw, theirs):
    with raw.locked([(0, 8)]):
        raw.write(b"12345678")
        with pytest.raises(BlockingIOError):
            theirs.lock([(0, 1)], wait=False)
    with theirs.locked(iter([(0, 8)]), wait=False):
        assert theirs.read(8) == b"12345678"
    with pytest.raises(ZeroDivisionError), raw.locked():
        raise ZeroDivisionError
    theirs.lock(wait=False)


def test_counters_under_a_lock_lose_nothing(connection, path):
    connection.write_bytes(path, bytes(8))

    def count(_):
        with connection.open(path, "r+b", 0) as file:
            for _ in range(25):
                with file.locked():
                    file.pwrite((int.from_bytes(file.pread(8, 0), "big") + 1).to_bytes(8, "big"), 0)

    in_threads(count, range(4))
    assert int.from_bytes(connection.read_bytes(path), "big") == 100


def test_other_threads_go_on_while_one_waits_for_a_lock_which_it_gets(raw, theirs):
    theirs.lock()
    begins, done = threading.Event(), []

    def release():
        begins.wait()
        done.extend(range(100_000))
        theirs.unlock()

    thread = threading.Thread(target=release)
    thread.start()
    begins.set()
    raw.lock()
    assert len(done) == 100_000
    thread.join()
    with pytest.raises(BlockingIOError):
        theirs.lock(wait=False)


def test_an_interrupt_ends_the_wait_for_a_lock_which_is_not_held_then(raw, theirs):
    theirs.lock()
    begins, sent = threading.Event(), []

    def interrupt():
        begins.wait()
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    # A program that a shell has put into the background ignores it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    interval = sys.getswitchinterval()
    # The thread goes on when this one gives up the interpreter's lock, as it waits.
    sys.setswitchinterval(1000)
    try:
        with pytest.raises(KeyboardInterrupt):
            begins.set()
            raw.lock()
        took = time.monotonic() - sent[0]
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.setswitchinterval(interval)
        thread.join()
    assert took < 1
    assert not raw.closed
    theirs.unlock()
    theirs.lock([(0, 10)], wait=False)
    theirs.unlock()
    theirs.lock(wait=False)


def test_a_handler_of_signals_runs_during_a_wait_which_goes_on(raw, theirs):
    theirs.lock()
    handled, begins = [], threading.Event()

    def handler(*_):
        handled.append(threading.current_thread() is threading.main_thread())
        theirs.unlock()

    def send():
        begins.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        begins.set()
        raw.lock()
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
    assert handled == [True]
    with pytest.raises(BlockingIOError):
        theirs.lock(wait=False)


def test_a_wait_for_a_lock_ends_when_its_file_system_closes(name, connection, path):
    connection.write_bytes(path, b"")
    fs, failures = weft.connect(name), []
    file = fs.open(path, "r+b", 0)
    begins = threading.Event()

    def wait():
        try:
            begins.set()
            file.lock()
        except (OSError, ValueError) as failure:
            failures.append(failure)

    with connection.open(path, "r+b", 0) as theirs:
        theirs.lock()
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        begins.wait()
        # Nothing tells that the request is with the node: if this is too short the test proves less, and passes.
        time.sleep(0.2)
        fs.close()
        thread.join(5)
        assert not thread.is_alive() and len(failures) == 1
        theirs.lock(wait=False)

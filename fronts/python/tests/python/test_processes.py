"""Processes that fork, that end, that are given a file system; threads; file systems that are closed."""

import copy
import errno
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import traceback

import pytest
from threads import in_threads, join, start

import weft
from weft._process import PerProcess


def in_child(work):
    """Does it in a forked child, which ends without a word to Python. Fails if it fails there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed: see its traceback"


def python(program, *arguments, status=0):
    """Runs a program in another process. Returns what it printed."""
    command = [sys.executable, "-c", "import weft, sys, os\n" + textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == status, done.stderr
    return done.stdout


def fails_with_enotconn(call):
    with pytest.raises(OSError, match="fork") as told:
        call()
    assert told.value.errno == errno.ENOTCONN


# Fork


def test_a_child_cannot_use_the_connection_of_its_parent(connection, path):
    with connection.open(path, "w+b", 0) as file:
        file.write(b"parent")
        listing = connection.scandir("/")

        def work():
            for call in (
                lambda: connection.stat("/"),
                lambda: connection.open(path),
                lambda: connection.mkdir(f"{path}-2"),
                lambda: connection.listdir("/"),
                lambda: connection.statvfs(),
                lambda: connection.locate_many([path] * 50),
                lambda: file.read(1),
                lambda: file.readinto(bytearray(1)),
                lambda: file.write(b"x"),
                lambda: file.pwrite(b"x", 0),
                lambda: file.tell(),
                lambda: file.seek(0),
                lambda: file.size(),
                lambda: file.stat(),
                lambda: file.flush(),
                lambda: file.sync(),
                lambda: file.lock(),
                lambda: file.lock(wait=False),
                lambda: list(listing),
            ):
                fails_with_enotconn(call)
            file.close()
            connection.close()
            assert file.closed and connection.closed

        in_child(work)
        assert file.pread(10, 0) == b"parent"
        assert not file.closed and not connection.closed
        file.write(b" goes on")
        assert len(list(listing)) >= 1
    assert connection.read_bytes(path) == b"parent goes on"


def test_a_child_connects_anew(name, connection, path):
    connection.write_bytes(path, b"parent")

    def work():
        with weft.connect(name) as own:
            assert own.read_bytes(path) == b"parent"
            own.write_bytes(f"{path}-child", b"child")
            fails_with_enotconn(lambda: connection.stat(path))

    in_child(work)
    assert connection.read_bytes(f"{path}-child") == b"child"


def test_a_child_of_a_child_connects_anew(name, connection, path):
    def work():
        own = weft.connect(name)
        own.write_bytes(path, b"child")

        def below():
            fails_with_enotconn(lambda: own.stat(path))
            fails_with_enotconn(lambda: connection.stat(path))
            with weft.connect(name) as third:
                assert third.read_bytes(path) == b"child"

        in_child(below)
        assert own.read_bytes(path) == b"child"
        own.close()

    in_child(work)
    assert connection.read_bytes(path) == b"child"


PARENT = """
    import gc
    fs = weft.connect(sys.argv[1])
    file = fs.open(sys.argv[2], "w+b", 0)
    buffered = fs.open(sys.argv[2] + "-2", "wb")
    file.write(b"abc")
    file.lock()
    listing = fs.scandir("/")
    child = os.fork()
    if child == 0:
        {child}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}
    assert file.read() == b"" and file.pread(3, 0) == b"abc"
    with weft.connect(sys.argv[1]) as other, other.open(sys.argv[2], "r+b", 0) as theirs:
        try:
            theirs.lock(wait=False)
            raise AssertionError("the lock is gone")
        except BlockingIOError:
            pass
    file.write(b"def")
    buffered.write(b"buffered")
    assert fs.stat(sys.argv[2]).st_size == 6 and list(listing)
    print("done")
"""


@pytest.mark.parametrize(
    "child, status",
    [
        ("del file, buffered, listing, fs; gc.collect(); os._exit(3)", 3),
        ("file = buffered = listing = fs = None; gc.collect(); sys.exit(4)", 4),
        ("sys.exit(5)", 5),
        ("file.close(); fs.close(); sys.exit(6)", 6),
        ("own = weft.connect(sys.argv[1]); own.write_bytes(sys.argv[2] + '-3', b'own'); sys.exit(7)", 7),
        ("del file, buffered, fs; gc.collect(); raise SystemExit(8)", 8),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 9'])", 9),
    ],
)
def test_a_child_that_ends_leaves_files_locks_and_connection_to_its_parent(name, connection, path, child, status):
    program = textwrap.dedent(PARENT).format(child=child, status=status)
    assert python(program, name, path) == "done\n"
    assert connection.read_bytes(path) == b"abcdef"
    assert connection.read_bytes(f"{path}-2") == b"buffered"


def test_a_child_may_collect_while_threads_of_its_parent_work(connection, path):
    stop, rounds = threading.Event(), []

    def work(number):
        with connection.open(f"{path}-{number}", "w+b", 0) as file:
            while not stop.is_set():
                file.pwrite(b"x" * 1000, 0)
                assert file.pread(2000, 0) == b"x" * 1000
            rounds.append(number)

    threads = start(work, range(4))
    try:
        for _ in range(10):
            in_child(gc.collect)
    finally:
        stop.set()
        join(threads)
    assert sorted(rounds) == [0, 1, 2, 3]


def test_what_each_process_makes_is_made_once_in_each():
    own, made = PerProcess(lambda: made.append(os.getpid()) or os.getpid()), []
    assert own.get() == own.get() == os.getpid()

    def work():
        assert own.get() == own.get() == os.getpid()
        assert len(made) == 2

    in_child(work)
    assert len(made) == 1
    assert pickle.loads(pickle.dumps(PerProcess(os.getpid))).get() == os.getpid()


# Other processes


def test_a_pickled_file_system_connects_anew(name, connection, path):
    connection.write_bytes(path, b"abc")
    with weft.connect(name, write_buffer=1 << 16) as fs:
        with pickle.loads(pickle.dumps(fs)) as own:
            assert own is not fs and type(own) is weft.FileSystem
            assert own.read_bytes(path) == b"abc" and own.name == fs.name
        with copy.copy(fs) as own:
            assert own.exists(path)
        assert fs.read_bytes(path) == b"abc"


def test_a_pickle_of_the_only_file_system_names_it(name):
    with weft.connect(name) as fs:
        fs._arguments = (None, {})
        with pickle.loads(pickle.dumps(fs)) as own:
            assert own.name == name


def test_a_file_or_a_listing_cannot_be_pickled(connection, path):
    with connection.open(path, "wb", 0) as file, pytest.raises(TypeError):
        pickle.dumps(file)
    with pytest.raises(TypeError):
        pickle.dumps(connection.scandir("/"))


def double(arguments):
    """What a worker does: reads one file, writes another."""
    fs, source, target = arguments
    return fs.write_bytes(target, fs.read_bytes(source) * 2)


def test_processes_that_are_spawned_use_the_file_system(connection, path):
    for number in range(4):
        connection.write_bytes(f"{path}-{number}", b"%d" % number)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        work = [(connection, f"{path}-{number}", f"{path}-{number}-2") for number in range(4)]
        assert pool.map(double, work) == [2, 2, 2, 2]
    assert [connection.read_bytes(f"{path}-{number}-2") for number in range(4)] == [b"00", b"11", b"22", b"33"]


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "del file", "file = [file]; file.append(file)"])
def test_what_was_written_and_not_closed_is_there_after_the_process(name, connection, path, end):
    for buffering in ("0", "-1"):
        program = f"""
            fs = weft.connect(sys.argv[1])
            file = fs.open(sys.argv[2], "wb", {buffering})
            file.write(b"unclosed")
            {end}
        """
        python(program, name, path)
        assert connection.read_bytes(path) == b"unclosed"
        connection.unlink(path)


def test_what_was_written_is_there_after_an_exception_that_nobody_caught(name, connection, path):
    program = """
        fs = weft.connect(sys.argv[1])
        file = fs.open(sys.argv[2], "wb", 0)
        file.write(b"unclosed")
        1 / 0
    """
    python(program, name, path, status=1)
    assert connection.read_bytes(path) == b"unclosed"


def test_the_locks_of_a_process_that_was_killed_end(name, connection, path):
    program = """
        file = weft.connect(sys.argv[1]).open(sys.argv[2], "wb", 0)
        file.lock()
        os.kill(os.getpid(), 9)
    """
    python(program, name, path, status=-signal.SIGKILL)
    with connection.open(path, "r+b", 0) as file:
        file.lock()
        with connection.open(path, "r+b", 0) as second, pytest.raises(BlockingIOError):
            second.lock(wait=False)


# Threads and connections


def test_threads_use_one_connection_and_one_file(connection, path):
    failures = []

    def work(number):
        try:
            for turn in range(50):
                offset, block = (turn * 8 + number) * 512, bytes([number]) * 512
                assert file.pwrite(block, offset) == 512
                assert file.pread(512, offset) == block
                memory = bytearray(512)
                assert file.pread_into(memory, offset) == 512 and memory == block
                connection.mkdir(f"{path}-{number}-{turn}")
                connection.rmdir(f"{path}-{number}-{turn}")
        except BaseException as failure:
            failures.append(failure)

    with connection.open(path, "w+b", 0) as file:
        in_threads(work, range(8))
        assert failures == []
        assert file.size() == 8 * 50 * 512
    assert connection.read_bytes(path) == b"".join(bytes([number]) * 512 for number in range(8)) * 50


def test_threads_that_append_lose_nothing(connection, path):
    with connection.open(path, "ab", 0) as file:

        def work(number):
            for turn in range(50):
                file.write(b"%02d %03d\n" % (number, turn))

        in_threads(work, range(8))
    lines = connection.read_bytes(path).splitlines()
    assert sorted(lines) == sorted(b"%02d %03d" % (number, turn) for number in range(8) for turn in range(50))


def test_connections_are_independent(name, folder):
    several = [weft.connect(name) for _ in range(5)]
    for number, fs in enumerate(several):
        fs.write_bytes(f"{folder}/{number}", b"%d" % number)
    assert len({fs.stat(folder).st_dev for fs in several}) == 1
    several[0].close()
    for fs in several[1:]:
        assert [fs.read_bytes(f"{folder}/{number}") for number in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        fs.close()


def test_connections_come_and_go(name, folder):
    for number in range(30):
        with weft.connect(name) as fs:
            fs.write_bytes(f"{folder}/a", b"%d" % number)
    with weft.connect(name) as fs:
        assert fs.read_bytes(f"{folder}/a") == b"29"


# Closing


def test_a_file_system_that_was_closed_is_a_value_error(name, folder):
    fs = weft.connect(name)
    fs.close()
    fs.close()
    assert fs.closed and fs.name == name and "closed" in repr(fs)
    for call in (
        lambda: fs.stat(folder),
        lambda: fs.open(f"{folder}/a", "w"),
        lambda: fs.listdir(folder),
        lambda: fs.exists(folder),
        lambda: fs.access(folder, os.F_OK),
        lambda: fs.mkdir(f"{folder}/a"),
        lambda: fs.statvfs(),
        lambda: fs.locate_many([folder]),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_closing_a_file_system_writes_back_what_its_files_have(name, connection, path):
    fs = weft.connect(name)
    file = fs.open(path, "w+b", 0)
    file.write(b"abc")
    fs.close()
    assert connection.read_bytes(path) == b"abc"
    with pytest.raises(OSError):
        file.pread(3, 0)
    with pytest.raises(OSError):
        file.write(b"lost")
        file.flush()
    with pytest.raises(OSError):
        file.lock(wait=False)
    assert connection.read_bytes(path) == b"abc"


def test_a_file_of_a_closed_file_system_shows_nothing_stale(name, connection, path):
    fs = weft.connect(name)
    file = fs.open(path, "w+b", 0)
    file.write(b"older")
    assert file.pread(10, 0) == b"older"
    fs.close()
    connection.write_bytes(path, b"newer one")
    for call in (lambda: file.pread(10, 0), lambda: file.pread_into(bytearray(3), 0), file.size, file.stat):
        with pytest.raises((OSError, ValueError)):
            call()


def test_a_file_closes_after_its_file_system(name, path):
    fs = weft.connect(name)
    file = fs.open(path, "wb", 0)
    file.write(b"abc")
    fs.close()
    file.close()
    assert file.closed


def test_a_file_keeps_the_connection_that_nobody_else_has(name, connection, path):
    file = weft.connect(name).open(path, "w+b", 0)
    gc.collect()
    file.write(b"abc")
    assert file.pread(3, 0) == b"abc"
    listing = weft.connect(name).scandir(os.path.dirname(path))
    gc.collect()
    assert [entry.name for entry in listing] == ["file"]
    file.close()
    assert connection.read_bytes(path) == b"abc"


def test_a_file_that_nobody_has_is_closed(connection, other, path):
    file = connection.open(path, "wb")
    file.write(b"abc")
    file.raw.lock()
    del file
    gc.collect()
    assert connection.read_bytes(path) == b"abc"
    with other.open(path, "r+b", 0) as theirs:
        theirs.lock(wait=False)
        with connection.open(path, "r+b", 0) as mine, pytest.raises(BlockingIOError):
            mine.lock(wait=False)


def test_a_file_system_closes_while_threads_use_it(name, folder):
    fs = weft.connect(name)
    begun, failures = threading.Barrier(5), []

    def work(number):
        begun.wait()
        try:
            with fs.open(f"{folder}/{number}", "w+b", 0) as file:
                while True:
                    file.pwrite(b"x" * 100, 0)
                    file.pread(100, 0)
                    fs.stat(folder)
        except (OSError, ValueError) as failure:
            failures.append(failure)

    threads = start(work, range(4))
    begun.wait()
    fs.close()
    join(threads)
    assert len(failures) == 4


# Connecting


@pytest.mark.parametrize(
    "kind, number, arguments",
    [
        (FileNotFoundError, errno.ENOENT, {"name": "no-such-fs"}),
        (OSError, errno.EINVAL, {"transport": "pigeons"}),
        (OSError, errno.EINVAL, {"soft": 1, "hard": True}),
        (FileNotFoundError, errno.ENOENT, {"key_file": "/no/such/key"}),
    ],
)
def test_a_connection_that_cannot_be_made_says_why(name, kind, number, arguments):
    with pytest.raises(kind, match="|".join([*map(str, arguments.values()), "soft"])) as told:
        weft.connect(**{"name": name, **arguments})
    assert told.value.errno == number


def test_options_of_connect_are_checked(name):
    for soft in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="soft"):
            weft.connect(name, soft=soft)
    for arguments in ({"colour": "red"}, {"soft": "1"}, {"name": 3}, {"transport": 3}, {"key_file": 3}):
        with pytest.raises(TypeError):
            weft.connect(**{"name": name, **arguments})
    with pytest.raises(OverflowError):
        weft.connect(name, write_buffer=-1)


def test_options_of_connect_are_taken(name, path):
    for options in ({"transport": "tcp", "soft": 5.5, "write_buffer": 1 << 16}, {"hard": True}, {"write_buffer": 0}):
        with weft.connect(name, **options) as fs:
            fs.write_bytes(path, b"abc" * 10_000)
            assert fs.read_bytes(path) == b"abc" * 10_000


def test_the_only_file_system_needs_no_name(name):
    with weft.connect() as fs:
        assert fs.name == name


def test_an_exception_in_a_with_statement_closes_and_passes(name):
    with pytest.raises(ZeroDivisionError), weft.connect(name) as fs:
        raise ZeroDivisionError
    assert fs.closed

"""File locks between two mounts of one file system; run by locks.rs. Prints what goes wrong, and exits with 1."""
import errno
import fcntl
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time

A, B = sys.argv[1:3]
F_OFD_SETLK, F_OFD_SETLKW = 37, 38
WAITING = 200
TRANSACTIONS = 60


def flock_bytes(kind, start, length):
    return struct.pack("hhqqi4x", kind, 0, start, length, 0)


def ofd(file, command, start=0, length=0):
    fcntl.fcntl(file, command, flock_bytes(fcntl.F_WRLCK, start, length))


def open_file(path):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def error_of(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0


def lock(file, start=0, length=0, wait=True):
    fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), length, start)


def unlock(file):
    fcntl.lockf(file, fcntl.LOCK_UN)


class Child:
    """A process that tells lines."""

    def __init__(self, work):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            try:
                work(lambda line: os.write(write, f"{line}\n".encode()))
            except BaseException as error:
                os.write(write, f"{error!r}\n".encode())
            os._exit(0)
        os.close(write)
        self.lines = os.fdopen(read)

    def tells(self, line):
        told = self.lines.readline().strip()
        assert told == str(line), f"{told!r} instead of {line!r}"

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.ended()

    def ended(self):
        os.waitpid(self.pid, 0)
        self.lines.close()


def holds(path):
    def work(tell):
        lock(open_file(path))
        tell("held")
        time.sleep(100)

    child = Child(work)
    child.tells("held")
    return child


def ranges():
    file = open_file(A + "/ranges")
    lock(file, 0, 10)

    def work(tell):
        other = open_file(B + "/ranges")
        tell(error_of(lambda: lock(other, 5, 5, wait=False)))
        lock(other, 10, 5, wait=False)
        held = fcntl.fcntl(other, fcntl.F_GETLK, flock_bytes(fcntl.F_WRLCK, 0, 0))
        tell(struct.unpack("hhqqi4x", held))
        lock(other, 5, 5)
        tell("granted")

    child = Child(work)
    child.tells(errno.EAGAIN)
    child.tells((fcntl.F_WRLCK, 0, 0, 10, 0))
    time.sleep(0.3)
    unlock(file)
    child.tells("granted")
    child.ended()


def close_unlocks():
    for flags in [os.O_RDWR, os.O_RDONLY]:
        file = open_file(A + "/closed")
        lock(file)
        os.close(os.open(A + "/closed", flags))
        child = Child(lambda tell: tell(error_of(lambda: lock(open_file(B + "/closed"), wait=False))))
        child.tells(0)
        child.ended()


def flocks():
    files = [open_file(path + "/flock") for path in (A, B)]
    fcntl.flock(files[0], fcntl.LOCK_EX)
    assert error_of(lambda: fcntl.flock(files[1], fcntl.LOCK_EX | fcntl.LOCK_NB)) == errno.EAGAIN
    lock(files[1], wait=False)
    unlock(files[1])
    threading.Timer(0.3, lambda: fcntl.flock(files[0], fcntl.LOCK_UN)).start()
    fcntl.flock(files[1], fcntl.LOCK_SH)
    fcntl.flock(files[0], fcntl.LOCK_SH)
    os.close(files[1])
    fcntl.flock(files[0], fcntl.LOCK_EX)
    os.close(files[0])
    # flock(1), by turns of two mounts.
    count = "flock {0}/turn -c 'n=$(cat {0}/count); echo $((n + 1)) > {0}/count'"
    open(A + "/count", "w").write("0\n")
    turns = [subprocess.Popen(["sh", "-c", count.format(path)]) for path in (A, B) * 15]
    assert all(turn.wait() == 0 for turn in turns)
    assert open(A + "/count").read() == "30\n"


def descriptions():
    files = [open_file(path + "/ofd") for path in (A, B)]
    ofd(files[0], F_OFD_SETLK, 0, 10)
    assert error_of(lambda: ofd(files[1], F_OFD_SETLK, 5, 1)) == errno.EAGAIN
    ofd(files[1], F_OFD_SETLK, 10, 1)
    os.close(open_file(A + "/ofd"))
    assert error_of(lambda: ofd(files[1], F_OFD_SETLK, 5, 1)) == errno.EAGAIN, "not the last descriptor"
    os.close(files[0])
    ofd(files[1], F_OFD_SETLKW, 5, 1)
    os.close(files[1])


def killed_and_interrupted():
    path = "/killed"
    holder = holds(A + path)

    def work(tell):
        lock(open_file(B + path))
        tell("granted")

    waiter = Child(work)
    time.sleep(0.3)
    holder.kill()
    waiter.tells("granted")
    waiter.ended()
    holder = holds(A + path)
    waiter = Child(work)
    time.sleep(0.3)
    waiter.kill()

    def interrupted(tell):
        def alarm(*_):
            raise TimeoutError("alarm")

        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            lock(open_file(B + path))
        except TimeoutError:
            tell("interrupted")

    waiter = Child(interrupted)
    waiter.tells("interrupted")
    waiter.ended()
    holder.kill()
    file = open_file(B + path)
    lock(file)


def deadlock():
    first, second = open_file(A + "/first"), open_file(A + "/second")
    lock(first)

    def work(tell):
        first, second = open_file(B + "/first"), open_file(B + "/second")
        lock(second)
        tell("second")
        lock(first)
        tell("first")

    child = Child(work)
    child.tells("second")
    time.sleep(0.3)
    assert error_of(lambda: lock(second)) == errno.EDEADLK
    unlock(first)
    child.tells("first")
    child.ended()


def many_waiting():
    file = open_file(A + "/many")
    lock(file)

    def work(tell):
        file = open_file(B + "/many")
        tell("waits")
        lock(file)
        tell("granted")
        unlock(file)

    children = [Child(work) for _ in range(WAITING)]
    for child in children:
        child.tells("waits")
    time.sleep(0.5)
    for number in range(50):
        with open(f"{B}/beside{number}", "w") as beside:
            beside.write("served")
    unlock(file)
    for child in children:
        child.tells("granted")
        child.ended()


def databases():
    with sqlite3.connect(A + "/database") as database:
        database.execute("create table rows(who int, number int)")

    def work(path, who):
        def insert(tell):
            database = sqlite3.connect(path + "/database", timeout=120, isolation_level=None)
            for number in range(TRANSACTIONS):
                database.execute("begin immediate")
                database.execute("insert into rows values(?, ?)", (who, number))
                database.execute("commit")
            tell("done")

        return insert

    children = [Child(work(path, who)) for who, path in enumerate((A, B, A, B))]
    for child in children:
        child.tells("done")
        child.ended()
    for path in (A, B):
        database = sqlite3.connect(path + "/database")
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        count = database.execute("select count(*), count(distinct who * 1000 + number) from rows").fetchall()
        assert count == [(4 * TRANSACTIONS, 4 * TRANSACTIONS)], count


for check in [
    ranges,
    close_unlocks,
    flocks,
    descriptions,
    killed_and_interrupted,
    deadlock,
    many_waiting,
    databases,
]:
    try:
        check()
    except BaseException as error:
        sys.exit(f"{check.__name__}: {error!r}")

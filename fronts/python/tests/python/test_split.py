"""Files with a part for each writer: what several clients have written is read as from a flat copy."""

import contextlib
import random

import pytest

import weft

WRITERS, BYTES, WRITES, READS, LENGTH_MAX = 3, 2 << 20, 500, 2000, 30000


@pytest.fixture
def writers(name, path):
    """The same split file, opened by several clients."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(weft.connect(name)) for _ in range(WRITERS)]
        files = [stack.enter_context(clients[0].open(path, "w+b", 0, hints="split"))]
        files += [stack.enter_context(client.open(path, "r+b", 0)) for client in clients[1:]]
        assert clients[0].getxattr(path, "weft.layout") == b"split"
        yield files


def write(writers, flat, choice, count=WRITES):
    """Writes random ranges, which lie over one another, by random writers, and to the copy."""
    for _ in range(count):
        start, data = choice.randrange(BYTES), choice.randbytes(choice.randint(1, LENGTH_MAX))
        assert choice.choice(writers).pwrite(data, start) == len(data)
        flat.extend(bytes(max(0, start + len(data) - len(flat))))
        flat[start : start + len(data)] = data


def pread(file, start, length):
    return file.pread(length, start)


def pread_into(file, start, length):
    memory = bytearray(length)
    return bytes(memory[: file.pread_into(memory, start)])


def seek_and_read(file, start, length):
    file.seek(start)
    return file.read(length)


def read_list(file, start, length):
    """In two pieces, the second one first."""
    half = length // 2
    memory = bytearray(length)
    pieces = memoryview(memory)
    count = file.read_list([(pieces[half:], start + half), (pieces[:half], start)])
    return bytes(memory) if count == length else None


WAYS = [pread, pread_into, seek_and_read, read_list]


def compare(file, flat, way, choice, count=READS):
    for _ in range(count):
        start, length = choice.randrange(len(flat)), choice.randint(1, LENGTH_MAX)
        if way is read_list:
            length = min(length, len(flat) - start)
        assert way(file, start, length) == flat[start : start + length], (start, length)


@pytest.mark.parametrize("way", WAYS)
def test_random_ranges_are_those_of_a_flat_copy(writers, other, path, way):
    choice, flat = random.Random(way.__name__), bytearray()
    write(writers, flat, choice)
    compare(choice.choice(writers), flat, way, choice)
    for file in writers:
        file.close()
    with other.open(path, "rb", 0) as file:
        compare(file, flat, way, choice)
    with other.open(path, "rb") as file:
        assert file.read() == flat


def test_each_client_sees_what_the_others_write(writers):
    choice, flat = random.Random(7), bytearray()
    for _ in range(30):
        write(writers, flat, choice, 20)
        for file in writers:
            compare(file, flat, pread, choice, 10)


def test_copies_through_fsspec_are_the_same(writers, name, path):
    fsspec = pytest.importorskip("fsspec")
    choice, flat = random.Random(8), bytearray()
    write(writers, flat, choice)
    fs = fsspec.filesystem("weft", host=name)
    ranges = [(start, start + choice.randint(1, LENGTH_MAX)) for start in choice.choices(range(len(flat)), k=READS)]
    told = fs.cat_ranges([path] * READS, [start for start, _ in ranges], [end for _, end in ranges])
    assert told == [bytes(flat[start:end]) for start, end in ranges]

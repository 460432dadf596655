"""Open files: what is read and written, the positions, what is refused."""

import array
import errno
import io
import itertools
import os
import random
import sys
import threading

import pytest
from threads import in_threads

OFFSET_MAX = 2**63 - 1


# As the built-in open


def outcome(call):
    """What a call returns, or how it fails."""
    try:
        return call()
    except (OSError, ValueError) as error:
        return type(error), getattr(error, "errno", None)


def read_into(file, length):
    memory = bytearray(b"." * length)
    return file.readinto(memory), bytes(memory)


def bytes_of(dice):
    return dice.randbytes(dice.choice([0, 1, 7, 60])) + dice.choice([b"", b"\n", b"\r\n"])


def text_of(dice):
    return "".join(dice.choices(["a", "bc", "é", "漢", "\n", "\r\n", "\r", " "], k=dice.randrange(12)))


def step_of_bytes(dice):
    """A random call of a file of bytes, as a function of that file."""
    number, data, whence = dice.randrange(200), bytes_of(dice), dice.choice([0, 0, 1, 2])
    offset = number if whence == 0 else dice.randrange(-60, 60)
    return dice.choice(
        [
            lambda file: file.seek(offset, whence),
            lambda file: file.tell(),
            lambda file: file.read(number),
            lambda file: file.read(dice_free(number)),
            lambda file: file.readline(),
            lambda file: file.readline(number // 20),
            lambda file: file.readlines(number),
            lambda file: next(file, None),
            lambda file: read_into(file, number),
            lambda file: file.write(data),
            lambda file: file.write(data),
            lambda file: file.writelines([data, data]),
            lambda file: file.truncate(number),
            lambda file: file.truncate(),
            lambda file: file.flush(),
        ]
    )


def dice_free(number):
    return None if number % 2 else -1


def step_of_text(dice):
    """A random call of a file of text, as a function of that file. Of positions only those that have a meaning."""
    number, text, whence = dice.randrange(40), text_of(dice), dice.choice([0, 2])
    return dice.choice(
        [
            lambda file: file.seek(0, whence),
            lambda file: file.seek(file.tell()),
            lambda file: file.tell(),
            lambda file: file.read(number),
            lambda file: file.read(),
            lambda file: file.readline(),
            lambda file: file.readline(number),
            lambda file: next(file, None),
            lambda file: (list(file), file.newlines),
            lambda file: file.write(text),
            lambda file: file.write(text),
            lambda file: file.writelines([text, text]),
            lambda file: file.truncate(),
            lambda file: file.flush(),
        ]
    )


def compare(files, dice, step, steps):
    """Does the same with both files, and compares."""
    with files[0] as mine, files[1] as builtin:
        for number in range(steps):
            call = step(dice)
            assert outcome(lambda: call(mine)) == outcome(lambda: call(builtin)), f"step {number}"
        assert (mine.readable(), mine.writable()) == (builtin.readable(), builtin.writable())
        assert mine.seekable() and not mine.isatty()


MODES = [letter + plus for letter in "rwax" for plus in ("", "+")]


@pytest.mark.parametrize("buffering", [0, -1, 16])
@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_bytes_is_as_that_of_the_builtin_open(connection, path, tmp_path, mode, buffering):
    twin = tmp_path / "twin"
    for seed in range(3):
        dice = random.Random(f"{mode} {buffering} {seed}")
        start = dice.randbytes(100) + b"\n\nend"
        if mode[0] != "x":
            connection.write_bytes(path, start)
            twin.write_bytes(start)
        mode_of_bytes = dice.choice([mode + "b", mode[0] + "b" + mode[1:]])
        files = connection.open(path, mode_of_bytes, buffering), open(twin, mode_of_bytes, buffering)
        compare(files, dice, step_of_bytes, 120)
        assert connection.read_bytes(path) == twin.read_bytes()
        assert connection.stat(path).st_size == twin.stat().st_size
        connection.unlink(path)
        twin.unlink()


@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_text_is_as_that_of_the_builtin_open(connection, path, tmp_path, mode, newline):
    twin = tmp_path / "twin"
    for encoding in ("utf-8", "utf-16", "latin-1"):
        dice = random.Random(f"{mode} {newline} {encoding}")
        if mode[0] != "x":
            start = "abc\r\nd\n\ref\n".encode(encoding)
            connection.write_bytes(path, start)
            twin.write_bytes(start)
        arguments = {"encoding": encoding, "errors": "replace", "newline": newline}
        compare((connection.open(path, mode, **arguments), open(twin, mode, **arguments)), dice, step_of_text, 120)
        assert connection.read_bytes(path) == twin.read_bytes()
        connection.unlink(path)
        twin.unlink()


def test_x_refuses_what_is_there_and_r_what_is_not(connection, path):
    with pytest.raises(FileNotFoundError):
        connection.open(path)
    with pytest.raises(FileNotFoundError):
        connection.open(path, "r+b", 0)
    assert not connection.exists(path)
    connection.open(path, "x").close()
    with pytest.raises(FileExistsError):
        connection.open(path, "xb")


@pytest.mark.parametrize("mode", ["", "b", "+", "rw", "r++", "rbt", "bb", "rr", "U", "wx", "q", "r b", "tb+"])
def test_a_wrong_mode_is_a_value_error_as_of_the_builtin_open(connection, path, tmp_path, mode):
    connection.write_bytes(path, b"kept")
    (tmp_path / "twin").write_bytes(b"kept")
    with pytest.raises(ValueError):
        open(tmp_path / "twin", mode)
    with pytest.raises(ValueError):
        connection.open(path, mode)
    assert connection.read_bytes(path) == b"kept"


@pytest.mark.parametrize(
    "arguments",
    [
        ("rb", -1, "utf-8"),
        ("rb", -1, None, "strict"),
        ("rb", -1, None, None, "\n"),
        ("wb", -1, "utf-8"),
        ("r", 0),
        ("w", 0),
        ("r", -1, None, None, "x"),
    ],
)
def test_arguments_that_do_not_fit_are_a_value_error_and_leave_the_file(connection, path, arguments):
    connection.write_bytes(path, b"kept")
    with pytest.raises(ValueError):
        connection.open(path, *arguments)
    assert connection.read_bytes(path) == b"kept"


def test_an_unknown_encoding_is_a_lookup_error(connection, path):
    connection.write_bytes(path, b"")
    with pytest.raises(LookupError):
        connection.open(path, encoding="no-such-encoding")


def test_the_classes_are_those_of_io(connection, path):
    with connection.open(path, "wb") as file:
        assert type(file) is io.BufferedWriter and file.raw.mode == "wb" and file.name == path
    with connection.open(path, "rb") as file:
        assert type(file) is io.BufferedReader and file.raw.mode == "rb"
    with connection.open(path, "r+b") as file:
        assert type(file) is io.BufferedRandom and file.raw.mode == "rb+"
    with connection.open(path, "a+", 1) as file:
        assert type(file) is io.TextIOWrapper and file.line_buffering and file.buffer.raw.mode == "ab+"
    with connection.open(path, "ab", 0) as file:
        assert isinstance(file, io.RawIOBase) and file.mode == "ab" and path in repr(file)
    assert "closed" in repr(file)


def test_a_line_buffered_file_writes_each_line(connection, other, path):
    with connection.open(path, "w", 1) as file:
        file.write("a line\nand half a")
        assert other.read_bytes(path) == b"a line\nand half a"


def test_permissions_are_less_the_umask(connection, path):
    umask = os.umask(0o022)
    os.umask(umask)
    connection.open(path, "wb", permissions=0o646).close()
    assert connection.stat(path).st_mode & 0o7777 == 0o646 & ~umask


def test_a_directory_is_no_file(connection, folder):
    for mode in ("rb", "wb", "r+b"):
        with pytest.raises(IsADirectoryError):
            connection.open(folder, mode)


def test_a_text_file_holds_lines_of_any_length(connection, path):
    lines = [f"{number} {'é' * (number * 997 % 5000)}\n" for number in range(300)]
    with connection.open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)
    with connection.open(path, encoding="utf-8") as file:
        assert list(file) == lines


# Positions


def test_reads_and_writes_move_the_position(raw):
    assert raw.write(b"hello world") == 11
    assert raw.tell() == 11
    assert raw.seek(-5, os.SEEK_CUR) == 6
    assert raw.read(3) == b"wor"
    assert raw.tell() == 9
    assert raw.readinto(bytearray(10)) == 2
    assert raw.tell() == 11
    assert raw.seek(-11, os.SEEK_END) == 0
    assert raw.read() == b"hello world"
    assert raw.read() == b"" and raw.read(5) == b""


def test_calls_with_an_offset_leave_the_position(raw):
    raw.write(b"0123456789")
    raw.seek(4)
    memory = bytearray(3)
    assert raw.pwrite(b"ab", 0) == 2
    assert raw.pread(3, 1) == b"b23"
    assert raw.pread_into(memory, 7) == 3 and memory == b"789"
    assert raw.read_list([(memory, 0)]) == 3 and memory == b"ab2"
    assert raw.write_list([(b"zz", 20)]) == 2
    assert raw.truncate(15) == 15
    assert raw.tell() == 4


def test_a_write_behind_the_end_leaves_zeros(raw):
    raw.seek(100)
    raw.write(b"x")
    assert raw.pread(1000, 0) == bytes(100) + b"x"
    assert raw.size() == raw.stat().st_size == 101


def test_an_append_of_nothing_leaves_the_position(connection, path):
    connection.write_bytes(path, b"abc")
    with connection.open(path, "a+b", 0) as file:
        file.seek(1)
        assert file.write(b"") == 0
        assert file.tell() == 1


def test_appends_go_to_the_end_of_what_others_wrote(connection, other, path):
    with connection.open(path, "ab", 0) as mine, other.open(path, "ab", 0) as theirs:
        for number in range(10):
            mine.write(b"m%d" % number)
            theirs.write(b"t%d" % number)
        assert mine.tell() == 38 and theirs.tell() == 40
    assert connection.read_bytes(path) == b"".join(b"m%dt%d" % (number, number) for number in range(10))


@pytest.mark.parametrize("call", ["read", "readinto"])
def test_threads_that_share_a_position_read_each_record_once(connection, path, call):
    connection.write_bytes(path, b"".join(number.to_bytes(8, "big") for number in range(10_000)))
    begun, seen = threading.Barrier(8), []

    def work(file):
        memory = bytearray(8)
        begun.wait()
        while True:
            record = file.read(8) if call == "read" else memory[: file.readinto(memory)]
            if not record:
                break
            seen.append(int.from_bytes(record, "big"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with connection.open(path, "rb", 0) as file:
            in_threads(work, [file] * 8)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(seen) == list(range(10_000))


# Memory


def memories():
    """Memory of 64 bytes of several kinds, each with a function that tells its bytes."""
    yield bytearray(64)
    yield memoryview(bytearray(64))
    yield memoryview(bytearray(80))[8:72]
    yield memoryview(bytearray(64)).cast("B", (8, 8))
    yield array.array("d", [0.0] * 8)
    yield array.array("B", [0] * 64)


def test_any_memory_is_read_into_and_written_from(raw):
    data = bytes(range(64))
    for memory in memories():
        raw.pwrite(data, 0)
        raw.seek(0)
        assert raw.readinto(memory) == 64
        assert bytes(memory) == data
        assert raw.pread_into(memory, 32) == 32
        assert bytes(memory) == data[32:] * 2
        raw.seek(100)
        assert raw.write(memory) == raw.pwrite(memory, 200) == raw.write_list([(memory, 300)]) == 64
        assert raw.pread(64, 100) == raw.pread(64, 200) == raw.pread(64, 300) == data[32:] * 2
        raw.truncate(0)


def test_numpy_arrays_are_read_into_and_written_from(raw):
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    numbers = numpy.arange(1000, dtype="float64").reshape(10, 100)
    assert raw.write(numbers) == 8000
    told = numpy.zeros((10, 100))
    assert raw.pread_into(told[3:5], 3 * 800) == 1600
    assert (told[3:5] == numbers[3:5]).all() and told[:3].sum() == told[5:].sum() == 0
    raw.seek(0)
    assert raw.readinto(told) == 8000 and (told == numbers).all()
    assert raw.read_list([(row, 800 * (9 - number)) for number, row in enumerate(told)]) == 8000
    assert (told == numbers[::-1]).all()
    for strided in (told[:, 1:5], told.T, told[::2]):
        for call in (raw.readinto, raw.write, lambda memory: raw.pread_into(memory, 0)):
            with pytest.raises(BufferError):
                call(strided)
    told.flags.writeable = False
    with pytest.raises(TypeError):
        raw.readinto(told)
    assert raw.pwrite(told, 0) == 8000


def test_memory_beyond_what_was_read_stays(raw):
    raw.write(b"abc")
    memory = bytearray(b"." * 8)
    assert raw.pread_into(memory, 1) == 2
    assert memory == b"bc......"


@pytest.mark.parametrize("call", ["readinto", "pread_into", "read_list"])
def test_read_only_memory_is_a_type_error(raw, call):
    raw.write(b"abc")
    for memory in (b"xyz", memoryview(b"xyz")):
        with pytest.raises(TypeError):
            call_with(raw, call, memory)
        assert bytes(memory) == b"xyz"


@pytest.mark.parametrize("call", ["readinto", "pread_into", "read_list", "write", "pwrite", "write_list"])
def test_memory_in_several_pieces_is_a_buffer_error(raw, call):
    raw.write(b"abc")
    with pytest.raises(BufferError):
        call_with(raw, call, memoryview(bytearray(b"12345678"))[::2])
    assert raw.pread(10, 0) == b"abc"


@pytest.mark.parametrize("call", ["readinto", "pread_into", "read_list", "write", "pwrite", "write_list"])
def test_what_is_no_memory_is_a_type_error(raw, call):
    for memory in ("text", 5, None, [1, 2]):
        with pytest.raises(TypeError):
            call_with(raw, call, memory)
    assert raw.size() == 0


def call_with(file, call, memory):
    if call in ("readinto", "write"):
        return getattr(file, call)(memory)
    if call in ("pread_into", "pwrite"):
        return getattr(file, call)(memory, 0)
    return getattr(file, call)([(memory, 0)])


def test_memory_may_be_resized_after_a_read(raw):
    memory = bytearray(10)
    raw.pread_into(memory, 0)
    memory.extend(b"more")
    assert len(memory) == 14


def test_no_memory_is_no_bytes(raw):
    raw.write(b"abc")
    raw.seek(0)
    assert raw.readinto(bytearray()) == raw.write(b"") == raw.pwrite(b"", 7) == 0
    assert raw.read(0) == raw.pread(0, 0) == b""
    assert raw.read_list([]) == raw.write_list([]) == raw.read_list([(bytearray(), 0)]) == 0
    assert raw.tell() == 0 and raw.size() == 3


# Lists


def test_a_list_reads_and_writes_pieces_in_order(raw):
    assert raw.write_list([(b"aaa", 10), (b"bbb", 0), (b"cc", 11)]) == 8
    assert raw.pread(100, 0) == b"bbb" + bytes(7) + b"acc"
    first, second = bytearray(2), bytearray(3)
    assert raw.read_list(iter([(first, 11), (second, 0)])) == 5
    assert first == b"cc" and second == b"bbb"


def test_a_list_ends_with_the_piece_that_meets_the_end_of_the_file(raw):
    raw.write(b"0123456789")
    pieces = [bytearray(b"." * 4) for _ in range(3)]
    assert raw.read_list([(pieces[0], 0), (pieces[1], 8), (pieces[2], 0)]) == 6
    assert pieces == [b"0123", b"89..", b"...."]


def test_many_pieces_are_written_and_read(raw):
    blocks = {number * 137: bytes([number % 251]) * 100 for number in range(500)}
    assert raw.write_list([(block, offset) for offset, block in blocks.items()]) == 50_000
    memory = {offset: bytearray(100) for offset in reversed(blocks)}
    assert raw.read_list([(piece, offset) for offset, piece in memory.items()]) == 50_000
    assert memory == blocks


# What is refused


CALLS = {
    "read": lambda file: file.read(),
    "read some": lambda file: file.read(1),
    "readall": lambda file: file.readall(),
    "readinto": lambda file: file.readinto(bytearray(1)),
    "pread": lambda file: file.pread(1, 0),
    "pread_into": lambda file: file.pread_into(bytearray(1), 0),
    "read_list": lambda file: file.read_list([(bytearray(1), 0)]),
    "readline": lambda file: file.readline(),
    "write": lambda file: file.write(b"x"),
    "pwrite": lambda file: file.pwrite(b"x", 0),
    "write_list": lambda file: file.write_list([(b"x", 0)]),
    "writelines": lambda file: file.writelines([b"x"]),
    "truncate": lambda file: file.truncate(0),
    "truncate at the position": lambda file: file.truncate(),
    "seek": lambda file: file.seek(0),
    "tell": lambda file: file.tell(),
    "size": lambda file: file.size(),
    "stat": lambda file: file.stat(),
    "sync": lambda file: file.sync(),
    "flush": lambda file: file.flush(),
    "lock": lambda file: file.lock(wait=False),
    "unlock": lambda file: file.unlock(),
    "locked": lambda file: file.locked().__enter__(),
    "readable": lambda file: file.readable(),
    "writable": lambda file: file.writable(),
    "seekable": lambda file: file.seekable(),
    "isatty": lambda file: file.isatty(),
    "next": lambda file: next(file),
    "with": lambda file: file.__enter__(),
}
READS = ["read", "read some", "readall", "readinto", "pread", "pread_into", "read_list", "readline", "next"]
WRITES = ["write", "pwrite", "write_list", "writelines", "truncate", "truncate at the position"]


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_file_is_a_value_error(raw, call):
    raw.close()
    assert raw.closed
    raw.close()
    with pytest.raises(ValueError):
        CALLS[call](raw)


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_file_that_is_not_to_read_is_unsupported(connection, path, mode, call):
    connection.write_bytes(path, b"kept")
    with connection.open(path, mode, 0) as file, pytest.raises(io.UnsupportedOperation):
        CALLS[call](file)


@pytest.mark.parametrize("call", WRITES)
def test_a_file_that_is_not_to_write_is_unsupported(connection, path, call):
    connection.write_bytes(path, b"kept")
    with connection.open(path, "rb", 0) as file, pytest.raises(io.UnsupportedOperation):
        CALLS[call](file)
    assert connection.read_bytes(path) == b"kept"


def test_there_is_no_descriptor(raw):
    with pytest.raises(io.UnsupportedOperation):
        raw.fileno()


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.pread(1, -1),
        lambda file: file.pread_into(bytearray(1), -1),
        lambda file: file.pwrite(b"x", -1),
        lambda file: file.read_list([(bytearray(1), 0), (bytearray(1), -1)]),
        lambda file: file.write_list([(b"x", 0), (b"x", -1)]),
        lambda file: file.truncate(-1),
    ],
)
def test_a_negative_offset_is_a_value_error_and_nothing_is_done(raw, call):
    raw.write(b"abc")
    with pytest.raises(ValueError, match="negative"):
        call(raw)
    assert raw.pread(10, 0) == b"abc"


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.pread(-1, 0),
        lambda file: file.lock([(-1, 1)]),
        lambda file: file.lock([(1, -1)]),
        lambda file: file.unlock([(-1, 1)]),
    ],
)
def test_a_negative_length_is_refused(raw, call):
    raw.write(b"abc")
    with pytest.raises((ValueError, OverflowError), match="negative"):
        call(raw)


@pytest.mark.parametrize("offset", [OFFSET_MAX, OFFSET_MAX - 1])
def test_bytes_beyond_the_last_offset_are_invalid(raw, offset):
    raw.write(b"abc")
    for call in (
        lambda: raw.pread(10, offset),
        lambda: raw.pread_into(bytearray(10), offset),
        lambda: raw.pwrite(b"0123456789", offset),
        lambda: raw.read_list([(bytearray(10), offset)]),
        lambda: raw.write_list([(b"0123456789", offset)]),
        lambda: raw.lock([(offset, 10)]),
    ):
        with pytest.raises(OSError) as told:
            call()
        assert told.value.errno == errno.EINVAL
    raw.seek(offset)
    for call in (lambda: raw.write(b"0123456789"), lambda: raw.readinto(bytearray(10)), lambda: raw.read(10)):
        with pytest.raises(OSError) as told:
            call()
        assert told.value.errno == errno.EINVAL
        assert raw.tell() == offset
    assert raw.pread(100, 0) == b"abc"


@pytest.mark.parametrize("number", [2**63, 2**64, 2**100, -(2**63) - 1])
def test_what_is_no_offset_is_an_overflow_error(raw, number):
    for call in (
        lambda: raw.pread(1, number),
        lambda: raw.pread_into(bytearray(1), number),
        lambda: raw.pwrite(b"x", number),
        lambda: raw.seek(number),
        lambda: raw.truncate(number),
        lambda: raw.write_list([(b"x", number)]),
    ):
        with pytest.raises(OverflowError):
            call()
    assert raw.size() == 0


def test_a_file_of_all_offsets_is_read_in_parts_and_not_at_once(raw):
    assert raw.truncate(OFFSET_MAX) == raw.size() == OFFSET_MAX
    assert raw.pread(4, OFFSET_MAX - 4) == bytes(4)
    with pytest.raises((MemoryError, OverflowError)):
        raw.read()
    raw.truncate(2**60)
    for call in (lambda: raw.read(), lambda: raw.read(2**59), lambda: raw.pread(2**59, 0)):
        with pytest.raises(MemoryError):
            call()
    assert raw.tell() == 0 and raw.read(3) == bytes(3)


def test_a_huge_length_reads_what_is_there(raw):
    raw.write(b"abc")
    assert raw.pread(2**62, 0) == b"abc"
    assert raw.pread(2**62, 2) == b"c"
    assert raw.pread(2**40, 1000) == b""
    raw.seek(1)
    assert raw.read(2**62) == b"bc"
    assert raw.tell() == 3


def test_a_position_before_the_start_is_invalid(raw):
    raw.write(b"abc")
    for offset, whence in ((-1, os.SEEK_SET), (-4, os.SEEK_CUR), (-4, os.SEEK_END)):
        with pytest.raises(OSError) as told:
            raw.seek(offset, whence)
        assert told.value.errno == errno.EINVAL
    raw.seek(OFFSET_MAX)
    with pytest.raises(OSError) as told:
        raw.seek(1, os.SEEK_CUR)
    assert told.value.errno == errno.EINVAL
    assert raw.tell() == OFFSET_MAX
    with pytest.raises(ValueError, match="whence"):
        raw.seek(0, 17)


@pytest.mark.parametrize("path", ["/a\0b", b"/a\0b", "\0"])
def test_a_path_with_a_null_byte_is_a_value_error(connection, path):
    for call in (connection.open, connection.stat, connection.mkdir, connection.unlink, connection.listdir):
        with pytest.raises(ValueError, match="null byte"):
            call(path)


@pytest.mark.parametrize(
    "hints, named",
    [
        ("widht=2", "widht=2"),
        ("rdma=fast", "rdma=fast"),
        ("width=0", "width=0"),
        ("width=2 whole", "width=2 whole"),
        ("stripe=64KiB", "stripe=64KiB"),
        ("width=2 colour=red", "colour=red"),
    ],
)
def test_an_unknown_hint_is_invalid_and_named(connection, path, hints, named):
    with pytest.raises(OSError, match=named) as told:
        connection.open(path, "wb", hints=hints)
    assert told.value.errno == errno.EINVAL
    assert not connection.exists(path)


# Layout and where bytes are


def test_a_layout_by_hints_is_seen_in_locate(connection, path):
    stripe, data = 64 << 10, random.Random(0).randbytes(300 << 10)
    with connection.open(path, "wb", 0, hints="width=2 stripe=64KiB rdma=auto") as file:
        file.write(data)
    pieces = connection.locate(path)
    assert [(piece.offset, piece.length) for piece in pieces] == [
        (offset, min(stripe, len(data) - offset)) for offset in range(0, len(data), stripe)
    ]
    nodes = [piece.node for piece in pieces]
    assert sorted(set(nodes)) == [0, 1] and all(one != two for one, two in itertools.pairwise(nodes))
    assert all(piece.local and piece.host for piece in pieces)
    assert connection.getxattr(path, "weft.layout") == b"width=2 stripe=65536"
    assert connection.read_bytes(path) == data


def test_a_file_without_bytes_is_on_no_node(connection, path):
    with connection.open(path, "wb", 0) as file:
        file.truncate(1 << 20)
        assert connection.locate(path) == [(0, 1 << 20, None, "", "", False)]
        file.write(b"x")
        file.flush()
        (piece,) = connection.locate(path)
        assert (piece.offset, piece.length) == (0, 1 << 20) and piece.node in (0, 1) and piece.local


# Write-back


def test_what_is_written_is_seen_by_another_client_at_once(raw, theirs):
    raw.pwrite(b"mine", 0)
    assert theirs.pread(10, 0) == b"mine"
    theirs.pwrite(b"theirs", 2)
    assert raw.pread(10, 0) == b"mitheirs" and raw.size() == 8


def test_a_buffer_keeps_bytes_until_it_is_flushed(connection, other, path):
    with connection.open(path, "wb") as file:
        file.write(b"abc")
        assert other.read_bytes(path) == b""
        file.flush()
        assert other.read_bytes(path) == b"abc"
        file.write(b"def")
    assert other.read_bytes(path) == b"abcdef"


def test_sync_of_any_file_succeeds_and_keeps_what_is_written(connection, other, path):
    with connection.open(path, "wb", 0) as file:
        file.write(b"x" * 100_000)
        assert file.sync() is None
        assert file.flush() is None
        assert other.stat(path).st_size == 100_000
    with connection.open(path, "rb", 0) as file:
        assert file.sync() is None
        assert file.flush() is None


def test_a_large_file_is_what_was_written(connection, other, path):
    data = random.Random(1).randbytes((9 << 20) + 13)
    assert connection.write_bytes(path, data) == len(data)
    assert other.read_bytes(path) == data
    with other.open(path, "rb") as file:
        assert b"".join(iter(lambda: file.read(100_001), b"")) == data


def test_stat_of_a_file_is_that_of_its_path(connection, raw, path):
    raw.write(b"abc")
    told, named = raw.stat(), connection.stat(path)
    assert (told.st_ino, told.st_size, told.st_mode, told.st_mtime_ns, told.st_dev) == (
        named.st_ino,
        3,
        named.st_mode,
        named.st_mtime_ns,
        named.st_dev,
    )


def test_a_file_that_was_unlinked_is_there_until_it_is_closed(connection, raw, path):
    raw.write(b"abc")
    connection.unlink(path)
    assert raw.pread(3, 0) == b"abc"
    assert raw.stat().st_nlink == 0

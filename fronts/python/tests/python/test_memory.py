"""What goes into memory that the caller has: copies and registrations, counted."""

import mmap
import os

import pytest

import weft

_MIB = 1 << 20
_TRANSPORT = os.environ.get("WEFT_TRANSPORT", "auto")


def spent(fs, call):
    """What a call adds to the counters."""
    before = fs.counters()
    call()
    after = fs.counters()
    return {name: after[name] - before[name] for name in after}


def carried(counted):
    """Bytes by the ways that they went."""
    ways = ("descriptor_", "unix_", "tcp_", "rdma_")
    return {name: count for name, count in counted.items() if name.startswith(ways) and count > 0}


@pytest.mark.skipif(_TRANSPORT != "auto", reason="by descriptor")
def test_bytes_go_straight_between_the_file_and_memory(name, path):
    memory = bytearray(os.urandom(64 * _MIB))
    back = bytearray(len(memory))
    with weft.connect(name) as fs, fs.open(path, "w+b", 0) as file:
        written = spent(fs, lambda: file.pwrite(memory, 0))
        read = spent(fs, lambda: file.pread_into(back, 0))
    assert back == memory
    assert carried(written) == {"descriptor_written": len(memory)}
    assert carried(read) == {"descriptor_read": len(memory)}


def test_memory_can_be_registered_whatever_carries_the_bytes(connection, raw):
    memory = mmap.mmap(-1, 4 * _MIB)
    with connection.register(memory) as registered:
        assert raw.pwrite(memory, 0) == 4 * _MIB
        assert raw.pread_into(memoryview(memory)[_MIB : 2 * _MIB], 0) == _MIB
        with pytest.raises(BufferError):
            memory.close()
    assert registered.closed
    registered.close()
    memory.close()


def test_what_cannot_be_registered_is_refused(connection):
    with pytest.raises(TypeError, match="read-only"):
        connection.register(b"abc")
    with pytest.raises(TypeError):
        connection.register(3)
    with pytest.raises(BufferError):
        connection.register(memoryview(bytearray(10))[::2])


@pytest.mark.skipif(_TRANSPORT != "ucx", reason="by RDMA")
@pytest.mark.parametrize(
    ("hints", "each", "copied"),
    [("rdma=static", 0, 1), ("rdma=dynamic", 1, 0)],
)
def test_registrations_are_as_the_hint_says(name, path, hints, each, copied):
    """Each transfer of memory that is not registered registers it, or copies it; one that is does neither."""
    with weft.connect(name) as fs, fs.open(path, "w+b", 0, hints=hints) as file:
        memory = bytearray(os.urandom(4 * _MIB))
        pieces = [memoryview(memory)[at : at + _MIB] for at in range(0, len(memory), _MIB)]
        rounds = 2

        def transfers():
            for _ in range(rounds):
                # From the end, so that nothing is prefetched.
                for at, piece in reversed(list(enumerate(pieces))):
                    file.pwrite(piece, at * len(piece))
                    file.pread_into(piece, at * len(piece))

        count = 2 * rounds * len(pieces)
        # All connections are made, and their buffers are as large as they will be.
        transfers()
        counted = spent(fs, transfers)
        assert counted["rdma_registrations"] == each * count
        assert counted["rdma_copied"] == copied * count * _MIB
        with fs.register(memory):
            counted = spent(fs, transfers)
        assert counted["rdma_registrations"] == 0
        # `static` is the connection's memory, whatever the program has registered.
        assert counted["rdma_copied"] == copied * count * _MIB
        counted = spent(fs, transfers)
        assert counted["rdma_registrations"] == each * count


@pytest.mark.skipif(_TRANSPORT != "ucx", reason="by RDMA")
def test_registered_memory_is_used_for_small_pieces_too(name, path):
    with weft.connect(name) as fs, fs.open(path, "w+b", 0, hints="rdma=dynamic") as file:
        memory = bytearray(os.urandom(4 * _MIB))
        piece = memoryview(memory)[5000 : 5000 + 100_000]
        expected = bytes(piece)
        file.pwrite(piece, 0)
        file.sync()
        assert spent(fs, lambda: file.pread_into(piece, 0))["rdma_copied"] == 100_000
        with fs.register(memory):
            piece[:] = bytes(len(piece))
            counted = spent(fs, lambda: file.pread_into(piece, 0))
            assert (counted["rdma_copied"], counted["rdma_registrations"]) == (0, 0)
            assert piece == expected
            # What is smaller costs less by a copy.
            assert spent(fs, lambda: file.pread_into(piece[:1000], 0))["rdma_copied"] > 0

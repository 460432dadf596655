"""Handles that one process exports and others import."""

import asyncio
import errno
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

import weft
import weft.aio

_PIECE = 10_000


def _write_piece(name, handle, number):
    with weft.connect(name) as fs, fs.import_handle(handle) as file:
        file.pwrite(bytes([number]) * _PIECE, number * _PIECE)


def test_processes_write_their_pieces_by_the_handle_of_one(name, connection, path):
    with connection.open(path, "w+b", 0) as file:
        handle = file.export()
        assert file.export() == handle, "it is open for others once"
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_write_piece, args=(name, handle, number)) for number in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert file.pread(5 * _PIECE, 0) == b"".join(bytes([number]) * _PIECE for number in range(4))


def test_a_handle_is_open_as_the_exported_one(connection, other, path):
    connection.write_bytes(path, b"before")
    with connection.open(path, "rb", 0) as file, other.import_handle(file.export()) as theirs:
        assert (theirs.mode, theirs.name) == ("rb", "<imported>")
        assert theirs.read() == b"before" and theirs.tell() == 6 and file.tell() == 0
        assert not theirs.writable()
        with pytest.raises(OSError, match="not writable"):
            theirs.write(b"x")
    with connection.open(path, "ab", 0) as file, other.import_handle(file.export()) as theirs:
        assert theirs.mode == "ab"
        theirs.write(b" theirs")
        file.write(b" ours")
    assert connection.read_bytes(path) == b"before theirs ours"


def test_what_a_buffer_holds_is_exported_with_its_file(connection, other, path):
    with connection.open(path, "w+b") as file:
        file.write(b"gathered")
        file.flush()
        with other.import_handle(file.raw.export()) as theirs:
            assert theirs.read() == b"gathered"


def test_it_outlives_the_process_that_exported_it(name, connection, path):
    program = """
import sys, weft
file = weft.connect(sys.argv[1]).open(sys.argv[2], "w+b", 0)
file.write(b"exported")
sys.stdout.buffer.write(file.export())
sys.stdout.flush()
sys.stdin.read()
"""
    exporter = subprocess.Popen(
        [sys.executable, "-c", program, name, path], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        handle = os.read(exporter.stdout.fileno(), 1 << 16)
        with connection.import_handle(handle) as file:
            assert file.pread(20, 0) == b"exported"
            exporter.send_signal(signal.SIGKILL)
            exporter.wait()
            connection.unlink(path)
            file.pwrite(b" still", 8)
            assert file.pread(20, 0) == b"exported still" and file.size() == 14
            connection.write_bytes(path, b"another file")
            assert file.pread(20, 0) == b"exported still"
    finally:
        exporter.kill()
        exporter.wait()
        exporter.stdout.close()
        exporter.stdin.close()


@pytest.mark.parametrize("handle", [b"", b"no handle", b"WGRP", b"WGRP\xff" + bytes(100)])
def test_bytes_that_are_no_handle_are_refused(connection, handle):
    with pytest.raises(OSError, match="no bytes of a handle") as told:
        connection.import_handle(handle)
    assert told.value.errno == errno.EINVAL


def test_hints_are_those_for_a_file_that_is_there(connection, raw):
    with connection.import_handle(raw.export(), hints="rdma=static"):
        pass
    with pytest.raises(OSError, match="layout"):
        connection.import_handle(raw.export(), hints="width=2")
    with pytest.raises(OSError, match="unknown hint"):
        connection.import_handle(raw.export(), hints="fast")


def test_closed_files_are_not_exported(connection, path):
    file = connection.open(path, "wb", 0)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.export()


def test_coroutines_export_and_import(name, path):
    async def work():
        async with await weft.aio.connect(name) as fs, await weft.aio.connect(name) as other:
            async with (
                await fs.open(path, "w+") as file,
                await other.import_handle(await file.export()) as theirs,
            ):
                await asyncio.gather(file.pwrite(b"one", 0), theirs.pwrite(b"two", 3))
                assert await file.pread(9, 0) == await theirs.pread(9, 0) == b"onetwo"

    asyncio.run(work())

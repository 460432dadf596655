"""Directories that are open."""

import asyncio
import errno
import os
import pickle

import pytest

import weft
import weft.aio


@pytest.fixture
def directory(connection, folder):
    with connection.open_directory(folder) as directory:
        yield directory


def test_paths_begin_there(connection, directory, folder):
    directory.mkdir("below")
    assert directory.write_bytes("below/a", b"abc") == 3
    assert connection.read_bytes(f"{folder}/below/a") == b"abc"
    assert directory.stat(".").st_ino == connection.stat(folder).st_ino
    directory.rename("below/a", "b")
    directory.link("b", "c")
    directory.symlink("b", "d")
    directory.setxattr("b", "user.a", b"1")
    directory.makedirs("e/f/g")
    assert sorted(directory.listdir()) == ["b", "below", "c", "d", "e"]
    assert [entry.path for entry in directory.scandir("e")] == ["e/f"]
    assert sorted(path for path, _, _ in directory.walk()) == [".", "./below", "./e", "./e/f", "./e/f/g"]
    assert directory.locate("b")[0].length == 3 and directory.statvfs().f_bsize == 4096
    assert directory.getxattr("c", "user.a") == b"1" and directory.readlink("d") == "b"
    with directory.open("b", "ab", 0) as file:
        file.write(b"d")
    assert directory.getsize("b") == 4
    directory.rmtree("e")
    directory.unlink("b")
    assert not directory.exists("b") and directory.exists("c")


def test_a_slash_in_front_is_the_root(connection, directory, folder):
    directory.write_bytes("a", b"abc")
    assert directory.read_bytes(f"{folder}/a") == b"abc"
    assert directory.listdir("/") == connection.listdir("/")


def test_it_stays_where_its_name_goes(connection, directory, folder):
    connection.rename(folder, f"{folder}-moved")
    try:
        directory.write_bytes("a", b"abc")
        assert connection.read_bytes(f"{folder}-moved/a") == b"abc"
    finally:
        connection.rename(f"{folder}-moved", folder)


def test_one_that_is_removed_has_nothing(connection, folder):
    connection.mkdir(f"{folder}/gone")
    with connection.open_directory(f"{folder}/gone") as directory:
        connection.rmdir(f"{folder}/gone")
        with pytest.raises(FileNotFoundError):
            directory.write_bytes("a", b"")


def test_directories_of_directories(directory):
    directory.makedirs("a/b")
    with directory.open_directory("a") as above, above.open_directory("b") as below:
        above.close()
        below.write_bytes("c", b"abc")
        with pytest.raises(ValueError, match="closed"):
            above.listdir()
        assert above.closed and not below.closed
    assert directory.read_bytes("a/b/c") == b"abc"


def test_only_directories_can_be_opened_so(connection, path):
    connection.write_bytes(path, b"")
    with pytest.raises(NotADirectoryError):
        connection.open_directory(path)
    with pytest.raises(FileNotFoundError):
        connection.open_directory(path + "-not")


def test_it_keeps_the_connection(name, folder):
    directory = weft.connect(name).open_directory(folder)
    directory.write_bytes("a", b"abc")
    assert directory.read_bytes("a") == b"abc"
    assert folder in repr(directory)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(directory)


def test_nothing_works_after_the_connection_was_closed(name, folder):
    fs = weft.connect(name)
    directory = fs.open_directory(folder)
    fs.close()
    with pytest.raises(OSError) as failure:
        directory.write_bytes("a", b"abc")
    assert failure.value.errno != errno.ENOENT


def test_asynchronously(name, folder):
    async def work():
        async with await weft.aio.connect(name) as fs:
            async with await fs.open_directory(folder) as directory:
                await directory.write_bytes("a", b"abc")
                assert await directory.listdir() == ["a"]
                assert [entry.path for entry in await directory.scandir()] == ["./a"]
            assert await fs.read_bytes(f"{folder}/a") == b"abc"

    asyncio.run(work())


def test_a_forked_child_may_not_use_it(directory):
    child = os.fork()
    if child == 0:
        try:
            directory.listdir()
        except OSError as failure:
            os._exit(0 if failure.errno == errno.ENOTCONN else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

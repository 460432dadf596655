"""The same for asyncio."""

import asyncio
import inspect
import os

import pytest

import weft
import weft.aio


def run(work, name):
    """Runs a coroutine function with a connection that ends with it."""

    async def connected():
        async with await weft.aio.connect(name) as fs:
            return await work(fs)

    return asyncio.run(connected())


def test_files_are_opened_read_written_and_closed(name, connection, path):
    async def work(fs):
        async with await fs.open(path, "w+") as file:
            assert isinstance(file, weft.aio.AsyncFile) and isinstance(file.blocking, weft.File)
            assert await file.write(b"hello world") == 11
            assert await file.seek(-5, os.SEEK_END) == 6
            assert await file.tell() == 6
            assert await file.read(3) == b"wor"
            memory = bytearray(10)
            assert await file.readinto(memory) == 2 and memory[:2] == b"ld"
            assert await file.pread(5, 0) == b"hello"
            assert await file.pwrite(b"J", 0) == 1
            assert await file.pread_into(memory, 0) == 10 and memory == b"Jello worl"
            assert await file.write_list([(b"ab", 20), (b"cd", 22)]) == 4
            assert await file.read_list([(memory, 14)]) == 10 and memory == bytes(6) + b"abcd"
            assert await file.truncate(4) == 4 == await file.size()
            assert (await file.stat()).st_size == 4
            await file.flush()
            await file.sync()
        assert file.blocking.closed

    run(work, name)
    assert connection.read_bytes(path) == b"Jell"


def test_a_file_is_read_by_default_and_the_mode_may_say_b(name, connection, path):
    connection.write_bytes(path, b"abc")

    async def work(fs):
        for arguments in ((), ("r",), ("rb",), ("r+b",)):
            async with await fs.open(path, *arguments) as file:
                assert await file.read() == b"abc"
        async with await fs.open(f"{path}-2", "xb", permissions=0o600, hints="width=2 stripe=64KiB") as file:
            await file.write(bytes(100 << 10))
        assert [piece.length for piece in await fs.locate(f"{path}-2")] == [64 << 10, 36 << 10]
        assert (await fs.stat(f"{path}-2")).st_mode & 0o777 == 0o600

    run(work, name)


def test_names_are_made_listed_and_removed(name, folder):
    async def work(fs):
        assert fs.name == name and isinstance(fs.blocking, weft.FileSystem)
        await fs.makedirs(f"{folder}/a/b")
        await fs.mkdir(f"{folder}/c", 0o700)
        assert await fs.write_bytes(f"{folder}/a/file", b"abc") == 3
        assert await fs.read_bytes(f"{folder}/a/file") == b"abc"
        await fs.symlink("a/file", f"{folder}/link")
        assert await fs.readlink(f"{folder}/link") == "a/file"
        assert (await fs.stat(f"{folder}/link")).st_size == 3
        assert (await fs.lstat(f"{folder}/link")).st_ino != (await fs.stat(f"{folder}/link")).st_ino
        await fs.link(f"{folder}/a/file", f"{folder}/second")
        await fs.rename(f"{folder}/second", f"{folder}/third", replace=False)
        await fs.setxattr(f"{folder}/third", "user.a", b"value")
        assert await fs.getxattr(f"{folder}/a/file", "user.a") == b"value"
        assert await fs.listxattr(f"{folder}/third") == ["user.a"]
        await fs.utime(f"{folder}/third", ns=(1, 2))
        assert (await fs.stat(f"{folder}/a/file")).st_mtime_ns == 2
        assert sorted(await fs.listdir(folder)) == ["a", "c", "link", "third"]
        kinds = {entry.name: entry.is_dir() for entry in await fs.scandir(folder, with_stat=True)}
        assert kinds == {"a": True, "c": True, "link": False, "third": False}
        assert await fs.exists(f"{folder}/a") and await fs.isdir(f"{folder}/a") and not await fs.isfile(f"{folder}/a")
        await fs.rmtree(f"{folder}/a")
        await fs.rmdir(f"{folder}/c")
        await fs.unlink(f"{folder}/link")
        await fs.remove(f"{folder}/third")
        assert await fs.listdir(folder) == []
        assert (await fs.statvfs()).f_blocks > 0

    run(work, name)


def test_all_calls_of_the_blocking_classes_are_there_as_coroutines():
    elsewhere = {
        weft.File: {
            # Of io, or without a wait.
            "closed",
            "fileno",
            "isatty",
            "locked",
            "mode",
            "name",
            "readable",
            "readall",
            "readline",
            "readlines",
            "seekable",
            "writable",
            "writelines",
        },
        weft.FileSystem: {
            # Without a wait, or steps of others.
            "check_access",
            "closed",
            "import_file",
            "locate_files",
            "name",
            "open_file",
            "open_listing",
            "set_times",
            "space",
            "walk",
        },
    }
    for blocking, mine in ((weft.File, weft.aio.AsyncFile), (weft.FileSystem, weft.aio.AsyncFileSystem)):
        calls = {attribute for attribute in dir(blocking) if not attribute.startswith("_")} - elsewhere[blocking]
        coroutines = {attribute for attribute in calls if inspect.iscoroutinefunction(getattr(mine, attribute, None))}
        assert calls == coroutines


def test_many_reads_and_writes_are_gathered(name, connection, path):
    async def work(fs):
        async with await fs.open(path, "w+") as file:
            blocks = {number * 1000: bytes([number % 256]) * 1000 for number in range(300)}
            written = await asyncio.gather(*(file.pwrite(block, offset) for offset, block in blocks.items()))
            assert written == [1000] * 300
            memory = {offset: bytearray(1000) for offset in blocks}
            read = await asyncio.gather(*(file.pread_into(piece, offset) for offset, piece in memory.items()))
            assert read == [1000] * 300 and memory == blocks

    run(work, name)
    assert connection.stat(path).st_size == 300_000


def test_the_event_loop_and_other_calls_go_on_while_one_waits(name, connection, path):
    connection.write_bytes(path, b"abc")

    async def work(fs):
        with connection.open(path, "r+b", 0) as theirs:
            theirs.lock()
            async with await fs.open(path, "r+") as file:
                waits = asyncio.create_task(file.lock())
                reads = await asyncio.gather(*(file.pread(3, 0) for _ in range(20)))
                assert reads == [b"abc"] * 20 and not waits.done()
                theirs.unlock()
                await waits
                with pytest.raises(BlockingIOError):
                    theirs.lock(wait=False)
                await file.unlock()
                theirs.lock(wait=False)

    run(work, name)


def test_failures_are_raised_where_they_are_awaited(name, folder, path):
    async def work(fs):
        with pytest.raises(FileNotFoundError):
            await fs.open(path)
        with pytest.raises(ValueError):
            await fs.open(path, "rw")
        with pytest.raises(IsADirectoryError):
            await fs.open(folder, "w")
        results = await asyncio.gather(
            fs.stat(f"{folder}/none"), fs.mkdir(folder), fs.stat(folder), return_exceptions=True
        )
        assert [type(result) for result in results] == [FileNotFoundError, FileExistsError, os.stat_result]
        with pytest.raises(ZeroDivisionError):
            async with await fs.open(path, "w") as file:
                await file.write(b"abc")
                raise ZeroDivisionError
        with pytest.raises(ValueError):
            await file.write(b"x")
        assert await fs.read_bytes(path) == b"abc"

    run(work, name)


def test_a_connection_that_cannot_be_made_raises(name):
    with pytest.raises(FileNotFoundError):
        asyncio.run(weft.aio.connect("no-such-fs"))
    with pytest.raises(TypeError):
        asyncio.run(weft.aio.connect(name, colour="red"))


def test_a_file_system_that_was_closed_refuses(name):
    async def work():
        fs = await weft.aio.connect(name)
        await fs.close()
        assert fs.blocking.closed
        with pytest.raises(ValueError):
            await fs.stat("/")
        with pytest.raises(ValueError):
            await fs.open("/a")

    asyncio.run(work())


def test_a_file_system_closes_twice(name):
    async def work():
        async with await weft.aio.connect(name) as fs:
            await fs.close()

    asyncio.run(work())


def test_a_file_closes_after_its_file_system(name, connection, path):
    async def work():
        fs = await weft.aio.connect(name)
        async with await fs.open(path, "w") as file:
            await file.write(b"abc")
            await fs.close()
        assert file.blocking.closed

    asyncio.run(work())
    assert connection.read_bytes(path) == b"abc"


def test_a_cancelled_task_loses_neither_the_file_nor_what_it_wrote(name, connection, path):
    connection.write_bytes(path, b"")

    async def work(fs):
        with connection.open(path, "r+b", 0) as theirs:
            theirs.lock()
            file = await fs.open(path, "r+")

            async def write():
                await file.pwrite(b"begun", 0)
                await file.lock()
                await file.pwrite(b"never", 0)

            task = asyncio.create_task(write())
            while await file.size() < 5:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            theirs.unlock()
        assert await file.pread(10, 0) == b"begun"
        assert await file.pwrite(b"later", 5) == 5
        await file.close()

    run(work, name)
    assert connection.read_bytes(path) == b"begunlater"


def test_a_lock_whose_wait_was_cancelled_is_not_held(name, connection, path):
    connection.write_bytes(path, b"")

    async def work(fs):
        with connection.open(path, "r+b", 0) as theirs, connection.open(path, "r+b", 0) as third:
            theirs.lock()
            async with await fs.open(path, "r+") as file:
                task = asyncio.create_task(file.lock())
                # Both begin in their order: when the second is done, the first waits.
                await file.size()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                theirs.unlock()
                await asyncio.wait_for(asyncio.to_thread(third.lock), 5)

    run(work, name)


def test_more_waits_for_locks_than_threads_let_other_calls_go_on(name, connection, path):
    connection.write_bytes(path, b"abc")

    async def work(fs):
        with connection.open(path, "r+b", 0) as theirs:
            theirs.lock()
            async with await fs.open(path, "r+") as file:
                waits = [asyncio.create_task(file.lock([(number, 1)])) for number in range(100)]
                await asyncio.sleep(0)
                try:
                    assert await asyncio.wait_for(file.pread(3, 0), 5) == b"abc"
                finally:
                    theirs.unlock()
                await asyncio.gather(*waits)

    run(work, name)


def test_a_cancelled_open_leaves_no_lock_and_no_file_behind(name, connection, path):
    async def work(fs):
        task = asyncio.create_task(fs.open(path, "w"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await fs.open(path, "w") as file:
            await file.write(b"abc")

    run(work, name)
    assert connection.read_bytes(path) == b"abc"


def test_a_lock_that_is_asked_for_again_after_a_wait_was_given_up_is_held(name, connection, path):
    connection.write_bytes(path, b"")

    async def work():
        async with await weft.aio.connect(name) as fs, await weft.aio.connect(name) as others:
            file, theirs = await fs.open(path, "r+b"), await others.open(path, "r+b")
            await theirs.lock()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(file.lock(), 0.05)
            await theirs.unlock()
            await file.lock()
            await asyncio.sleep(0.2)
            with pytest.raises(BlockingIOError):
                await theirs.lock(wait=False)
            await file.unlock()
            await theirs.lock(wait=False)
            await file.close()
            await theirs.close()

    asyncio.run(work())

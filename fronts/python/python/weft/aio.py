"""The same for ``asyncio``: calls are coroutines, done by threads while the event loop goes on.

    async with await weft.aio.connect("job") as fs:
        async with await fs.open("/results/a") as file:
            await asyncio.gather(*(file.pread_into(piece, offset) for piece, offset in pieces))

A call that was begun goes on when its task is cancelled, and so does its use of a buffer: do not use that again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ._file import _WHOLE, File
from ._filesystem import DirEntry, FileSystem, StrOrBytesPath

__all__ = ["AsyncFile", "AsyncFileSystem", "connect"]

# Most calls of a file system in flight at a time.
_DEPTH = 64

_P = ParamSpec("_P")
_R = TypeVar("_R")


async def _run(pool: ThreadPoolExecutor, call: Callable[[], _R]) -> _R:
    loop = asyncio.get_running_loop()
    try:
        result = loop.run_in_executor(pool, call)
    except RuntimeError:
        # The file system was closed, and its threads have ended: the call fails as that of ``blocking`` does.
        result = loop.run_in_executor(None, call)
    return await result


def _in_thread_of_its_own(call: Callable[[], _R]) -> Future[_R]:
    future: Future[_R] = Future()

    def run() -> None:
        # Whoever waited for it may be cancelled, and with it the future: the call ends all the same.
        with contextlib.suppress(InvalidStateError):
            try:
                future.set_result(call())
            except (OSError, ValueError) as failure:
                future.set_exception(failure)

    threading.Thread(target=run, name="weft-lock", daemon=True).start()
    return future


def _of_file(
    method: Callable[Concatenate[File, _P], _R],
) -> Callable[Concatenate[AsyncFile, _P], Coroutine[Any, Any, _R]]:
    async def call(self: AsyncFile, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await self._run(functools.partial(method, self.blocking, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _of_file_system(
    method: Callable[Concatenate[FileSystem, _P], _R],
) -> Callable[Concatenate[AsyncFileSystem, _P], Coroutine[Any, Any, _R]]:
    async def call(self: AsyncFileSystem, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await self._run(functools.partial(method, self.blocking, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


async def connect(name: str | None = None, **options: Any) -> AsyncFileSystem:
    """As ``weft.connect``."""
    pool = ThreadPoolExecutor(_DEPTH, thread_name_prefix="weft")
    call = functools.partial(FileSystem, name, **options)
    return AsyncFileSystem(await asyncio.get_running_loop().run_in_executor(pool, call), pool)


class AsyncFile:
    """An open file, without a buffer. Made by ``AsyncFileSystem.open``."""

    def __init__(self, blocking: File, pool: ThreadPoolExecutor) -> None:
        self.blocking = blocking
        self._pool = pool
        self._given_up: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _run(self, call: Callable[[], _R]) -> _R:
        return await _run(self._pool, call)

    async def lock(
        self, ranges: Iterable[tuple[int, int]] = _WHOLE, *, exclusive: bool = True, wait: bool = True
    ) -> None:
        """As ``File.lock``. If the task is cancelled, the wait is given up; locks that this file held before on the
        same ranges may end with it."""
        while self._given_up:
            # What is granted to those must be unlocked before anything is granted to this.
            await asyncio.wait(set(self._given_up))
        ranges = list(ranges)
        if not wait:
            return await self._run(functools.partial(self.blocking.lock, ranges, exclusive=exclusive, wait=False))
        request = await self._run(functools.partial(self.blocking._native.begin_lock, ranges, exclusive))
        try:
            # A wait may be long: with a thread of its own it keeps none from other calls, such as those that unlock.
            await asyncio.wrap_future(_in_thread_of_its_own(request.wait))
        except asyncio.CancelledError:
            given_up = asyncio.wrap_future(_in_thread_of_its_own(request.cancel))
            self._given_up.add(given_up)
            given_up.add_done_callback(self._given_up.discard)
            raise

    readinto = _of_file(File.readinto)
    read = _of_file(File.read)
    write = _of_file(File.write)
    pread = _of_file(File.pread)
    pread_into = _of_file(File.pread_into)
    pwrite = _of_file(File.pwrite)
    read_list = _of_file(File.read_list)
    write_list = _of_file(File.write_list)
    truncate = _of_file(File.truncate)
    seek = _of_file(File.seek)
    tell = _of_file(File.tell)
    size = _of_file(File.size)
    stat = _of_file(File.stat)
    unlock = _of_file(File.unlock)
    flush = _of_file(File.flush)
    sync = _of_file(File.sync)
    close = _of_file(File.close)


class AsyncFileSystem:
    """A file system that is connected. Made by ``weft.aio.connect``; ``blocking`` is what it works with."""

    def __init__(self, blocking: FileSystem, pool: ThreadPoolExecutor) -> None:
        self.blocking = blocking
        self._pool = pool

    @property
    def name(self) -> str:
        """Its name, as ``weft status`` shows it."""
        return self.blocking.name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _run(self, call: Callable[[], _R]) -> _R:
        return await _run(self._pool, call)

    async def open(
        self, path: StrOrBytesPath, mode: str = "rb", *, permissions: int = 0o666, hints: str = ""
    ) -> AsyncFile:
        """Opens a file of bytes, without a buffer; arguments as of ``FileSystem.open``."""
        binary = mode if "b" in mode else mode + "b"
        call = functools.partial(self.blocking.open, path, binary, 0, permissions=permissions, hints=hints)
        file = await self._run(call)
        assert isinstance(file, File)
        return AsyncFile(file, self._pool)

    async def close(self) -> None:
        """Writes back, disconnects and ends the threads."""
        await self._run(self.blocking.close)
        self._pool.shutdown(wait=False)

    async def scandir(self, path: StrOrBytesPath = "/", *, with_stat: bool = False) -> list[DirEntry]:
        """The names of a directory."""
        return await self._run(lambda: list(self.blocking.scandir(path, with_stat=with_stat)))

    read_bytes = _of_file_system(FileSystem.read_bytes)
    write_bytes = _of_file_system(FileSystem.write_bytes)
    stat = _of_file_system(FileSystem.stat)
    lstat = _of_file_system(FileSystem.lstat)
    statvfs = _of_file_system(FileSystem.statvfs)
    access = _of_file_system(FileSystem.access)
    exists = _of_file_system(FileSystem.exists)
    isdir = _of_file_system(FileSystem.isdir)
    isfile = _of_file_system(FileSystem.isfile)
    islink = _of_file_system(FileSystem.islink)
    lexists = _of_file_system(FileSystem.lexists)
    getsize = _of_file_system(FileSystem.getsize)
    chmod = _of_file_system(FileSystem.chmod)
    chown = _of_file_system(FileSystem.chown)
    utime = _of_file_system(FileSystem.utime)
    truncate = _of_file_system(FileSystem.truncate)
    mkdir = _of_file_system(FileSystem.mkdir)
    makedirs = _of_file_system(FileSystem.makedirs)
    rmdir = _of_file_system(FileSystem.rmdir)
    rmtree = _of_file_system(FileSystem.rmtree)
    unlink = _of_file_system(FileSystem.unlink)
    remove = _of_file_system(FileSystem.remove)
    rename = _of_file_system(FileSystem.rename)
    replace = _of_file_system(FileSystem.replace)
    exchange = _of_file_system(FileSystem.exchange)
    link = _of_file_system(FileSystem.link)
    symlink = _of_file_system(FileSystem.symlink)
    readlink = _of_file_system(FileSystem.readlink)
    listdir = _of_file_system(FileSystem.listdir)
    getxattr = _of_file_system(FileSystem.getxattr)
    setxattr = _of_file_system(FileSystem.setxattr)
    listxattr = _of_file_system(FileSystem.listxattr)
    removexattr = _of_file_system(FileSystem.removexattr)
    locate = _of_file_system(FileSystem.locate)
    locate_many = _of_file_system(FileSystem.locate_many)

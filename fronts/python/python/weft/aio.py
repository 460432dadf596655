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
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from ._file import _WHOLE, File
from ._filesystem import DirEntry, FileSystem, StrOrBytesPath

__all__ = ["AsyncDirectory", "AsyncFile", "AsyncFileSystem", "connect"]

# Most calls of a file system in flight at a time.
_DEPTH = 64

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Covariant, for methods that a class of ``weft`` has from its native base.
_B = TypeVar("_B", covariant=True)


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


class _InThreads(Generic[_B]):
    """Does the calls of ``blocking`` in threads."""

    def __init__(self, blocking: _B, pool: ThreadPoolExecutor) -> None:
        self.blocking = blocking
        self._pool = pool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends it."""
        raise NotImplementedError

    async def _run(self, call: Callable[[], _R]) -> _R:
        loop = asyncio.get_running_loop()
        try:
            result = loop.run_in_executor(self._pool, call)
        except RuntimeError:
            # The file system was closed, and its threads have ended: the call fails as that of ``blocking`` does.
            result = loop.run_in_executor(None, call)
        return await result


def _in_thread(
    method: Callable[Concatenate[_B, _P], _R],
) -> Callable[Concatenate[_InThreads[_B], _P], Coroutine[Any, Any, _R]]:
    """The method as a coroutine."""

    async def call(self: _InThreads[_B], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await self._run(functools.partial(method, self.blocking, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


async def connect(name: str | None = None, **options: Any) -> AsyncFileSystem:
    """As ``weft.connect``."""
    pool = ThreadPoolExecutor(_DEPTH, thread_name_prefix="weft")
    call = functools.partial(FileSystem, name, **options)
    return AsyncFileSystem(await asyncio.get_running_loop().run_in_executor(pool, call), pool)


class AsyncFile(_InThreads[File]):
    """An open file, without a buffer. Made by ``AsyncFileSystem.open``."""

    def __init__(self, blocking: File, pool: ThreadPoolExecutor) -> None:
        super().__init__(blocking, pool)
        self._given_up: set[asyncio.Future[None]] = set()

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

    readinto = _in_thread(File.readinto)
    read = _in_thread(File.read)
    write = _in_thread(File.write)
    pread = _in_thread(File.pread)
    pread_into = _in_thread(File.pread_into)
    pwrite = _in_thread(File.pwrite)
    read_list = _in_thread(File.read_list)
    write_list = _in_thread(File.write_list)
    truncate = _in_thread(File.truncate)
    seek = _in_thread(File.seek)
    tell = _in_thread(File.tell)
    export = _in_thread(File.export)
    size = _in_thread(File.size)
    stat = _in_thread(File.stat)
    unlock = _in_thread(File.unlock)
    flush = _in_thread(File.flush)
    sync = _in_thread(File.sync)
    close = _in_thread(File.close)


class AsyncFileSystem(_InThreads[FileSystem]):
    """A file system that is connected. Made by ``weft.aio.connect``; ``blocking`` is what it works with."""

    @property
    def name(self) -> str:
        """Its name, as ``weft status`` shows it."""
        return self.blocking.name

    async def open(
        self, path: StrOrBytesPath, mode: str = "rb", *, permissions: int = 0o666, hints: str = ""
    ) -> AsyncFile:
        """Opens a file of bytes, without a buffer; arguments as of ``FileSystem.open``."""
        binary = mode if "b" in mode else mode + "b"
        call = functools.partial(self.blocking.open, path, binary, 0, permissions=permissions, hints=hints)
        file = await self._run(call)
        assert isinstance(file, File)
        return AsyncFile(file, self._pool)

    async def import_handle(self, handle: bytes, *, hints: str = "") -> AsyncFile:
        """As ``FileSystem.import_handle``."""
        call = functools.partial(self.blocking.import_handle, handle, hints=hints)
        return AsyncFile(await self._run(call), self._pool)

    async def open_directory(self, path: StrOrBytesPath) -> AsyncDirectory:
        """As ``FileSystem.open_directory``."""
        return AsyncDirectory(await self._run(functools.partial(self.blocking.open_directory, path)), self._pool)

    async def close(self) -> None:
        """Writes back, disconnects and ends the threads."""
        await self._run(self.blocking.close)
        self._pool.shutdown(wait=False)

    async def scandir(self, path: StrOrBytesPath = "/", *, with_stat: bool = False) -> list[DirEntry]:
        """The names of a directory."""
        return await self._run(lambda: list(self.blocking.scandir(path, with_stat=with_stat)))

    read_bytes = _in_thread(FileSystem.read_bytes)
    write_bytes = _in_thread(FileSystem.write_bytes)
    stat = _in_thread(FileSystem.stat)
    lstat = _in_thread(FileSystem.lstat)
    statvfs = _in_thread(FileSystem.statvfs)
    access = _in_thread(FileSystem.access)
    exists = _in_thread(FileSystem.exists)
    isdir = _in_thread(FileSystem.isdir)
    isfile = _in_thread(FileSystem.isfile)
    islink = _in_thread(FileSystem.islink)
    lexists = _in_thread(FileSystem.lexists)
    getsize = _in_thread(FileSystem.getsize)
    chmod = _in_thread(FileSystem.chmod)
    chown = _in_thread(FileSystem.chown)
    utime = _in_thread(FileSystem.utime)
    truncate = _in_thread(FileSystem.truncate)
    mkdir = _in_thread(FileSystem.mkdir)
    makedirs = _in_thread(FileSystem.makedirs)
    rmdir = _in_thread(FileSystem.rmdir)
    rmtree = _in_thread(FileSystem.rmtree)
    unlink = _in_thread(FileSystem.unlink)
    remove = _in_thread(FileSystem.remove)
    rename = _in_thread(FileSystem.rename)
    replace = _in_thread(FileSystem.replace)
    exchange = _in_thread(FileSystem.exchange)
    register = _in_thread(FileSystem.register)
    counters = _in_thread(FileSystem.counters)
    link = _in_thread(FileSystem.link)
    symlink = _in_thread(FileSystem.symlink)
    readlink = _in_thread(FileSystem.readlink)
    listdir = _in_thread(FileSystem.listdir)
    getxattr = _in_thread(FileSystem.getxattr)
    setxattr = _in_thread(FileSystem.setxattr)
    listxattr = _in_thread(FileSystem.listxattr)
    removexattr = _in_thread(FileSystem.removexattr)
    locate = _in_thread(FileSystem.locate)
    locate_many = _in_thread(FileSystem.locate_many)


class AsyncDirectory(AsyncFileSystem):
    """A directory that is open, as ``weft.Directory``. Made by ``AsyncFileSystem.open_directory``."""

    async def close(self) -> None:
        """Closes the directory."""
        await self._run(self.blocking.close)

    async def listdir(self, path: StrOrBytesPath = ".") -> list[str]:
        """As ``os.listdir``, always of ``str``."""
        return await self._run(functools.partial(self.blocking.listdir, path))

    async def scandir(self, path: StrOrBytesPath = ".", *, with_stat: bool = False) -> list[DirEntry]:
        """The names of a directory."""
        return await super().scandir(path, with_stat=with_stat)

"""Weft for fsspec: ``weft://NAME/path``, found through its entry point once both are installed.

    pandas.read_parquet("weft://job/table.parquet")

Paths are those of the file system, and what is done is done as ``file://`` does it: a directory has to be there before a file
is made in it, unless ``auto_mkdir`` is set, and errors are those of POSIX. Nothing is cached here: Weft's client does that, and
knows when others change something.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import functools
import io
import os
import shutil
import stat as stat_bits
import threading
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.core import has_magic
from fsspec.utils import infer_storage_options, isfilelike, stringify_path

from ._file import File
from ._filesystem import DirEntry, FileSystem

__all__ = ["WeftFileSystem"]

# Most calls that are under way at a time.
_DEPTH = 64
# What is copied at a time, bytes.
_COPY_BYTES = 8 << 20
# Ranges of one file that one thread reads one after the other.
_RANGES_TOGETHER = 8

_R = TypeVar("_R")


def _in_thread(method: Callable[..., _R]) -> Callable[..., Coroutine[Any, Any, _R]]:
    """The method as a coroutine."""

    async def call(self: WeftFileSystem, *args: Any, **kwargs: Any) -> _R:
        return await self._run(functools.partial(method, self, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class WeftFileSystem(AsyncFileSystem):
    """A file system of Weft.

    Parameters are the name (``weft://NAME``; without one the only file system that there is), those of ``weft.connect``,
    and ``auto_mkdir``: whether directories that are missing are made with a file.
    """

    protocol = "weft"
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        host: str | None = None,
        *,
        auto_mkdir: bool = False,
        key_file: str | None = None,
        transport: str | None = None,
        soft: float | None = None,
        hard: bool = False,
        write_buffer: int | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        self.auto_mkdir = auto_mkdir
        options = {
            "key_file": key_file,
            "transport": transport,
            "soft": soft,
            "hard": hard,
            "write_buffer": write_buffer,
        }
        self._connect = functools.partial(FileSystem, host, **options)
        self._connecting = threading.Lock()
        self._process = os.getpid()
        self._weft = self._connect()
        self._pool = ThreadPoolExecutor(_DEPTH, thread_name_prefix="weft")

    @property
    def weft(self) -> FileSystem:
        """What it works with. A forked child connects anew."""
        if self._process != os.getpid():
            # Whoever held the lock is not in this process.
            self._connecting = threading.Lock()
            self._weft = self._connect()
            self._pool = ThreadPoolExecutor(_DEPTH, thread_name_prefix="weft")
            self._process = os.getpid()
        return self._weft

    async def _run(self, call: Callable[[], _R]) -> _R:
        self.weft  # noqa: B018: it has the threads of this process
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    @property
    def fsid(self) -> str:
        """Tells file systems apart."""
        return f"weft_{self.weft.name}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        if path.startswith("weft://"):
            _, _, path = path.removeprefix("weft://").partition("/")
        else:
            path = path.removeprefix("weft:")
        return "/" + path.strip("/") if path.strip("/") else cls.root_marker

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        host = infer_storage_options(path).get("host")
        return {"host": host} if host else {}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"weft://{self.weft.name}{self._strip_protocol(name)}"

    def _prepare(self, path: str) -> str:
        """A path at which something is to be made."""
        path = self._strip_protocol(path)
        if self.auto_mkdir:
            self.weft.makedirs(self._parent(path), exist_ok=True)
        return path

    # What there is.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Attributes; of a symbolic link those of what it leads to."""
        path = self._strip_protocol(path)
        found = self.weft.lstat(path)
        return self._told(path, found)

    def _told(self, path: str, found: os.stat_result) -> dict[str, Any]:
        islink = stat_bits.S_ISLNK(found.st_mode)
        if islink:
            found = self.weft.stat(path)
        kinds = {stat_bits.S_IFDIR: "directory", stat_bits.S_IFREG: "file"}
        told = {
            "name": path,
            "size": found.st_size,
            "type": kinds[stat_bits.S_IFMT(found.st_mode)],
            "created": found.st_ctime,
            "islink": islink,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mtime": found.st_mtime,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
        }
        if islink:
            told["destination"] = self.weft.readlink(path)
        return told

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is in a directory; of a file itself."""
        path = self._strip_protocol(path)
        try:
            entries = self.weft.scandir(path, with_stat=detail)
        except NotADirectoryError:
            info = self.info(path)
            return [info] if detail else [path]
        if not detail:
            return [entry.path for entry in entries]
        return [told for entry in entries if (told := self._entry(entry)) is not None]

    def _entry(self, entry: DirEntry) -> dict[str, Any] | None:
        found = entry.stat(follow_symlinks=False)
        try:
            return self._told(entry.path, found)
        except FileNotFoundError:
            # It leads nowhere, or is gone.
            return None

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something."""
        return self.weft.exists(self._strip_protocol(path))

    def lexists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something, be it a symbolic link that leads nowhere."""
        try:
            self.weft.lstat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isfile(self, path: str) -> bool:
        """Whether it is a file."""
        return self.weft.isfile(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """Whether it is a directory."""
        return self.weft.isdir(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        """Whether it is a symbolic link."""
        return self.lexists(path) and stat_bits.S_ISLNK(self.weft.lstat(self._strip_protocol(path)).st_mode)

    def created(self, path: str) -> datetime.datetime:
        """When its attributes were changed: Weft keeps no time of its making."""
        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.timezone.utc)

    def modified(self, path: str) -> datetime.datetime:
        """When its contents were changed."""
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    # Names.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a directory."""
        path = self._strip_protocol(path)
        if create_parents and not self.exists(path):
            self.weft.makedirs(path, exist_ok=True)
        else:
            self.weft.mkdir(path, **kwargs)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory, and those above it."""
        self.weft.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self.weft.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self.weft.unlink(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and directories if it is recursive. Patterns are expanded."""
        for each in path if isinstance(path, list) else [path]:
            name = self._strip_protocol(each)
            if maxdepth is not None or (has_magic(name) and not self.lexists(name)):
                super().rm(each, recursive=recursive, maxdepth=maxdepth)
            elif self.isdir(name) and not self.islink(name):
                if not recursive:
                    raise ValueError("Cannot delete directory, set recursive=True")
                self.weft.rmtree(name)
            else:
                self.weft.unlink(name)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Moves; into ``path2`` if that is a directory."""
        name, target = self._strip_protocol(path1), self._prepare(path2)
        if self.isdir(target):
            target = f"{target.rstrip('/')}/{name.rsplit('/', 1)[-1]}"
        self.weft.rename(name, target)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Gives a file another name."""
        self.weft.rename(self._strip_protocol(path1), self._prepare(path2))

    def link(self, src: str, dst: str, **kwargs: Any) -> None:
        """Gives a file another name, too."""
        self.weft.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: str, dst: str, **kwargs: Any) -> None:
        """Makes ``dst``, which leads to ``src``."""
        self.weft.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def chmod(self, path: str, mode: int) -> None:
        """Sets permissions."""
        self.weft.chmod(self._strip_protocol(path), mode)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes an empty file; of one that is there sets the time, and cuts it if ``truncate`` is set."""
        path = self._prepare(path)
        if self.exists(path):
            self.weft.utime(path)
        else:
            self.weft.open(path, "ab", 0).close()
        if truncate:
            self.weft.truncate(path, 0)

    # Contents.

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Bytes from ``start`` to ``end``; what is negative counts from the end of the file."""
        with self._raw(self._strip_protocol(path), "rb") as file:
            return _range(file, start, end)

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        if not isinstance(paths, list):
            raise TypeError("paths is not a list")
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if not len(starts) == len(ends) == len(paths):
            raise ValueError("paths, starts and ends differ in length")
        of_paths: dict[str, list[int]] = {}
        for index, path in enumerate(paths):
            of_paths.setdefault(self._strip_protocol(path), []).append(index)
        ranges: list[Any] = [None] * len(paths)

        def read(path: str, indices: list[int]) -> None:
            try:
                with self._raw(path, "rb") as file:
                    for index in indices:
                        ranges[index] = _range(file, starts[index], ends[index])
            except OSError as error:
                for index in indices:
                    ranges[index] = error if ranges[index] is None else ranges[index]

        work = []
        for path, indices in of_paths.items():
            for first in range(0, len(indices), _RANGES_TOGETHER):
                together = indices[first : first + _RANGES_TOGETHER]
                work.append(self._run(functools.partial(read, path, together)))
        await asyncio.gather(*work)
        errors = [each for each in ranges if isinstance(each, OSError)]
        if errors and on_error != "return":
            raise errors[0]
        return ranges

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Makes a file with these contents."""
        with self._raw(self._prepare(path), _writing(mode)) as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file; of a directory makes another."""
        source, target = self._strip_protocol(path1), self._prepare(path2)
        if self.isdir(source):
            self.weft.makedirs(target, exist_ok=True)
        elif not self.isfile(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        elif self.exists(target) and self.weft.stat(target).st_ino == self.weft.stat(source).st_ino:
            raise shutil.SameFileError(f"{source} and {target} are the same file")
        else:
            with self._raw(source, "rb") as reads, self._raw(target, "wb") as writes:
                _copy(reads, writes, DEFAULT_CALLBACK)

    def get_file(self, rpath: str, lpath: Any, callback: Callback = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        """Copies a file out; of a directory makes one here."""
        source = self._strip_protocol(rpath)
        if isfilelike(lpath):
            with self._raw(source, "rb") as reads:
                _copy(reads, lpath, callback)
        elif self.isdir(source):
            os.makedirs(lpath, exist_ok=True)
        else:
            with self._raw(source, "rb") as reads:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                with open(lpath, "wb", buffering=0) as writes:
                    callback.set_size(reads.size())
                    _copy(reads, writes, callback)

    def put_file(
        self, lpath: str, rpath: str, callback: Callback = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copies a file in; of a directory makes one there."""
        if os.path.isdir(lpath):
            self.weft.makedirs(self._strip_protocol(rpath), exist_ok=True)
            return
        with open(lpath, "rb", buffering=0) as reads, self._raw(self._prepare(rpath), _writing(mode)) as writes:
            callback.set_size(os.fstat(reads.fileno()).st_size)
            _copy(reads, writes, callback)

    def _raw(self, path: str, mode: str, hints: str = "") -> File:
        file = self.weft.open(path, mode, 0, hints=hints)
        assert isinstance(file, File)
        return file

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        hints: str = "",
        **kwargs: Any,
    ) -> Any:
        buffer_bytes = block_size if isinstance(block_size, int) and block_size > 1 else _Reader.BUFFER_BYTES
        if mode == "rb":
            path = self._strip_protocol(path)
            return _Reader(self, self._raw(path, mode), path, buffer_bytes)
        path = self._prepare(path)
        if "+" in mode:
            return io.BufferedRandom(self._raw(path, mode, hints), buffer_bytes)
        temporary = None if autocommit else f"{path}.{uuid.uuid4().hex}.part"
        if temporary is not None and mode == "ab" and self.exists(path):
            self.cp_file(path, temporary)
        return _Writer(self, self._raw(temporary or path, mode, hints), path, temporary, buffer_bytes)

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> _Stream:
        """A file that is read or written in coroutines."""
        if "b" not in mode:
            raise ValueError("a file of bytes only: the mode needs a b")
        call = functools.partial(self._raw, self._strip_protocol(path), mode)
        return _Stream(self, await self._run(call), self._strip_protocol(path), mode)

    # The same as coroutines.

    _info = _in_thread(info)
    _ls = _in_thread(ls)
    _exists = _in_thread(exists)
    _isfile = _in_thread(isfile)
    _isdir = _in_thread(isdir)
    _mkdir = _in_thread(mkdir)
    _makedirs = _in_thread(makedirs)
    _rmdir = _in_thread(rmdir)
    _rm_file = _in_thread(rm_file)
    _mv_file = _in_thread(mv_file)
    _cat_file = _in_thread(cat_file)
    _pipe_file = _in_thread(pipe_file)
    _cp_file = _in_thread(cp_file)
    _get_file = _in_thread(get_file)
    _put_file = _in_thread(put_file)


class _Reader(io.BufferedReader):
    """A file that is read."""

    BUFFER_BYTES = 128 << 10

    def __init__(self, fs: WeftFileSystem, raw: File, path: str, buffer_bytes: int) -> None:
        super().__init__(raw, buffer_bytes)
        self.fs, self.path, self._file = fs, path, raw

    @property
    def size(self) -> int:
        """Its size."""
        return self._file.size()


class _Writer(io.BufferedWriter):
    """A file that is written; within a transaction under another name, until that ends."""

    def __init__(
        self, fs: WeftFileSystem, raw: File, path: str, temporary: str | None, buffer_bytes: int
    ) -> None:
        super().__init__(raw, buffer_bytes)
        self.fs, self.path, self._temporary = fs, path, temporary

    def commit(self) -> None:
        """Shows it under its name."""
        if self._temporary is not None:
            self.close()
            self.fs.weft.rename(self._temporary, self.path)

    def discard(self) -> None:
        """Leaves what was there."""
        if self._temporary is not None:
            self.close()
            self.fs.weft.unlink(self._temporary)


class _Stream(AbstractAsyncStreamedFile):
    """A file whose reads and writes are coroutines."""

    def __init__(self, fs: WeftFileSystem, raw: File, path: str, mode: str) -> None:
        self.fs, self.path, self.mode, self._file = fs, path, mode, raw

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._file.closed

    async def read(self, length: int = -1) -> bytes:
        """Reads on."""
        return await self.fs._run(functools.partial(self._file.read, length))

    async def write(self, data: bytes) -> int:
        """Writes on."""
        return await self.fs._run(functools.partial(self._file.write, data))

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position."""
        return await self.fs._run(functools.partial(self._file.seek, offset, whence))

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    async def flush(self, force: bool = False) -> None:
        """Writes back."""
        await self.fs._run(self._file.flush)

    async def close(self) -> None:
        """Writes back and closes."""
        await self.fs._run(self._file.close)


def _writing(mode: str) -> str:
    modes = {"overwrite": "wb", "create": "xb"}
    if mode not in modes:
        raise ValueError(f"mode is {mode!r}, not overwrite or create")
    return modes[mode]


def _range(file: File, start: int | None, end: int | None) -> bytes:
    if start is None and end is None:
        return file.read()
    if (start is not None and start < 0) or end is None or end < 0:
        start, end, _ = slice(start, end).indices(file.size())
    start = start or 0
    return file.pread(max(end - start, 0), start)


def _copy(reads: Any, writes: Any, callback: Callback) -> None:
    memory = memoryview(bytearray(_COPY_BYTES))
    while count := reads.readinto(memory):
        left = memory[:count]
        while left:
            left = left[writes.write(left) :]
        callback.relative_update(count)

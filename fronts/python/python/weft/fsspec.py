"""Weft for fsspec: ``weft://NAME/path``, found through its entry point once both are installed.

    pandas.read_parquet("weft://job/table.parquet")

Paths are those of the file system, and what is done is done as ``file://`` does it: a directory has to be there
before a file is made in it, unless ``auto_mkdir`` is set, and errors are those of POSIX. Nothing is cached here:
Weft's client does that, and knows when others change something.
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
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem, get_loop
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.core import has_magic
from fsspec.utils import infer_storage_options, isfilelike, stringify_path

from ._file import File
from ._filesystem import DirEntry, FileSystem
from ._process import PerProcess

__all__ = ["WeftFileSystem"]

# Most calls in flight at a time.
_DEPTH = 64
# What is copied at a time, bytes.
_COPY_BYTES = 8 << 20
# Ranges of one file that are read one after the other with one open.
_RANGES_TOGETHER = 16
# How long ranges are read one after the other, and what each takes at least, until many are read at a time; seconds.
# What is on this machine takes less than the handover to a thread.
_PATIENCE = 1e-3
_SLOW = 50e-6

_R = TypeVar("_R")


def _in_thread(method: Callable[..., _R]) -> Callable[..., Coroutine[Any, Any, _R]]:
    """The method as a coroutine."""

    async def call(self: WeftFileSystem, *args: Any, **kwargs: Any) -> _R:
        return await self._run(functools.partial(method, self, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class _Connection:
    """A connection and the threads that use it."""

    def __init__(self, fs: FileSystem) -> None:
        self.fs = fs
        self.callers = ThreadPoolExecutor(_DEPTH, thread_name_prefix="weft")
        # Callers wait for them.
        self.readers = ThreadPoolExecutor(_DEPTH, thread_name_prefix="weft-reader")


class WeftFileSystem(AsyncFileSystem):
    """A file system of Weft.

    Parameters are the name (``weft://NAME``; without one the only file system that there is), those of
    ``weft.connect``, and ``auto_mkdir``: whether directories that are missing are made with a file.
    """

    protocol = "weft"
    root_marker = "/"
    cachable = True
    _pid: int

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
        connect = functools.partial(FileSystem, host, **options)
        self._connection = PerProcess(lambda: _Connection(connect()))
        # What cannot be connected to fails here.
        self._connection.get()

    @property
    def loop(self) -> Any:
        """The event loop of blocking calls. A forked child has its own."""
        if self._pid != os.getpid() and not self.asynchronous:
            self._pid, self._loop = os.getpid(), get_loop()
        return super().loop

    @property
    def weft(self) -> FileSystem:
        """What it works with."""
        return self._connection.get().fs

    async def _run(self, call: Callable[[], _R]) -> _R:
        return await asyncio.get_running_loop().run_in_executor(self._connection.get().callers, call)

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
        islink = stat_bits.S_ISLNK(found.st_mode)
        return self._info_of(path, self.weft.stat(path) if islink else found, islink)

    def _info_of(self, path: str, found: os.stat_result, islink: bool) -> dict[str, Any]:
        types = {stat_bits.S_IFDIR: "directory", stat_bits.S_IFREG: "file"}
        info = {
            "name": path,
            "size": found.st_size,
            "type": types.get(stat_bits.S_IFMT(found.st_mode), "other"),
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
            info["destination"] = self.weft.readlink(path)
        return info

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is in a directory; of a file itself. A symbolic link in it is told of itself, with the size of what it
        leads to, as ``file://`` does: a walk ends, wherever it leads."""
        path = self._strip_protocol(path)
        try:
            entries = self.weft.scandir(path, with_stat=detail)
        except NotADirectoryError:
            own = self.info(path)
            return [own] if detail else [path]
        if not detail:
            return [entry.path for entry in entries]
        return [info for entry in entries if (info := self._info_of_entry(entry)) is not None]

    def _info_of_entry(self, entry: DirEntry) -> dict[str, Any] | None:
        try:
            info = self._info_of(entry.path, entry.stat(follow_symlinks=False), entry.is_symlink())
            if info["islink"]:
                info["size"] = self._size_behind(entry)
        except FileNotFoundError:
            # It is gone.
            return None
        return info

    def _size_behind(self, link: DirEntry) -> int:
        try:
            return link.stat().st_size
        except OSError:
            # It leads nowhere.
            return 0

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something."""
        return self.weft.exists(self._strip_protocol(path))

    def lexists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something, be it a symbolic link that leads nowhere."""
        return self.weft.lexists(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        """Whether it is a file."""
        return self.weft.isfile(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """Whether it is a directory."""
        return self.weft.isdir(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        """Whether it is a symbolic link."""
        return self.weft.islink(self._strip_protocol(path))

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
            if self._is_to_expand(each, maxdepth):
                for found in reversed(self.expand_path(each, recursive=recursive, maxdepth=maxdepth)):
                    self._remove(found, recursive)
            else:
                self._remove(each, recursive)

    async def _rm(
        self, path: Any, recursive: bool = False, batch_size: int | None = None, maxdepth: int | None = None
    ) -> None:
        for each in path if isinstance(path, list) else [path]:
            if self._is_to_expand(each, maxdepth):
                for found in reversed(await self._expand_path(each, recursive=recursive, maxdepth=maxdepth)):
                    await self._run(functools.partial(self._remove, found, recursive))
            else:
                await self._run(functools.partial(self._remove, each, recursive))

    def _is_to_expand(self, path: str, maxdepth: int | None) -> bool:
        return maxdepth is not None or (has_magic(path) and not self.lexists(path))

    def _remove(self, path: str, recursive: bool) -> None:
        path = self._strip_protocol(path)
        if not self.isdir(path) or self.islink(path):
            self.weft.unlink(path)
        elif recursive:
            self.weft.rmtree(path)
        else:
            raise ValueError("Cannot delete directory, set recursive=True")

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Moves; into ``path2`` if that is a directory, unless there is one of this name already."""
        name, target = self._strip_protocol(path1), self._prepare(path2)
        if self.isdir(target):
            target = f"{target.rstrip('/')}/{name.rsplit('/', 1)[-1]}"
            self.weft.rename(name, target, replace=False)
        else:
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

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Many ranges of bytes; an error stands in the place of its range, unless ``on_error`` is ``raise``."""
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

        def read(job: tuple[str, list[int]]) -> None:
            path, indices = job
            try:
                with self._raw(path, "rb") as file:
                    for index in indices:
                        ranges[index] = _range(file, starts[index], ends[index])
            except OSError as error:
                for index in indices:
                    ranges[index] = error if ranges[index] is None else ranges[index]

        jobs = [
            (path, indices[first : first + _RANGES_TOGETHER])
            for path, indices in of_paths.items()
            for first in range(0, len(indices), _RANGES_TOGETHER)
        ]
        begin, done = time.perf_counter(), 0
        for number, job in enumerate(jobs):
            read(job)
            done += len(job[1])
            passed = time.perf_counter() - begin
            if passed > _PATIENCE and passed > done * _SLOW:
                # They come from another machine: then many are asked for at a time.
                list(self._connection.get().readers.map(read, jobs[number + 1 :]))
                break
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
                while some := reads.read(_COPY_BYTES):
                    lpath.write(some)
                    callback.relative_update(len(some))
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

    def _raw(self, path: str, mode: Any, hints: str = "") -> File:
        file: File = self.weft.open(path, mode, 0, hints=hints)
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
        if autocommit:
            raw = self._raw(path, mode, hints)
            return io.BufferedRandom(raw, buffer_bytes) if "+" in mode else _Writer(self, raw, path, buffer_bytes)
        if mode not in ("wb", "xb"):
            raise ValueError(f"mode {mode} in a transaction: only whole files are written in one")
        return self._open_in_transaction(path, mode, hints, buffer_bytes)

    def _open_in_transaction(self, path: str, mode: str, hints: str, buffer_bytes: int) -> _Writer:
        permissions = 0o666
        if self.exists(path):
            if mode == "xb":
                raise FileExistsError(errno.EEXIST, f"open {path}: file exists")
            permissions = stat_bits.S_IMODE(self.weft.stat(path).st_mode)
        temporary = f"{self._parent(path).rstrip('/')}/.{uuid.uuid4().hex}"
        raw = self.weft.open(temporary, "xb", 0, permissions=permissions, hints=hints)
        return _Writer(self, raw, path, buffer_bytes, temporary, replaces=mode == "wb")

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> _Stream:
        """A file that is read or written in coroutines."""
        if "b" not in mode:
            raise ValueError("a file of bytes only: the mode needs a b")
        prepare = self._strip_protocol if mode == "rb" else self._prepare
        file = await self._run(lambda: self._raw(prepare(path), mode))
        return _Stream(self, file, self._strip_protocol(path), mode)

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
    _cat_ranges = _in_thread(cat_ranges)
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

    def read_buffer(self, nbytes: int | None = None) -> Any:
        """What PyArrow reads by: into memory of its own, which it need not clear before."""
        import pyarrow

        position = self.tell()
        left = max(self.size - position, 0)
        length = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        if length <= self.BUFFER_BYTES:
            return pyarrow.py_buffer(self.read(length))
        buffer = pyarrow.allocate_buffer(length, resizable=True)
        count = self._file.pread_into(buffer, position)
        if count < length:
            buffer.resize(count)
        self.seek(position + count)
        return buffer


class _Writer(io.BufferedWriter):
    """A file that is written; within a transaction under another name, until that ends."""

    def __init__(
        self,
        fs: WeftFileSystem,
        raw: File,
        path: str,
        buffer_bytes: int,
        temporary: str | None = None,
        replaces: bool = True,
    ) -> None:
        super().__init__(raw, buffer_bytes)
        self.fs, self.path, self._temporary, self._replaces = fs, path, temporary, replaces

    def commit(self) -> None:
        """Shows it under its name."""
        if self._temporary is not None:
            self.close()
            self.fs.weft.rename(self._temporary, self.path, replace=self._replaces)

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

"""File systems and their names."""

from __future__ import annotations

import errno
import io
import math
import os
import stat as stat_bits
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO, Literal, NamedTuple, TypeAlias, overload

from . import _native
from ._file import File, flags_of

StrOrBytesPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# Modes of files of bytes.
_BinaryMode: TypeAlias = Literal["rb", "wb", "ab", "xb", "r+b", "rb+", "w+b", "wb+", "a+b", "ab+", "x+b", "xb+"]

# What a file with a buffer reads and writes at a time, bytes.
_BUFFER_BYTES = 128 << 10
# Entries of a directory that are asked for at a time.
_ENTRIES = 1024


def connect(
    name: str | None = None,
    *,
    key_file: StrOrBytesPath | None = None,
    transport: str | None = None,
    soft: float | None = None,
    hard: bool = False,
    write_buffer: int | None = None,
) -> FileSystem:
    """Connects to a file system; without a name to the only one that there is.

    ``key_file`` is a user's key, where the environment (``WEFT_KEY``) and the user's configuration name none.
    ``transport`` is by what file data goes: ``auto``, ``sockets``, ``tcp`` or ``ucx``. Calls fail when a node does not
    answer for ``soft`` seconds, or with ``hard`` never. A file gathers up to ``write_buffer`` bytes before it sends
    them.
    """
    return FileSystem(name, key_file=key_file, transport=transport, soft=soft, hard=hard, write_buffer=write_buffer)


class Location(NamedTuple):
    """Bytes of a file in one piece, and who keeps them."""

    offset: int
    length: int
    node: int | None
    """The node's number; ``None`` of a hole, and of an empty file."""
    host: str
    site: str
    local: bool
    """It is a node of the machine that asks."""


class DirEntry:
    """A name in a directory, as ``os.DirEntry``."""

    __slots__ = ("_fs", "_inode", "_stat", "_type", "name", "path")

    def __init__(self, fs: FileSystem, directory: str, entry: tuple[str, int, int, os.stat_result | None]) -> None:
        self._fs = fs
        self.name, self._inode, self._type, self._stat = entry
        self.path = os.path.join(directory, self.name)

    def __repr__(self) -> str:
        return f"<weft.DirEntry {self.path!r}>"

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        """Its inode number."""
        return self._inode

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self._type == stat_bits.S_IFLNK

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory, or leads to one."""
        return self._is(stat_bits.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file, or leads to one."""
        return self._is(stat_bits.S_IFREG, follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its attributes: those that came with the listing, if they did."""
        if self._stat is None or (follow_symlinks and self.is_symlink()):
            return self._fs.stat(self.path, follow_symlinks=follow_symlinks)
        return self._stat

    def _is(self, wanted: int, follow_symlinks: bool) -> bool:
        if not (follow_symlinks and self.is_symlink()):
            return self._type == wanted
        try:
            return stat_bits.S_IFMT(self.stat().st_mode) == wanted
        except FileNotFoundError:
            return False


class Listing(Iterator[DirEntry]):
    """The names of a directory, as they are asked for; a context manager like that of ``os.scandir``."""

    def __init__(self, fs: FileSystem, directory: str, native: _native.Listing, with_stat: bool) -> None:
        self._fs = fs
        self._directory = directory
        self._native = native
        self._with_stat = with_stat
        self._page: Iterator[DirEntry] = iter(())

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> DirEntry:
        entry = next(self._page, None)
        if entry is None:
            entries = self._native.read(_ENTRIES, self._with_stat)
            self._page = iter([DirEntry(self._fs, self._directory, entry) for entry in entries])
            entry = next(self._page)
        return entry

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the rest of the names."""
        self._page = iter(())
        self._native.split(1)

    def split(self, parts: int) -> list[Listing]:
        """What was not asked for yet, in parts of about the same size, each name in one of them. This has none left.

        The parts may be read by several threads. Call it before the first entry is taken.
        """
        return [Listing(self._fs, self._directory, part, self._with_stat) for part in self._native.split(parts)]


class FileSystem(_native.FileSystem):
    """A file system that is connected: as ``os``, with paths below its root. Made by ``weft.connect``."""

    _arguments: tuple[str | None, dict[str, Any]]

    def __new__(cls, name: str | None = None, **options: Any) -> FileSystem:
        self = super().__new__(cls, name, **options)
        assert isinstance(self, FileSystem)
        self._arguments = (name, options)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        name, options = self._arguments
        return _connect_again, (type(self), self.name if name is None else name, options)

    def __repr__(self) -> str:
        return f"<weft.FileSystem {self.name!r}{' closed' if self.closed else ''}>"

    def __enter__(self) -> FileSystem:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def open(  # type: ignore[overload-overlap]
        self,
        path: StrOrBytesPath,
        mode: _BinaryMode,
        buffering: Literal[0],
        *,
        permissions: int = 0o666,
        hints: str = "",
    ) -> File: ...
    @overload
    def open(
        self,
        path: StrOrBytesPath,
        mode: _BinaryMode,
        buffering: Literal[-1, 1] = -1,
        *,
        permissions: int = 0o666,
        hints: str = "",
    ) -> BinaryIO: ...
    @overload
    def open(
        self,
        path: StrOrBytesPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        hints: str = "",
    ) -> IO[Any]: ...
    def open(
        self,
        path: StrOrBytesPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        hints: str = "",
    ) -> Any:
        """As the built-in ``open``.

        ``permissions`` are those of a file that it makes, less the umask. ``hints`` are words: the layout of such a
        file (``whole``, ``split``, or ``width=4 stripe=1MiB``), ``rdma=static``, ``dynamic`` or ``auto``; ``spill``: writes
        to a split file go on at another node when the caller's own is full; ``placement=spread``: the part of such a
        file that they make is at any node.
        """
        binary = "b" in mode
        if binary and (encoding, errors, newline) != (None, None, None):
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        if buffering < -1:
            raise ValueError("invalid buffering size")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        flags = flags_of(mode)
        raw = File(self.open_file(path, flags, permissions, hints), os.fsdecode(path), flags)
        try:
            if flags & os.O_APPEND:
                raw.seek(0, os.SEEK_END)
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else _BUFFER_BYTES
            buffer: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
            if "+" in mode:
                buffer = io.BufferedRandom(raw, size)
            elif raw.readable():
                buffer = io.BufferedReader(raw, size)
            else:
                buffer = io.BufferedWriter(raw, size)
            if binary:
                return buffer
            text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text
        except BaseException:
            raw.close()
            raise

    def open_directory(self, path: StrOrBytesPath) -> Directory:
        """Opens a directory, at which paths begin that have no ``/`` in front, whatever becomes of its name."""
        return Directory(self, path)

    def import_handle(self, handle: bytes, *, hints: str = "") -> File:
        """Opens what another process has exported with ``File.export``, without a buffer. The position is one of its
        own. The file stays open for all as long as one of them has it open, whatever becomes of the first, or of its
        name. ``hints``: ``rdma=static``, ``dynamic`` or ``auto``; ``spill``; ``placement=spread``."""
        native = self.import_file(handle, hints)
        return File(native, "<imported>", native.flags)

    def read_bytes(self, path: StrOrBytesPath) -> bytes:
        """All of a file."""
        with self.open(path, "rb", 0) as file:
            return file.read()

    def write_bytes(self, path: StrOrBytesPath, data: bytes | bytearray | memoryview) -> int:
        """Makes a file with this contents, or replaces that of one that is there."""
        with self.open(path, "wb", 0) as file:
            return file.write(data)

    def lstat(self, path: StrOrBytesPath) -> os.stat_result:
        """As ``os.lstat``."""
        return self.stat(path, follow_symlinks=False)

    def statvfs(self) -> os.statvfs_result:
        """As ``os.statvfs``, of the whole file system."""
        return os.statvfs_result(self.space())

    def access(self, path: StrOrBytesPath, mode: int) -> bool:
        """As ``os.access``."""
        try:
            self.check_access(path, mode)
        except OSError:
            return False
        return True

    def exists(self, path: StrOrBytesPath) -> bool:
        """As ``os.path.exists``."""
        return self._type(path) is not None

    def lexists(self, path: StrOrBytesPath) -> bool:
        """As ``os.path.lexists``."""
        return self._type(path, follow_symlinks=False) is not None

    def islink(self, path: StrOrBytesPath) -> bool:
        """As ``os.path.islink``."""
        return self._type(path, follow_symlinks=False) == stat_bits.S_IFLNK

    def isdir(self, path: StrOrBytesPath) -> bool:
        """As ``os.path.isdir``."""
        return self._type(path) == stat_bits.S_IFDIR

    def isfile(self, path: StrOrBytesPath) -> bool:
        """As ``os.path.isfile``."""
        return self._type(path) == stat_bits.S_IFREG

    def getsize(self, path: StrOrBytesPath) -> int:
        """As ``os.path.getsize``."""
        return self.stat(path).st_size

    def _type(self, path: StrOrBytesPath, follow_symlinks: bool = True) -> int | None:
        try:
            return stat_bits.S_IFMT(self.stat(path, follow_symlinks=follow_symlinks).st_mode)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG):
                return None
            raise
        except ValueError:
            if self.closed:
                raise
            # There are zero bytes in it.
            return None

    def utime(
        self,
        path: StrOrBytesPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """As ``os.utime``."""
        if times is not None:
            if ns is not None:
                raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
            atime, mtime = times
            ns = (_nanoseconds(atime), _nanoseconds(mtime))
        self.set_times(path, ns, follow_symlinks)

    def makedirs(self, path: StrOrBytesPath, mode: int = 0o777, exist_ok: bool = False) -> None:
        """As ``os.makedirs``."""
        name = os.fsdecode(path)
        missing = []
        parent = os.path.dirname(name.rstrip("/"))
        while parent.strip("/") and not self.exists(parent):
            missing.append(parent)
            parent = os.path.dirname(parent.rstrip("/"))
        for above in reversed(missing):
            self._make_if_missing(above, 0o777)
        if exist_ok:
            self._make_if_missing(name, mode)
        else:
            self.mkdir(name, mode)

    def _make_if_missing(self, path: str, mode: int) -> None:
        try:
            self.mkdir(path, mode)
        except OSError:
            if not self.isdir(path):
                raise

    remove = _native.FileSystem.unlink

    def replace(self, src: StrOrBytesPath, dst: StrOrBytesPath) -> None:
        """As ``os.replace``."""
        self.rename(src, dst)

    def listdir(self, path: StrOrBytesPath = "/") -> list[str]:
        """As ``os.listdir``, always of ``str``."""
        return [entry.name for entry in self.scandir(path)]

    def scandir(self, path: StrOrBytesPath = "/", *, with_stat: bool = False) -> Listing:
        """As ``os.scandir``. With ``with_stat`` the attributes come with the names."""
        return Listing(self, os.fsdecode(path), self.open_listing(path), with_stat)

    def walk(
        self, top: StrOrBytesPath = "/", topdown: bool = True, *, followlinks: bool = False
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``, but a directory that cannot be read raises."""
        directory = os.fsdecode(top)
        directories: list[str] = []
        files: list[str] = []
        for entry in self.scandir(directory):
            is_directory = self.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
            (directories if is_directory else files).append(entry.name)
        if topdown:
            yield directory, directories, files
        for name in directories:
            below = os.path.join(directory, name)
            if followlinks or not stat_bits.S_ISLNK(self.lstat(below).st_mode):
                yield from self.walk(below, topdown, followlinks=followlinks)
        if not topdown:
            yield directory, directories, files

    def rmtree(self, path: StrOrBytesPath) -> None:
        """As ``shutil.rmtree``: removes a directory and all that is in it. A symbolic link is not followed."""
        if stat_bits.S_ISLNK(self.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"rmtree {os.fsdecode(path)}: it is a symbolic link")
        self._remove_tree(path)

    def _remove_tree(self, path: StrOrBytesPath) -> None:
        for entry in self.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                self._remove_tree(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)

    def locate(self, path: StrOrBytesPath) -> list[Location]:
        """Where the bytes of a file are."""
        return self.locate_many([path])[0]

    def locate_many(self, paths: Iterable[StrOrBytesPath]) -> list[list[Location]]:
        """Where the bytes of files are. Many files are asked for at a time."""
        return [[Location(*piece) for piece in pieces] for pieces in self.locate_files(list(paths))]


class Directory(FileSystem):
    """A directory that is open: a file system in which paths without a ``/`` in front begin there. To close it leaves
    the connection, and what was opened by it. Made by ``FileSystem.open_directory``."""

    def __new__(cls, fs: FileSystem, path: StrOrBytesPath) -> Directory:
        self = _native.FileSystem.__new__(cls, directory=(fs, path))
        assert isinstance(self, Directory)
        self._path = os.fsdecode(path)
        return self

    _path: str

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a directory that is open cannot be pickled: pickle the file system, and open it there")

    def __repr__(self) -> str:
        return f"<weft.Directory {self._path!r} of {self.name!r}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Directory:
        return self

    def listdir(self, path: StrOrBytesPath = ".") -> list[str]:
        """As ``os.listdir``, always of ``str``."""
        return super().listdir(path)

    def scandir(self, path: StrOrBytesPath = ".", *, with_stat: bool = False) -> Listing:
        """As ``os.scandir``. With ``with_stat`` the attributes come with the names."""
        return super().scandir(path, with_stat=with_stat)

    def walk(
        self, top: StrOrBytesPath = ".", topdown: bool = True, *, followlinks: bool = False
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``, but a directory that cannot be read raises."""
        return super().walk(top, topdown, followlinks=followlinks)


def _nanoseconds(seconds: float) -> int:
    """The nanoseconds that ``os.utime`` makes of seconds: the product as a float would miss some of the last digits."""
    fraction, whole = math.modf(seconds)
    return int(whole) * 1_000_000_000 + math.floor(fraction * 1e9)


def _connect_again(kind: type[FileSystem], name: str, options: dict[str, Any]) -> FileSystem:
    return kind(name, **options)

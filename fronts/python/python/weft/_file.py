"""Open files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WHOLE = ((0, 0),)


def flags_of(mode: str) -> int:
    """The flags of ``os.open`` for a mode of ``open``, whose letters ``b`` and ``t`` say nothing here."""
    letters = mode.replace("b", "").replace("t", "")
    flags = {
        "r": os.O_RDONLY,
        "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
        "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    }
    base = flags.get(letters.replace("+", "", 1))
    if base is None or len(set(mode)) != len(mode) or {"b", "t"} <= set(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    return base & ~os.O_ACCMODE | os.O_RDWR if "+" in mode else base


class File(io.RawIOBase):
    """An open file without a buffer of Python's: each read goes into the caller's memory, each write comes out of it.

    Made by ``FileSystem.open(path, "rb", buffering=0)``; of a file with a buffer it is the attribute ``raw``. What is
    said of offsets and lengths is in bytes. A file may be used by several threads; those that use its position share
    it.
    """

    def __init__(self, native: _native.File, name: str, flags: int) -> None:
        super().__init__()
        self._native = native
        self._name = name
        self._access = flags & os.O_ACCMODE
        self._appends = bool(flags & os.O_APPEND)

    def __repr__(self) -> str:
        return f"<weft.File name={self._name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"

    @property
    def name(self) -> str:
        """The path that was opened."""
        return self._name

    @property
    def mode(self) -> str:
        """``rb``, ``wb``, ``rb+``, ``ab`` or ``ab+``."""
        if self._appends:
            return "ab" if self._access == os.O_WRONLY else "ab+"
        return {os.O_RDONLY: "rb", os.O_WRONLY: "wb"}.get(self._access, "rb+")

    def readable(self) -> bool:
        """Whether it was opened to read."""
        self._check_open()
        return self._access != os.O_WRONLY

    def writable(self) -> bool:
        """Whether it was opened to write."""
        self._check_open()
        return self._access != os.O_RDONLY

    def seekable(self) -> bool:
        """All are."""
        self._check_open()
        return True

    def close(self) -> None:
        """Writes back and closes. An error of an earlier write shows here."""
        if not self.closed:
            try:
                self._native.close()
            finally:
                super().close()

    def flush(self) -> None:
        """Writes back, so that others see it."""
        self._check_open()
        if self._access != os.O_RDONLY and not self._native.closed:
            self._native.flush()

    def sync(self) -> None:
        """Writes back and through to the device, as ``os.fsync``."""
        self._native.sync()

    def readinto(self, buffer: Buffer, /) -> int:
        """Reads into memory, fewer bytes than it has at the end of the file only."""
        return self._native.readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads ``size`` bytes, or all up to the end of the file."""
        return self._native.read(None if size is None or size < 0 else size)

    def readall(self) -> bytes:
        """Reads all up to the end of the file."""
        return self.read()

    def write(self, buffer: Buffer, /) -> int:
        """Writes all of the memory."""
        return self._native.write(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position. Returns it."""
        return self._native.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._native.tell()

    def truncate(self, size: int | None = None, /) -> int:
        """Cuts the file, or extends it with zeros; at the position if no size is given."""
        size = self.tell() if size is None else size
        self._native.truncate(size)
        return size

    def export(self) -> bytes:
        """Bytes by which other processes use the file as it is open here, with ``FileSystem.import_handle``, without
        opening it: one process opens and sends them to many, as with ``multiprocessing`` or MPI. They are a right to
        the file for processes with the same key, and last an hour."""
        self.flush()
        return self._native.export()

    def size(self) -> int:
        """Its size."""
        return self._native.size()

    def stat(self) -> os.stat_result:
        """As ``os.fstat``."""
        return self._native.stat()

    def pread(self, length: int, offset: int) -> bytes:
        """As ``os.pread``."""
        return self._native.pread(length, offset)

    def pread_into(self, buffer: Buffer, offset: int) -> int:
        """Reads at an offset into memory. The position stays."""
        return self._native.pread_into(buffer, offset)

    def pwrite(self, buffer: Buffer, offset: int) -> int:
        """As ``os.pwrite``, but all of the memory is written."""
        return self._native.pwrite(buffer, offset)

    def read_list(self, pieces: Iterable[tuple[Buffer, int]]) -> int:
        """Reads many pieces, each memory and an offset, until one meets the end of the file. Returns the sum of
        bytes."""
        return self._native.read_list(list(pieces))

    def write_list(self, pieces: Iterable[tuple[Buffer, int]]) -> int:
        """Writes many pieces, each memory and an offset, in their order. Returns the sum of bytes."""
        return self._native.write_list(list(pieces))

    def lock(self, ranges: Iterable[tuple[int, int]] = _WHOLE, *, exclusive: bool = True, wait: bool = True) -> None:
        """Locks ranges, each a start and a length (0: to the end), all of them or none, across clients.

        The locks are advisory, and belong to this open file. Without ``wait`` the call fails with ``BlockingIOError``
        if another holds one that is in the way.
        """
        if wait:
            self._native.begin_lock(list(ranges), exclusive).wait()
        else:
            self._native.try_lock(list(ranges), exclusive)

    def unlock(self, ranges: Iterable[tuple[int, int]] = _WHOLE) -> None:
        """Unlocks ranges, each a start and a length (0: to the end)."""
        self._native.unlock(list(ranges))

    @contextmanager
    def locked(
        self, ranges: Iterable[tuple[int, int]] = _WHOLE, *, exclusive: bool = True, wait: bool = True
    ) -> Iterator[None]:
        """Holds locks for the length of a ``with`` statement, and writes back before they end. If the file has a buffer
        of Python's, that is to be flushed within the statement."""
        ranges = list(ranges)
        self.lock(ranges, exclusive=exclusive, wait=wait)
        try:
            yield
        finally:
            try:
                self.flush()
            finally:
                self.unlock(ranges)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

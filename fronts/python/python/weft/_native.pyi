"""What the native module has. Use the classes of ``weft``, which add what Python does as well by itself."""

import os
from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer, disjoint_base

__version__: str

@final
class File:
    """An open file. Offsets and lengths are bytes."""

    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def flush(self) -> None: ...
    def sync(self) -> None: ...
    @property
    def flags(self) -> int: ...
    def export(self) -> bytes: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def stat(self) -> os.stat_result: ...
    def readinto(self, memory: Buffer) -> int: ...
    def read(self, length: int | None) -> bytes: ...
    def write(self, memory: Buffer) -> int: ...
    def seek(self, offset: int, whence: int) -> int: ...
    def tell(self) -> int: ...
    def pread(self, length: int, offset: int) -> bytes: ...
    def pread_into(self, memory: Buffer, offset: int) -> int: ...
    def pwrite(self, memory: Buffer, offset: int) -> int: ...
    def read_list(self, pieces: Sequence[tuple[Buffer, int]]) -> int: ...
    def write_list(self, pieces: Sequence[tuple[Buffer, int]]) -> int: ...
    def try_lock(self, ranges: Sequence[tuple[int, int]], exclusive: bool) -> None: ...
    def begin_lock(self, ranges: Sequence[tuple[int, int]], exclusive: bool) -> LockRequest: ...
    def unlock(self, ranges: Sequence[tuple[int, int]]) -> None: ...

@final
class LockRequest:
    """A request for locks, which waits for its turn."""

    def wait(self) -> None: ...
    def cancel(self) -> None: ...

@final
class Listing:
    """Names of a directory that were not read yet."""

    def read(self, count: int, with_stat: bool) -> list[tuple[str, int, int, os.stat_result | None]]: ...
    def split(self, parts: int) -> list[Listing]: ...

@final
class RegisteredMemory:
    """Memory that is registered for RDMA until it is closed; a context manager. It keeps the object that lends it."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def close(self) -> None:
        """Ends the registration."""
    def __enter__(self) -> RegisteredMemory: ...
    def __exit__(self, *_exception: object) -> None: ...

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

@disjoint_base
class FileSystem:
    """A file system that is connected."""

    def __new__(
        cls,
        name: str | None = None,
        *,
        key_file: _Path | None = None,
        transport: str | None = None,
        soft: float | None = None,
        hard: bool = False,
        write_buffer: int | None = None,
        directory: tuple[FileSystem, _Path] | None = None,
    ) -> FileSystem: ...
    @property
    def name(self) -> str:
        """Its name, as ``weft status`` shows it."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def close(self) -> None:
        """Writes back what files have gathered, and disconnects. Files that are open fail from now on."""
    def open_file(self, path: _Path, flags: int, mode: int, hints: str) -> File: ...
    def import_file(self, handle: bytes, hints: str) -> File: ...
    def register(self, memory: Buffer) -> RegisteredMemory:
        """Registers memory for RDMA, which is used again and again: what any file reads into it or writes from it,
        64 KiB or more at a time, is neither copied nor registered each time. Where nothing goes by RDMA it does nothing.
        """
    def counters(self) -> dict[str, int]:
        """What was done since the file system was connected: ``metadata_calls``, ``data_requests``, and bytes by their
        way: ``descriptor_read`` and ``descriptor_written`` (straight between a file on this machine and memory), the
        same of ``unix``, ``tcp`` and ``rdma``; ``rdma_copied`` and ``rdma_registrations``."""
    def open_listing(self, path: _Path) -> Listing: ...
    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """As ``os.stat``. ``st_dev`` tells file systems apart."""
    def check_access(self, path: _Path, mode: int) -> None: ...
    def chmod(self, path: _Path, mode: int) -> None:
        """As ``os.chmod``."""
    def chown(self, path: _Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """As ``os.chown``: -1 leaves the owner or the group as it is."""
    def set_times(self, path: _Path, times: tuple[int, int] | None, follow_symlinks: bool) -> None: ...
    def truncate(self, path: _Path, length: int) -> None:
        """As ``os.truncate``."""
    def mkdir(self, path: _Path, mode: int = 0o777) -> None:
        """As ``os.mkdir``."""
    def rmdir(self, path: _Path) -> None:
        """As ``os.rmdir``."""
    def unlink(self, path: _Path) -> None:
        """As ``os.unlink``."""
    def rename(self, src: _Path, dst: _Path, *, replace: bool = True) -> None:
        """As ``os.rename``. Without ``replace`` it fails with ``FileExistsError`` if there is something at ``dst``."""
    def exchange(self, src: _Path, dst: _Path) -> None:
        """Exchanges what is at two paths, at once."""
    def link(self, src: _Path, dst: _Path) -> None:
        """As ``os.link``, of a symbolic link the link itself."""
    def symlink(self, src: _Path, dst: _Path) -> None:
        """As ``os.symlink``: makes ``dst``, which leads to ``src``."""
    def readlink(self, path: _Path) -> str:
        """As ``os.readlink``."""
    def getxattr(self, path: _Path, attribute: str | bytes) -> bytes:
        """As ``os.getxattr``."""
    def setxattr(self, path: _Path, attribute: str | bytes, value: Buffer, flags: int = 0) -> None:
        """As ``os.setxattr``. The attribute ``weft.layout`` of a directory is the layout of new files in it."""
    def listxattr(self, path: _Path) -> list[str]:
        """As ``os.listxattr``."""
    def removexattr(self, path: _Path, attribute: str | bytes) -> None:
        """As ``os.removexattr``."""
    def locate_files(self, paths: Sequence[_Path]) -> list[list[tuple[int, int, int | None, str, str, bool]]]: ...
    def space(self) -> tuple[int, int, int, int, int, int, int, int, int, int]: ...

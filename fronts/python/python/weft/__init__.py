"""Files of a Weft file system, without a mount.

    import weft

    with weft.connect("job") as fs:
        with fs.open("/results/a", "wb") as file:
            file.write(b"hello")
        print(fs.stat("/results/a").st_size)

Names, arguments and exceptions are those of ``os`` and ``io``. Calls may be made from any number of threads; each gives
up the interpreter's lock while it works. ``weft.aio`` has the same for ``asyncio``, ``weft.fsspec`` for fsspec
(``weft://job/results/a``).

A file system belongs to the process that connected: after ``fork`` its calls fail with ``ENOTCONN`` in the child, which
connects anew. What was written is written back when a file is closed, and at the end of the process.
"""

from ._file import File
from ._filesystem import DirEntry, Directory, FileSystem, Listing, Location, connect
from ._native import RegisteredMemory, __version__

__all__ = [
    "DirEntry",
    "Directory",
    "File",
    "FileSystem",
    "Listing",
    "Location",
    "RegisteredMemory",
    "__version__",
    "connect",
]

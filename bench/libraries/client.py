"""client.py NAME SIZE REQUEST CALLS PLAIN: the Python package's side of the suite's part `libraries`.

It does what bench/src/bin/bench-library.rs does, and beside that the same small calls with `os` on a file in the
directory PLAIN, in the same process.
"""

import itertools
import json
import mmap
import os
import pathlib
import sys
import time

import weft

FILLING = b"\x5a"
PASSES = 3
BATCHES = 5
SMALL_BYTES = 4096


def open_both(fs, path):
    """To read and write; it is made if it is not there."""
    fs.open(path, "ab", 0, permissions=0o600).close()
    return fs.open(path, "r+b", 0)


def large(fs, size, request, found):
    # Memory that begins at a page, as in the other languages.
    with open_both(fs, "/large") as file, mmap.mmap(-1, request, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = FILLING * request
        with memoryview(memory) as buffer:
            for number in range(PASSES + 1):
                before = time.perf_counter()
                for offset in range(0, size, request):
                    buffer[:8] = offset.to_bytes(8, "little")
                    file.pwrite(buffer, offset)
                written = time.perf_counter()
                for offset in range(0, size, request):
                    if file.pread_into(buffer, offset) != request or buffer[:8] != offset.to_bytes(8, "little"):
                        sys.exit(f"wrong contents at offset {offset}")
                # The first pass makes the file and its connections, and is not told.
                if number > 0:
                    found["write"].append(size / (written - before))
                    found["read"].append(size / (time.perf_counter() - written))


def small(fs, calls, plain, found):
    path, buffer = plain / "small", bytearray(FILLING * SMALL_BYTES)
    path.write_bytes(buffer)
    path, descriptor = str(path), os.open(path, os.O_RDONLY)
    with open_both(fs, "/small") as file:
        file.pwrite(buffer, 0)
        file.sync()
        vector = [buffer]
        for _ in range(BATCHES):
            found["stat"].append(nanoseconds(calls, fs.stat, "/small"))
            found["pread"].append(nanoseconds(calls, file.pread_into, buffer, 0))
            found["os stat"].append(nanoseconds(calls, os.stat, path))
            found["os pread"].append(nanoseconds(calls, os.preadv, descriptor, vector, 0))
    os.close(descriptor)


def nanoseconds(calls, call, *words):
    """Of one call, the mean of many."""
    before = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        call(*words)
    return (time.perf_counter() - before) * 1e9 / calls


def main():
    name, size, request, calls, plain = sys.argv[1:]
    found = {key: [] for key in ("write", "read", "stat", "pread", "os stat", "os pread")}
    with weft.connect(name) as fs:
        large(fs, int(size), int(request), found)
        small(fs, int(calls), pathlib.Path(plain), found)
    json.dump(found, sys.stdout)


main()

"""Which worker reads which file: one that has its bytes, as long as all have about the same number of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ._filesystem import FileSystem, StrOrBytesPath

__all__ = ["assign", "local_bytes"]


def local_bytes(fs: FileSystem, paths: Iterable[StrOrBytesPath]) -> list[int]:
    """How many bytes of each file are on the machine that asks."""
    located = fs.locate_many(paths)
    return [sum(piece.length for piece in pieces if piece.local) for pieces in located]


def assign(local: Sequence[Sequence[int]]) -> list[list[int]]:
    """Gives each file to one worker. ``local[worker][file]`` are the bytes of a file that are on a worker's machine.

    Returns the numbers of the files of each worker, in their order. No worker has more than one file more than another.
    The files of which one worker has more bytes than others have are given away first. The same arguments give the same
    result: all workers can compute it by themselves.
    """
    workers, files = len(local), len(local[0]) if local else 0
    if any(len(of_worker) != files for of_worker in local):
        raise ValueError("each worker has to tell of the same files")
    if workers == 0:
        return []

    def gain(file: int) -> int:
        at = sorted((of_worker[file] for of_worker in local), reverse=True)
        return at[0] - (at[1] if workers > 1 else 0)

    most, larger = divmod(files, workers)
    given: list[list[int]] = [[] for _ in range(workers)]
    # So many workers may have one file more.
    for file in sorted(range(files), key=lambda file: (-gain(file), -max(of[file] for of in local), file)):
        room = most + 1 if larger else most
        open_to = [worker for worker in range(workers) if len(given[worker]) < room]
        chosen = max(open_to, key=lambda worker: (local[worker][file], -len(given[worker]), -worker))
        given[chosen].append(file)
        larger -= len(given[chosen]) > most
    return [sorted(own) for own in given]

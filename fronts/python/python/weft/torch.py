"""PyTorch: a data set that has each worker read the files that are on its machine.

    dataset = weft.torch.ShardDataset("job", paths, decode)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=4)

Checkpoints need nothing of this: ``torch.save(state, fs.open(path, "wb"))``, and ``torch.distributed.checkpoint``
writes to ``weft://job/path`` by fsspec.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from ._file import File
from ._filesystem import FileSystem
from ._process import PerProcess
from .placement import assign, local_bytes

__all__ = ["ShardDataset"]

_Sample = TypeVar("_Sample")


class ShardDataset(IterableDataset[_Sample]):
    """Samples of many files, each read by one process of the group, on a machine that has its bytes where that can be.

    ``decode`` is given a file that is open to be read (``weft.File``, without a buffer), and returns its samples. If
    ``torch.distributed`` is initialized, all ranks have to make the data set, with the same paths, at the same time:
    they tell each other what they have. The files of a rank are divided over the workers of its loader. ``set_epoch``
    gives the files another order. ``options`` are those of ``weft.connect``.
    """

    def __init__(
        self,
        name: str | None,
        paths: Sequence[str],
        decode: Callable[[File], Iterable[_Sample]],
        *,
        shuffle: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self._decode, self._shuffle, self._seed, self._epoch = decode, shuffle, seed, 0
        # A worker is a process of its own.
        self._connection = PerProcess(functools.partial(FileSystem, name, **options))
        rank, local = 0, [local_bytes(self._connection.get(), paths)]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, mine, local = torch.distributed.get_rank(), local[0], [[]] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(local, mine)
        self.paths = [paths[file] for file in assign(local)[rank]]
        """The files of this rank."""

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch, before a loader is asked for its iterator. Workers that a loader keeps
        (``persistent_workers``) are not told."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[_Sample]:
        order = list(self.paths)
        if self._shuffle:
            random.Random(f"{self._seed} {self._epoch}").shuffle(order)
        worker = get_worker_info()
        if worker is not None:
            order = order[worker.id :: worker.num_workers]
        for path in order:
            with self._connection.get().open(path, "rb", 0) as file:
                yield from self._decode(file)

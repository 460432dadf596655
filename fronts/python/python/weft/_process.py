"""What belongs to one process: a forked child has its parent's memory, but none of its threads and connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """A value that each process makes for itself, when it first asks. Pickled without the value."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._made: tuple[int, _T] | None = None

    def get(self) -> _T:
        """The value of this process. Threads that ask first at the same time may get one each; the last one stays."""
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), self._make()
        return made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)

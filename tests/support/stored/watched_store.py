"""A store that hands out a copy of itself after each commit: what a process that is killed then would leave."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from turnwise.memory.stores.in_memory import InMemoryStore


class WatchedStore(InMemoryStore):
    """A store that is copied after each commit."""

    def __init__(self, watch: Callable[[InMemoryStore], None]) -> None:
        super().__init__()
        self._watch = watch

    async def commit(self, *args: Any, **named: Any) -> None:
        await super().commit(*args, **named)
        twin = InMemoryStore()
        twin.__dict__.update(deepcopy({name: held for name, held in vars(self).items() if name != "_watch"}))
        self._watch(twin)

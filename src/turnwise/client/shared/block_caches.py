"""`BlockCaches`: the blocks of sessions that a manager holds, so that a long conversation comes once."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import decode_json
from turnwise.memory.conversation.branches import Branch
from turnwise.memory.conversation.spans import Span, join
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.values.records import record_of

MOST_SESSIONS = 100
"""How many sessions have blocks here, those used last."""

MOST_BYTES = 16_000_000
"""How much the blocks of one session may take; then only those of its last turn stay."""

MOST_SPANS = 50
"""How many spans a request names at most."""


class BlockCaches:
    """Caches of blocks by user and session. Safe to use from many threads."""

    def __init__(self) -> None:
        self._caches: OrderedDict[tuple[str | None, str], BlockCache] = OrderedDict()
        self._lock = Lock()

    def held(self, user_id: str | None, session_id: str) -> tuple[BlockCache, str]:
        """Return the cache of a session, and its spans as a request names them.

        Read the answer with this cache, also if another one has taken its place meanwhile.
        """
        with self._lock:
            cache = self._caches.setdefault((user_id, session_id), BlockCache())
            self._caches.move_to_end((user_id, session_id))
            while len(self._caches) > MOST_SESSIONS:
                self._caches.popitem(last=False)
        spans = cache.held if len(cache.held) <= MOST_SPANS else ()
        return cache, json.dumps(spans)

    def turn_of(self, user_id: str | None, cache: BlockCache, snapshot: Mapping[str, Any]) -> Turn:
        """Return the turn of an answer, which lacks the blocks that `cache` holds.

        If its blocks are from another source, which then sent all of them, a new cache takes the place of `cache`.
        """
        key = user_id, str(snapshot["session_id"])
        if snapshot["source"] != cache.source:
            cache = BlockCache(snapshot["source"])
        cache.add_spans(
            [Span(*span) for span in snapshot["spans"]], [decode_json(block) for block in snapshot["blocks"]]
        )
        record = record_of(TurnRecord, snapshot["record"])
        branches = tuple(Branch(*branch) for branch in snapshot["branches"])
        turn = Turn(key[1], record, cache, branches=branches)
        own = join(record.prompt, record.spans)
        with self._lock:
            self._caches[key] = cache if cache.size_bytes <= MOST_BYTES else cache.only(own)
        return turn

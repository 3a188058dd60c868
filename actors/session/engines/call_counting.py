"""`CallCounter`: counts the tokens of model calls whose provider has not reported them."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.state import SessionState
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.spans import subtract
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.tokens.counter import RoughCounter
from turnwise.memory.tokens.index import TokenIndex

_ROUGH = RoughCounter()


class CallCounter:
    """Counts by `SessionConfig.token_counter`, else by a `RoughCounter`, which loads nothing.

    Each block of the conversation is counted once, so a count is O(new blocks).
    """

    def __init__(self, state: SessionState, engines: SessionEngines) -> None:
        self._state = state
        self._engines = engines
        self._index = TokenIndex(_ROUGH)

    def count(self, run: ActiveRun, turn: TurnRecord, answer: Sequence[Block]) -> tuple[int, int]:
        """Return the tokens of a request with this turn, instructions and tools included, and of an answer."""
        counter = self._engines.config.token_counter or _ROUGH
        if self._index.counter != counter:
            self._index = TokenIndex(counter)
        cache, frame, spans = self._state.journal.blocks.cache, run.run_resources.frame, turn.spans
        if missing := cache.missing(spans):  # a compaction may have replaced some of them
            spans = subtract(spans, missing)
        self._index.cover(spans, cache)
        system = "\n\n".join(filter(None, (frame.system, run.record.instructions)))
        tools = [*frame.tools, *({"name": name, **tool} for name, tool in run.record.tools.items())]
        request = self._index.sum(spans) + counter.overhead(system or None, tools)
        return request, sum(map(counter.count, answer))

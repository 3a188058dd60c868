"""`Recalling`: what other memories recall for the prompts of recorded turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.actors.memory.config import MemoryConfig, scope_of
from turnwise.actors.session.memory.memory_retrieval import query_of, words_of
from turnwise.errors import LongTermMemoryError, TurnwiseError
from turnwise.memory.conversation.blocks import Recalled
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Reminder, Reminding, is_read_only
from turnwise.memory.longterm.recall.prompt_sections import RetrievalResult, make_profile, make_sections
from turnwise.memory.tokens.counter import RoughCounter
from turnwise.replay.recorded import RecordedTurn


@dataclass(frozen=True, kw_only=True)
class Recalling:
    """Searches memories for the prompt of a turn, as its run would have, and saves nothing in them.

    Memories answer as of the moment when the turn was asked, so that what was said later does not help. What was
    changed or deleted since is not recalled.
    """

    memories: Sequence[LongTermMemory]
    config: MemoryConfig = field(default_factory=MemoryConfig)

    async def recall(self, recorded: RecordedTurn) -> Recalled | None:
        """Return the text for the turn's requests; None if nothing was found, or if the run used no memories.

        Raises:
            LongTermMemoryError: a memory failed.
        """
        run, session = recorded.run, recorded.session
        if run.memory == "off":
            return None
        query = query_of(words_of(run.author, session.user_id, recorded.turn.asked))
        scope, counter = scope_of(session, self.config, run.author), RoughCounter()
        found: dict[str, Sequence[MemoryItem]] = {}
        profiles: dict[str, Sequence[MemoryItem]] = {}
        for number, memory in enumerate(self.memories):
            name = str(getattr(memory, "name", f"{type(memory).__name__} {number}"))
            options: dict[str, Any] = {"limit": self.config.max_results}
            options["types"] = None if is_read_only(memory) else self.config.types
            options["as_of"] = math.nextafter(recorded.turn.created_at, 0.0)  # its own text has its time
            try:
                if isinstance(memory, Reminding):
                    reminder: Reminder = await memory.remind(scope, query, **options)
                    found[name], profiles[name] = reminder.items, reminder.profile
                elif query:
                    found[name] = await memory.recall(scope, query, **options)
            except TurnwiseError:
                raise
            except Exception as error:
                raise LongTermMemoryError(f"{name}: {type(error).__name__}: {error}") from error
        profile = make_profile(profiles, counter=counter, max_tokens=self.config.profile_tokens)
        results = [
            RetrievalResult(items=profile.without(items)[: self.config.max_results], section=None, max_tokens=None)
            for items in found.values()
        ]
        sections = make_sections(
            results,
            now=recorded.turn.created_at,
            counter=counter,
            max_tokens=self.config.max_tokens,
            profile=profile.text,
        )
        return Recalled(text=sections.text) if sections.text else None

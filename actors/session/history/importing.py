"""`Importing`: adds the turns of a conversation from elsewhere to a session."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace

from turnwise.actors.inference.engine import NewEvent, Selective
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.history.pruning import Pruning
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.memory.unsaved_turns import SAVED, SavingProgress, use_of
from turnwise.actors.session.state.run_events import is_snapshot
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import InvalidInputError, SessionEndedError, SessionInUseError, TurnsChangedError, shown
from turnwise.memory.conversation.blocks import AnyBlock, encode
from turnwise.memory.conversation.events import PromptAppended, TurnImported
from turnwise.memory.conversation.exchanges import exchanges, goes_on
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.prompts import takes_all
from turnwise.memory.conversation.spans import Span, cut, join, overlap, size, to_places
from turnwise.memory.conversation.turns import TurnRecord, turn_id
from turnwise.memory.providers.message_reading import Given
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.limits import MAX_BLOCKS, check_count

AT_ONCE = 500
"""How many blocks are encoded before other work of the event loop gets its turn."""


class Importing:
    """Adds turns that have answers and no runs, in one commit. Callers split a long conversation.

    The metadata of a turn says whether memories get it, so that a later process saves the turns that this one has not
    saved.

    While an import awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the key, the first turn and the blocks | reads; a compaction | nothing of this import |
    | the commit | reads; a compaction | all of it or nothing |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        *,
        ingestion: MemoryIngestion,
        progress: SavingProgress,
        pruning: Pruning,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._ingestion = ingestion
        self._progress = progress
        self._pruning = pruning

    async def import_turns(
        self,
        conversation: Given,
        idempotency_key: str | None = None,
        after: int | None = None,
        memory: MemoryUse = "off",
    ) -> int:
        """Store a conversation behind the newest turn, in one commit; return the index of its last turn.

        A turn consists of prompts and of the blocks up to the next prompt. Its time is that of its first message if the
        messages have times, else now. Prompts at the end become a turn that waits for a run, as appended prompts do; so
        do answers without any prompt. If the conversation continues the session's own and has no key, only its new
        blocks are stored.

        Args:
            idempotency_key: repeating the key stores nothing and returns the same index, until the turns are cleared;
                by default a digest of the conversation.
            after: the index of the newest turn that has ended, -1 for none; None for any.
            memory: with `on`, the session's memories get the turns, in the background. A repetition changes nothing.

        Raises:
            TooManyError: there are more blocks than one commit may have; nothing was stored.
            TurnsChangedError: another turn than `after` is the newest; nothing was stored.
            SessionInUseError: a run is active or queued; nothing was stored.
            SessionEndedError: the session has ended; nothing was stored.
            InvalidInputError: a block cannot be stored, prompts wait for a run, or the key was used for another
                conversation; nothing was stored.
        """
        encoded = await self._encoded(conversation)
        fingerprint = _fingerprint(encoded)
        key = _event_key(idempotency_key or fingerprint)

        async def change() -> int:
            event_key, event = await self._find_import(key)
            if event and event.turn_index is not None and event.fingerprint == fingerprint:
                return event.turn_index
            self._check_newest(after)
            if event:
                raise _key_conflict(idempotency_key)
            self._check_free()
            stored_count = 0 if idempotency_key else await self._count_stored(conversation.blocks)
            if stored_count == len(conversation.blocks):
                return self._newest
            new = conversation.part(stored_count, len(conversation.blocks))
            return await self._add(new, encoded[stored_count:], event_key, fingerprint, memory)

        return await self._transactor.run(change)

    async def stored_prefix(self, max_blocks: int) -> tuple[int, str, int]:
        """Return how many blocks the next turn continues, a digest of their texts, and the index of the newest turn.

        The index is that of the newest turn that has ended, -1 if there is none.

        A caller that sends a conversation in parts learns from these values which blocks the session already has.

        Args:
            max_blocks: if the next turn continues more blocks than this, the digest is blank and the number is 0.
        """
        await self._transactor.loaded()
        if (head := self._state.head) is None:
            return 0, "", -1
        if size(head.base) > max_blocks:
            return 0, "", head.index
        stored = await self._journal.blocks.read(head.base)
        digest = hashlib.sha256()
        for index, block in enumerate(stored):
            digest.update(f"{encode(block)}\n".encode())
            if index % AT_ONCE == 0:
                await asyncio.sleep(0)  # let other work run during a long conversation
        return len(stored), digest.hexdigest(), head.index

    async def _count_stored(self, blocks: Sequence[AnyBlock]) -> int:
        """Return how many of these blocks the session has: all of its own if these blocks begin with them; else 0."""
        if self._state.head is None or size(self._state.head.base) > len(blocks):
            return 0
        stored = await self._journal.blocks.read(self._state.head.base)
        return len(stored) if tuple(blocks[: len(stored)]) == tuple(stored) and goes_on(blocks, len(stored)) else 0

    async def check_import(self, conversation: Given, idempotency_key: str, after: int | None = None) -> int | None:
        """Check a part of a conversation as `import_turns` would; store nothing.

        Returns the index of its last turn if it is stored already, and was not cleared; else None.

        Raises:
            InvalidInputError: a block cannot be stored, or the key was used for another conversation.
            TurnsChangedError: the key was used for another conversation, and another turn than `after` is the newest.
        """
        fingerprint = _fingerprint(await self._encoded(conversation))
        await self._transactor.loaded()
        _, event = await self._find_import(_event_key(idempotency_key))
        if event and event.fingerprint != fingerprint:
            self._check_newest(after)
            raise _key_conflict(idempotency_key)
        return event.turn_index if event else None

    async def _encoded(self, conversation: Given) -> list[str]:
        check_count("messages", len(conversation.blocks), "MAX_BLOCKS", MAX_BLOCKS)
        if isinstance(self._engines.whole.builder, NamedEngines):
            await self._transactor.loaded()  # the session's row says which engine goes on with the conversation
        builder = self._engines.current.builder
        refuses = builder.refuses if isinstance(builder, Selective) else takes_all
        return conversation.encoded(self._engines.config.max_prompt_bytes, refuses)

    async def _find_import(self, key: str) -> tuple[str, TurnImported | PromptAppended | None]:
        """Return the key of this import's event, and the event; None for the event if there is no such import.

        Events with keys remain when their turns are cleared. So the next import gets a key that names the earlier
        event.
        """
        event_key = key
        while isinstance(
            event := await self._journal.store.event_of_key(self._state.key, event_key), TurnImported | PromptAppended
        ):
            if not await self._was_cleared(event):
                return event_key, event
            event_key = f"{key}:{event.seq}"
        return event_key, None

    async def _was_cleared(self, event: TurnImported | PromptAppended) -> bool:
        """Return whether the last turn of an import was removed for good, with all turns before it.

        A turn of prompts is also removed when its run is discarded, but then the next turn has its prompts.
        """
        first = await self._journal.store.turns(self._state.key, limit=1)
        if not first or event.turn_index is None:
            return True
        spans = [Span(self._journal.session.log, *event.span)] if event.span else []
        return first[0].index > event.turn_index and not overlap(first[0].prompt, spans)

    @property
    def _newest(self) -> int:
        """The index of the newest turn that has ended; -1 if there is none."""
        return self._state.head.index if self._state.head else -1

    def _check_newest(self, after: int | None) -> None:
        if after not in (None, self._newest):
            raise TurnsChangedError(self._state.session_id, after, self._newest)

    def _check_free(self) -> None:
        state = self._state
        if self._journal.session.status == "ended":
            raise SessionEndedError(state.session_id)
        if run := state.active or next(iter(state.run_queue.queue), None):
            raise SessionInUseError(state.session_id, run.run_id)
        if state.run_queue.pending:
            reason = f"prompts of session {state.session_id!r} wait for a run: start it, or remove them"
            raise InvalidInputError("messages", len(state.run_queue.pending.prompt), reason)

    async def _add(self, conversation: Given, encoded: list[str], key: str, fingerprint: str, memory: MemoryUse) -> int:
        blocks, times = conversation.blocks, conversation.times
        head, now = self._state.head, self._journal.clock()
        span, session = self._journal.extend(len(blocks))
        turns: list[TurnRecord] = []
        events: list[NewEvent] = []
        before = head
        for start, answer, stop in exchanges(blocks):
            index = session.next_index + len(turns)
            written_at = times[start] if times else None
            created_at = now if written_at is None else min(written_at, now)  # clocks elsewhere may be ahead
            turn_span = Span(span.log, span.start + start, span.start + stop)
            prompt, output = cut([turn_span], answer - start)
            turn = TurnRecord(index=index, prompt=prompt, appended=prompt, created_at=created_at)
            added = {
                "turn_index": index,
                "span": (turn_span.start, turn_span.stop),
                "blocks": tuple(blocks[start:stop]),
            }
            if not output:
                events.append((PromptAppended, added))
            else:
                parent = turn_id(self._state.session_id, before.index) if before else None
                continued = join(before.base if before else (), prompt)
                turn = replace(turn, status="completed", parent=parent, appended=(), input=continued, output=output)
                if memory == "on":
                    turn = replace(turn, metadata=FrozenDict({SAVED: memory}))
                if before is head and head and not is_snapshot(head, session.session_id):
                    added["input"] = to_places(head.base, session.log)
                events.append((TurnImported, added))
                before = turn
            turns.append(turn)
        events[-1][1].update(key=key, fingerprint=fingerprint)
        await self._transactor.commit(session, events, blocks=blocks, encoded=encoded, turns=turns)
        self._state.continue_from(before)
        self._state.run_queue.apply(turns)
        for turn in turns:
            if not turn.is_open:
                self._progress.add_ended(turn, use_of(turn))
        self._ingestion.save_soon()
        self._pruning.watch()
        return turns[-1].index


def _fingerprint(encoded: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(encoded).encode()).hexdigest()


def _key_conflict(idempotency_key: str | None) -> InvalidInputError:
    reason = "it was used for another conversation: pass a new key"
    return InvalidInputError("idempotency_key", shown(idempotency_key), reason)


def _event_key(idempotency_key: str) -> str:
    return f"turnwise.import:{hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]}"

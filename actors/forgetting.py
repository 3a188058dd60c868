"""How a session forgets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.memory_slot import Eraser, MemorySlot
from turnwise.actors.originals import originals
from turnwise.actors.saving import SavingSession
from turnwise.errors import LongTermMemoryError, SessionBusyError, TurnNotFoundError
from turnwise.memory.blocks import Summary
from turnwise.memory.erasing import Erasure, Verify, erase
from turnwise.memory.events import TurnForgotten
from turnwise.memory.forgotten import Forgotten
from turnwise.memory.long_term import is_read_only
from turnwise.memory.spans import Seen, Span, Spans, cut, join, overlap, size, subtract
from turnwise.memory.turns import TurnRecord


class ForgettingSession(SavingSession):
    """Takes a turn out of all that comes after it: requests, summaries, long-term memories.

    | await in forgetting | what else may run there | what a kill there leaves |
    |---|---|---|
    | the commit | reads; a compaction, which then finds that the conversation has moved on | all of it or nothing |
    | the compaction under way, to stop | reads | a turn that is forgotten here; to be repeated |
    | memories | all else; they are not given the turn any more, a run that begins may recall it | as above |
    | memories, for such a run | all else | all of it |

    The history keeps the turn as it was, until the session is deleted.
    """

    async def forget_turn(self, index: int, *, verify: Verify = False) -> Forgotten:
        """Forget what a turn added; return what was removed. May be repeated, and is to be if a memory fails.

        Args:
            verify: how what memories forget is looked for afterwards: see `erasing.Verify`.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionBusyError: a run is active, whose request may hold it.
            LongTermMemoryError: memories failed; names them. The session has forgotten it, the others too.
        """
        await self._loaded()
        done = Forgotten()

        async def change() -> None:
            nonlocal done
            if self._active:
                raise SessionBusyError(self.session_id, self._active.run_id)
            turn = await self._journal.find_turn(index)
            if turn.status in ("pending", "queued", "running"):
                raise TurnNotFoundError(self.session_id, index)
            if not turn.forgotten:
                done = Forgotten(turns=1, summaries=await self._leave_out(turn))
            # Also where the answer to the commit was lost, and this is the next attempt.
            done += Forgotten(waiting=int(self._keep_private(index)))
            await self._stop_compacting()  # it may be giving the turn to a memory
            self._watch_window()

        await self._atomically(change)
        done += await self._forget_in_memories(index, verify=verify)
        await self._recall_anew()
        return done

    async def _leave_out(self, turn: TurnRecord) -> int:
        """Let the next turn go on without this one; return in how many summaries it was."""
        head = self._head
        if head is None:
            raise TurnNotFoundError(self.session_id, turn.index)
        own = join(turn.prompt, turn.output)
        left, summaries = await self._without(head.base, own)
        forgotten = replace(turn, forgotten=True)
        if head.index == turn.index:
            forgotten = head = replace(head, forgotten=True, carried=left)
            turns = [head]
        elif left == head.base:
            turns = [forgotten]
        else:
            head = _carrying(head, left)
            turns = [forgotten, head]
        await self._journal.hold(head.base)
        await self._commit(self._journal.session, [(TurnForgotten, {"turn_index": turn.index})], turns=turns)
        self._head = head
        return summaries

    async def _as_forked(self, turn: TurnRecord) -> TurnRecord:
        """Return a turn that has ended, such that a fork goes on with what it holds, but for what is forgotten.

        Reads the turns up to it.
        """
        gone: list[Span] = []
        after = -1
        while after < turn.index and (page := await self._journal.store.turns(self.session_id, after=after)):
            after = page[-1].index
            gone += (span for each in page if each.forgotten for span in join(each.prompt, each.output))
        turn = replace(turn, carried=())
        held = turn.spans
        left, _ = await self._without(held, tuple(gone)) if gone else (held, 0)
        return turn if left == held else _carrying(turn, left)

    async def _without(self, spans: Spans, own: Spans) -> tuple[Spans, int]:
        """Return the spans without some blocks, and with what is left of each summary that stands for one of them."""
        parts: list[Span] = []
        summaries = 0
        for span, block in zip(_places(spans), await self._journal.read(spans), strict=True):
            if isinstance(block, Summary) and overlap(stands_for := await originals(block, self._journal.read), own):
                parts += _less(stands_for, own)
                summaries += 1
            else:
                parts += _less((span,), own)
        seen = Seen()
        return join(part for span in parts for part in seen.take(span)), summaries

    async def _forget_in_memories(self, index: int | None = None, *, verify: Verify = False) -> Forgotten:
        """Let memories forget the session, or a turn of it; what is on its way to them arrives before.

        Raises:
            LongTermMemoryError: some failed; all were asked.
        """
        if self._gifts:
            await asyncio.wait(set(self._gifts))
        slots = [slot for slot in self._gear.all_memories if not is_read_only(slot.memory)]
        results = await asyncio.gather(
            *(self._forget_in(slot, index, verify=verify) for slot in slots), return_exceptions=True
        )
        items: dict[str, int] = {}
        erased: dict[str, Erasure] = {}
        failures: list[str] = []
        for slot, result in zip(slots, results, strict=True):
            if isinstance(result, BaseException):
                failures.append(f"{slot.name}: {reason(result)}")
            elif isinstance(result, Erasure):
                items[slot.name], erased[slot.name] = result.items, result
            else:
                items[slot.name] = result
        if failures:
            raise LongTermMemoryError(f"{'; '.join(failures)}. Forget it again")
        self._forgets += 1
        notes = 0
        if index is None and self._gear.notes is not None:
            notes = await self._gear.notes.forget(self._memory_scope)
        return Forgotten(items=items, erased=erased, notes=notes)

    async def _forget_in(self, slot: MemorySlot, index: int | None, *, verify: Verify) -> int | Erasure:
        which: dict[str, Any] = {} if index is None else {"turn_index": index}
        if not verify:
            return await slot.memory.forget(self._memory_scope, **which)
        if isinstance(slot.memory, Eraser):
            return await slot.memory.erase(self._memory_scope, files=verify == "files", **which)
        if verify == "files":
            from turnwise.memory.file_search import erase_and_search  # whose numpy few processes need

            return await erase_and_search(slot.memory, self._memory_scope, **which)
        return await erase(slot.memory, self._memory_scope, **which)


def _places(spans: Spans) -> list[Span]:
    return [Span(log, at, at + 1) for log, start, stop in spans for at in range(start, stop)]


def _less(spans: Spans, own: Spans) -> list[Span]:
    """Return the spans without some positions, in their order."""
    return [part for span in spans for part in subtract([span], own)]


def _carrying(turn: TurnRecord, base: Spans) -> TurnRecord:
    """Return a turn that has ended, such that the next one continues from `base`, which ends with its output."""
    return replace(turn, carried=base if turn.forgotten else cut(base, size(base) - size(turn.output))[0])

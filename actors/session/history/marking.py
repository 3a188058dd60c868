"""`Marking`: sets and removes marks of messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from turnwise.actors.session.acting import acting_member, check_acting
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.events import MessageMarked
from turnwise.memory.conversation.marks import Mark, count_marks, marks_of, with_mark, without_mark
from turnwise.memory.conversation.spans import join
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.views.chat_messages import chat_messages_of


class Marking:
    """Sets a mark of a message, or removes it, in one commit with the event that tells of it.

    The turn has the marks; the session's row counts them. Repeating a call changes nothing.

    While a change of a mark awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the turn and its blocks | reads, streaming | nothing of this change |
    | the commit | reads, streaming | all of it or nothing |
    """

    def __init__(self, state: SessionState, transactor: Transactor) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor

    async def mark(self, index: int, number: int, name: str, value: Any, *, by: str | None) -> Mark | None:
        """Set a mark in place of the one of its name; None as the value removes it. Returns it as stored.

        Durable on return. The time of a mark stays if neither its value nor `by` changes. The marks of a member name
        the member, who may not change those of others.

        Raises:
            TurnNotFoundError: no such turn exists.
            InvalidInputError: the turn has not ended, or has no such message, or that was removed.
            TooManyError: the message has `MAX_MARKS` other marks.
        """
        by = acting_member() or by

        async def change() -> Mark | None:
            turn = await self._find(index)
            await self._check_message(turn, number)
            old = marks_of(turn, number).get(name)
            if old and old.by != by:
                await check_acting(self._journal.session, self._journal.store, "owner", "change marks of others")
            if value is None:
                if old is None:
                    return None
                mark, changed = None, without_mark(turn, number, name)
            elif old and (old.value, old.by) == (value, by):
                return old
            else:
                mark = Mark(name=name, value=value, by=by, at=self._journal.clock())
                changed = with_mark(turn, number, mark)
            session = self._journal.session
            session = replace(session, marks=session.marks + count_marks(changed) - count_marks(turn))
            values = {"turn_index": index, "number": number, "name": name, "value": value, "by": by}
            await self._transactor.commit(session, [(MessageMarked, values)], turns=[changed])
            if self._state.head and self._state.head.index == index:
                self._state.continue_from(changed)
            self._state.update_ended([changed])
            return mark

        return await self._transactor.run(change)

    async def _find(self, index: int) -> TurnRecord:
        if self._state.head and self._state.head.index == index:
            return self._state.head
        turn = await self._journal.records.find_turn(index)
        if turn.is_open:
            reason = f"turn {index} of session {self._state.session_id!r} has not ended: wait for its run"
            raise InvalidInputError("message", f"{index}", reason)
        return turn

    async def _check_message(self, turn: TurnRecord, number: int) -> None:
        prompt, output = [await self._journal.blocks.read(join(part)) for part in (turn.prompt, turn.output)]
        messages = chat_messages_of(self._state.session_id, turn, None, prompt, output)
        if number not in {message.number for message in messages}:
            reason = f"turn {turn.index} of session {self._state.session_id!r} has no such message: read them again"
            raise InvalidInputError("message", shown(f"{turn.index}:{number}"), reason)

"""`SavingProgress`: tracks which turns each of a session's memories does not have yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import join
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.longterm.base import is_read_only
from turnwise.memory.longterm.turn_items import TurnBlocks
from turnwise.memory.values.records import replace

SAVED = "turnwise.memory"
"""The name in an imported turn's metadata that says that memories get the turn; it has no run that says so."""


def use_of(turn: TurnRecord) -> MemoryUse:
    """Return whether memories get a turn without a run, which was imported."""
    return "on" if turn.metadata.get(SAVED) == "on" else "off"


class SavingProgress:
    """Tracks which turns each memory has; calls no memory and awaits nothing.

    `SessionRecord.saved`, the *mark*, is the turn up to which all memories have all turns that they should have. It is
    stored with the session's next commit (see `CommitMark`), so saving costs no commits.
    """

    def __init__(self, engines: SessionEngines) -> None:
        self._engines = engines
        self._saved = -1
        """The mark."""
        self._is_behind = False
        self._unsaved: dict[int, TurnBlocks] = {}
        """Ended turns that some memory may lack, by index. Turns that are not to be saved (`is_private`) are skipped,
        and only advance the mark."""
        self._has: dict[str, int] = {}
        """The turn up to which each memory has all its turns, by the memory's name."""
        self.restart()

    @property
    def writable(self) -> list[MemorySlot]:
        """The memories in which turns are saved."""
        if self._engines.config.memory.save == "none":
            return []
        return [slot for slot in self._engines.current.memories if not is_read_only(slot.memory)]

    @property
    def saved(self) -> int:
        """The turn up to which all memories have all their turns."""
        return self._saved

    @property
    def is_behind(self) -> bool:
        """Whether the store has turns above the mark that are not known here."""
        return self._is_behind

    def lacking(self, slot: MemorySlot) -> list[TurnBlocks]:
        """Return the turns that a memory lacks, in order."""
        has = self._has[slot.name]
        return [self._unsaved[index] for index in sorted(self._unsaved) if index > has]

    @property
    def missing(self) -> list[TurnBlocks]:
        """The turns that memories lack, once for each memory that lacks the turn."""
        return [turn for slot in self.writable for turn in self.lacking(slot)]

    def is_current(self, turn: TurnBlocks) -> bool:
        """Return whether a turn is still to be saved unchanged; False if it was forgotten since it was read."""
        return self._unsaved.get(turn.index) == turn

    # Changes

    def restart(self) -> None:
        """Track the memories that are attached now; each is taken to have the turns up to the mark."""
        self._has = {slot.name: self._saved for slot in self.writable}

    def load(self, session: SessionRecord, head: TurnRecord | None) -> None:
        """Load the mark from the session's row. Turns that are not shown are saved as well."""
        self._saved = max(self._saved, session.saved)
        self._drop_saved()
        self._has = {name: max(has, self._saved) for name, has in self._has.items()}
        newest = max(head.index if head else -1, session.branches[-1].start - 1 if session.branches else -1)
        self._is_behind = newest > self._saved

    def set_behind(self, is_behind: bool) -> None:
        """Set whether the store has turns above the mark that are not known here."""
        self._is_behind = is_behind

    def add_ended(self, turn: TurnRecord, use: MemoryUse, first_seq: int = 0, author: str | None = None) -> None:
        """Add a turn that has ended and is stored; a turn that is not to be saved only moves the mark."""
        if turn.index <= self._saved:
            return
        if self.writable:
            self.add(turn, use, first_seq, author)
        else:
            self._is_behind = True  # so that the mark stays below the turns that are still to be saved

    def add(self, turn: TurnRecord, use: MemoryUse, first_seq: int = 0, author: str | None = None) -> None:
        """Add a turn above the mark; it is private if its run or the settings say that it is not saved.

        Args:
            use: how the turn's run uses memories.
            first_seq: the number of its first event.
            author: the member who has started its run.
        """
        saved_turns = self._engines.config.memory.save
        skip = use != "on" or turn.forgotten or (saved_turns == "completed" and turn.status != "completed")
        spans = join(turn.prompt, turn.output)
        own = (turn.created_at, skip, turn.run_id, first_seq)
        self._unsaved[turn.index] = TurnBlocks(turn.index, spans, *own, author=author, turn_id=turn.turn_id)

    def make_private(self, index: int) -> bool:
        """Do not save this turn in any more memories; return whether any memory still lacked it."""
        turn = self._unsaved.get(index)
        if turn is None or turn.is_private:
            return False
        self._unsaved[index] = dataclasses.replace(turn, is_private=True)
        return True

    def add_saved(self, slot: MemorySlot, turns: Sequence[TurnBlocks]) -> None:
        """Note that a memory has these turns; move the mark, and drop the turns that all memories have."""
        self._has[slot.name] = max(self._has[slot.name], turns[-1].index)
        self._saved = max(self._saved, min(self._has.values()))
        self._drop_saved()

    def _drop_saved(self) -> None:
        self._unsaved = {index: turn for index, turn in self._unsaved.items() if index > self._saved}

    # See CommitMark

    def stamp(self, session: SessionRecord, turns: Iterable[TurnRecord]) -> SessionRecord:
        """Return the row with the mark. If no memory is writable and no turn is unsaved, ended turns move the mark."""
        saved = self._saved
        if not (self._is_behind or self._unsaved or self.writable):
            saved = max([saved, *(turn.index for turn in turns if not turn.is_open)])
        return replace(session, saved=saved) if saved > session.saved else session

    def stored(self, session: SessionRecord) -> None:
        """Set the mark to the one that a commit stored."""
        self._saved = max(self._saved, session.saved)

"""Records what callers had acknowledged, to compare it with the store at the end."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import Block, User, encode

What = Literal["prompt", "run", "end", "fork", "followed", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing that somebody was told."""

    what: What
    """A prompt is stored; a run has begun, or is queued; it has ended; a fork is there; its events were read to the
    end; the session was deleted."""
    session_id: str
    asked: float = 0.0
    """When it was asked for, on the recorder's clock."""
    told: float = 0.0
    """When that was acknowledged."""
    run_id: str | None = None
    prompt: str | None = None
    turn_index: int | None = None
    state: str | None = None
    """How a run ended."""
    digest: str | None = None
    """Of the turn that it left: see `digest`."""
    seqs: tuple[int, ...] = ()
    """The numbers of the events that a follower saw, in order."""


class Acknowledged:
    """Records what callers were told. For many tasks, and with a file for many threads and processes of one machine.

    Note it *after* the acknowledgement: what nobody was told may be lost. With a file each note is one line of JSON,
    there on return; a last line that a kill has cut is passed over.

    Args:
        path: the file, which is added to; in memory if left out.
        fsync: whether each note outlives the machine too.
        clock: when something is asked and told. All that write to one file need the same clock.
    """

    def __init__(
        self, path: Path | str | None = None, *, fsync: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = None if path is None else Path(path)
        self.clock = clock
        self._fsync = fsync
        self._notes: list[Note] = []

    def stored(
        self,
        session_id: str,
        prompts: Sequence[str],
        asked: float,
        *,
        run_id: str | None = None,
        turn_index: int | None = None,
    ) -> None:
        """Note that prompts are stored: appended, or those of a run, which is then noted too.

        Args:
            prompts: texts that no other prompt of the session has.
            asked: `clock()` before the call.
        """
        for prompt in prompts:
            self._add("prompt", session_id, asked, prompt=prompt, run_id=run_id, turn_index=turn_index)
        if run_id:
            self._add("run", session_id, asked, run_id=run_id, turn_index=turn_index)

    def ended(self, session_id: str, run_id: str, state: str, blocks: Sequence[Block] | None = None) -> None:
        """Note how a run ended, and the blocks of its turn if it left one."""
        found = None if blocks is None else digest(blocks)
        self._add("end", session_id, self.clock(), run_id=run_id, state=state, digest=found)

    def forked(self, session_id: str) -> None:
        """Note that a fork is there."""
        self._add("fork", session_id, self.clock())

    def followed(self, session_id: str, run_id: str, seqs: Sequence[int]) -> None:
        """Note the numbers of all events that a follower of a run saw, to its end."""
        self._add("followed", session_id, self.clock(), run_id=run_id, seqs=tuple(seqs))

    def deleted(self, session_id: str) -> None:
        """Note that a session was deleted."""
        self._add("gone", session_id, self.clock())

    def __iter__(self) -> Iterator[Note]:
        """Yield all notes, of the file too, whoever wrote them.

        Raises:
            ConfigError: a line in the midst of the file is no note.
        """
        yield from self._notes
        if self.path is None or not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):
            try:
                values = json.loads(line)
                note = Note(**{**values, "seqs": tuple(values["seqs"])})
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError("path", str(self.path), f"line {number} is no note: {error}") from error
            yield note

    @property
    def session_ids(self) -> list[str]:
        """The sessions that there are notes of, and that were not deleted, by their first note."""
        notes = list(self)
        gone = {note.session_id for note in notes if note.what == "gone"}
        return [each for each in dict.fromkeys(note.session_id for note in notes) if each not in gone]

    def _add(self, what: What, session_id: str, asked: float, **values: Any) -> None:
        note = Note(what=what, session_id=session_id, asked=asked, told=self.clock(), **values)
        if self.path is None:
            self._notes.append(note)
            return
        line = json.dumps(asdict(note)).encode() + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
            if self._fsync:
                os.fsync(file)
        finally:
            os.close(file)


def digest(blocks: Sequence[Block]) -> str:
    """Return the same for the same blocks."""
    return hashlib.sha256("\n".join(map(encode, blocks)).encode()).hexdigest()[:16]


def prompts_of(blocks: Sequence[Block]) -> list[str]:
    """Return the texts of the prompts among blocks."""
    return [block.text for block in blocks if isinstance(block, User)]

"""Records what callers had acknowledged, to compare it with the store at the end."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import Block, User, encode
from turnwise.testing.faults import append_line

NoteKind = Literal["prompt", "run", "end", "fork", "followed", "gone", "dropped", "said"]


@dataclass(frozen=True, kw_only=True)
class Note:
    """One acknowledgement to a caller."""

    kind: NoteKind
    """What was acknowledged: a stored prompt, a started or queued run, the end of a run, a fork, reading a run's events
    to the end, the deletion of a session, a prompt that was not stored since another run was active, a text that a
    session said, as its `prompt`."""
    session_id: str
    called_at: float = 0.0
    """The time of the call, on the recorder's clock."""
    returned_at: float = 0.0
    """The time of the acknowledgement."""
    run_id: str | None = None
    prompt: str | None = None
    turn_index: int | None = None
    state: str | None = None
    """The final state of a run."""
    digest: str | None = None
    """The `digest` of the blocks of the run's turn."""
    seqs: tuple[int, ...] = ()
    """The numbers of the events that a follower saw, in order."""
    silence_s: float | None = None
    """The `debounce_s` that a run was started with."""


class Acknowledged:
    """Records acknowledgements. Usable by many tasks; with a file, also by many threads and processes of one machine.

    Record *after* the acknowledgement, since a store may lose a change that it has not acknowledged. With a file, each
    note is a line of JSON, which is written before the method returns. A last line that was cut by a kill is ignored.

    Args:
        path: the file to append to; notes are kept in memory if omitted.
        fsync: whether each note also survives a crash of the machine.
        clock: the clock for the times of calls and acknowledgements, the same for all writers of a file.
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
        called_at: float,
        *,
        run_id: str | None = None,
        turn_index: int | None = None,
        silence_s: float | None = None,
    ) -> None:
        """Record that prompts are stored; with `run_id`, that this run with these prompts is stored.

        Args:
            prompts: texts that are unique in the session.
            called_at: `clock()` before the call.
            silence_s: the `debounce_s` that the run was started with.
        """
        for prompt in prompts:
            self._add("prompt", session_id, called_at, prompt=prompt, run_id=run_id, turn_index=turn_index)
        if run_id:
            self._add("run", session_id, called_at, run_id=run_id, turn_index=turn_index, silence_s=silence_s)

    def said(self, session_id: str, text: str, called_at: float, *, run_id: str, turn_index: int | None = None) -> None:
        """Record that a text that a session says by itself is stored, or queued, by this run.

        Args:
            text: a text that is unique in the session.
            called_at: `clock()` before the call.
        """
        self._add("said", session_id, called_at, prompt=text, run_id=run_id, turn_index=turn_index)

    def ended(self, session_id: str, run_id: str, state: str, blocks: Sequence[Block] | None = None) -> None:
        """Record the final state of a run, and the blocks of its turn if it has one."""
        hashed = None if blocks is None else digest(blocks)
        self._add("end", session_id, self.clock(), run_id=run_id, state=state, digest=hashed)

    def forked(self, session_id: str) -> None:
        """Record that a fork was created."""
        self._add("fork", session_id, self.clock())

    def followed(self, session_id: str, run_id: str, seqs: Sequence[int]) -> None:
        """Record the numbers of all events that a follower of a run saw, up to its end."""
        self._add("followed", session_id, self.clock(), run_id=run_id, seqs=tuple(seqs))

    def dropped(self, session_id: str, prompt: str, called_at: float, run_id: str) -> None:
        """Record that a prompt was not stored, since the run `run_id` was active."""
        self._add("dropped", session_id, called_at, prompt=prompt, run_id=run_id)

    def deleted(self, session_id: str) -> None:
        """Record that a session was deleted."""
        self._add("gone", session_id, self.clock())

    def __iter__(self) -> Iterator[Note]:
        """Yield all notes; with a file, also those of other processes.

        Raises:
            ConfigError: a line of the file, other than an incomplete last one, is not a note.
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
                raise ConfigError("path", str(self.path), f"line {number} is not a note: {error}") from error
            yield note

    @property
    def session_ids(self) -> list[str]:
        """The sessions with notes that were not deleted, in the order of their first notes."""
        notes = list(self)
        deleted = {note.session_id for note in notes if note.kind == "gone"}
        return [key for key in dict.fromkeys(note.session_id for note in notes) if key not in deleted]

    def _add(self, kind: NoteKind, session_id: str, called_at: float, **values: Any) -> None:
        note = Note(kind=kind, session_id=session_id, called_at=called_at, returned_at=self.clock(), **values)
        if self.path is None:
            self._notes.append(note)
            return
        append_line(self.path, asdict(note), fsync=self._fsync)


class Digest:
    """A hash of blocks that are added one after another; `str` returns it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, blocks: Iterable[Block]) -> None:
        """Hash more blocks. O(these blocks)."""
        for block in blocks:
            self._hash.update(encode(block).encode() + b"\n")

    def copy(self) -> Digest:
        """Return a digest of the same blocks, to which others can be added. O(1)."""
        copied = Digest()
        copied._hash = self._hash.copy()
        return copied

    def __str__(self) -> str:
        return self._hash.hexdigest()[:16]


def digest(blocks: Iterable[Block]) -> str:
    """Return a hash of the blocks."""
    hashed = Digest()
    hashed.add(blocks)
    return str(hashed)


def prompts_of(blocks: Sequence[Block]) -> list[str]:
    """Return the texts of the prompts among blocks."""
    return [block.text for block in blocks if isinstance(block, User)]

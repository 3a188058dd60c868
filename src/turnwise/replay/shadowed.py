"""`ShadowRecords`: what the candidate of a `Shadow` has answered, in the place of an engine that would be asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.actors.inference.engine import InferenceRunner, SessionView
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.replay.recorded import RecordedTurn
from turnwise.replay.records import Answer, AnswerStatus, Call

_STATUS: dict[str, AnswerStatus] = {
    "answered": "completed",
    "diverged": "stopped",
    "failed": "failed",
    "timed_out": "failed",
}
"""The statuses of records that have an answer; `dropped` ones have none."""

_UNKNOWN, _OF_TEXTS = ("cut", "first_token_s"), ("length", "refusals")
"""The measures that no record has, and those that only records with texts have."""


class _Place(NamedTuple):
    """Where a record is."""

    path: Path
    start: int
    length: int


@dataclass(frozen=True)
class ShadowRecords:
    """The answers that the candidate of a `Shadow` gave beside runs, to be compared by `replay(engine=...)`.

    Nothing is asked: each run that has a record is compared with it, and turns without one are left out, also those of
    sessions that were deleted. A record that says `dropped` counts as none. Records without texts, which are those of
    `Shadow(texts=False)`, are compared by the similarity that they have, and by the names of tools.

    Args:
        folder: the `sink` of the `Shadow`.

    Raises:
        InvalidInputError: there are no records, or a line is none.
    """

    folder: str | Path
    _places: dict[str, _Place] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Where the records are, by the ids of the runs."""
    _turns: dict[SessionKey, set[int]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        paths = sorted(Path(self.folder).expanduser().glob("*.jsonl"))
        for path in paths:
            start = 0
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.endswith(b"\n"):  # else a process was killed while it wrote
                        self._note(line, _Place(path, start, len(line)), number)
                    start += len(line)
        if not self._places:
            reason = "it has no records of answers: pass the sink of the Shadow, a folder on this machine"
            raise InvalidInputError("folder", str(self.folder), reason)

    def _note(self, line: bytes, place: _Place, number: int) -> None:
        try:
            row = json.loads(line)
            key, run_id = SessionKey(row["session_id"], row["user_id"]), row["run_id"]
            index, has_answer = row["turn_index"], row["status"] in _STATUS
        except (ValueError, KeyError, TypeError):
            reason = f"line {number} of {place.path.name} is no record of a Shadow: move other files away"
            raise InvalidInputError("folder", str(self.folder), reason) from None
        if has_answer:
            self._places[run_id] = place
            self._turns.setdefault(key, set()).add(index)

    def build(self, session: SessionView) -> InferenceRunner:
        """Raise ConfigError: it has answers that were given, and gives none."""
        raise ConfigError("engine", "ShadowRecords", "pass it to replay(): it has answers to runs of the past only")

    def turns_of(self, key: SessionKey) -> frozenset[int]:
        """Return the indexes of the turns of a session that have records."""
        return frozenset(self._turns.get(key, ()))

    def answer_to(self, recorded: RecordedTurn) -> Answer | None:
        """Return what the candidate answered; None if there is no record of it."""
        place = self._places.get(recorded.run.run_id)
        if place is None:
            return None
        with place.path.open("rb") as file:
            file.seek(place.start)
            row: dict[str, Any] = json.loads(file.read(place.length))
        return _answer(row)


def _answer(row: dict[str, Any]) -> Answer:
    has_text, missing = "text" in row, ", ".join(map(repr, row["missing"]))
    wanted = row["wanted"] if has_text else [{"name": name, "input": {}} for name in row["calls"]]
    why = f"it called {missing}, which the run has not called so" if missing else row["error"]
    if row["status"] == "timed_out":
        why = "the candidate took longer than timeout_s"
    return Answer(
        status=_STATUS[row["status"]],
        text=row.get("text", ""),
        calls=tuple(Call(name=call["name"], arguments=call["input"]) for call in wanted),
        why=why,
        model=row.get("model"),
        usage=Usage(**{**row["usage"], "seconds": row["seconds"]}),
        similarity=None if has_text else (row["similarity"] or 0.0),
        unknown=_UNKNOWN if has_text else (*_UNKNOWN, *_OF_TEXTS),
    )

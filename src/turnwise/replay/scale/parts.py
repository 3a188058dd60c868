"""`Part`: the records of a chunk in a folder, while they come and when they are complete.

Each record is a line of a journal before its turn counts as answered. A process that goes on with the chunk begins a
journal of its own, and reads those that are there; the last line of one may be torn. When all turns of the chunk have
records, one file takes the place of the journals, in the order of the plan, each record once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from turnwise.actors.inference.attempt import AWAY
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage, plain
from turnwise.memory.values.ids import new_id
from turnwise.replay.records import Answer, Call, Message, TurnReplay
from turnwise.replay.scale.pace import Tally
from turnwise.replay.scale.plan import sync_folder
from turnwise.replay.writing import json_of, row_of

TURNS = "turns"
"""The folder of the parts."""

_JOURNAL, _DONE, _FACTS = ".journal", ".jsonl", ".facts.json"

SUMS = ".sums.json"
"""The end of the name of the file with what the records of a complete chunk amount to."""

_END, _WHY = "end", "unreadable"
"""The names by which lines are told from records: the end of a conversation, and why one cannot be read."""


@dataclass(frozen=True)
class Unreadable:
    """A session that cannot be read."""

    session_id: str
    user_id: str
    why: str


@dataclass(frozen=True)
class _Line:
    """Where a record is."""

    path: Path
    start: int
    length: int


def done_parts(folder: Path) -> list[int]:
    """Return the numbers of the chunks that are complete."""
    names = (path.name.removesuffix(_DONE) for path in (folder / TURNS).glob(f"*{_DONE}"))
    return sorted(int(name) for name in names if name.isdigit())


def begun_parts(folder: Path) -> list[int]:
    """Return the numbers of the chunks that have journals."""
    names = {path.name.partition(".")[0] for path in (folder / TURNS).glob(f"*{_JOURNAL}")}
    return sorted(int(name) for name in names if name.isdigit())


def taken_before(folder: Path) -> Tally:
    """Return what the turns have taken that have records in a folder, also those that will be asked again."""
    tally, done = Tally(), set(done_parts(folder))
    for number in done:
        facts = json.loads((folder / TURNS / f"{number:06}{_FACTS}").read_text(encoding="utf-8"))
        tally += Tally(facts["turns"], facts["failed"], Usage(**facts["usage"]))
    for number in begun_parts(folder):
        if number not in done:
            part = Part(folder, number)
            tally += Tally(part.turns, part.failed, part.spent)
    return tally


def parquet_of(folder: Path, number: int) -> Path:
    """Return the path of the Parquet file of a complete chunk."""
    return folder / TURNS / f"{number:06}.parquet"


def drop_finished_journals(folder: Path) -> None:
    """Delete the journals of complete chunks, which a kill has left."""
    for number in set(done_parts(folder)).intersection(begun_parts(folder)):
        Part(folder, number)


def clear(folder: Path) -> None:
    """Delete all parts."""
    for kind in (_JOURNAL, _DONE, _FACTS, SUMS, ".new", ".parquet"):
        for path in (folder / TURNS).glob(f"*{kind}"):
            path.unlink()


class Part:
    """The records of one chunk.

    Args:
        is_whole: whether a conversation that has not ended is to be asked again from its first turn.
    """

    def __init__(self, folder: Path, number: int, *, is_whole: bool = False) -> None:
        self._folder = folder / TURNS
        self._name = f"{number:06}"
        self.path = self._folder / f"{self._name}{_DONE}"
        self.is_done = self.path.exists()
        self._lines: dict[SessionKey, dict[int, _Line]] = {}
        self._ended: dict[SessionKey, str | None] = {}
        """The conversations that have ended, and why they cannot be read, if they cannot."""
        self.spent = Usage()
        """What the records took that were there before."""
        self.failed = 0
        """How many of these failed."""
        self._journal: int | None = None
        self._journal_path = self._folder / f"{self._name}.{new_id()}{_JOURNAL}"
        self._size = 0
        self._is_dirty = False
        if self.is_done:
            self._read(self.path, is_whole=False)
            self._ended = {SessionKey(row[0], row[1]): row[2] for row in self._facts()["unreadable"]}
        for path in self._journals():
            if self.is_done:
                path.unlink()  # a kill came before this
            else:
                self._read(path, is_whole=is_whole)

    def _journals(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._name}.*{_JOURNAL}"))

    def _read(self, path: Path, *, is_whole: bool) -> None:
        """Read where the records of a file are. A conversation that is whole or not at all has those of one file."""
        lines: dict[SessionKey, dict[int, _Line]] = {}
        with path.open("rb") as file:
            start = 0
            for line in file:
                row = _parsed(line)
                if row is None:
                    break  # torn: its turn was not acknowledged
                self._note(row, _Line(path, start, len(line)), lines)
                start += len(line)
        for key, records in lines.items():
            if not is_whole:
                self._lines[key] = {**records, **self._lines.get(key, {})}
            elif key in self._ended:
                self._lines.setdefault(key, records)

    def _note(self, row: dict[str, Any], line: _Line, lines: dict[SessionKey, dict[int, _Line]]) -> None:
        key = SessionKey(row["session_id"], row["user_id"])
        if _END in row:
            self._ended[key] = row[_WHY]
            return
        answer = row["answer"]
        for each in filter(None, (answer, row["floor"])):
            self.spent += Usage(**each["usage"])
        if answer["code"] != AWAY:
            self.failed += answer["status"] == "failed"
            lines.setdefault(key, {})[row["turn_index"]] = line

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self._folder / f"{self._name}{_FACTS}").read_text(encoding="utf-8"))
        return facts

    def has(self, key: SessionKey, index: int) -> bool:
        """Return whether a turn has its record."""
        return index in self._lines.get(key, ())

    def has_all(self, key: SessionKey) -> bool:
        """Return whether all selected turns of a conversation have their records."""
        return key in self._ended

    @property
    def turns(self) -> int:
        """How many turns have records."""
        return sum(map(len, self._lines.values()))

    @property
    def unreadable(self) -> list[Unreadable]:
        """The sessions that cannot be read."""
        return [Unreadable(*key, why) for key, why in self._ended.items() if why is not None]

    def add(self, key: SessionKey, index: int, replay: TurnReplay) -> None:
        """Write the record of a turn: it survives the end of this process."""
        line = self.write_line(json_of(row_of(replay)))
        self._lines.setdefault(key, {})[index] = line
        self.spent += spent_on(replay)
        self.failed += replay.answer.status == "failed"

    def end(self, key: SessionKey, unreadable: str | None = None) -> None:
        """Write that all selected turns of a conversation have records, or why it cannot be read."""
        self.write_line(json_of({**key._asdict(), _END: True, _WHY: unreadable}))
        self._ended[key] = unreadable

    def write_line(self, text: bytes) -> _Line:
        """Write a line to the journal, which is begun if there is none."""
        if self._journal is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._journal = os.open(self._journal_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        data = text + b"\n"
        written = os.write(self._journal, data)
        while written < len(data):  # a signal or a full disk, which then raises
            written += os.write(self._journal, data[written:])
        line = _Line(self._journal_path, self._size, len(data))
        self._size += len(data)
        self._is_dirty = True
        return line

    def sync(self) -> None:
        """Have the records so far survive a power loss."""
        if self._journal is not None and self._is_dirty:
            self._is_dirty = False
            os.fdatasync(self._journal)

    def close(self) -> None:
        """End the journal. It stays, for a process that goes on with the chunk."""
        self.sync()
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None

    def complete(self, order: list[SessionKey]) -> None:
        """Put one file in the place of the journals, with the records in the order of these sessions."""
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        unreadable = [[each.session_id, each.user_id, each.why] for each in self.unreadable]
        facts = {"turns": self.turns, "failed": self.failed, "usage": plain(self.spent), "unreadable": unreadable}
        write_whole(self._folder / f"{self._name}{_FACTS}", iter([json.dumps(facts).encode()]))
        places = write_whole(self.path, self._copied(order))
        lines = [(key, index) for key in order for index in sorted(self._lines.get(key, ()))]
        for (key, index), (start, length) in zip(lines, places, strict=True):
            self._lines[key][index] = _Line(self.path, start, length)
        for path in self._journals():
            path.unlink()
        self.is_done = True

    def _copied(self, order: list[SessionKey]) -> Iterator[bytes]:
        with _Files() as files:
            for key in order:
                lines = self._lines.get(key, {})
                for index in sorted(lines):
                    yield files.read(lines[index])

    def records(self) -> Iterator[TurnReplay]:
        """Yield the records that were there when this was made."""
        with _Files() as files:
            for lines in list(self._lines.values()):
                for index in sorted(lines):
                    yield replay_of(json.loads(files.read(lines[index])))

    def where(self, key: SessionKey, index: int) -> tuple[str, int, int]:
        """Return where a record is: the name of the file, and where its line begins there, and how long it is."""
        line = self._lines[key][index]
        return line.path.name, line.start, line.length


class _Files:
    """Reads lines of some files, each of which is opened once."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def read(self, line: _Line) -> bytes:
        file = self._files.get(line.path)
        if file is None:
            file = self._files[line.path] = line.path.open("rb")
        if file.tell() != line.start:
            file.seek(line.start)
        data: bytes = file.read(line.length)
        return data


def read_record(folder: Path, name: str, start: int, length: int) -> TurnReplay:
    """Return a record, by what `Part.records` says of it."""
    with (folder / TURNS / name).open("rb") as file:
        file.seek(start)
        return replay_of(json.loads(file.read(length)))


def write_whole(path: Path, lines: Iterator[bytes]) -> list[tuple[int, int]]:
    """Write a file whole or not at all; return where its lines begin, and how long they are."""
    new, places, at = path.with_name(f"{path.name}.new"), [], 0
    with new.open("wb") as file:
        for line in lines:
            file.write(line)
            places.append((at, len(line)))
            at += len(line)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_folder(path.parent)
    return places


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row


def spent_on(replay: TurnReplay) -> Usage:
    """Return what the answers of a record have taken."""
    return replay.answer.usage + replay.floor.usage if replay.floor else replay.answer.usage


def _answer_of(row: Mapping[str, Any]) -> Answer:
    fields = {name: value for name, value in row.items() if name != "is_cut"}
    calls = tuple(Call(**call) for call in row["calls"])
    unknown = tuple(row.get("unknown", ()))
    return Answer(**{**fields, "calls": calls, "usage": Usage(**row["usage"]), "unknown": unknown})


def replay_of(row: Mapping[str, Any]) -> TurnReplay:
    """Return the record that `row_of` made this of."""
    return TurnReplay(
        **{
            **row,
            "inexact": tuple(row["inexact"]),
            "earlier": tuple(Message(*message) for message in row.get("earlier", ())),
            "recorded": _answer_of(row["recorded"]),
            "answer": _answer_of(row["answer"]),
            "floor": None if row["floor"] is None else _answer_of(row["floor"]),
        }
    )

"""Writes the records of a replay: as lines of JSON while they come, and as a Parquet file at the end."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import pydantic_core

from turnwise.errors import ConfigError
from turnwise.memory.conversation.usage import plain
from turnwise.replay.records import Answer, TurnReplay

LINES, PARQUET = "turns.jsonl", "turns.parquet"

_ROWS_AT_ONCE = 5_000


def answer_row(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON."""
    return {
        "status": answer.status,
        "text": answer.text,
        "calls": [vars(call) for call in answer.calls],
        "why": answer.why,
        "code": answer.code,
        "stop_reason": answer.stop_reason,
        "model": answer.model,
        "params": dict(answer.params),
        "usage": plain(answer.usage),
        "first_token_s": answer.first_token_s,
        "is_refusal": answer.is_refusal,
        "is_cut": answer.is_cut,
        **({} if answer.similarity is None else {"similarity": answer.similarity}),
        **({"unknown": list(answer.unknown)} if answer.unknown else {}),
    }


def row_of(replay: TurnReplay) -> dict[str, Any]:
    """Return the record of a turn as JSON."""
    return {
        **vars(replay),
        "labels": dict(replay.labels),
        "inexact": list(replay.inexact),
        "recorded": answer_row(replay.recorded),
        "answer": answer_row(replay.answer),
        "floor": None if replay.floor is None else answer_row(replay.floor),
    }


class Lines:
    """A file with a line of JSON for each record, which are written as they come. It replaces a file that is there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / LINES
        self._file: TextIO = self.path.open("w", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, replays: Sequence[TurnReplay]) -> None:
        """Write records."""
        self._file.writelines(f"{json_of(row_of(replay)).decode()}\n" for replay in replays)


_LINE_END = re.compile("\x85|\u2028|\u2029".encode())
"""What JSON may have in a text, and where some programs end a line."""


def json_of(row: Mapping[str, Any]) -> bytes:
    """Return a record as JSON in one line, whatever values a caller's graders and functions have put into it."""
    try:
        line = pydantic_core.to_json(row, fallback=_plain_value)
        return line if line.isascii() else _LINE_END.sub(lambda end: b"\\u%04x" % ord(end[0].decode()), line)
    except ValueError:  # half of a pair of surrogates, which UTF-8 cannot have
        return json.dumps(row, default=_plain_value).encode()


def _plain_value(value: Any) -> Any:
    """Return a value of the caller's, such as of a grader, as JSON."""
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)


def check_parquet() -> None:
    """Raise ConfigError if Parquet cannot be written here."""
    if importlib.util.find_spec("pyarrow") is None:
        reason = (
            "there is no module pyarrow: pip install pyarrow, or leave Parquet out: turns.jsonl has the same records"
        )
        raise ConfigError("parquet", True, reason)


def write_parquet(lines: Path, path: Path | None = None) -> Path:
    """Write a Parquet file with the records of a file of lines: one column for each number; return its path.

    It is `turns.parquet` beside the file, if no path is given.

    Nested values, such as tool calls, are texts of JSON in it.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    check_parquet()
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")

    path = path or lines.with_name(PARQUET)
    schema = pa.schema([(name, _ARROW[kind](pa)) for name, kind in _COLUMNS.items()])
    with lines.open(encoding="utf-8") as file, pq.ParquetWriter(path, schema) as writer:
        rows = (flat_row(json.loads(line)) for line in file)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return path


_ARROW: Mapping[str, Any] = {
    "text": lambda pa: pa.string(),
    "int": lambda pa: pa.int64(),
    "float": lambda pa: pa.float64(),
    "bool": lambda pa: pa.bool_(),
}


def _columns() -> Iterator[tuple[str, str]]:
    for name in ("session_id", "user_id", "agent", "engine", "run_id", "prompt", "labels", "inexact"):
        yield name, "text"
    yield from ((name, "text") for name in ("grades", "floor_grades", "grader_errors"))
    yield from (("turn_index", "int"), ("position", "int"), ("window_blocks", "int"), ("created_at", "float"))
    for prefix in ("recorded", "answer", "floor"):
        for name in ("status", "text", "calls", "why", "code", "stop_reason", "model", "params"):
            yield f"{prefix}_{name}", "text"
        yield from (
            (f"{prefix}_is_refusal", "bool"),
            (f"{prefix}_is_cut", "bool"),
            (f"{prefix}_first_token_s", "float"),
        )
        for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "calls", "tool_calls"):
            yield f"{prefix}_usage_{name}", "int"
        yield from ((f"{prefix}_usage_seconds", "float"), (f"{prefix}_usage_cost", "float"))
    for prefix in ("change", "floor_change"):
        for name in ("same", "text", "calls"):
            yield f"{prefix}_{name}", "bool"
        yield from ((f"{prefix}_similarity", "float"), (f"{prefix}_fields", "text"))


_COLUMNS = dict(_columns())
"""The columns of the Parquet file and their types: the same for each replay, so that files can be joined."""


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with one value for each column of the Parquet file; None where the record has none."""
    flat: dict[str, Any] = {}
    for name, kind in _COLUMNS.items():
        value: Any = row.get(name)
        for prefix in ("floor_change", "recorded", "answer", "floor", "change"):
            if value is None and name.startswith(f"{prefix}_"):
                part = row.get(prefix)
                value = None if part is None else _within(part, name.removeprefix(f"{prefix}_"))
                break
        if kind == "text" and value is not None and not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False)
        flat[name] = float(value) if kind == "float" and value is not None else value
    return flat


def _within(part: Mapping[str, Any], name: str) -> Any:
    if name.removeprefix("usage_") in part.get("unknown", ()):
        return None
    if name.startswith("usage_"):
        return part["usage"].get(name.removeprefix("usage_"), 0)
    return part.get(name)

"""`Shadow`: beside some answers of an engine, another one answers too, and what it says is recorded apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator

from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.errors import shown
from turnwise.memory.values.checked_settings import checked_settings

Sink = Callable[[Mapping[str, Any]], object]
"""Takes a record; may be a coroutine function."""

_HASH_BITS = 64


def _engine(value: Any) -> Any:
    if not isinstance(value, EngineBuilder) or isinstance(value, type | Shadow):
        raise ValueError(f"must be an engine, such as EchoEngine(), and no Shadow: it is {type(value).__name__}")
    return value


def _share(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return value


def _sink(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if not (callable(value) or (isinstance(value, str) and value)):
        raise ValueError(f"must be the path of a folder, or a function of a record: it is {shown(value)}")
    return value


def _at_once(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number from 1")
    return value


def _seconds(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError("must be more than 0 and finite")
    return value


@dataclass(frozen=True)
@checked_settings("Shadow.")
class Shadow:
    """Answers with an engine; after some runs, a candidate answers the same request too, in the session's process.

    The candidate begins once the run has completed and its end is stored, and nothing waits for it: its errors and its
    slowness change no run, and its answer is never part of the session. Its tools are not called. A call that the run
    has made too, with equal arguments, gets the result that the run got; another one ends the candidate's answer.
    That holds for engines with turnwise's tool loop; an agent of another framework calls its tools itself, so it must
    not be a candidate if they have effects.

    What the candidate spends is in the ledger as `shadow`, and in no budget and no quota. A record of each answer goes
    to the sink: among others its `run_id`, `status`, `seconds`, `model`, `usage`, `run_usage`, `similarity`, `error`,
    and the tools: `calls`, `run_calls` and `missing`.

    Args:
        engine: answers the runs. It does what a manager does with it alone.
        candidate: answers beside it.
        share: the share of runs beside which the candidate answers, from 0 to 1. A hash of the run's id decides.
        sink: the path of a folder, in which each process appends to a file of its own, as lines of JSON; or a function
            of a record.
        texts: whether records have the texts of both answers. They outlive the session, also where it is deleted, and
            are not encrypted, so by default records have measures only.
        at_once: how many candidates answer at the same time in a process. Beyond that, a record says `dropped`.
        timeout_s: how many seconds the candidate has.

    Raises:
        ConfigError: a setting cannot be used.
    """

    engine: Annotated[EngineBuilder, PlainValidator(_engine)]
    candidate: Annotated[EngineBuilder, PlainValidator(_engine)]
    _: KW_ONLY
    sink: Annotated[str | Path | Sink, PlainValidator(_sink)]
    share: Annotated[float, PlainValidator(_share)] = 0.05
    texts: bool = False
    at_once: Annotated[int, PlainValidator(_at_once)] = 2
    timeout_s: Annotated[float, PlainValidator(_seconds)] = 120.0

    def is_beside(self, run_id: str) -> bool:
        """Return whether the candidate answers beside a run."""
        digest = hashlib.sha256(run_id.encode("utf-8", "backslashreplace")).digest()
        return bool(int.from_bytes(digest[: _HASH_BITS // 8]) < self.share * 2**_HASH_BITS)

    def build(self, session: SessionView) -> InferenceRunner:
        """Return the runner of the engine that answers the runs."""
        return self.engine.build(session)


def answering(builder: EngineBuilder) -> EngineBuilder:
    """Return the engine that answers the runs of an engine: that of a `Shadow`, else the engine itself."""
    return builder.engine if isinstance(builder, Shadow) else builder

"""`Shadows`: has candidates answer beside runs that have completed, and records what they say."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from turnwise.actors.inference.completion import within as within_seconds
from turnwise.actors.inference.observing import Operation, part, within
from turnwise.actors.inference.shadow import Shadow
from turnwise.actors.inference.shadow_answer import BesideAnswer, answer_beside, call_of
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.side_bill import SideBill
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.memory.conversation.blocks import ToolUse, answer_text
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage

ShadowStatus = Literal["answered", "diverged", "failed", "timed_out", "dropped"]
"""`diverged`: the candidate wanted calls that the run has not made. `dropped`: too many candidates were at work."""

_log = logging.getLogger(__name__)

_at_work = 0
"""How many candidates answer in this process."""


@dataclass(frozen=True)
class ShadowRequest:
    """What a run's model was given, kept until the run's end."""

    turn: Turn
    operation: Operation


class Shadows:
    """Has the candidate of a `Shadow` answer beside some runs.

    It begins after the commit that ends the run, in a task that nothing waits for. A kill loses the candidate's answer.
    """

    def __init__(self, state: SessionState, engines: SessionEngines, tasks: SessionTasks, bill: SideBill) -> None:
        self._state = state
        self._journal = state.journal
        self._engines = engines
        self._tasks = tasks
        self._bill = bill
        self._requests: WeakKeyDictionary[ActiveRun, ShadowRequest] = WeakKeyDictionary()
        """What the models of active runs were given, of those beside which a candidate is to answer."""

    def note_request(self, run: ActiveRun, turn: Turn) -> None:
        """Keep what the run's model is given, if a candidate is to answer it too. The first request counts."""
        shadow = run.run_resources.shadow
        if shadow is not None and shadow.is_beside(run.run_id):
            self._requests.setdefault(run, ShadowRequest(turn, run.operation))

    def watch(self, run: ActiveRun, end: RunRecord, turn: TurnRecord) -> None:
        """Begin the candidate's answer beside a run whose end is stored. Does not wait."""
        request, shadow = self._requests.pop(run, None), run.run_resources.shadow
        if request is None or shadow is None or end.state != "completed":
            return
        answer = self._answer(shadow, request, run, end, turn)
        self._tasks.spawn_logged(answer, f"the shadow of run {run.run_id!r}")

    async def _answer(
        self, shadow: Shadow, request: ShadowRequest, run: ActiveRun, end: RunRecord, turn: TurnRecord
    ) -> None:
        global _at_work  # noqa: PLW0603 - it counts what all sessions of the process do
        if _at_work >= shadow.at_once:
            record = self._about(end) | {"status": "dropped"}
        else:
            _at_work += 1
            try:
                record = await self._compared(shadow, request, run, end, turn)
            finally:
                _at_work -= 1
        await self._record(shadow, record)

    async def _compared(
        self, shadow: Shadow, request: ShadowRequest, run: ActiveRun, end: RunRecord, turn: TurnRecord
    ) -> dict[str, Any]:
        """Return the record of a candidate's answer."""
        loop, answer, status, error = asyncio.get_running_loop(), BesideAnswer(), "answered", None
        grace_s, began = self._engines.config.cancel_grace_s, asyncio.get_running_loop().time()
        output = await self._journal.blocks.read(turn.output)
        spent, models = Usage(), list[str | None]([None])

        def bill(usage: Usage, model: str | None) -> None:
            nonlocal spent
            spent += self._bill.charge("shadow", usage, model, engine=run.engine_name)
            models.append(model or models[-1])

        ask = partial(
            answer_beside,
            shadow.candidate,
            request.turn.as_started(),  # without what a run had answered before, if it was resumed
            output,
            end,
            answer,
            session=run.session,
            bill=bill,
            off_loop=self._engines.off_loop,
            grace_s=grace_s,
        )
        try:
            with within(request.operation), part("shadow", lambda: {"engine": type(shadow.candidate).__name__}):
                await within_seconds(ask, shadow.timeout_s, grace_s)
        except TimeoutError:
            status = "timed_out"
        except Exception as raised:  # noqa: BLE001 - whatever a candidate raises, it is never in the way
            status, error = "failed", f"{type(raised).__name__}: {raised}"
        if answer.missing:
            status = "diverged"
        record = self._about(end) | {
            "status": status,
            "seconds": round(loop.time() - began, 6),
            "model": models[-1],
            "usage": _numbers(spent),
            "similarity": _similarity(answer.text, answer_text(output)) if status == "answered" else None,
            "calls": [use.name for use in answer.calls],
            "missing": [use.name for use in answer.missing],
            "run_calls": [block.name for block in output if isinstance(block, ToolUse)],
            "error": error if shadow.texts or error is None else error.partition(":")[0],
        }
        if shadow.texts:
            record |= {"text": answer.text, "run_text": answer_text(output), "wanted": [*map(call_of, answer.calls)]}
        return record

    def _about(self, end: RunRecord) -> dict[str, Any]:
        about: dict[str, Any] = {name: getattr(end, name) for name in ("run_id", "session_id", "user_id", "turn_index")}
        return about | {"engine": end.engine, "at": self._journal.clock(), "run_usage": _numbers(end.usage or Usage())}

    async def _record(self, shadow: Shadow, record: Mapping[str, Any]) -> None:
        if isinstance(shadow.sink, str | Path):
            await self._engines.off_loop(_append, Path(shadow.sink), record)
        elif isawaitable(done := shadow.sink(record)):
            await done


def _numbers(usage: Usage) -> dict[str, float]:
    return {name: value for name, value in vars(usage).items() if value}


def _similarity(text: str, other: str) -> float:
    """Return how similar two texts are, from 0 to 1."""
    from rapidfuzz import fuzz

    return round(fuzz.ratio(text[:_COMPARED], other[:_COMPARED]) / 100, 4)


_COMPARED = 20_000
"""How many characters of an answer are compared."""


def _append(folder: Path, record: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
    with (folder / f"{platform.node()}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)

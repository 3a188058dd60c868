"""`Replaying`: answers the recorded turns of a conversation anew, without a store, a session or Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.actors.inference.engine import (
    EngineBuilder,
    InferenceRunner,
    check_answers,
    check_taken,
    engine_of_run,
)
from turnwise.actors.inference.named_engines import engine_named
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.engines.session_engines import close_runner
from turnwise.errors import EngineError, TurnwiseError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Spans, cut, join, size
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.files.access import FileAccess
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.records import replace
from turnwise.replay.comparing import Comparing, is_refusal
from turnwise.replay.context import Answered, Conversation, answer_turn, priced_answer, resources_of
from turnwise.replay.recalling import Recalling
from turnwise.replay.recorded import RecordedTurn
from turnwise.replay.records import Answer, AnswerStatus, Message, TurnReplay, answer_of, last_messages, prompt_text
from turnwise.replay.shadowed import ShadowRecords
from turnwise.replay.tools import RecordedTools, TurnTools
from turnwise.replay.windows import Windows
from turnwise.strategies.strategy import OverflowStrategy


async def off_loop(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns that may block."""
    return await asyncio.to_thread(function, *args)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What answers the turns: an engine, and what its requests are made of. It pickles if its parts do."""

    engine: EngineBuilder
    """With several engines by name, each session gets the one that it had."""
    overflow: OverflowStrategy | None = None
    """Makes windows anew; None: the recorded windows."""
    memory: Recalling | None = None
    """Recalls anew; None: the recorded text."""
    forward: bool = False
    """Whether the answers of the replay, instead of the recorded ones, are what later turns continue."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """How conversations are replayed. It pickles if its parts do."""

    variant: Variant
    floor: Variant | None = None
    """The recorded engine, which is asked again, so that differences that come by chance are known."""
    tools: RecordedTools = field(default_factory=RecordedTools)
    comparing: Comparing = field(default_factory=Comparing)
    config: SessionConfig = field(default_factory=SessionConfig)
    """Prices, the model's window, and how tokens are counted."""
    timeout_s: float | None = None
    """How long an answer may take, in seconds; None: as long as the recorded run was allowed to."""

    @property
    def is_whole(self) -> bool:
        """Whether turns are read that are not selected, since windows depend on them."""
        variants = (self.variant, self.floor) if self.floor else (self.variant,)
        return any(variant.overflow or variant.forward for variant in variants)


async def replay_turns(turns: Sequence[RecordedTurn], work: Work, files: FileAccess | None = None) -> list[TurnReplay]:
    """Replay turns of one conversation, oldest first; return a record for each one that is selected.

    An error of an engine is part of its turn's record. If this is cancelled, the engines are stopped first.

    Args:
        turns: see `recorded_turns`.
        files: where the bytes of files are that the turns name.
    """
    replaying = Replaying(work, files)
    try:
        return await replaying.add(turns)
    finally:
        await replaying.close()


class Replaying:
    """Replays one conversation, whose turns come page by page."""

    def __init__(self, work: Work, files: FileAccess | None) -> None:
        self._work = work
        self._answering = _Answering(work.variant, work, files, "replay")
        self._floor = _Answering(work.floor, work, files, "floor") if work.floor else None

    async def add(self, turns: Sequence[RecordedTurn]) -> list[TurnReplay]:
        """Replay the next turns; return a record for each one that is selected."""
        return [replay for turn in turns if (replay := await self._replayed(turn))]

    async def close(self) -> None:
        """Close the engines."""
        await self._answering.close()
        if self._floor:
            await self._floor.close()

    async def _replayed(self, recorded: RecordedTurn) -> TurnReplay | None:
        answer = await self._answering.answer(recorded)
        if answer is None:
            return None
        floor = await self._floor.answer(recorded) if self._floor else None
        session, record, run = recorded.session, recorded.turn.record, recorded.run
        comparing, output_type = self._work.comparing, run.output is not None
        began_at = run.started_at or record.created_at
        was = priced_answer(recorded.answer, self._work.config.prices, began_at)
        was = replace(was, is_refusal=is_refusal(was))
        replay = TurnReplay(
            session_id=session.session_id,
            user_id=session.user_id,
            agent=session.agent,
            engine=run.engine,
            turn_index=record.index,
            run_id=record.run_id,
            labels=dict(run.labels),
            created_at=record.created_at,
            position=recorded.position,
            window_blocks=size(record.input) - size(record.prompt),
            prompt=prompt_text(recorded.turn.asked),
            earlier=_earlier(recorded),
            inexact=recorded.inexact,
            recorded=was,
            answer=answer,
            floor=floor,
            change=await comparing.change(was, answer, is_json=output_type),
            floor_change=None if floor is None else await comparing.change(was, floor, is_json=output_type),
        )
        return await comparing.graded(replay)


_EARLIER_BLOCKS = 8
"""Among how many blocks before a prompt the last messages are looked for."""


def _earlier(recorded: RecordedTurn) -> tuple[Message, ...]:
    before = recorded.before
    return last_messages(recorded.turn.cache.read(cut(before, max(0, size(before) - _EARLIER_BLOCKS))[1]))


_Built = tuple[RunResources, InferenceRunner | TurnwiseError]
"""An engine's runner, or why it could not be built, with what its runs use."""


class _Answering:
    """Has one variant answer the turns of a conversation."""

    def __init__(self, variant: Variant, work: Work, files: FileAccess | None, log: str) -> None:
        self._variant = variant
        self._log = log
        self._work = work
        self._files = files
        self._conversation: Conversation | None = None
        self._engines: dict[str | None, _Built] = {}
        self._windows: Windows | None = None
        self._base: Spans | None = None
        """What the next turn continues; None before the first one."""

    async def close(self) -> None:
        """Close the engines that were built."""
        for _, runner in self._engines.values():
            if not isinstance(runner, TurnwiseError):
                await close_runner(runner, self._work.config.cancel_grace_s)

    async def answer(self, recorded: RecordedTurn) -> Answer | None:
        """Return the answer to a turn; None if the turn is only what later windows are made of."""
        variant = self._variant
        if isinstance(variant.engine, ShadowRecords):
            shadow = variant.engine.answer_to(recorded) if recorded.is_selected else None
            if shadow is None:
                return None
            shadow = priced_answer(shadow, self._work.config.prices, recorded.turn.record.created_at)
            return replace(shadow, is_refusal=is_refusal(shadow))
        if self._conversation is None:
            self._conversation = Conversation.of(recorded.session, self._log, recorded.turn.cache)
        conversation = self._conversation
        conversation.go_on_with(recorded.turn.cache, self._base or ())
        is_first = self._base is None
        if not (recorded.is_selected or variant.overflow or (variant.forward and not is_first)):
            return None
        record, run = _opened(recorded)
        if self._base is not None and (variant.overflow or variant.forward):
            record = replace(record, input=join(self._base, record.prompt))
        resources, runner = await self._engine(
            conversation, recorded.session.engine if run.engine is None else run.engine
        )
        recalled, front = recorded.recalled, recorded.front
        usage, error = Usage(), runner if isinstance(runner, TurnwiseError) else _refusal(resources, run)
        if variant.memory and error is None:
            try:
                recalled, front = await variant.memory.recall(recorded), None
            except TurnwiseError as failure:
                error = failure
        if error is None and variant.overflow:
            try:
                windows = self._windows_of(variant.overflow, resources, conversation)
                spent = windows.spent
                record = await windows.fit(record, run, recalled, front)
                usage = windows.spent - spent
            except TurnwiseError as failure:
                error = failure
        answers = recorded.is_selected or (variant.forward and run.says is None)
        answer: Answer | None = None
        output = recorded.turn.record.output
        if answers and (error is not None or isinstance(runner, TurnwiseError)):
            answer = Answer(status="failed", why=str(error), params=dict(run.params), model=run.model)
            output = () if variant.forward else output
        elif answers and not isinstance(runner, TurnwiseError):
            tools = self._work.tools.of_turn(recorded.turn.output)
            timeout_s = run.timeout_s if self._work.timeout_s is None else self._work.timeout_s
            answered = await answer_turn(
                runner,
                conversation,
                record,
                run,
                recalled=recalled,
                front=front,
                tools=tools,
                resources=resources,
                files=self._files,
                timeout_s=timeout_s,
            )
            is_unpriced = self._windows is not None and self._windows.is_unpriced
            answer, record = _answer(answered, tools, run, usage, is_unpriced=is_unpriced), answered.turn
            output = record.output if variant.forward else output
        self._base = join(record.input, output)
        return answer

    def _windows_of(self, strategy: OverflowStrategy, resources: RunResources, conversation: Conversation) -> Windows:
        if self._windows is None:
            builder = engine_named(resources.builder, None)
            self._windows = Windows(strategy, builder, resources.config, conversation, off_loop)
        return self._windows

    async def _engine(
        self, conversation: Conversation, name: str | None
    ) -> tuple[RunResources, InferenceRunner | TurnwiseError]:
        """Return the engine of a name, built once for the conversation; or why it cannot be built."""
        if name not in self._engines:
            builder = self._variant.engine
            builder = engine_named(builder, name if hasattr(builder, "engines") else None)
            resources = resources_of(builder, self._work.config, off_loop)
            try:
                runner: InferenceRunner | TurnwiseError = await off_loop(builder.build, conversation.view)
            except TurnwiseError as error:
                runner = error
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an engine's own code may raise anything
                runner = EngineError(f"the engine could not be built: {type(error).__name__}: {error}")
            self._engines[name] = resources, runner
        return self._engines[name]


def _opened(recorded: RecordedTurn) -> tuple[TurnRecord, RunRecord]:
    """Return turn and run as they were when the run began."""
    turn = replace(
        recorded.turn.record,
        status="running",
        output=(),
        carried=(),
        usage=None,
        stop_reason=None,
        metadata=FrozenDict(),
        marks=FrozenDict(),
    )
    run = replace(
        recorded.run,
        state="running",
        usage=None,
        calls=FrozenDict(),
        why=None,
        code=None,
        stop_reason=None,
        ended_at=None,
        resumes=0,
        overflow=None,
    )
    return turn, run


def _refusal(resources: RunResources, run: RunRecord) -> TurnwiseError | None:
    """Return why a session would refuse the run with this engine; None if it would begin it."""
    try:
        builder = engine_of_run(resources.builder, run.instructions, run.tools)
        check_taken(builder, run.model, run.params)
        check_answers(builder, run.output, run.params)
    except TurnwiseError as error:
        return error
    return None


def _answer(answered: Answered, tools: TurnTools, run: RunRecord, more: Usage, *, is_unpriced: bool) -> Answer:
    """Return an answer as a record.

    Args:
        more: what its window took.
        is_unpriced: whether the cost of that is unknown.
    """
    ending = answered.ending
    status: AnswerStatus = "failed" if ending.state == "suspended" else ending.state
    why = ending.why
    if tools.stopped_at is not None:
        status, why = "stopped", f"it called {tools.stopped_at.name!r}, which its record does not answer"
    elif ending.state == "suspended":
        why = "it waits for a decision, which nobody makes in a replay"
    answer = answer_of(
        answered.output,
        status=status,
        why=why,
        code=ending.code,
        stop_reason=answered.stop_reason,
        model=answered.model or None,
        params=dict(run.params),
        usage=answered.usage + more,
        first_token_s=answered.first_token_s,
        unknown=("cost",) if is_unpriced or answered.is_unpriced else (),
    )
    return replace(answer, is_refusal=is_refusal(answer))

"""`answer_turn`: one engine answers one turn, with a run's context and no session: nothing is stored or published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.actors.inference.attempt import Attempt, Ending, leave_behind
from turnwise.actors.inference.engine import InferenceRunner, NewEvent, SessionView, ToolStandIn
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.budget import Prices, price_at, priced
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.runs.stored_input import with_input
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.recorded_output import RecordedOutput
from turnwise.actors.session.window.compaction_tasks import frame_of
from turnwise.errors import ContextOverflowError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Recalled
from turnwise.memory.conversation.calls.tool_calls import CallState, encode_calls
from turnwise.memory.conversation.events import Event, TextDelta, ThinkingDelta
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.schedule_access import ScheduleAccess
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.attachments import with_bytes
from turnwise.memory.tokens.counter import RoughCounter
from turnwise.memory.values.records import replace
from turnwise.replay.records import Answer
from turnwise.replay.tools import TurnTools

_NEVER_S = 3600.0
"""Between which pieces of text are published; the first one is at once, and is all that is measured."""


@dataclass
class Conversation:
    """What the replay of a conversation holds: its row, and the blocks that the replay has added."""

    session: SessionRecord
    """With the log of the replay, which is never stored, and its size."""
    view: SessionView
    cache: BlockCache
    """The blocks of the turns that are being replayed, those of the replay included."""

    @classmethod
    def of(cls, session: SessionRecord, log: str, cache: BlockCache) -> Conversation:
        """Return that of a session."""
        view = SessionView(
            session_id=session.session_id,
            user_id=session.user_id,
            agent=session.agent,
            metadata=session.metadata,
            depth=session.depth,
            key=session.log,
            members=session.members,
        )
        # Each conversation has a log of its own, by whose name servers tell apart which requests begin alike.
        return cls(replace(session, log=f"{session.log}/{log}", log_size=0), view, cache)

    def go_on_with(self, cache: BlockCache, base: Spans) -> None:
        """Go on with the blocks of the next page of turns, and with those that the next turn continues."""
        if cache is not self.cache:
            if missing := cache.missing(base):
                cache.add_spans(missing, self.cache.read(missing))
            self.cache = cache

    def add(self, blocks: Sequence[Block]) -> Span:
        """Add blocks at the end of the log; return where they are."""
        log, start = self.session.log, self.session.log_size
        self.session = replace(self.session, log_size=start + len(blocks))
        self.cache.add(log, start, blocks)
        return Span(log, start, start + len(blocks))


@dataclass(frozen=True)
class Answered:
    """How an engine answered a turn."""

    turn: TurnRecord
    """The turn with its answer, whose blocks are in the conversation's cache."""
    output: Sequence[Block]
    ending: Ending
    stop_reason: str | None
    usage: Usage
    first_token_s: float | None
    model: str
    is_unpriced: bool
    """Whether a model that was asked has no price, so that the cost is unknown."""


class _Callbacks:
    """The side of a session of an attempt, see `RunCallbacks`: keeps what is recorded, and measures the first token."""

    schedules: ScheduleAccess | None = None

    def __init__(
        self,
        conversation: Conversation,
        tools: TurnTools,
        resources: RunResources,
        files: FileAccess | None,
        *,
        recalled: Recalled | None,
        front: Recalled | None,
    ) -> None:
        self.stand_in: ToolStandIn | None = tools
        self.first_token_at: float | None = None
        self._conversation = conversation
        self._recalled = recalled
        self._front = front
        self._resources = resources
        self._files = files
        self.is_unpriced = False
        self._now = time.time()

    def files_of(self, run: ActiveRun) -> None:
        """Return None: a tool that stores a file would change something."""

    def publish_live(
        self, run: ActiveRun, kind: type[Event], values: Mapping[str, Any], *, quietly: bool = False
    ) -> None:
        """Note when the first part of the answer came."""
        if self.first_token_at is None and kind in (TextDelta, ThinkingDelta):
            self.first_token_at = time.perf_counter()

    def check_budget(self, run: ActiveRun) -> None:
        """Do nothing: budgets are those of sessions."""

    def price(self, run: ActiveRun, usage: Usage, model: str | None) -> Usage:
        """Return the usage with its cost, by today's prices."""
        usage, is_unpriced = with_cost(usage, self._resources.config.prices, model, self._now)
        self.is_unpriced = self.is_unpriced or is_unpriced
        return usage

    def count_call(self, run: ActiveRun, turn: TurnRecord, answer: Sequence[Block]) -> tuple[int, int]:
        """Return the tokens of a request and of its answer, as turnwise counts those that nobody has reported."""
        counter, frame = self._resources.config.token_counter or RoughCounter(), frame_of(self._resources.builder)
        system = "\n\n".join(filter(None, (frame.system, run.record.instructions)))
        tools = [*frame.tools, *({"name": name, **tool} for name, tool in run.record.tools.items())]
        blocks = self._conversation.cache.read(turn.spans)
        request = sum(map(counter.count, blocks)) + counter.overhead(system or None, tools)
        return request, sum(map(counter.count, answer))

    async def make_room(self, run: ActiveRun, *, too_long: bool = False) -> Turn:
        """Return the turn for the next request.

        Raises:
            ContextOverflowError: the provider refused the last one as too long.
        """
        if too_long:
            raise ContextOverflowError("the provider refused the request as too long: pass overflow= to the replay")
        turn = Turn(run.session.session_id, run.turn, self._conversation.cache)
        if self._recalled or self._front:
            turn = turn.recalling(self._recalled, front=self._front)
        if not (named := turn.naming_files):
            return turn
        key = SessionKey(run.session.session_id, run.session.user_id)
        return turn.replacing({place: await with_bytes(self._files, key, each) for place, each in named.items()})

    async def store_added(self, run: ActiveRun) -> None:
        """Drop the events that the engine has added."""
        run.added.clear()

    async def store_input(self, attempt: Attempt, blocks: Sequence[Block]) -> None:
        """Replace the turn's input, for the rest of the replay."""
        run, conversation = attempt.run, self._conversation
        run.turn, new = with_input(run.turn, blocks, run.output.blocks, conversation.cache, conversation.session)
        conversation.add(new)

    async def record(
        self,
        attempt: Attempt,
        blocks: Sequence[Block],
        events: Sequence[NewEvent],
        calls: Mapping[str, CallState | None],
        *,
        suspends: bool,
    ) -> Turn:
        """Add blocks to the turn's output, for the rest of the replay; return the turn with them."""
        run, conversation = attempt.run, self._conversation
        ledger = Ledger(run.output.blocks)
        ledger.record(blocks)
        if blocks and not events:
            attempt.end_call(blocks)
        turn, new, _ = run.with_output(ledger.blocks(), conversation.session)
        conversation.add(new)
        states = {call_id: state for call_id, state in {**run.calls, **calls}.items() if state}
        record = replace(run.record, calls=encode_calls(states), usage=run.bill())
        run.output = RecordedOutput.read(turn.output, conversation.cache)
        run.turn = turn
        run.billed(record)
        attempt.ledger.record(blocks)
        return Turn(run.session.session_id, run.turn, conversation.cache)


async def answer_turn(
    runner: InferenceRunner,
    conversation: Conversation,
    turn: TurnRecord,
    record: RunRecord,
    *,
    recalled: Recalled | None,
    front: Recalled | None,
    tools: TurnTools,
    resources: RunResources,
    files: FileAccess | None,
    timeout_s: float | None,
) -> Answered:
    """Have an engine answer a turn, as the run of a session would. An error of the engine is part of the answer.

    If the caller is cancelled, the engine is stopped before this returns.

    Args:
        turn: without an answer; the conversation's cache has its blocks.
        recalled, front: what memories add before the turn's prompt, and before the conversation.
        timeout_s: how long the answer may take, in seconds; None for no limit.
    """
    run = ActiveRun(conversation.view, record, turn, resources)
    callbacks = _Callbacks(conversation, tools, resources, files, recalled=recalled, front=front)
    run.attempt = attempt = Attempt(run, callbacks, interval_s=_NEVER_S)
    config = resources.config

    engine: asyncio.Task[Any] | None = None

    async def answer() -> Sequence[Any]:
        nonlocal engine
        engine = asyncio.current_task()
        return await runner.run(await callbacks.make_room(run), attempt)

    began = time.perf_counter()
    try:
        ending = await attempt.drive(answer, timeout_s=timeout_s, grace_s=config.cancel_grace_s)
    except asyncio.CancelledError:
        attempt.close()
        if engine is not None and not engine.done():
            engine.cancel()
            await asyncio.wait({engine}, timeout=config.cancel_grace_s)
            leave_behind(engine)
        raise
    output = attempt.output(ending)
    ended, new, _ = run.with_output(output, conversation.session)
    conversation.add(new)
    first = None if callbacks.first_token_at is None else callbacks.first_token_at - began
    stop_reason, is_unpriced = attempt.stop_reason, callbacks.is_unpriced
    answered = Answered(ended, output, ending, stop_reason, run.spent, first, run.model, is_unpriced)
    run.attempt = None  # break the reference cycle, so that both objects are freed at once
    return answered


def resources_of(builder: Any, config: SessionConfig, off_loop: Callable[..., Any]) -> RunResources:
    """Return what runs of an engine use in a replay: no memories, no budgets, no telemetry."""
    config = replace(config, telemetry=None, run_budget=None, session_budget=None)
    return RunResources(builder, config, None, (), None, engine_id="replay", off_loop=off_loop)


def with_cost(usage: Usage, prices: Prices, model: str | None, time_s: float) -> tuple[Usage, bool]:
    """Return the usage with its cost, by the price that holds at a time; and whether its cost is unknown.

    Tokens of a model without a price have an unknown cost; a price of 0 makes it known.
    """
    price = price_at(prices, model or "", time_s)
    usage = priced(usage, price)
    has_tokens = usage.input_tokens + usage.output_tokens > 0
    return usage, has_tokens and not usage.cost and price is None


def priced_answer(answer: Answer, prices: Prices, time_s: float) -> Answer:
    """Return an answer with its cost, unless it has one; if there is no price, the cost is among what is unknown."""
    usage, is_unknown = with_cost(answer.usage, prices, answer.model, time_s)
    if is_unknown and "cost" not in answer.unknown:
        return replace(answer, unknown=("cost", *answer.unknown))
    return answer if usage is answer.usage else replace(answer, usage=usage)

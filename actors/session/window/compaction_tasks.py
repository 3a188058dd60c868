"""The parts of a compaction that need no lock: counting tokens, asking models for summaries, saving in memories."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from turnwise.actors.inference.completion import CompletionContext, ask, within
from turnwise.actors.inference.engine import (
    EngineBuilder,
    Framed,
    RequestFrame,
    SessionView,
)
from turnwise.actors.inference.no_answer import NoAnswer
from turnwise.actors.memory.config import shared_id
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.memory.group_saves import is_of_group, recipients, words_for
from turnwise.errors import ConfigError, LongTermMemoryError, SummaryRefusedError, TurnwiseError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Summary, System, User
from turnwise.memory.conversation.runs import CUT_SHORT, RunRecord
from turnwise.memory.conversation.spans import Span, Spans, cut, join, overlap, places, size, subtract
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope
from turnwise.memory.longterm.model_usage import Bill
from turnwise.memory.longterm.turn_items import TurnBlocks, turn_item
from turnwise.memory.tokens.context_windows import window_of
from turnwise.memory.tokens.counter import ByteCounter, TokenCounter, counter_for
from turnwise.memory.tokens.index import TokenIndex
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.flush_task import FlushTask, HandedOver, unacknowledged
from turnwise.strategies.plan import Plan
from turnwise.strategies.ranges import Ranges
from turnwise.strategies.strategy import OverflowStrategy, decide
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.summary_task import SummaryTask
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window

Result = TypeVar("Result")

COUNTED_AT_ONCE = 64
"""The maximum number of blocks that are counted on the event loop; more are counted off it."""

RESERVE_SHARE, RESERVE_MOST = 8, 4096
"""The default share of the model's window reserved for the answer, as a divisor, and its maximum in tokens."""


def check_overflow(strategy: OverflowStrategy, builder: EngineBuilder, config: SessionConfig) -> None:
    """Try the strategy on an empty window, so that wrong settings are found before a session is opened.

    Raises:
        ConfigError: a setting of the strategy is wrong, or the size of the model's window is unknown.
        StrategyError: the strategy raised another error.
    """
    nothing = Window((), BlockCache(), TokenIndex(ByteCounter()))
    decide(strategy, nothing, TokenBudget(token_limit(strategy, frame_of(builder), config)))


def default_overflow(builder: EngineBuilder, config: SessionConfig) -> OverflowStrategy | None:
    """Return the strategy of managers that name none: past 80 % of the window, the engine itself writes a summary.

    If there is no summary, the oldest exchanges go; so they do where the engine answers nothing (`NoAnswer`). None
    where the size of the engine's window is not known, or is too small for a summary.
    """
    try:
        if isinstance(builder, NoAnswer):
            check_overflow(Trim(), builder, config)
            return Trim()
        limit = token_limit(Trim(), frame_of(builder), config)
        summary_tokens = min(limit // LEAST_SHARE, MOST_SUMMARY)
        strategy = Summarize(builder, max_summary_tokens=summary_tokens)
        check_overflow(strategy, builder, config)
    except ConfigError:
        return None
    return strategy


def token_limit(strategy: OverflowStrategy, frame: RequestFrame, config: SessionConfig) -> int:
    """Return how many tokens a request may take.

    Raises:
        ConfigError: the size of the model's window is unknown, or the whole window is reserved for the answer.
    """
    window = config.max_context_tokens or window_of(frame.model)
    if window is None:
        limit = getattr(strategy, "max_tokens", None)
        if isinstance(limit, int):
            return limit
        reason = f"the window of model {frame.model!r} is not known: pass SessionConfig(max_context_tokens=...)"
        raise ConfigError("max_context_tokens", None, reason)
    reserve = config.reserve_output_tokens
    if reserve is None:
        reserve = frame.max_output_tokens or min(window // RESERVE_SHARE, RESERVE_MOST)
    if reserve >= window:
        raise ConfigError("reserve_output_tokens", reserve, f"must be less than the window, {window} tokens")
    return window - reserve


def frame_of(builder: EngineBuilder) -> RequestFrame:
    """Return the engine's description of its requests: model, system prompt, tools, answer length."""
    return builder.frame() if isinstance(builder, Framed) else RequestFrame()


LEAST_SHARE, MOST_SUMMARY = 8, 1000
"""The share of a request that a summary may take by default, as a divisor, and its maximum in tokens."""

JOIN_SHARE = 4
"""The share of a request that prompts may take that join an active run, as a divisor."""

_MOST_BYTES = 8
"""Prompts with more bytes for each token that they may take are too large, without counting a megabyte exactly."""

SHRINKS_TO = 0.75
"""The part of a request's size that the next one may have, after a provider refused the request as too long."""


class Compactor:
    """Counts the tokens of a session's windows, and gives the token limit of a request.

    Changes neither windows nor the store.

    Each block is counted once; many at once are counted off the event loop. Unless the settings have a counter, tokens
    are estimated at first: as bytes, which are never fewer. So a conversation that is far from its limit needs no
    vocabulary, which takes a second to load and, the first time on a machine, the network. Before anything is decided
    by an estimate, call `count_exactly`.
    """

    def __init__(
        self,
        strategy: OverflowStrategy,
        builder: EngineBuilder,
        config: SessionConfig,
        off_loop: Callable[..., Awaitable[Any]],
    ) -> None:
        self.strategy = strategy
        self.config = config
        self.off_loop = off_loop
        self._frame = frame_of(builder)
        self._limit = token_limit(strategy, self._frame, config)
        self._index: TokenIndex | None = None
        self._counter: TokenCounter = config.token_counter or ByteCounter(self._frame.model)
        """Counts until `count_exactly`."""
        self._run_overheads: dict[tuple[str, int], int] = {}
        """The tokens of the last run's instructions and tools, by run and counter."""
        self._counting = asyncio.Lock()
        self.budget = TokenBudget(self._limit)
        """The limit of a request; has the overhead of each request once a window has been counted."""

    def recount(self) -> None:
        """Drop all token counts, to free those of blocks that are no longer in the window.

        Existing `Window` objects keep their counts.
        """
        if self._index and not self._counting.locked():
            self._index = TokenIndex(self._index.counter)

    def using(self, strategy: OverflowStrategy) -> Compactor:
        """Return a compactor with the same limit and another strategy."""
        compactor = copy.copy(self)
        compactor.strategy = strategy
        return compactor

    def of_run(self, run: RunRecord) -> Compactor:
        """Return a compactor for a run's requests; itself if the run has no settings of its own that change their size.

        It counts the run's own instructions and tools, and has the limits of its own model and answer length.
        The limit is never higher than that of the engine's own model, for which counter and strategy were chosen.
        """
        budget = replace(
            self.budget, overhead=self.budget.overhead + self._overhead(run), max_tokens=self._limit_of(run)
        )
        if budget == self.budget:
            return self
        compactor = copy.copy(self)
        compactor.budget = budget
        return compactor

    def _overhead(self, run: RunRecord) -> int:
        """Return the tokens of the run's own instructions and tools; 0 if no window was counted."""
        if self._index is None or not (run.instructions or run.tools):
            return 0
        counter, key = self._index.counter, (run.run_id, id(self._index.counter))
        if key not in self._run_overheads:
            tools = [{"name": name, **tool} for name, tool in run.tools.items()]
            self._run_overheads.clear()
            self._run_overheads[key] = counter.overhead(run.instructions, tools) - counter.overhead(None, ())
        return self._run_overheads[key]

    def _limit_of(self, run: RunRecord) -> int:
        """Return the limit of the run's requests."""
        answer = run.params.get("max_output_tokens")
        if run.model is None and answer is None:
            return self.budget.max_tokens
        frame, config = replace(self._frame, model=run.model or self._frame.model), self.config
        try:
            if (model_window := window_of(frame.model)) and config.max_context_tokens:
                config = replace(config, max_context_tokens=min(model_window, config.max_context_tokens))
            if answer is not None:
                config = replace(config, reserve_output_tokens=answer)
            limit = token_limit(self.strategy, frame, config)
        except ConfigError:
            # The model is unknown, or its window is smaller than the answer: the provider refuses it.
            return self.budget.max_tokens
        return min(limit, self._limit)

    def with_blocks(self, *more: Block | None) -> Compactor:
        """Return a compactor whose requests also contain `more`; itself if there are none, or no window was counted."""
        return self.beside(sum(self._index.counter.count(block) for block in more if block)) if self._index else self

    def beside(self, tokens: int) -> Compactor:
        """Return a compactor whose requests also contain so many tokens; itself if that is none."""
        if not tokens:
            return self
        compactor = copy.copy(self)
        compactor.budget = replace(self.budget, overhead=self.budget.overhead + tokens)
        return compactor

    async def shrink(self, run: RunRecord, turn: TurnRecord, cache: BlockCache, *more: Block | None) -> None:
        """Lower the limit to three quarters of this turn's request, which a provider has refused as too long.

        The limit is lowered by a quarter each time, since servers count tokens differently, and few say how many they
        accept.

        Args:
            more: blocks that the request contains beside the turn; None for one that it lacks.
        """
        await self.count_exactly()
        window = await self.window(turn, cache)
        taken = window.taken(self.of_run(run).with_blocks(*more).budget)
        self._limit = max(1, min(self._limit, int(taken * SHRINKS_TO)))
        self.budget = replace(self.budget, max_tokens=self._limit)

    async def window(self, turn: TurnRecord, cache: BlockCache, *, base: bool = False) -> Window:
        """Return the turn's window, or with `base` the window that the next turn continues.

        `cache` must contain all of the window's blocks.

        Raises:
            ConfigError: the token counter raised an error.
        """
        spans = turn.base if base else turn.spans
        try:
            index = await self._counted(spans, cache)
        except TurnwiseError:
            raise
        except Exception as error:
            raise ConfigError(
                "token_counter", type(self.config.token_counter).__name__, f"it raised {error!r}"
            ) from error
        newest, output = _newest_turn(turn, spans, index), size(spans) - size(turn.output)
        has_output = cut(spans, output)[1] == join(turn.output)
        return Window(
            spans,
            cache,
            index,
            sends_system=not self._frame.replaces_system,
            newest_turn=newest,
            newest_output=output if has_output else None,
        )

    def may_join(
        self, run: RunRecord, turn: TurnRecord, new: Sequence[Block], prompts: Spans, cache: BlockCache
    ) -> bool:
        """Return whether prompts may join an active run, since they leave room for its turn, which no strategy drops.

        All joining prompts together take at most a quarter of a request, and the turn with them fits into one request.
        Estimated tokens are never too few, so an estimate refuses sooner.

        Args:
            new: blocks of the turn's output that `cache` does not hold yet.
        """
        index, budget = self._index or TokenIndex(self._counter), self.of_run(run).budget
        share = budget.max_tokens // JOIN_SHARE
        if sum(map(ByteCounter().count, cache.read(prompts))) > share * _MOST_BYTES:
            return False
        turn_spans = join(turn.prompt, turn.output, prompts)
        index.cover((*turn.input, *turn_spans), cache)
        output = zip(places(turn.output), cache.read(turn.output), strict=True)
        joined = join([place for place, block in output if isinstance(block, User)], prompts)
        taken = index.sum(turn.input, System) + index.sum(turn_spans) + sum(map(index.counter.count, new))
        return index.sum(joined) <= share and budget.overhead + taken <= budget.max_tokens

    async def _counted(self, spans: Spans, cache: BlockCache) -> TokenIndex:
        async with self._counting:
            index = self._index or await self._begin_counting(self._counter)
            missing = index.missing(spans)
            if size(missing) > COUNTED_AT_ONCE:
                # The caller may be cancelled while the thread goes on, so the thread must not write into the index.
                index.merge(await self.off_loop(index.count, missing, cache))
            else:
                index.cover(spans, cache)
            return index

    def is_estimate(self, window: Window) -> bool:
        """Return whether a window's tokens are estimated."""
        return window.counter is self._counter and self.config.token_counter is None

    async def count_exactly(self) -> None:
        """Count the tokens of all later windows by the model's vocabulary, which this loads at first."""
        async with self._counting:
            is_exact = self._index is not None and self._index.counter is not self._counter
            if self.config.token_counter is None and not is_exact:
                await self._begin_counting(await self.off_loop(counter_for, self._frame.model))

    async def _begin_counting(self, counter: TokenCounter) -> TokenIndex:
        overhead = await self.off_loop(counter.overhead, self._frame.system, self._frame.tools)
        self.budget, self._index = TokenBudget(self._limit, overhead), TokenIndex(counter)
        return self._index


def _newest_turn(turn: TurnRecord, spans: Spans, index: TokenIndex) -> int | None:
    """Return where the turn's own blocks begin in the window, without system prompts, which may have moved; or None."""
    turn_spans = join(turn.prompt, turn.output)
    in_window = overlap(spans, turn_spans)
    systems = [Span(span.log, position, position + 1) for span in in_window for position in index.places(span, System)]
    without_systems = overlap(in_window, subtract(turn_spans, systems))
    if not without_systems:
        return None
    before, first = 0, without_systems[0]
    for span in spans:
        if span.log == first.log and span.start <= first.start < span.stop:
            return before + first.start - span.start
        before += span.stop - span.start
    return None


@dataclass(frozen=True)
class Prepared:
    """A plan, with the summary that it needs, ready to be stored."""

    plan: Plan
    window: Window
    summary: Summary | None

    def spans(self, place: Span | None) -> Spans:
        """Return the spans that replace the window; the summary, if there is one, is stored at the span `place`."""
        return self.plan.spans(self.window, place)

    def outcome(self) -> Compaction:
        """Return what the compaction did, for callers and events."""
        explained = self.plan.explain()
        if self.summary is None or self.plan.summary is None:
            return replace(explained, done=True)
        spared = self.plan.summary.max_tokens - self.window.counter.count(self.summary)
        tokens = explained.tokens_after - spared
        return replace(explained, tokens_after=tokens, summary=self.summary.text, done=True)


class Preparation:
    """Gets the summaries that a plan needs and saves items in memories; repeated attempts get only what is missing.

    Args:
        turns_of: finds the turns of the session that added given blocks.
    """

    def __init__(
        self,
        plan: Plan,
        window: Window,
        compactor: Compactor,
        session: SessionView,
        turns_of: Callable[[Spans], Awaitable[Sequence[TurnBlocks]]],
    ) -> None:
        self.plan = plan
        self._window = window
        self._compactor = compactor
        self._session = session
        self._turns_of = turns_of
        self._parts: list[Ranges] | None = None
        """What `_summary` does not cover yet, in parts that each fit one request; None before the first attempt.

        A part leaves the list only once its summary is there, so that a repeated attempt asks for it again.
        """
        self._summary: str | None = None
        """The summary of the earlier parts."""
        self._handed_over: Sequence[HandedOver] | None = None
        self._saved: list[set[str]] = [set() for _ in plan.flush.memories] if plan.flush else []

    async def attempt(self, bill: Bill, check_budget: Callable[[], None]) -> None:
        """Make the model calls and memory saves that are still missing.

        Args:
            check_budget: called before each model call; raises if a budget forbids it.

        Raises:
            Exception: any error of a model or a memory, or a timeout.
        """
        if self.plan.summary:
            await self._summarize(self.plan.summary, bill, check_budget)
        if self.plan.flush:
            await self._save(self.plan.flush)

    def prepared(self) -> Prepared | None:
        """Return the part of the plan that can be carried out now, or None.

        Blocks that some memory did not save stay in the window, which may then still exceed its budget.
        """
        plan, block = self.plan, None
        if plan.summary:
            if self._summary is None or self._parts:
                return None
            block = plan.summary.block(self._window, self._summary)
        if plan.flush and (unsaved_ranges := self._unsaved_ranges(plan.flush)):
            retained = plan.retaining(self._window, self._compactor.budget, unsaved_ranges)
            if retained is None or plan.summary:
                return None
            plan = retained
        return Prepared(plan, self._window, block)

    @property
    def is_whole(self) -> bool:
        """Whether the whole plan can be carried out."""
        prepared = self.prepared()
        return prepared is not None and prepared.plan is self.plan

    def _unsaved_ranges(self, task: FlushTask) -> Ranges:
        return task.ranges if self._handed_over is None else unacknowledged(self._handed_over, self._saved)

    async def _summarize(self, task: SummaryTask, bill: Bill, check_budget: Callable[[], None]) -> None:
        if self._parts is None:
            model_window = task.model_window or window_of(frame_of(task.model).model)
            self._parts = await self._compactor.off_loop(task.parts, self._window, model_window)
        while self._parts:
            check_budget()
            request = task.request(self._window, self._parts[0], self._summary)
            self._summary = await self._ask(task, request, bill)
            del self._parts[0]

    async def _ask(self, task: SummaryTask, request: Sequence[Block], bill: Bill) -> str:
        config = self._compactor.config
        context = CompletionContext(self._session, bill)
        call = partial(ask, task.model, request, context, self._compactor.off_loop, config.cancel_grace_s)
        answer = await within(call, config.compaction_timeout_s, config.cancel_grace_s)
        if context.stop_reason in CUT_SHORT:
            raise SummaryRefusedError("cut", f"the model stopped at its limit: {context.stop_reason}")
        return task.accept(answer, self._window.counter)

    async def _save(self, task: FlushTask) -> None:
        if self._handed_over is None:
            turns = await self._turns_of(task.spans(self._window))
            session_id = self._session.session_id
            self._handed_over = await self._compactor.off_loop(task.hand_over, self._window, session_id, turns)
        items = [item for _, parts in self._handed_over for item in parts]
        memories = zip(task.memories, self._saved, strict=True)
        failures = await asyncio.gather(*(self._save_in(memory, saved, items) for memory, saved in memories))
        if messages := [failure for failure in failures if failure]:
            raise LongTermMemoryError("; ".join(messages))

    async def _save_in(self, memory: LongTermMemory, saved: set[str], items: Sequence[MemoryItem]) -> str | None:
        """Save the items that a memory lacks; return why that failed, or None. Other memories are not affected."""
        missing = [item for item in items if item.id not in saved]
        if not missing:
            return None
        config = self._compactor.config
        name = str(getattr(memory, "name", type(memory).__name__))
        words = {item.id: self._words_of(item) for item in missing}
        has: dict[str | None, Collection[str]] = {}
        try:
            for person in dict.fromkeys(person for item_words in words.values() for person in item_words):
                scope, own = self._scope_of(person), [own[person] for own in words.values() if person in own]
                has[person] = await within(
                    partial(memory.remember, scope, own), config.compaction_timeout_s, config.cancel_grace_s
                )
            for item_id, item_words in words.items():
                if all(item.id in has[person] for person, item in item_words.items()):
                    saved.add(item_id)
        except Exception as error:  # noqa: BLE001 - the error is reported, and unsaved blocks stay
            reason = error.why if isinstance(error, LongTermMemoryError) else str(error)
            return f"{name}: {reason or type(error).__name__}"
        unsaved = sum(item.id not in saved for item in missing)
        return f"{name}: {unsaved} of {len(missing)} items were not saved" if unsaved else None

    def _words_of(self, item: MemoryItem) -> dict[str | None, MemoryItem]:
        """Return what the memories of people get of an item, by the person; see `recipients`."""
        session, saves = self._session, self._compactor.config.memory.group_saves
        if not is_of_group(None, item.blocks):
            return {None: item}
        index, words = item.source.turn_index, dict[str | None, MemoryItem]()
        for person in recipients(session, None, item.blocks, saves):
            own = words_for(person, session.user_id, item.source.spans, item.blocks, whole=saves != "author")
            turn = None if index is None else TurnBlocks(index, own[0], item.created_at)
            if personal := turn_item(str(self._scope_of(person).session_id), turn, *own):
                words[person] = personal
        return words

    def _scope_of(self, person: str | None) -> Scope:
        session = self._session
        session_id = session.session_id if person is None else shared_id(session.key)
        return Scope(user_id=person or session.user_id, session_id=session_id, agent=session.agent)

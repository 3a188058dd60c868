"""`replay`: answers stored turns anew, by another engine, and compares. Nothing is written to the sessions."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.services.stored_conversations import StoredConversations, conversations_of
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import as_engine, engines_of
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.budget import Prices
from turnwise.actors.session.window.compaction_tasks import check_overflow
from turnwise.errors import InvalidInputError, SessionNotFoundError, shown
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.longterm.base import LongTermMemory
from turnwise.replay.comparing import Comparing, Embedding, Refusal
from turnwise.replay.conditions import Condition, Verdict
from turnwise.replay.grading import Grader
from turnwise.replay.recalling import Recalling
from turnwise.replay.recorded import recorded_turns
from turnwise.replay.records import TurnReplay
from turnwise.replay.replaying import Replaying, Variant, Work
from turnwise.replay.report.overview import Overview
from turnwise.replay.report.page import write_report
from turnwise.replay.scale.parts import Unreadable
from turnwise.replay.scale.settings import AtScale
from turnwise.replay.selecting import Candidates, Chosen, Selection, sessions_of
from turnwise.replay.settings import settings_of
from turnwise.replay.shadowed import ShadowRecords
from turnwise.replay.statistics import Summary, Summing, difference
from turnwise.replay.tools import RecordedTools
from turnwise.replay.windows import check_strategy
from turnwise.replay.writing import Lines, check_parquet, write_parquet
from turnwise.strategies.strategy import OverflowStrategy

MOST_SHOWN = 300
"""How many turns a report shows: those that differ most."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay has found."""

    summary: Summary
    turns: tuple[TurnReplay, ...] = ()
    """The records of turns, at most `keep`: those whose answers differ most, the most different one first."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it was made with: models, temperatures, prices, seeds, the selection. No keys."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The files that were written, by kind: `report`, `lines`, `settings`, `parquet`."""
    failed: tuple[str, ...] = ()
    """Why `fail_if` has not passed: its comparisons that are true, with their numbers, and all of `undecided`; empty if
    it has passed."""
    undecided: tuple[str, ...] = ()
    """The comparisons of `fail_if` whose numbers are not known, such as costs without a price, with the reason."""
    left: int = 0
    """At scale: how many sessions have turns that were not asked, or whose provider was away. The same call goes on."""
    stopped: str | None = None
    """Why turns are left, if they are, and the provider was not away."""
    unreadable: tuple[Unreadable, ...] = ()
    """At scale: sessions that cannot be read, at most 1,000 of them."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A replay with all of its settings, checked."""

    work: Work
    select: Selection
    at_once: int
    keep: int
    out: Path | None
    parquet: bool
    seed: int
    condition: Condition | None
    progress: Callable[[int], object] | None
    at_scale: AtScale | None


Engines = EngineBuilder | Mapping[str, EngineBuilder]
"""An engine, or several by name."""


class ReplayOptions(TypedDict, total=False):
    """The optional arguments of `replay`, which describes them."""

    floor: Engines | None
    select: Selection | None
    overflow: OverflowStrategy | None
    memory: Sequence[LongTermMemory] | None
    forward: bool
    tools: RecordedTools | Literal["recorded"]
    graders: Sequence[Grader]
    embedding: Embedding | None
    normalise: Callable[[str], str] | None
    refusal: Refusal | None
    config: SessionConfig | None
    prices: Prices | None
    at_once: int
    timeout_s: float | None
    seed: int
    out: str | Path | None
    parquet: bool
    keep: int
    fail_if: str | None
    progress: Callable[[int], object] | None
    at_scale: AtScale | None


@overload
def replay(manager: SessionManager, *, engine: Engines, **options: Unpack[ReplayOptions]) -> Replay: ...


@overload
def replay(
    manager: AsyncSessionManager, *, engine: Engines, **options: Unpack[ReplayOptions]
) -> Coroutine[Any, Any, Replay]: ...


def replay(manager: SessionManager | AsyncSessionManager, *, engine: Engines, **options: Unpack[ReplayOptions]) -> Any:
    """Answer stored turns anew, and compare the answers with the recorded ones; see `Replay`.

    The engine gets for each turn what the model was given then: the same window, recalled text, instructions,
    parameters and tools of the run. Its own system prompt, tools and middleware are its own. Nothing is written to the
    sessions, no memory is changed, and no tool is called that may change something. An error of the engine is part of
    its turn's record.

    With an `AsyncSessionManager` this is a coroutine, which may be cancelled; with a `SessionManager` it blocks.

    Args:
        engine: answers the turns. With a mapping, each session gets the engine of the name that it has. With
            `ShadowRecords`, nothing is asked: what a candidate answered beside the runs is compared.
        floor: the recorded engine, usually that of the manager: it is asked again, too. How its answers differ from the
            recorded ones comes by chance, and is what other differences have to be compared with.
        select: which turns; all that have completed or failed, if omitted.
        overflow: makes the windows anew, from the beginning of each conversation, as if sessions had had this strategy.
            By default each turn has the window that was recorded.
        memory: memories that are searched anew, as of each turn, instead of the text that was recorded.
        forward: the first selected turn of each conversation, and all turns after it, continue the answers of the
            replay instead of the recorded ones; the prompts are the recorded ones.
        tools: how calls of tools are answered: see `RecordedTools`.
        graders: give answers numbers: see `FunctionGrader` and `ModelGrader`.
        embedding: makes vectors of texts, for the similarity of answers.
        normalise: what is done to texts before they count as the same; see `Comparing`.
        refusal: says whether an answer is a refusal, as a function or a grader; see `Comparing`.
        config: prices and the size of the model's window; the manager's if omitted.
        prices: the prices of models, in place of those of `config`. Without a price, the cost of an answer is unknown.
        at_once: how many conversations are replayed at the same time.
        timeout_s: how long an answer may take, in seconds; as long as its run was allowed to, if omitted.
        seed: of the intervals; `Selection` has that of the sample.
        out: a folder for `report.html`, which opens without a server, `turns.jsonl`, and `settings.json`. Files there
            are replaced.
        parquet: whether `out` gets `turns.parquet`, too; needs pyarrow.
        keep: how many records of turns the result has.
        fail_if: when the replay counts as failed, such as `cost > 1.1x or refusals > +1%`: see `Condition.parse`. It
            fails, too, if it says nothing about errors and these are more by over 1 % of the turns, if nothing was
            compared, and if it depends on something unknown.
        progress: called with the number of turns that were replayed, after each conversation.
        at_scale: how many sessions are replayed: with Ray Data, within rates and a budget, and going on after a kill.
            Then `out` gets the records as a folder of parts, `turns`.

    Raises:
        InvalidInputError, ConfigError: an argument cannot be used; nothing was asked.
        SessionNotFoundError: a session that `select` names does not exist.
        StoreError: the store cannot be read.
        ReplayChangedError: at scale, the folder has a replay with other settings.
        ReplayInUseError: at scale, another replay writes into the folder.
    """
    if not isinstance(manager, SessionManager | AsyncSessionManager):
        raise InvalidInputError("manager", shown(manager), "pass a SessionManager or an AsyncSessionManager")
    job = _job(engine, manager_config=manager.config, **options)
    return conversations_of(manager, lambda stored: _replay(stored, job))


def _job(
    engine: Engines,
    *,
    manager_config: SessionConfig,
    floor: Engines | None = None,
    select: Selection | None = None,
    overflow: OverflowStrategy | None = None,
    memory: Sequence[LongTermMemory] | None = None,
    forward: bool = False,
    tools: RecordedTools | Literal["recorded"] = "recorded",
    graders: Sequence[Grader] = (),
    embedding: Embedding | None = None,
    normalise: Callable[[str], str] | None = None,
    refusal: Refusal | None = None,
    config: SessionConfig | None = None,
    prices: Prices | None = None,
    at_once: int = 8,
    timeout_s: float | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    parquet: bool = False,
    keep: int = 10_000,
    fail_if: str | None = None,
    progress: Callable[[int], object] | None = None,
    at_scale: AtScale | None = None,
) -> _Job:
    """Return a replay whose arguments can be used; see `replay`."""
    config = config or manager_config
    config = config if prices is None else replace(config, prices=prices)
    _check_number("at_once", at_once, 1)
    _check_number("keep", keep, 0)
    builder = _checked_engine(engine)
    if overflow is not None:
        if not isinstance(overflow, OverflowStrategy) or isinstance(overflow, type):
            raise InvalidInputError("overflow", shown(overflow), "pass an OverflowStrategy, such as Trim()")
        check_strategy(overflow)
        check_overflow(overflow, builder, config)
    if tools != "recorded" and not isinstance(tools, RecordedTools):
        raise InvalidInputError("tools", shown(tools), "pass 'recorded' or RecordedTools(...)")
    if parquet:
        if out is None:
            raise InvalidInputError("parquet", shown(parquet), "pass a folder as out=")
        check_parquet()
    if at_scale is not None:
        if not isinstance(at_scale, AtScale):
            raise InvalidInputError("at_scale", shown(at_scale), "pass AtScale(...)")
        if out is None:
            raise InvalidInputError("out", shown(out), "a replay at scale needs a folder for its records")
        if progress is not None:
            raise InvalidInputError("progress", shown(progress), "pass it to AtScale: it gets a Progress there")
    if isinstance(builder, ShadowRecords):
        settings = {"overflow": overflow, "memory": memory, "forward": forward, "at_scale": at_scale}
        for name, value in settings.items():
            if value:
                reason = "records of a Shadow are read, and nothing is asked: leave it out"
                raise InvalidInputError(name, shown(value), reason)
    recalling = None if memory is None else Recalling(memories=tuple(memory), config=config.memory)
    work = Work(
        variant=Variant(engine=builder, overflow=overflow, memory=recalling, forward=forward),
        floor=None if floor is None else Variant(engine=_checked_engine(floor, "floor")),
        tools=RecordedTools() if tools == "recorded" else tools,
        comparing=Comparing(embedding=embedding, graders=tuple(graders), normalise=normalise, refusal=refusal),
        config=config,
        timeout_s=timeout_s,
    )
    return _Job(
        work=work,
        select=select or Selection(),
        at_once=at_once,
        keep=keep,
        out=None if out is None else Path(out),
        parquet=parquet,
        seed=seed,
        condition=None if fail_if is None else _condition(fail_if, graders, has_floor=floor is not None),
        progress=progress,
        at_scale=at_scale,
    )


def _condition(fail_if: str, graders: Sequence[Grader], *, has_floor: bool) -> Condition:
    condition = Condition.parse(fail_if, tuple(grader.name for grader in graders))
    if condition.needs_floor and not has_floor:
        reason = "it compares with the floor: pass the recorded engine as floor= or --floor"
        raise InvalidInputError("fail_if", shown(fail_if), reason)
    return condition


EXACT = "exact"
"""Of turns whose requests are the recorded ones, in what `check_requests` returns."""


@overload
def check_requests(manager: SessionManager, *, select: Selection | None = None) -> Mapping[str, int]: ...


@overload
def check_requests(
    manager: AsyncSessionManager, *, select: Selection | None = None
) -> Coroutine[Any, Any, Mapping[str, int]]: ...


def check_requests(manager: SessionManager | AsyncSessionManager, *, select: Selection | None = None) -> Any:
    """Return how many selected turns a replay would ask as they were asked then, as `exact`; no engine is asked.

    The others, whose requests may differ, are counted by each reason: see `TurnReplay.inexact`. The sample of a
    selection is ignored.

    With an `AsyncSessionManager` this is a coroutine; with a `SessionManager` it blocks.
    """
    if not isinstance(manager, SessionManager | AsyncSessionManager):
        raise InvalidInputError("manager", shown(manager), "pass a SessionManager or an AsyncSessionManager")
    return conversations_of(manager, lambda stored: _checked(stored, select or Selection()))


async def _checked(stored: StoredConversations, select: Selection) -> Mapping[str, int]:
    counts: Counter[str] = Counter({EXACT: 0})
    async for session in sessions_of(stored.store, select):
        pages = recorded_turns(stored.store, session.key, select, has_memories=stored.has_memories)
        async for page in pages:
            counts.update(reason for turn in page for reason in turn.inexact or (EXACT,))
    return dict(counts)


def _check_number(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInputError(name, shown(value), f"must be a whole number from {least}")


def _checked_engine(engine: Any, field_name: str = "engine") -> EngineBuilder:
    builder = as_engine(engine)
    for each in engines_of(builder):
        if getattr(each, "calls_its_tools", False):
            reason = "it calls its tools by itself, so a replay with it could change something: use its model alone"
            raise InvalidInputError(field_name, type(each).__name__, reason)
    return builder


class _Results:
    """Gathers the records of a replay: lines, sums, and the turns that differ most."""

    def __init__(self, job: _Job, lines: Lines | None) -> None:
        self._job = job
        self._lines = lines
        self._summing = Summing([grader.name for grader in job.work.comparing.graders], seed=job.seed)
        self.overview = Overview()
        self._most: list[tuple[tuple[float, float], int, TurnReplay]] = []
        self._numbers = itertools.count()
        self.count = 0

    def add(self, replays: Sequence[TurnReplay]) -> None:
        """Add the records of turns of one conversation."""
        if self._lines:
            self._lines.add(replays)
        for turn in replays:
            self._summing.add(turn)
            self.overview.add(turn)
            entry = difference(turn), -next(self._numbers), turn
            if len(self._most) < self._job.keep:
                heapq.heappush(self._most, entry)
            elif self._most and entry > self._most[0]:
                heapq.heapreplace(self._most, entry)
        self.count += len(replays)
        if self._job.progress and replays:
            self._job.progress(self.count)

    def result(self) -> Replay:
        """Return what was found; write the files that need all of it."""
        summary = self._summing.summary()
        turns = tuple(turn for *_, turn in sorted(self._most, key=lambda entry: entry[:2], reverse=True))
        verdict = self._job.condition.check(summary) if self._job.condition else Verdict()
        settings = settings_of(self._job.work, self._job.select, seed=self._job.seed)
        failed = (*verdict.met, *verdict.unknown)
        return Replay(summary=summary, turns=turns, settings=settings, failed=failed, undecided=verdict.unknown)


async def _replay(stored: StoredConversations, job: _Job) -> Replay:
    if job.at_scale is not None and job.out is not None:
        return await _replay_at_scale(stored, job, job.at_scale, job.out)
    if job.out is None:
        results = _Results(job, None)
        await _run(stored, job, results)
        return results.result()
    with await asyncio.to_thread(Lines, job.out) as lines:
        results = _Results(job, lines)
        await _run(stored, job, results)
    found = results.result()
    files = {"lines": lines.path, "settings": job.out / "settings.json"}
    await asyncio.to_thread(files["settings"].write_text, json.dumps(found.settings, indent=2), "utf-8")
    if job.parquet:
        files["parquet"] = await asyncio.to_thread(write_parquet, lines.path)
    files = {"report": job.out / "report.html", **files}
    shown_turns = found.turns[:MOST_SHOWN]
    await asyncio.to_thread(
        write_report,
        files["report"],
        found.summary,
        shown_turns,
        failed=found.failed,
        settings=found.settings,
        overview=results.overview,
    )
    return replace(found, files=files)


async def _replay_at_scale(stored: StoredConversations, job: _Job, scale: AtScale, out: Path) -> Replay:
    from turnwise.replay.scale.run import replay_at_scale

    found = await replay_at_scale(
        stored,
        folder=out,
        work=job.work,
        select=job.select,
        at_once=job.at_once,
        keep=job.keep,
        seed=job.seed,
        parquet=job.parquet,
        scale=scale,
    )
    verdict = job.condition.check(found.summary) if job.condition else Verdict()
    unknown = verdict.unknown
    if job.condition and found.left and not found.stopped:
        away = f"{found.left} conversations were not replayed, since the provider was away: the same call goes on"
        unknown = (*unknown, away)
    failed = (*verdict.met, *unknown)
    files = {"report": out / "report.html", "lines": found.lines, "settings": out / "settings.json"}
    settings = settings_of(job.work, job.select, seed=job.seed)
    await asyncio.to_thread(files["settings"].write_text, json.dumps(settings, indent=2), "utf-8")
    shown_turns = found.turns[:MOST_SHOWN]
    await asyncio.to_thread(
        write_report,
        files["report"],
        found.summary,
        shown_turns,
        failed=failed,
        settings=settings,
        overview=found.overview,
    )
    return Replay(
        summary=found.summary,
        turns=found.turns,
        settings=settings,
        files=files,
        failed=failed,
        undecided=unknown,
        left=found.left,
        stopped=found.stopped,
        unreadable=found.unreadable,
    )


async def _run(stored: StoredConversations, job: _Job, results: _Results) -> None:
    """Replay all selected turns, some conversations at once. If one raises, the others are cancelled."""
    select = job.select
    if select.sample is None:
        await _run_chosen(stored, job, results, _all(stored, job))
        return
    candidates = Candidates(select.seed)
    async for session in sessions_of(stored.store, select):
        if _turns_of(job, session) != frozenset():
            candidates.add(session)
    while (missing := select.sample - results.count) > 0 and (chosen := candidates.take(missing)):
        await _run_chosen(stored, job, results, _each(chosen))


async def _all(stored: StoredConversations, job: _Job) -> AsyncIterator[Chosen]:
    async for session in sessions_of(stored.store, job.select):
        if (indexes := _turns_of(job, session)) != frozenset():
            yield session.key, indexes


def _turns_of(job: _Job, session: SessionRecord) -> frozenset[int] | None:
    """Return the indexes of the turns that may have an answer; None for all."""
    engine = job.work.variant.engine
    return engine.turns_of(session.key) if isinstance(engine, ShadowRecords) else None


async def _each(chosen: Sequence[Chosen]) -> AsyncIterator[Chosen]:
    for one in chosen:
        yield one


async def _run_chosen(stored: StoredConversations, job: _Job, results: _Results, chosen: AsyncIterator[Chosen]) -> None:
    """Replay chosen turns. At most `at_once` conversations are in memory, each with a page of its turns."""
    places = asyncio.Semaphore(job.at_once)

    async def work(one: Chosen) -> None:
        try:
            await _run_conversation(stored, job, results, one)
        finally:
            places.release()

    try:
        async with asyncio.TaskGroup() as group:
            async for one in chosen:
                await places.acquire()
                group.create_task(work(one))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _run_conversation(stored: StoredConversations, job: _Job, results: _Results, one: Chosen) -> None:
    key, indexes = one
    replaying = Replaying(job.work, stored.files)
    try:
        turns = recorded_turns(
            stored.store,
            key,
            job.select,
            indexes,
            is_whole=job.work.is_whole,
            has_memories=stored.has_memories and job.work.variant.memory is None,
        )
        async for page in turns:
            results.add(await replaying.add(page))
    except SessionNotFoundError:
        if key.session_id in job.select.sessions:
            raise
        # It was deleted meanwhile.
    finally:
        await replaying.close()

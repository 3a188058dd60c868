"""The laws of engines, checked on sessions in memory, without Ray. Needs no test framework.

The laws do not depend on what the engine's model says, only that it says something to a short prompt. Two laws need a
model that behaves in a way of its own, as `check_engine` describes.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from turnwise.actors.hosting.identity import identity, pickled
from turnwise.actors.inference.engine import (
    EngineBuilder,
    Extensible,
    InferenceRunner,
    Selective,
    SessionView,
    Steerable,
    Structured,
)
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.conformance.skipping import SkippedError
from turnwise.errors import InvalidInputError, SessionFencedError, TurnwiseError
from turnwise.memory.conversation.blocks import AnyBlock, Document, Image, Text, ToolResult, User
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.requests import validate
from turnwise.memory.stores.conformance.laws import Law, collector, equal
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import new_id

GRACE_S = 5.0
"""How many seconds an engine has to stop after a cancel."""

LONG_S = 60.0
"""How many seconds a run may take."""

SHORT = "Answer in a few words: what is a lighthouse for?"

LONG = "Count slowly from 1 to 200, one number on each line."


async def check_engine(make: Callable[[str], EngineBuilder | None]) -> None:
    """Check all laws, in order.

    Args:
        make: returns an engine for the name of a law. For `a_failure_ends_only_its_run` its model fails, such as by a
            wrong address or key; for `a_cancel_ends_the_run` it answers for some seconds. None skips the law.

    Raises:
        AssertionError: the engine breaks a law; names the law.
    """
    for law in LAWS:
        engine = make(law.__name__.removeprefix("check_"))
        try:
            if engine is not None:
                await law(engine)
        except AssertionError as error:
            if not isinstance(error.__cause__, SkippedError):
                raise


LAWS: list[Law] = []
"""All laws, in order."""

_OPENED: ContextVar[list[_Stage]] = ContextVar("opened")
"""The sessions that the law under way has opened."""


def _law(check: Law) -> Law:
    """Add a law, whose sessions are closed after it."""

    @functools.wraps(check)
    async def closing(engine: EngineBuilder) -> None:
        opened: list[_Stage] = []
        _OPENED.set(opened)
        try:
            await check(engine)
        finally:
            for stage in opened:
                await stage.close()

    return collector(LAWS)(closing)


class _Stage:
    """A session in memory that uses the engine."""

    def __init__(self, engine: EngineBuilder, store: InMemoryStore | None = None, **config: Any) -> None:
        self.builder = engine
        self.store = store or InMemoryStore()
        self.config = SessionConfig(cancel_grace_s=GRACE_S, **config)
        self.core = SessionCore(SessionKey("session"), self.store, self.builder, self.config)
        _OPENED.get().append(self)

    @classmethod
    async def opened(cls, engine: EngineBuilder, **config: Any) -> _Stage:
        stage = cls(engine, **config)
        await stage.store.create(SessionRecord(session_id="session"))
        return stage

    async def close(self) -> None:
        """Stop its runs, and close the engine's runners."""
        engines = self.core.engines
        unused = engines.remove_all()
        self.core.transactor.give_up(SessionFencedError("session", 0))
        await engines.close(unused)

    async def start(self, *prompts: str, **options: Any) -> str:
        return (await self.core.admission.start(list(prompts), run_id=new_id(), **options)).run_id

    async def ended(self, run_id: str) -> tuple[RunRecord, Turn | None]:
        outcome = await self.core.reads.wait(run_id, LONG_S)
        if outcome.run.is_open:
            raise AssertionError(f"the run has not ended after {LONG_S:.0f} s")
        return outcome.run, outcome.turn

    async def completed(self, run_id: str) -> Turn:
        run, turn = await self.ended(run_id)
        equal((run.state, run.why), ("completed", None), "how the run ended")
        if turn is None:
            raise AssertionError("the run has no turn")
        return turn

    async def events(self, run_id: str) -> list[Event]:
        events, _, _ = await self.core.reads.events(0, 1_000_000)
        return [event for event in events if event.run_id == run_id]


def _check_next(blocks: tuple[AnyBlock, ...]) -> None:
    """Raise unless each provider takes the conversation with a next prompt."""
    for provider in ("chat", "responses", "anthropic"):
        try:
            validate([*blocks, User(text="next")], provider=provider)
        except TurnwiseError as error:
            raise AssertionError(f"the next request would be refused: {error}") from None


@_law
async def check_it_pickles_and_keeps_its_identity(engine: EngineBuilder) -> None:
    """Another process gets the same engine, by the digest that sessions compare."""
    copy = pickle.loads(pickled(engine))  # noqa: S301 - made here
    equal(identity(copy), identity(engine), "the identity of its copy")
    runner = copy.build(SessionView(session_id="s", user_id="u", agent=None, metadata=FrozenDict()))
    equal(isinstance(runner, InferenceRunner), True, "whether what its copy builds is a runner")


@_law
async def check_an_answer_is_blocks_that_each_provider_takes(engine: EngineBuilder) -> None:
    """Two turns after one another; the answer has a text."""
    stage = await _Stage.opened(engine)
    for prompt in (SHORT, "And a buoy?"):
        turn = await stage.completed(await stage.start(prompt))
        equal(
            any(isinstance(block, Text) and block.text.strip() for block in turn.output), True, "whether it has a text"
        )
        _check_next(turn.blocks)


@_law
async def check_what_is_streamed_is_what_is_answered(engine: EngineBuilder) -> None:
    """The events of the run, deltas included, tell its output."""
    stage = await _Stage.opened(engine)
    run_id = await stage.start(SHORT)
    turn = await stage.completed(run_id)
    events = await stage.events(run_id)
    equal(Ledger.replay(events).blocks(), list(turn.output), "what the events tell")
    equal([event.kind for event in events if event.terminal], ["run_completed"], "its terminal events")
    ended = next(index for index, event in enumerate(events) if event.terminal)
    streamed = [event for event in events[:ended] if event.kind == "text_delta"]
    if streamed:
        ledger = Ledger.replay(events[:ended])
        text = "".join(block.text for block in ledger.blocks() if isinstance(block, Text))
        answered = "".join(block.text for block in turn.output if isinstance(block, Text))
        equal(text, answered, "the text that was streamed")


@_law
async def check_a_cancel_ends_the_run(engine: EngineBuilder) -> None:
    """Within the grace period. The text so far stays, the next request is valid, and the session goes on."""
    stage = await _Stage.opened(engine)
    run_id = await stage.start(LONG)
    after, is_ended, events = 0, False, list[Event]()
    while not is_ended and not any(event.kind == "text_delta" for event in events):
        events, after, is_ended = await stage.core.reads.events(after, 1000, run_id=run_id, timeout_s=LONG_S)
        if not events:
            break
    began = asyncio.get_running_loop().time()
    await stage.core.admission.cancel("enough", run_id)
    took_s = asyncio.get_running_loop().time() - began
    run, turn = await stage.ended(run_id)
    if run.state == "completed":
        raise SkippedError("the run completed before it was cancelled: return an engine that takes longer for this law")
    equal(run.state, "cancelled", "how the run ended")
    if took_s >= GRACE_S:
        raise AssertionError(f"it did not stop within {GRACE_S:.0f} s, and was left behind: re-raise CancelledError")
    if turn is not None:
        _check_next(turn.blocks)
    run_id = await stage.start(SHORT)
    await stage.core.admission.cancel("enough", run_id)


@_law
async def check_a_failure_ends_only_its_run(engine: EngineBuilder) -> None:
    """As failed, with a reason. The text before stays, and the next request is valid."""
    stage = await _Stage.opened(engine)
    run, turn = await stage.ended(await stage.start(SHORT))
    if run.state == "completed":
        raise SkippedError("its model did not fail: return an engine whose model fails for this law")
    equal(run.state, "failed", "how the run ended")
    equal(bool(run.why), True, "whether it says why")
    if turn is not None:
        _check_next(turn.blocks)
    again, _ = await stage.ended(await stage.start("Again."))
    equal(again.state in ("failed", "completed"), True, f"whether the next run ends ({again.state})")


@_law
async def check_a_run_is_resumed_after_its_process_is_lost(engine: EngineBuilder) -> None:
    """Another process takes the session over in the middle of a run, which then completes, once."""
    stage = await _Stage.opened(engine, on_lost="resume")
    run_id = await stage.start(SHORT)
    second = _Stage(engine, stage.store, on_lost="resume")
    await second.core.transactor.activate()
    turn = await second.completed(run_id)
    _check_next(turn.blocks)
    stored = await stage.store.events(SessionKey("session"))
    equal([event.kind for event in stored if event.terminal], ["run_completed"], "its terminal events")
    results = [block.call_id for block in turn.output if isinstance(block, ToolResult)]
    equal(len(set(results)), len(results), "how many results its calls have")


@_law
async def check_sessions_do_not_mix(engine: EngineBuilder) -> None:
    """Ten sessions at once, each with a runner of its own, all complete."""
    stages = [await _Stage.opened(engine) for _ in range(10)]
    runs = await asyncio.gather(*(stage.start(f"{SHORT} ({number})") for number, stage in enumerate(stages)))
    turns = await asyncio.gather(*(stage.completed(run_id) for stage, run_id in zip(stages, runs, strict=True)))
    prompts = [[block.text for block in turn.asked if isinstance(block, User)] for turn in turns]
    equal(prompts, [[f"{SHORT} ({number})"] for number in range(10)], "what each was asked")


@_law
async def check_parameters_are_applied_or_refused(engine: EngineBuilder) -> None:
    """A parameter or a model that the engine does not take is refused before anything is stored."""
    stage = await _Stage.opened(engine)
    builder = stage.builder
    for model, params in ((None, {"temperature": 0.5}), (None, {"max_output_tokens": 64}), ("another-model", {})):
        refused = builder.not_taken(model, params) if isinstance(builder, Steerable) else {"": "it takes none"}
        equal(
            all(isinstance(reason, str) and reason for reason in refused.values()),
            True,
            "whether each refusal says why",
        )
        try:
            run_id = await stage.start(SHORT, model=model, params=params)
        except InvalidInputError as error:
            equal(bool(refused), True, f"whether not_taken() says so too ({error})")
            continue
        equal(refused, {}, f"what not_taken() says of {model or params}, which a run was started with")
        run, _ = await stage.ended(run_id)
        equal((run.model, dict(run.params)), (model, params), "what was stored with the run")
    equal(all(turn.run_id for turn in await stage.core.reads.turns()), True, "whether a refused run left a turn")


@_law
async def check_own_instructions_and_tools_are_applied_or_refused(engine: EngineBuilder) -> None:
    """Those of one run alone."""
    stage = await _Stage.opened(engine)
    try:
        run_id = await stage.start(SHORT, instructions="Be brief.")
    except InvalidInputError as error:
        equal(isinstance(stage.builder, Extensible), False, f"whether it is Extensible ({error})")
        return
    equal(isinstance(stage.builder, Extensible), True, "whether it is Extensible")
    turn = await stage.completed(run_id)
    equal("Be brief." in str(turn.blocks), False, "whether the history has the run's own instructions")


@_law
async def check_typed_answers_fit_their_schema_or_are_refused(engine: EngineBuilder) -> None:
    """A run ends with an answer of the type, or fails and says that there is none."""
    from turnwise.actors.inference.tools.signature import output_record

    schema = {"type": "object", "properties": {"use": {"type": "string"}}, "required": ["use"]}
    stage = await _Stage.opened(engine)
    try:
        run_id = await stage.start(SHORT, output=output_record(schema, 0))
    except InvalidInputError as error:
        equal(isinstance(stage.builder, Structured), False, f"whether it is Structured ({error})")
        return
    run, turn = await stage.ended(run_id)
    if run.state == "completed" and turn is not None:
        turn.parse(dict[str, Any])
        equal("use" in turn.parse(dict[str, Any]), True, "whether the answer fits the schema")
        return
    equal(run.code in ("output_invalid", "output_refused", "output_cut"), True, f"whether it says so ({run.why})")


@_law
async def check_what_it_refuses_is_not_stored(engine: EngineBuilder) -> None:
    """Pictures and files of kinds that its provider does not take, if it knows them."""
    stage = await _Stage.opened(engine)
    builder = stage.builder
    if not isinstance(builder, Selective):
        raise SkippedError("it does not say which pictures and files it takes: see Selective")
    tried: list[Image | Document] = [Image(data="AAAA", media_type="image/tiff"), Image(url="https://a.example/b.png")]
    tried.append(Document(name="a.bin", data="AAAA", media_type="application/octet-stream"))
    for block in tried:
        reason = builder.refuses(block)
        equal(reason is None or bool(reason), True, "whether a refusal says why")
        if reason is None:
            continue
        try:
            await stage.core.admission.append([block], new_id())
        except InvalidInputError:
            continue
        raise AssertionError(f"a refused {block.kind} was stored")
    equal(await stage.core.reads.turns(), [], "what was stored")

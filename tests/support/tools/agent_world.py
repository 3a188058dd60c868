"""Agents in seeded schedules: a model that calls tools as the dice fall, tools of every kind, processes that die.

A session's core runs in a "process": a context that its tasks inherit, so that a kill can stop all of them at whatever
they wait for, as SIGKILL does.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from operator import attrgetter
from typing import Any

from schedules import SESSION, DawdlingStore, inline, pause
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, external_tool, tool
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import CallDecidedError, RequestRefusedError, RunNotFoundError, StoreError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Document, Image, Text, Thinking, ToolUse, User
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.providers import anthropic, openai_chat as chat, openai_responses as responses
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat, check_responses

PROCESS: ContextVar[int] = ContextVar("process", default=0)


REFUSED = Image(data="aGk=", media_type="image/png")
"""A picture that the model's provider refuses, though its rules take it."""

UNTAKEN = (
    Document(name="v.mp4", data="aGk=", media_type="video/mp4"),
    Image(data="aGk=", media_type="image/bmp"),
    Image(url="ftp://example.org/cat.png"),
)
"""What the rules of one provider or another do not take."""

FLAWED = (
    Image(data="%%%", media_type="image/png"),
    Image(data="aGk=", media_type="text/plain"),
    Document(name="a.pdf", data="!!!", media_type="application/pdf"),
)
"""What nobody can take."""


class KilledError(Exception):
    """The process was killed under a call."""


def check_request(blocks: Sequence[Block]) -> None:
    """Raise if one of the three providers would refuse this conversation, by the rules or on the wire.

    Pictures and files that it does not take are sent as engines send those of turns that have ended.
    """
    requests = {rules.name: rules.spare(blocks) for rules in (CHAT, RESPONSES, ANTHROPIC)}
    for rules in (CHAT, RESPONSES, ANTHROPIC):
        check(messages_of(requests[rules.name]), rules)
    check_chat(chat.encode(requests[CHAT.name]))
    check_responses(responses.encode(requests[RESPONSES.name])[1])
    wire = anthropic.encode(requests[ANTHROPIC.name])[1]
    kinds = [message["content"][0]["type"] for message in wire if message["role"] == "assistant"]
    # Thinking can be on only for a conversation in which the model has always thought.
    check_anthropic(wire, thinking=all(kind in ("thinking", "redacted_thinking") for kind in kinds))


class Processes:
    """The processes of a schedule: which tasks each has, and which are dead."""

    def __init__(self) -> None:
        self.tasks: dict[int, list[asyncio.Task[Any]]] = {}
        self.dead: set[int] = set()
        asyncio.get_running_loop().set_task_factory(self._new_task)

    def kill(self, process: int) -> None:
        self.dead.add(process)
        for task in self.tasks.get(process, ()):
            task.cancel()

    @property
    def is_alive(self) -> bool:
        return PROCESS.get() not in self.dead

    async def call(self, process: int, coroutine: Any) -> Any:
        """Run a coroutine in a process; KilledError if that dies first."""
        context = copy_context()
        context.run(PROCESS.set, process)
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        self.tasks.setdefault(process, []).append(task)
        await asyncio.wait([task])
        if task.cancelled() or process in self.dead:
            raise KilledError
        return task.result()

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **settings)
        if process := PROCESS.get():
            self.tasks.setdefault(process, []).append(task)
        return task


class WildModel:
    """Thinks, talks and calls tools as the dice fall; refuses to be asked what a provider would refuse."""

    NAMES = ("quick", "slow", "again", "fails", "stubborn", "careful", "outside", "unknown", "quick")

    def __init__(self, random: random.Random, processes: Processes) -> None:
        self._random = random
        self._processes = processes
        self.requests = 0

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        check_request(turn.blocks)
        self.requests += 1
        if REFUSED in turn.blocks:
            raise RequestRefusedError("the provider refuses a picture")
        dice, number = self._random.random, self.requests
        output: list[AnyBlock] = []
        if dice() < 0.4:
            signature = self._random.choice((None, "signed", responses.pack_reasoning(f"rs_{number}", "secret")))
            output.append(Thinking(text=f"hm {number}", signature=signature))
            context.emit(output[0])
        if dice() < 0.8:
            for piece in ("let me ", "see ", str(number)):
                context.emit(piece)
                await pause(self._random)
            output.append(Text(text=f"let me see {number}"))
        if dice() < 0.05:
            raise ValueError("the model broke")
        calls = self._random.choice((0, 0, 1, 1, 2, 3)) if output else 1
        for call in range(calls):
            name = self._random.choice(self.NAMES)
            arguments = {"thing": f"{number}.{call}"} if dice() < 0.9 else {"think": 1}
            # Some servers count calls anew in each answer.
            call_id = f"{context.run_id}-{number}-{call}" if dice() < 0.7 else f"call_{call % 2}"
            output.append(ToolUse(call_id=call_id, name=name, input=arguments))
        self._random.shuffle(output)
        return output if any(isinstance(block, Text | ToolUse) for block in output) else [*output, Text(text="done")]


class Workshop:
    """What the tools of a schedule did: `begun` and `done` count by call."""

    current: Workshop

    def __init__(self, random: random.Random, processes: Processes) -> None:
        self.random = random
        self.processes = processes
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.names: dict[str, str] = {}
        self.approved: set[str] = set()
        Workshop.current = self


def _make(kind: str, **settings: Any) -> Tool:
    async def work(thing: str, context: ToolContext) -> str:
        shop = Workshop.current
        if not shop.processes.is_alive:
            raise asyncio.CancelledError
        call = context.idempotency_key
        shop.begun[call] += 1
        shop.names[call] = kind
        await pause(shop.random)
        if kind == "slow":
            await asyncio.sleep(shop.random.random())
        if kind == "fails":
            raise ValueError("it broke")
        if kind == "stubborn":
            try:
                await asyncio.sleep(shop.random.random())
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)
        if shop.processes.is_alive:
            shop.done[call] += 1
        return f"{kind} {thing}"

    return tool(work, name=kind, description=kind, **settings)


REGISTRY = ToolRegistry(
    _make("quick"),
    _make("slow"),
    _make("again", repeatable=True),
    _make("fails"),
    _make("stubborn"),
    _make("careful", approval=True),
    external_tool("outside", "Runs elsewhere.", {"type": "object"}),
    max_parallel=2,
    max_steps=4,
    retries=0,
    timeout_s=5.0,
)


class AgentWorld:
    """One session of an agent, in processes that come and go, on a store that takes its time."""

    def __init__(self, seed: int, config: SessionConfig) -> None:
        self.overflow: OverflowStrategy | None = None
        self.random = random.Random(seed)
        self.processes = Processes()
        self.store = DawdlingStore(self.random)
        self.history = DawdlingStore(self.random, InMemoryHistory()) if seed % 3 == 0 else None
        """Events are kept apart, in a store that fails now and then."""
        if self.history:
            self.history.fail_rate = 0.2
        self.store.fail_rate = 0.03 if seed % 7 == 0 else 0.0
        self.workshop = Workshop(self.random, self.processes)
        self.model = WildModel(self.random, self.processes)
        self.config = config
        self.process = 0
        self.core = self.new_core()

    @property
    def slots(self) -> list[MemorySlot]:
        """The memories of the session's next process."""
        return []

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self.model, REGISTRY)

    async def create(self) -> None:
        await self.store.inner.create(SessionRecord(session_id=SESSION))

    def kill(self) -> None:
        """Kill the session's process; the next call starts another."""
        self.processes.kill(self.process)
        self.core = self.new_core()

    async def ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a verb until a process answers, with the same arguments, as a caller on Ray does, and a patient one."""
        while True:
            core, process = self.core, self.process
            try:
                return await self.processes.call(process, attrgetter(verb)(core)(*args, **kwargs))
            except (KilledError, StoreError):
                await asyncio.sleep(0.01)

    async def decide(self, run_id: str) -> None:
        """Decide about one call of the run, if one waits."""
        for call in (await self.ask("reads.pending", run_id))[:1]:
            decision = self.random.choice(
                [
                    ApprovalDecision(verdict="rejected", text="no"),
                    ApprovalDecision(verdict="provided", text="here it is"),
                    *([ApprovalDecision(verdict="approved")] * 2 if call.wants == "approval" else []),
                    *(
                        [ApprovalDecision(verdict="approved", input={"thing": "edited"})]
                        if call.wants == "approval"
                        else []
                    ),
                ]
            )
            if decision.verdict == "approved":
                self.workshop.approved.add(f"{run_id}/{call.call_id}")
            await self.ask("approvals.decide", run_id, call.call_id, decision)

    async def decide_until(self, quiet: asyncio.Event, run_ids: Sequence[str]) -> None:
        """Decide the calls of these runs, of which there may be more by then, again and again until all is quiet."""
        while not quiet.is_set():
            await asyncio.sleep(self.random.random() * 0.2)
            for run_id in run_ids:
                with suppress(CallDecidedError, RunNotFoundError):  # it was cancelled meanwhile
                    await self.decide(run_id)

    def new_core(self) -> SessionCore:
        self.process += 1
        return SessionCore(
            SessionKey(SESSION),
            self.store,
            self,
            self.config,
            overflow=self.overflow,
            memories=self.slots,
            history=self.history,
            clock=lambda: asyncio.get_running_loop().time(),
            off_loop=inline,
        )


def next_request(turn: Turn) -> list[Block]:
    """Return what a provider would be sent if the user went on from here."""
    return [*turn.blocks, User(text="and now?")]

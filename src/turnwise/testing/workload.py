"""The workload of a chaos run: concurrent callers on many sessions, which record every acknowledgement."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.errors import (
    EmptyTurnError,
    InvalidInputError,
    NoActiveRunError,
    OverloadedError,
    QueueFullError,
    RunCancelledError,
    RunEndedError,
    RunInterruptedError,
    RunNotFoundError,
    SessionBusyError,
    SessionInUseError,
    SessionLostError,
    StoreError,
    TooManyVersionsError,
    TurnNotFoundError,
    TurnReplacedError,
    WaitTimeoutError,
)
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.turns import Turn
from turnwise.testing.acknowledged import Acknowledged

Answer = TypeVar("Answer")

AGAIN_S = 0.05
"""The pause before a caller repeats a call, in seconds."""

PATIENCE_S = 10.0
"""The timeout of one wait for a run, which is then repeated, in seconds."""

DUE_S = 1.0
"""When a scheduled prompt is due at the latest, in seconds."""

SILENCE_S = 0.2
"""How long a run with `if_busy="debounce"` waits for silence, in seconds."""

NOT_NOW = (
    EmptyTurnError,
    InvalidInputError,
    SessionInUseError,
    TooManyVersionsError,
    TurnNotFoundError,
    TurnReplacedError,
)
"""Why a turn is not answered anew: other prompts or runs wait, another caller did so first, or there is none."""

IF_BUSY: tuple[IfBusy, ...] = (
    *("reject", "enqueue", "enqueue", "interrupt", "latest", "drop", "merge", "inject", "inject", "debounce"),
)
"""What callers draw from; all but `rollback`, which discards what was acknowledged."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The sessions, callers, and requests. Rates are from 0 to 1; the remaining requests are plain runs."""

    sessions: int = 8
    callers: int = 2
    """The number of callers of each session."""
    appends: float = 0.15
    cancels: float = 0.1
    follows: float = 0.25
    """The rate of runs whose events are read to the end."""
    forks: float = 0.02
    schedules: float = 0.05
    """The rate of prompts that a session is to begin a run with by itself, a moment later."""
    says: float = 0.03
    """The rate of texts that a session says by itself."""
    sends: float = 0.03
    """The rate of messages to another session."""
    reruns: float = 0.02
    """The rate of turns that are answered anew, with another prompt."""
    marks: float = 0.02
    """The rate of marks of messages."""
    calls: float = 0.0
    """The rate of runs that ask for a call of the tool `look`, so that others can join them: see `FaultyEngine`."""
    agents: float = 0.0
    """The rate of runs that ask for a call of the agent `helper`: see `FaultyEngine`."""
    run_timeout_s: float = 2.0
    """The time limit of a run, in seconds; it ends engines that hang."""
    tag: str = "chaos"
    """The first part of the session ids."""

    @property
    def session_ids(self) -> tuple[str, ...]:
        """The ids of the sessions, without forks."""
        return tuple(f"{self.tag}-{number}" for number in range(self.sessions))


class Caller:
    """Sends a session one request after the other. Requests with a key are repeated until they are answered."""

    def __init__(
        self,
        manager: AsyncSessionManager,
        session_id: str,
        *,
        name: str,
        workload: Workload,
        acknowledged: Acknowledged,
        seed: str,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """The number of failed calls by the name of the error."""
        self._manager = manager
        self.session_id = session_id
        self._name = name
        self._workload = workload
        self._acknowledged = acknowledged
        self._dice = random.Random(seed)

    async def call(self, is_over: Callable[[], bool]) -> None:
        """Send requests until `is_over()`; return when the last one has ended."""
        session = await self._repeat(lambda: self._manager.open(self.session_id))
        number = 0
        while not is_over():
            number += 1
            prompt = f"{self.session_id} {self._name} {number}"
            rates = self._workload
            others = {"append": rates.appends, "fork": rates.forks, "schedule": rates.schedules}
            others |= {"say": rates.says, "send": rates.sends, "rerun": rates.reruns, "mark": rates.marks}
            (way,) = self._dice.choices([*others, "run"], [*others.values(), 1.0 - sum(others.values())])
            match way:
                case "append":
                    await self._append(session, prompt)
                case "fork":
                    await self._fork(session, f"{self.session_id}-{self._name}-{number}")
                case "schedule":
                    await self._schedule(session, prompt)
                case "say":
                    await self._say(session, prompt)
                case "send":
                    await self._send(session, prompt)
                case "rerun":
                    await self._rerun(session, prompt)
                case "mark":
                    await self._mark(session)
                case _:
                    await self._run(session, prompt)

    async def _append(self, session: AsyncSession, prompt: str) -> None:
        called_at = self._acknowledged.clock()
        try:
            turn = await session.append(prompt)
        except (OverloadedError, SessionLostError, StoreError) as error:
            self._note(error)  # the outcome may be unknown, so the append must not be repeated
        else:
            self._acknowledged.stored(session.session_id, [prompt], called_at, turn_index=turn.index)

    async def _fork(self, session: AsyncSession, fork_id: str) -> None:
        try:
            fork = await self._repeat(lambda: session.fork(session_id=fork_id))
        except TurnNotFoundError:
            return
        self._acknowledged.forked(fork.session_id)
        await self._run(fork, f"{fork_id} first")

    async def _schedule(self, session: AsyncSession, prompt: str) -> None:
        """Schedule a prompt; wait until its run has begun, however often what hands it over was killed."""
        called_at = self._acknowledged.clock()
        options: dict[str, Any] = {"after_s": self._dice.random() * DUE_S, "key": prompt, "idempotency_key": prompt}
        options["timeout_s"] = self._workload.run_timeout_s
        schedule = await self._repeat(lambda: session.schedule(prompt, **options))
        while waiting := [other for other in await self._repeat(session.schedules) if other.key == prompt]:
            schedule = waiting[0]
            await asyncio.sleep(AGAIN_S)
        run = None
        with suppress(RunNotFoundError):
            run = await self._repeat(partial(session.execution, schedule.run_id))
        about: dict[str, Any] = {"run_id": run.run_id, "turn_index": run.turn_index} if run else {}
        self._acknowledged.stored(session.session_id, [prompt], called_at, **about)
        if run:
            await self._wait(run)

    async def _say(self, session: AsyncSession, text: str) -> None:
        called_at = self._acknowledged.clock()
        try:
            run = await self._repeat(lambda: session.say(text, key=text))
        except QueueFullError as error:
            self._note(error)
            return
        self._acknowledged.said(session.session_id, text, called_at, run_id=run.run_id, turn_index=run.turn_index)
        await self._wait(run)

    async def _send(self, session: AsyncSession, text: str) -> None:
        """Send a message to one of the sessions; wait until it has been delivered."""
        called_at = self._acknowledged.clock()
        to_session = self._dice.choice(self._workload.session_ids)
        try:
            message = await session.send(to_session, text)
        except (OverloadedError, SessionLostError, StoreError) as error:
            self._note(error)  # the outcome may be unknown, and a repeated message is another one
            return
        while any(  # noqa: ASYNC110 - nobody tells a sender that its message has arrived
            other.key == message.key for other in await self._repeat(session.schedules)
        ):
            await asyncio.sleep(AGAIN_S)
        run = await self._repeat(lambda: self._manager.execution(message.run_id))
        about: dict[str, Any] = {"run_id": run.run_id, "turn_index": run.turn_index}
        self._acknowledged.stored(to_session, [text], called_at, **about)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end(run))  # it has no time limit
        await self._wait(run)

    async def _rerun(self, session: AsyncSession, prompt: str) -> None:
        """Answer the newest turn anew, unless another run is active or has just replaced it."""
        called_at = self._acknowledged.clock()
        settings: dict[str, Any] = {"idempotency_key": prompt, "timeout_s": self._workload.run_timeout_s}
        try:
            run = await self._repeat(lambda: session.rerun(prompt, **settings))
        except NOT_NOW as error:
            self._note(error)
            await asyncio.sleep(AGAIN_S)
            return
        about: dict[str, Any] = {"run_id": run.run_id, "turn_index": run.turn_index}
        self._acknowledged.stored(session.session_id, [prompt], called_at, **about)
        await self._wait(run)

    async def _mark(self, session: AsyncSession) -> None:
        """Mark the first message of the newest turn, if that has ended."""
        turn = await self._repeat(session.latest)
        if turn is None:
            return
        try:
            await self._repeat(
                lambda: session.mark(f"{session.session_id}#{turn.index}:0", self._name, self._dice.random())
            )
        except (InvalidInputError, TurnNotFoundError) as error:
            self._note(error)

    async def _run(self, session: AsyncSession, prompt: str) -> None:
        called_at = self._acknowledged.clock()
        policy = self._dice.choice(IF_BUSY)
        joins = policy == "inject"
        if not joins:
            calls = self._workload.calls, self._workload.agents
            prompt += self._dice.choices((" call:look", " call:helper", ""), (*calls, 1.0 - sum(calls)))[0]
        settings: dict[str, Any] = {
            "if_busy": policy,
            "debounce_s": SILENCE_S if policy == "debounce" else None,
            "idempotency_key": prompt,
            "timeout_s": None if joins else self._workload.run_timeout_s,  # with one of its own, no run joins another
        }
        try:
            run = await self._repeat(lambda: session.run(prompt, **settings))
        except (SessionBusyError, QueueFullError) as error:
            self._note(error)
            await asyncio.sleep(AGAIN_S)
            return
        if run.dropped:
            self._acknowledged.dropped(session.session_id, prompt, called_at, run.run_id)
        else:
            silence_s = settings["debounce_s"]
            about = {"run_id": run.run_id, "turn_index": run.turn_index, "silence_s": silence_s}
            self._acknowledged.stored(session.session_id, [prompt], called_at, **about)
        async with asyncio.TaskGroup() as tasks:
            if joins:  # it has no time limit, and its engine may hang while it is followed
                tasks.create_task(self._end(run))
            drawn, rates = self._dice.random(), self._workload
            if drawn < rates.cancels:
                await asyncio.sleep(self._dice.random() * 0.1)
                await self._cancel(run)
            elif drawn < rates.cancels + rates.follows:
                await self._follow(run)
        await self._wait(run)

    async def _end(self, run: AsyncExecutionHandle) -> None:
        """Cancel a run without a time limit if it does not end."""
        try:
            await run.wait(max(PATIENCE_S, self._workload.run_timeout_s))
        except WaitTimeoutError:
            await self._cancel(run)
        except (OverloadedError, SessionLostError, StoreError, RunEndedError) as error:
            self._note(error)

    async def _cancel(self, run: AsyncExecutionHandle) -> None:
        try:
            await self._repeat(run.cancel)
        except NoActiveRunError as error:
            self._note(error)

    async def _follow(self, run: AsyncExecutionHandle) -> None:
        seqs: list[int] = []

        async def follow() -> None:
            async for event in run.events(seqs[-1] if seqs else 0):
                seqs.append(event.seq)  # noqa: PERF401 - events before a failure count

        await self._repeat(follow)
        self._acknowledged.followed(run.session_id, run.run_id, seqs)

    async def _wait(self, run: AsyncExecutionHandle) -> None:
        turn: Turn | None
        try:
            turn, state = await self._repeat(lambda: run.wait(PATIENCE_S)), "completed"
        except RunEndedError as ended:
            turn, state = ended.turn, "failed"
            if isinstance(ended, RunCancelledError | RunInterruptedError):
                state = "cancelled" if isinstance(ended, RunCancelledError) else "interrupted"
        self._acknowledged.ended(run.session_id, run.run_id, state, turn.blocks if turn else None)

    async def _repeat(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat the call until it returns or is refused for good."""
        while True:
            try:
                return await ask()
            except (OverloadedError, SessionLostError, StoreError, WaitTimeoutError) as error:
                self._note(error)
                await asyncio.sleep(AGAIN_S)

    def _note(self, error: Exception) -> None:
        self.refused[type(error).__name__] += 1

"""Sessions, as their callers hold them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from pydantic import InstanceOf

from turnwise.actors.client.arguments import (
    IdempotencyKey,
    Labels,
    Limit,
    Look,
    Model,
    Number,
    Params,
    Retries,
    RunId,
    Seconds,
    SessionId,
    Text,
    Use,
    checked,
)
from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.client.requests import Request, carry_out, carry_out_async
from turnwise.actors.client.session_memory import AsyncSessionMemory, SessionMemory
from turnwise.actors.cluster.wire import PackedTurn, SessionInfo, SessionRef, StartedRun
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.session.admission import IfBusy
from turnwise.memory.conversation.blocks import AnyBlock, Summary
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.ids import is_own_id, new_id, own_id, public_id
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.prompts import Prompt, plain_prompts
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.deletion import Verify
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.strategies.compaction import Compaction


class _Session:
    """What both sessions are: an id, and the requests to the actor behind it."""

    def __init__(
        self, client: ClusterClient, id: str, user_id: str, agent: str | None, *, own_ids: bool = False
    ) -> None:
        self._client = client
        self._stored_id = id
        self._own_ids = own_ids or is_own_id(id)
        """Whether its forks have ids that are their user's own."""
        self.id = public_id(id)
        self.user_id = user_id
        self.agent = agent

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} of user {self.user_id!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), own_ids=self._own_ids), (self._client, self._stored_id, self.user_id, self.agent)

    @property
    def actor(self) -> Any:
        """The raw Ray handle of the session's actor."""
        return self._client.actor(self._stored_id)

    def _ask(self, verb: str, *args: Any) -> Request[Any]:
        return (yield from self._client.ask(self._stored_id, verb, *args))

    def _append(self, prompts: tuple[Prompt, ...]) -> Request[int]:
        index: int = yield from self._ask("append", plain_prompts(self.id, prompts), new_id())
        return index

    @checked
    def _start(
        self,
        prompts: Any,
        if_busy: IfBusy,
        timeout_s: Seconds | None,
        *,
        idempotency_key: IdempotencyKey | None,
        labels: Labels | None,
        memory: Use | None,
        model: Model | None,
        params: Params | None,
        output: Any,
        output_retries: Retries,
    ) -> Request[StartedRun]:
        settings = {
            "run_id": new_id(),
            "if_busy": if_busy,
            "idempotency_key": idempotency_key,
            "timeout_s": timeout_s,
            "labels": dict(labels or {}),
            "memory": memory,
            "model": model,
            "params": params or {},
            "output": None if output is None else output_record(output, output_retries),
        }
        return (yield from self._client.start(self._stored_id, plain_prompts(self.id, prompts), settings))

    def _latest(self) -> Request[Turn | None]:
        cache = self._client.cache(self._stored_id)
        packed: PackedTurn | None = yield from self._ask("latest", cache.held)
        return self._client.unpack(packed, cache) if packed else None

    @checked
    def _turn(self, index: Number) -> Request[Turn]:
        cache = self._client.cache(self._stored_id)
        packed: PackedTurn = yield from self._ask("turn", index, cache.held)
        return self._client.unpack(packed, cache)

    @checked
    def _turns(self, after: Number, limit: Limit) -> Request[list[Turn]]:
        cache = self._client.cache(self._stored_id)
        packed: list[PackedTurn] = yield from self._ask("turns", after, limit, cache.held)
        turns: list[Turn] = []
        for turn in packed:
            turns.append(self._client.unpack(turn, turns[-1].cache if turns else cache))
        return turns

    @checked
    def _runs(self, after: Number, limit: Limit) -> Request[list[RunRecord]]:
        return list((yield from self._ask("runs", after, limit)))

    @checked
    def _events(self, after: Number, limit: Limit) -> Request[list[AnyEvent]]:
        events, _, _ = yield from self._ask("events", after, limit, None, 0.0)
        return list(events)

    @checked
    def _cancel(self, reason: Text) -> Request[bool]:
        return self._client.cancel(self._stored_id, reason)

    @checked
    def _execution(self, run_id: RunId) -> Request[RunRecord]:
        record: RunRecord = yield from self._ask("run", run_id)
        return record

    @checked
    def _fork(self, at: Number | None, session_id: SessionId | None) -> Request[Self]:
        session_id = session_id or new_id()
        stored_id = own_id(self.user_id, session_id) if self._own_ids else session_id
        fork: SessionRecord = yield from self._ask("fork", at, stored_id)
        return type(self)(
            self._client, SessionRef(stored_id, fork.log), self.user_id, self.agent, own_ids=self._own_ids
        )

    @checked
    def _compact(self, explain: bool) -> Request[Compaction | None]:
        return (yield from self._client.compact(self._stored_id, explain=explain))

    @checked
    def _expand(self, summary: InstanceOf[Summary]) -> Request[tuple[AnyBlock, ...]]:
        return tuple((yield from self._ask("expand", summary)))

    @checked
    def _delete(self, memory: bool, verify: Look) -> Request[Forgotten]:
        return (yield from self._client.delete(self._stored_id, memory=memory, verify=verify))


class Session(_Session):
    """A conversation. All verbs may be called from any thread or process at once; they take effect one at a time.

    Each is one Ray call; `run` and `start` are durable when they return. A verb whose argument has the wrong type, or
    is out of its range, raises InvalidInputError, which names the argument, and does nothing.
    """

    def __init__(
        self, client: ClusterClient, id: str, user_id: str, agent: str | None, *, own_ids: bool = False
    ) -> None:
        super().__init__(client, id, user_id, agent, own_ids=own_ids)
        self._portal = client.portal

    @property
    def memory(self) -> SessionMemory:
        """What long-term memories have for its user, and its working memory."""
        return SessionMemory(self._client, self._stored_id, self._portal)

    def append(self, *prompts: Prompt) -> int:
        """Store prompts for the next run to take up; return the index of its turn.

        They are in the history in the order in which appends return. A run that is active is not changed.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        return carry_out(self._append(prompts), self._portal)

    def start(
        self,
        *,
        if_busy: IfBusy = "reject",
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        memory: MemoryUse | bool | None = None,
        model: str | None = None,
        params: ModelParams | None = None,
        output: type[Any] | None = None,
        output_retries: int = 2,
    ) -> ExecutionHandle:
        """Run what was appended: `run` without a prompt of its own."""
        return self.run(
            if_busy=if_busy,
            idempotency_key=idempotency_key,
            timeout_s=timeout_s,
            labels=labels,
            memory=memory,
            model=model,
            params=params,
            output=output,
            output_retries=output_retries,
        )

    def run(
        self,
        *prompts: Prompt,
        if_busy: IfBusy = "reject",
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        memory: MemoryUse | bool | None = None,
        model: str | None = None,
        params: ModelParams | None = None,
        output: type[Any] | None = None,
        output_retries: int = 2,
    ) -> ExecutionHandle:
        """Run what was appended and these prompts; on return the run is durable and started, or queued.

        Args:
            if_busy: while a run is active, `reject` (SessionBusyError), `enqueue` (wait behind it, in order of
                arrival), `interrupt` (cancel it and all that is queued, keep their prompts and text, then run) or
                `rollback` (cancel them and leave no trace, then run).
            idempotency_key: the same key with the same prompts returns the run that it started, however often.
            timeout_s: the run fails when it has taken so many seconds.
            labels: kept with the run; see `max_labels` and `max_label_chars` of `SessionConfig`.
            memory: what it does with long-term memory: `on`, or True, to recall, and have its turn saved; `read` to
                recall only; `off`, or False, for neither. As the session if left out.
            model: the model it asks; the session's if left out, and the engine's own if that has none.
            params: what it asks of the model, such as `{"temperature": 0.2}`: each in place of the session's and of
                the engine's; None for one takes the session's out. Recorded with the run, so they hold for all of its
                steps, whichever process goes on with it; `tool_choice` makes the model call a tool in the first step
                only.
            output: a pydantic model, or what else pydantic makes a schema of an object for, such as a dataclass or a
                TypedDict: the model answers with such an object, after any tools, and `turn.parsed` is an instance.
                Its JSON schema is recorded with the run, which is checked by that in every process that goes on with
                it; what the class checks beside that is checked by `turn.parsed`.
            output_retries: how often, 0 to 100, an answer that does not fit is sent back with what is wrong with it;
                each is a step of the run. Then the run fails with OutputInvalidError.

        Raises:
            InvalidInputError: a parameter is wrong, or the engine does not take it; no schema of an object can be made
                of `output`, or the engine gives no answers of a type; nothing was stored.
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError: nothing was stored.
        """
        request = self._start(
            prompts,
            if_busy,
            timeout_s,
            idempotency_key=idempotency_key,
            labels=labels,
            memory=memory,
            model=model,
            params=params,
            output=output,
            output_retries=output_retries,
        )
        started = carry_out(request, self._portal)
        return ExecutionHandle(
            self._client, self._stored_id, started.run_id, started.turn_index, started.outcome, output=output
        )

    def latest(self) -> Turn | None:
        """Return the newest turn, pending prompts included; None while there is none."""
        return carry_out(self._latest(), self._portal)

    def turn(self, index: int) -> Turn:
        """Return a turn, whole.

        Raises:
            TurnNotFoundError: there is none of this index.
        """
        return carry_out(self._turn(index), self._portal)

    def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        return carry_out(self._turns(after, limit), self._portal)

    def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        return carry_out(self._runs(after, limit), self._portal)

    def events(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return up to `limit` events with a number above `after`, by number, without waiting for any."""
        return carry_out(self._events(after, limit), self._portal)

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the active run; return whether it ended as cancelled.

        Raises:
            NoActiveRunError: none is active.
        """
        return carry_out(self._cancel(reason), self._portal)

    def execution(self, run_id: str) -> ExecutionHandle:
        """Return the handle of a run of this session.

        Raises:
            RunNotFoundError: it has no such run.
        """
        record = carry_out(self._execution(run_id), self._portal)
        return ExecutionHandle(self._client, self._stored_id, run_id, record.turn_index)

    def fork(self, at: int | None = None, session_id: str | None = None) -> Session:
        """Return a new session that continues from the turn `at`, or from the last that ended; this one is untouched.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionExistsError: `session_id` is taken.
        """
        return carry_out(self._fork(at, session_id), self._portal)

    def compact(self, *, explain: bool = False) -> Compaction | None:
        """Have the overflow strategy look at the window now; return what it did, None if there is none or all stays.

        It does so by itself at the end of runs, and before a request that would not fit. What a turn has held it holds
        for good; what the next one goes on with becomes less, in one commit.

        Args:
            explain: say what would go, what would stay, and why, and do nothing.

        Raises:
            StrategyError, CompactionError, WindowOverflowError: nothing was changed.
        """
        return carry_out(self._compact(explain), self._portal)

    def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return what a summary stands for, in order; summaries that were folded into it are expanded too.

        Raises:
            InvalidInputError: it is none of this session's.
        """
        return carry_out(self._expand(summary), self._portal)

    def refresh(self) -> None:
        """Let the session's `ttl_s` count from now, as if it had been used; durable on return."""
        carry_out(self._ask("refresh"), self._portal)

    def end(self) -> None:
        """Take no more runs and cancel those there are; ending twice is fine."""
        carry_out(self._client.end(self._stored_id), self._portal)

    def delete(self, *, memory: bool = True, verify: Verify = False) -> Forgotten:
        """Delete the session for good, and what this manager's memories have of it; its forks stay whole.

        Args:
            memory: whether memories forget it too.
            verify: how it is looked for in memories afterwards: `False` not at all, `True` in what was touched, at the
                cost of what is forgotten, `"files"` in all their files, behind everything else. See `Verify`.

        Raises:
            SessionBusyError: a run is active or queued.
            LongTermMemoryError: memories failed; names them. The session was not deleted: repeat it.
        """
        return carry_out(self._delete(memory, verify), self._portal)

    def info(self) -> SessionInfo:
        """Return the session's row, what runs and waits, and which process hosts it, if one does."""
        info: SessionInfo = carry_out(self._ask("info"), self._portal)
        return info


class AsyncSession(_Session):
    """`Session` with its verbs as coroutines: any number at once, from any process; they take effect one at a time.

    Each is one Ray call; `run` and `start` are durable when they return. A verb whose argument has the wrong type, or
    is out of its range, raises InvalidInputError, which names the argument, and does nothing.
    """

    @property
    def memory(self) -> AsyncSessionMemory:
        """What long-term memories have for its user, and its working memory."""
        return AsyncSessionMemory(self._client, self._stored_id)

    async def append(self, *prompts: Prompt) -> int:
        """Store prompts for the next run to take up; return the index of its turn.

        They are in the history in the order in which appends return. A run that is active is not changed.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        return await carry_out_async(self._append(prompts))

    async def start(
        self,
        *,
        if_busy: IfBusy = "reject",
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        memory: MemoryUse | bool | None = None,
        model: str | None = None,
        params: ModelParams | None = None,
        output: type[Any] | None = None,
        output_retries: int = 2,
    ) -> AsyncExecutionHandle:
        """Run what was appended: `run` without a prompt of its own."""
        return await self.run(
            if_busy=if_busy,
            idempotency_key=idempotency_key,
            timeout_s=timeout_s,
            labels=labels,
            memory=memory,
            model=model,
            params=params,
            output=output,
            output_retries=output_retries,
        )

    async def run(
        self,
        *prompts: Prompt,
        if_busy: IfBusy = "reject",
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        memory: MemoryUse | bool | None = None,
        model: str | None = None,
        params: ModelParams | None = None,
        output: type[Any] | None = None,
        output_retries: int = 2,
    ) -> AsyncExecutionHandle:
        """Run what was appended and these prompts; on return the run is durable and started, or queued.

        Args:
            if_busy: while a run is active, `reject` (SessionBusyError), `enqueue` (wait behind it, in order of
                arrival), `interrupt` (cancel it and all that is queued, keep their prompts and text, then run) or
                `rollback` (cancel them and leave no trace, then run).
            idempotency_key: the same key with the same prompts returns the run that it started, however often.
            timeout_s: the run fails when it has taken so many seconds.
            labels: kept with the run; see `max_labels` and `max_label_chars` of `SessionConfig`.
            memory: what it does with long-term memory: `on`, or True, to recall, and have its turn saved; `read` to
                recall only; `off`, or False, for neither. As the session if left out.
            model: the model it asks; the session's if left out, and the engine's own if that has none.
            params: what it asks of the model, such as `{"temperature": 0.2}`: each in place of the session's and of
                the engine's; None for one takes the session's out. Recorded with the run, so they hold for all of its
                steps, whichever process goes on with it; `tool_choice` makes the model call a tool in the first step
                only.
            output: a pydantic model, or what else pydantic makes a schema of an object for, such as a dataclass or a
                TypedDict: the model answers with such an object, after any tools, and `turn.parsed` is an instance.
                Its JSON schema is recorded with the run, which is checked by that in every process that goes on with
                it; what the class checks beside that is checked by `turn.parsed`.
            output_retries: how often, 0 to 100, an answer that does not fit is sent back with what is wrong with it;
                each is a step of the run. Then the run fails with OutputInvalidError.

        Raises:
            InvalidInputError: a parameter is wrong, or the engine does not take it; no schema of an object can be made
                of `output`, or the engine gives no answers of a type; nothing was stored.
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError: nothing was stored.
        """
        request = self._start(
            prompts,
            if_busy,
            timeout_s,
            idempotency_key=idempotency_key,
            labels=labels,
            memory=memory,
            model=model,
            params=params,
            output=output,
            output_retries=output_retries,
        )
        started = await carry_out_async(request)
        return AsyncExecutionHandle(
            self._client, self._stored_id, started.run_id, started.turn_index, started.outcome, output=output
        )

    async def latest(self) -> Turn | None:
        """Return the newest turn, pending prompts included; None while there is none."""
        return await carry_out_async(self._latest())

    async def turn(self, index: int) -> Turn:
        """Return a turn, whole.

        Raises:
            TurnNotFoundError: there is none of this index.
        """
        return await carry_out_async(self._turn(index))

    async def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        return await carry_out_async(self._turns(after, limit))

    async def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        return await carry_out_async(self._runs(after, limit))

    async def events(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return up to `limit` events with a number above `after`, by number, without waiting for any."""
        return await carry_out_async(self._events(after, limit))

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the active run; return whether it ended as cancelled.

        Raises:
            NoActiveRunError: none is active.
        """
        return await carry_out_async(self._cancel(reason))

    async def execution(self, run_id: str) -> AsyncExecutionHandle:
        """Return the handle of a run of this session.

        Raises:
            RunNotFoundError: it has no such run.
        """
        record = await carry_out_async(self._execution(run_id))
        return AsyncExecutionHandle(self._client, self._stored_id, run_id, record.turn_index)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> AsyncSession:
        """Return a new session that continues from the turn `at`, or from the last that ended; this one is untouched.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionExistsError: `session_id` is taken.
        """
        return await carry_out_async(self._fork(at, session_id))

    async def compact(self, *, explain: bool = False) -> Compaction | None:
        """Have the overflow strategy look at the window now; return what it did, None if there is none or all stays.

        It does so by itself at the end of runs, and before a request that would not fit. What a turn has held it holds
        for good; what the next one goes on with becomes less, in one commit.

        Args:
            explain: say what would go, what would stay, and why, and do nothing.

        Raises:
            StrategyError, CompactionError, WindowOverflowError: nothing was changed.
        """
        return await carry_out_async(self._compact(explain))

    async def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return what a summary stands for, in order; summaries that were folded into it are expanded too.

        Raises:
            InvalidInputError: it is none of this session's.
        """
        return await carry_out_async(self._expand(summary))

    async def refresh(self) -> None:
        """Let the session's `ttl_s` count from now, as if it had been used; durable on return."""
        await carry_out_async(self._ask("refresh"))

    async def end(self) -> None:
        """Take no more runs and cancel those there are; ending twice is fine."""
        await carry_out_async(self._client.end(self._stored_id))

    async def delete(self, *, memory: bool = True, verify: Verify = False) -> Forgotten:
        """Delete the session for good, and what this manager's memories have of it; its forks stay whole.

        Args:
            memory: whether memories forget it too.
            verify: how it is looked for in memories afterwards: `False` not at all, `True` in what was touched, at the
                cost of what is forgotten, `"files"` in all their files, behind everything else. See `Verify`.

        Raises:
            SessionBusyError: a run is active or queued.
            LongTermMemoryError: memories failed; names them. The session was not deleted: repeat it.
        """
        return await carry_out_async(self._delete(memory, verify))

    async def info(self) -> SessionInfo:
        """Return the session's row, what runs and waits, and which process hosts it, if one does."""
        info: SessionInfo = await carry_out_async(self._ask("info"))
        return info

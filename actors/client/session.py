"""`Session` and `AsyncSession`: append prompts, start runs, read turns, fork, compact and delete a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self, TypedDict, Unpack

from pydantic import InstanceOf

from turnwise.actors.client.arguments import (
    Count,
    EngineName,
    IdempotencyKey,
    Instructions,
    Labels,
    Limit,
    Look,
    Model,
    Number,
    Params,
    ParentRun,
    Patience,
    Retries,
    RunId,
    Seconds,
    SessionId,
    Text,
    Title,
    Tools,
    TurnId,
    Use,
    Which,
    checked,
    json_object,
)
from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.event_sinks import EventSink, Sink
from turnwise.actors.client.execution import AsyncExecutionHandle, EventPage, ExecutionHandle
from turnwise.actors.client.requests import Request, carry_out, carry_out_async
from turnwise.actors.client.session_memory import AsyncSessionMemory, SessionMemory
from turnwise.actors.cluster.wire import PackedTurn, SessionInfo, SessionRef, StartedRun
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, custom_event
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import Tool
from turnwise.actors.session.admission import IfBusy
from turnwise.memory.conversation.blocks import AnyBlock, Summary
from turnwise.memory.conversation.chat_messages import ChatMessage
from turnwise.memory.conversation.ids import is_own_id, new_id, own_id, public_id
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.prompts import Prompt, plain_prompts
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.deletion import Verify
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.stores.base import Page
from turnwise.strategies.compaction import Compaction


class RunOptions(TypedDict, total=False):
    """The options of `Session.run` and `Session.start`, which describe them. All may be omitted."""

    turn_id: str | None
    parent: str | None
    if_busy: IfBusy
    idempotency_key: str | None
    timeout_s: float | None
    labels: Mapping[str, str] | None
    memory: MemoryUse | bool | None
    model: str | None
    params: ModelParams | None
    output: type[Any] | Mapping[str, Any] | None
    output_retries: int
    instructions: str | None
    tools: Sequence[Tool] | None
    on_event: EventSink | None


class _Session:
    """Common base of both session classes: the session's id and the requests to its actor."""

    def __init__(
        self, client: ClusterClient, id: str, user_id: str, agent: str | None, *, own_ids: bool = False
    ) -> None:
        self._client = client
        self._stored_id = id
        self._own_ids = own_ids or is_own_id(id)
        """If true, the ids of forks are unique per user, not across users."""
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

    def _append(self, prompts: tuple[Prompt, ...]) -> Request[Turn]:
        cache = self._client.cache(self._stored_id)
        packed: PackedTurn = yield from self._ask("append", plain_prompts(self.id, prompts), new_id(), cache.held)
        return self._client.unpack(packed, cache)

    @checked
    def _start(
        self,
        prompts: Any,
        *,
        turn_id: TurnId | None = None,
        parent: ParentRun | None = None,
        if_busy: IfBusy = "reject",
        idempotency_key: IdempotencyKey | None = None,
        timeout_s: Seconds | None = None,
        labels: Labels | None = None,
        memory: Use | None = None,
        model: Model | None = None,
        params: Params | None = None,
        output: Any = None,
        output_retries: Retries = 2,
        instructions: Instructions | None = None,
        tools: Tools | None = None,
        on_event: Sink | None = None,
    ) -> Request[StartedRun]:
        settings = {
            "run_id": new_id(),
            "turn_id": turn_id,
            "parent": parent,
            "if_busy": if_busy,
            "idempotency_key": idempotency_key,
            "timeout_s": timeout_s,
            "labels": dict(labels or {}),
            "memory": memory,
            "model": model,
            "params": params or {},
            "output": None if output is None else output_record(output, output_retries),
            "instructions": instructions,
            "tools": tools or {},
        }
        return (yield from self._client.start(self._stored_id, plain_prompts(self.id, prompts), settings))

    def _latest(self) -> Request[Turn | None]:
        cache = self._client.cache(self._stored_id)
        packed: PackedTurn | None = yield from self._ask("latest", cache.held)
        return self._client.unpack(packed, cache) if packed else None

    @checked
    def _turn(self, index: Which) -> Request[Turn]:
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
    def _messages(self, limit: Limit, before: Text | None, newest_first: bool) -> Request[Page[ChatMessage]]:
        found, is_more = yield from self._ask("messages", before, limit)
        cursor = found[0].cursor if is_more else None
        return Page(tuple(reversed(found) if newest_first else found), cursor)

    @checked
    def _events(self, after: Number, limit: Limit, wait_s: Patience) -> Request[EventPage]:
        events, _, _ = yield from self._client.follow(self._stored_id, after, limit + 1, None, wait_s)
        return EventPage(events[:limit], events[limit - 1].seq if len(events) > limit else None)

    @checked
    def _add_event(self, name: Text, data: Any) -> Request[int]:
        plain = None if data is None else json_object("data", data, MAX_EVENT_BYTES)
        custom_event(name, plain)
        seq: int = yield from self._ask("add_event", name, plain, new_id())
        return seq

    @checked
    def _use(self, engine: EngineName | None) -> Request[None]:
        yield from self._client.ask(self._stored_id, "use_engine", engine, with_engine=True)

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
    def _update(self, title: Title | None, metadata: Any, merge: bool) -> Request[SessionRecord]:
        names = None if metadata is None else json_object("metadata", metadata)
        changed: SessionRecord = yield from self._ask("update", title, names, merge)
        return changed

    @checked
    def _clear(self, keep_last: Count, memory: bool, verify: Look) -> Request[Forgotten]:
        return (yield from self._client.clear(self._stored_id, keep_last, memory=memory, verify=verify))

    @checked
    def _delete(self, memory: bool, verify: Look) -> Request[Forgotten]:
        return (yield from self._client.delete(self._stored_id, memory=memory, verify=verify))


class Session(_Session):
    """A conversation. Methods may be called from many threads and processes at once; they take effect one at a time.

    Each method is one Ray call; `run` and `start` are durable when they return. A method whose argument has the wrong
    type or is out of range raises InvalidInputError, which names the argument, and changes nothing.
    """

    @property
    def memory(self) -> SessionMemory:
        """The long-term memories of the session's user, and the working memory."""
        return SessionMemory(self._client, self._stored_id)

    def append(self, *prompts: Prompt) -> Turn:
        """Store prompts for the next run; return that run's turn, with all prompts that wait for the run.

        The history has the prompts in the order in which `append` calls return. An active run does not see them.
        Prompts may be an earlier conversation: `Text`, `Thinking`, `ToolUse` and `ToolResult` blocks too. A result
        follows its call, and a run starts only if each call has one.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        return carry_out(self._append(prompts), self._client.portal)

    def start(self, **options: Unpack[RunOptions]) -> ExecutionHandle:
        """Start a run on the appended prompts, like `run` without prompts."""
        return self.run(**options)

    def run(self, *prompts: Prompt, **options: Unpack[RunOptions]) -> ExecutionHandle:
        """Start a run on the appended prompts and these; on return the run is durable, and started or queued.

        Args:
            turn_id: your id of the turn, unique in the session: it is on the turn and on the events of the run's start,
                and `turn(turn_id)` finds the turn. Without it, the turn has its index only.
            parent: the id of the run, in any session of the user, on whose behalf this run is started, such as that of
                an agent that calls this one; it is in the run's record.
            if_busy: what to do while another run is active: `reject` (raise SessionBusyError), `enqueue` (wait behind
                it, in order of arrival), `interrupt` (cancel it and all queued runs, keep their prompts and text, then
                run) or `rollback` (cancel them, remove their turns, then run).
            idempotency_key: a repeated call with the same key and the same prompts returns the run that the first call
                started.
            timeout_s: the run fails after so many seconds.
            labels: kept with the run; see `max_labels` and `max_label_chars` of `SessionConfig`.
            memory: how the run uses long-term memory: `on` or True recalls before the run and saves its turn; `read`
                only recalls; `off` or False does neither. The session's setting if omitted.
            model: the model that answers; the session's if omitted, or the engine's own if the session has none.
            params: model parameters, such as `{"temperature": 0.2}`. Each replaces the session's and the engine's
                value; a value of None removes the session's. They are recorded with the run and apply to all of its
                steps, also after another process resumes it; `tool_choice` applies to the first step only.
            output: a pydantic model, or another type for which pydantic makes the schema of an object, such as a
                dataclass or a TypedDict. The model answers with such an object, after any tool calls, and
                `turn.parsed` is an instance. The JSON schema is recorded with the run, and every process that resumes
                the run checks answers by it; `turn.parsed` also applies the class's own validators. Or the JSON schema
                of an object, of at most 64 KB; then `turn.parsed` is a dict.
            output_retries: how often, 0 to 100, an answer that does not match is returned to the model with the
                errors; each retry is a step of the run. After the last one the run fails with OutputInvalidError.
            instructions: a system prompt for this run alone. Its requests have it after the engine's or the
                conversation's own; no history has it.
            tools: up to 128 tools for this run alone, made by `external_tool`, beside the engine's own. A run that
                calls them waits until their results come by `provide` of its handle, from any process. Their JSON
                schemas check the arguments. Instructions and tools are recorded with the run and apply to all of its
                steps, also after another process resumes it.
            on_event: a function that is called with each event of the run, deltas included, in order, beside the run:
                in a thread, or in a task of the asynchronous family, which takes coroutine functions too. What it
                raises is logged and changes nothing. `wait` of the returned handle waits for it.

        Raises:
            InvalidInputError: a parameter is wrong, or the engine does not accept it; `output` has no schema of an
                object; the engine does not support typed output, or instructions and tools of runs; or it has a tool of
                the same name. Nothing was stored.
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError, TurnIdTakenError: nothing was stored.
            RunNotFoundError: the user has no run with the id `parent`; nothing was stored.
        """
        started = carry_out(self._start(prompts, **options), self._client.portal)
        whose = self._stored_id, started.run_id, started.turn_index
        output, on_event = options.get("output"), options.get("on_event")
        return ExecutionHandle(self._client, *whose, started.outcome, output=output, on_event=on_event)

    def latest(self) -> Turn | None:
        """Return the newest turn, pending prompts included; None if the session has no turns."""
        return carry_out(self._latest(), self._client.portal)

    def turn(self, index: int | str) -> Turn:
        """Return a turn with all of its blocks, by its index or by the id that `run(turn_id=...)` gave it.

        Raises:
            TurnNotFoundError: no turn has this index or id.
        """
        return carry_out(self._turn(index), self._client.portal)

    def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        return carry_out(self._turns(after, limit), self._client.portal)

    def messages(self, limit: int = 100, *, before: str | None = None, newest_first: bool = False) -> Page[ChatMessage]:
        """Return a page of messages, as chat interfaces list them: the newest ones, or those before a cursor.

        Pass the page's `cursor` as `before` to get the page of earlier messages; it is None if there are none. So pages
        go back in time, whichever order the messages on them have. A fork has the messages from the turn on at which it
        was forked; the earlier ones are its parent's.

        Args:
            limit: how many at most.
            before: the cursor of a page, or of a message.
            newest_first: order the page from new to old; otherwise from old to new, as people read them.
        """
        request = self._messages(limit, before, newest_first)
        return carry_out(request, self._client.portal)

    def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        return carry_out(self._runs(after, limit), self._client.portal)

    def events(self, after: int = 0, limit: int = 1000, *, wait_s: float = 0.0) -> EventPage:
        """Return up to `limit` events of all runs with a number above `after`, by number.

        The result is a list whose `next` is the `after` of the next page; None if there were no more events. To follow
        a session across its runs, live, repeat the call with `wait_s` and the number of the last event. Deltas are
        among the events until the run after the next one starts.

        Args:
            wait_s: wait up to so many seconds for the first event; without it, for none.

        Raises:
            OverloadedError: too many other callers have been waiting for all of `wait_s`.
        """
        return carry_out(self._events(after, limit, wait_s), self._client.portal)

    def add_event(self, name: str, data: Mapping[str, Any] | None = None) -> int:
        """Add an event of your own to the session, which belongs to no run; return its number. Durable on return.

        Readers of the session's events get a `CustomEvent` with this name and data.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.

        Raises:
            InvalidInputError: the name or the data cannot be stored; nothing was stored.
            SessionEndedError: the session has ended; nothing was stored.
        """
        return carry_out(self._add_event(name, data), self._client.portal)

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the active run; return whether it ended as cancelled.

        Raises:
            NoActiveRunError: no run is active.
        """
        return carry_out(self._cancel(reason), self._client.portal)

    def execution(self, run_id: str) -> ExecutionHandle:
        """Return the handle of a run of this session.

        Raises:
            RunNotFoundError: the session has no such run.
        """
        record = carry_out(self._execution(run_id), self._client.portal)
        return ExecutionHandle(self._client, self._stored_id, run_id, record.turn_index)

    def fork(self, at: int | None = None, session_id: str | None = None) -> Session:
        """Return a new session that continues after turn `at`, by default the last turn that ended.

        This session does not change.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionExistsError: a session `session_id` exists.
        """
        return carry_out(self._fork(at, session_id), self._client.portal)

    def compact(self, *, explain: bool = False) -> Compaction | None:
        """Compact the window now; return what the overflow strategy changed, None if it changed nothing.

        Without a strategy the result is None. Compaction also happens automatically at the end of runs, and before a
        request that would not fit. Stored turns keep their blocks; the context of the next turn shrinks, in one commit.

        Args:
            explain: return what the strategy would remove and keep, and why, and change nothing.

        Raises:
            StrategyError, CompactionError, WindowOverflowError: nothing was changed.
        """
        return carry_out(self._compact(explain), self._client.portal)

    def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return the blocks that a summary replaced, in order; summaries among them are expanded too.

        Raises:
            InvalidInputError: the summary is not from this session.
        """
        return carry_out(self._expand(summary), self._client.portal)

    def update(
        self, *, title: str | None = None, metadata: Mapping[str, Any] | None = None, merge: bool = True
    ) -> SessionRecord:
        """Change the session's title and metadata, in one commit that is durable on return; return its record.

        An active run is not affected; its engine has the metadata of its start. May be repeated.

        Args:
            title: its name for people, of at most 1,000 characters; "" removes it. None keeps it.
            metadata: a JSON object; see `SessionConfig.max_metadata_bytes`. None keeps the metadata.
            merge: add the given names to the metadata and replace their values; a name whose value is None is removed.
                If false, the given metadata replace all.

        Raises:
            InvalidInputError: the metadata would be too large; nothing was changed.
        """
        request = self._update(title, metadata, merge)
        return carry_out(request, self._client.portal)

    def use(self, engine: str | None) -> None:
        """Use another engine of the manager for later runs, by its name; None for its first. Durable on return.

        Active and queued runs keep their engine. The name is stored with the session, so later managers use their
        engine of this name. Costs nothing if no run follows.

        Raises:
            ConfigError: the manager has no engine of this name; nothing was changed.
        """
        carry_out(self._use(engine), self._client.portal)

    def refresh(self) -> None:
        """Restart the session's `ttl_s` now, as a commit would; durable on return."""
        carry_out(self._ask("refresh"), self._client.portal)

    def end(self) -> None:
        """End the session: cancel its runs and accept no new ones. Ending twice is fine."""
        carry_out(self._client.end(self._stored_id), self._client.portal)

    def clear(self, keep_last: int = 0, *, memory: bool = True, verify: Verify = False) -> Forgotten:
        """Remove the messages of the session for good, with what this manager's memories keep of them.

        The session stays, with its title, its metadata, the records of its runs and their usage; the indexes of turns
        go on. Turns, the texts of their blocks, and their events go, in one commit: also appended prompts that no run
        has used. The turns that stay lose what they were given of the others. Forks keep the blocks that they use. May
        be repeated.

        Args:
            keep_last: how many of the newest turns stay, pending ones included.
            memory: if false, memories keep what they have of the turns.
            verify: how memories are checked afterwards for remains; see `delete`.

        Raises:
            SessionBusyError: a run is active or queued; nothing was removed.
            LongTermMemoryError: memories failed; the error names them. The history was not changed: repeat the call.
        """
        request = self._clear(keep_last, memory, verify)
        return carry_out(request, self._client.portal)

    def delete(self, *, memory: bool = True, verify: Verify = False) -> Forgotten:
        """Delete the session permanently, with what this manager's memories keep of it. Its forks stay complete.

        Args:
            memory: if false, memories keep what they have of the session.
            verify: how memories are checked afterwards for remains: `False` not at all; `True` in the parts that were
                changed, at a cost that grows with what is forgotten; `"files"` in all their files, in the background.
                See `Verify`.

        Raises:
            SessionBusyError: a run is active or queued.
            LongTermMemoryError: memories failed; the error names them. The session was not deleted: repeat the call.
        """
        return carry_out(self._delete(memory, verify), self._client.portal)

    def info(self) -> SessionInfo:
        """Return the session's record, its active and queued runs, and the process that hosts it, if any."""
        info: SessionInfo = carry_out(self._ask("info"), self._client.portal)
        return info


class AsyncSession(_Session):
    """`Session` with its verbs as coroutines: any number at once, from any process; they take effect one at a time.

    Each is one Ray call; `run` and `start` are durable when they return. A verb whose argument has the wrong type, or
    is out of its range, raises InvalidInputError, which names the argument, and does nothing.
    """

    @property
    def memory(self) -> AsyncSessionMemory:
        """The long-term memories of the session's user, and the working memory."""
        return AsyncSessionMemory(self._client, self._stored_id)

    async def append(self, *prompts: Prompt) -> Turn:
        """Store prompts for the next run; return that run's turn, with all prompts that wait for the run.

        The history has the prompts in the order in which `append` calls return. An active run does not see them.
        Prompts may be an earlier conversation: `Text`, `Thinking`, `ToolUse` and `ToolResult` blocks too. A result
        follows its call, and a run starts only if each call has one.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        return await carry_out_async(self._append(prompts))

    async def start(self, **options: Unpack[RunOptions]) -> AsyncExecutionHandle:
        """Start a run on the appended prompts, like `run` without prompts."""
        return await self.run(**options)

    async def run(self, *prompts: Prompt, **options: Unpack[RunOptions]) -> AsyncExecutionHandle:
        """Start a run on the appended prompts and these; on return the run is durable, and started or queued.

        Args:
            turn_id: your id of the turn, unique in the session: it is on the turn and on the events of the run's start,
                and `turn(turn_id)` finds the turn. Without it, the turn has its index only.
            parent: the id of the run, in any session of the user, on whose behalf this run is started, such as that of
                an agent that calls this one; it is in the run's record.
            if_busy: what to do while another run is active: `reject` (raise SessionBusyError), `enqueue` (wait behind
                it, in order of arrival), `interrupt` (cancel it and all queued runs, keep their prompts and text, then
                run) or `rollback` (cancel them, remove their turns, then run).
            idempotency_key: a repeated call with the same key and the same prompts returns the run that the first call
                started.
            timeout_s: the run fails after so many seconds.
            labels: kept with the run; see `max_labels` and `max_label_chars` of `SessionConfig`.
            memory: how the run uses long-term memory: `on` or True recalls before the run and saves its turn; `read`
                only recalls; `off` or False does neither. The session's setting if omitted.
            model: the model that answers; the session's if omitted, or the engine's own if the session has none.
            params: model parameters, such as `{"temperature": 0.2}`. Each replaces the session's and the engine's
                value; a value of None removes the session's. They are recorded with the run and apply to all of its
                steps, also after another process resumes it; `tool_choice` applies to the first step only.
            output: a pydantic model, or another type for which pydantic makes the schema of an object, such as a
                dataclass or a TypedDict. The model answers with such an object, after any tool calls, and
                `turn.parsed` is an instance. The JSON schema is recorded with the run, and every process that resumes
                the run checks answers by it; `turn.parsed` also applies the class's own validators. Or the JSON schema
                of an object, of at most 64 KB; then `turn.parsed` is a dict.
            output_retries: how often, 0 to 100, an answer that does not match is returned to the model with the
                errors; each retry is a step of the run. After the last one the run fails with OutputInvalidError.
            instructions: a system prompt for this run alone. Its requests have it after the engine's or the
                conversation's own; no history has it.
            tools: up to 128 tools for this run alone, made by `external_tool`, beside the engine's own. A run that
                calls them waits until their results come by `provide` of its handle, from any process. Their JSON
                schemas check the arguments. Instructions and tools are recorded with the run and apply to all of its
                steps, also after another process resumes it.
            on_event: a function that is called with each event of the run, deltas included, in order, beside the run:
                in a thread, or in a task of the asynchronous family, which takes coroutine functions too. What it
                raises is logged and changes nothing. `wait` of the returned handle waits for it.

        Raises:
            InvalidInputError: a parameter is wrong, or the engine does not accept it; `output` has no schema of an
                object; the engine does not support typed output, or instructions and tools of runs; or it has a tool of
                the same name. Nothing was stored.
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError, TurnIdTakenError: nothing was stored.
            RunNotFoundError: the user has no run with the id `parent`; nothing was stored.
        """
        started = await carry_out_async(self._start(prompts, **options))
        whose = self._stored_id, started.run_id, started.turn_index
        output, on_event = options.get("output"), options.get("on_event")
        return AsyncExecutionHandle(self._client, *whose, started.outcome, output=output, on_event=on_event)

    async def latest(self) -> Turn | None:
        """Return the newest turn, pending prompts included; None if the session has no turns."""
        return await carry_out_async(self._latest())

    async def turn(self, index: int | str) -> Turn:
        """Return a turn with all of its blocks, by its index or by the id that `run(turn_id=...)` gave it.

        Raises:
            TurnNotFoundError: no turn has this index or id.
        """
        return await carry_out_async(self._turn(index))

    async def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        return await carry_out_async(self._turns(after, limit))

    async def messages(
        self, limit: int = 100, *, before: str | None = None, newest_first: bool = False
    ) -> Page[ChatMessage]:
        """Return a page of messages, as chat interfaces list them: the newest ones, or those before a cursor.

        Pass the page's `cursor` as `before` to get the page of earlier messages; it is None if there are none. So pages
        go back in time, whichever order the messages on them have. A fork has the messages from the turn on at which it
        was forked; the earlier ones are its parent's.

        Args:
            limit: how many at most.
            before: the cursor of a page, or of a message.
            newest_first: order the page from new to old; otherwise from old to new, as people read them.
        """
        request = self._messages(limit, before, newest_first)
        return await carry_out_async(request)

    async def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        return await carry_out_async(self._runs(after, limit))

    async def events(self, after: int = 0, limit: int = 1000, *, wait_s: float = 0.0) -> EventPage:
        """Return up to `limit` events of all runs with a number above `after`, by number.

        The result is a list whose `next` is the `after` of the next page; None if there were no more events. To follow
        a session across its runs, live, repeat the call with `wait_s` and the number of the last event. Deltas are
        among the events until the run after the next one starts.

        Args:
            wait_s: wait up to so many seconds for the first event; without it, for none.

        Raises:
            OverloadedError: too many other callers have been waiting for all of `wait_s`.
        """
        return await carry_out_async(self._events(after, limit, wait_s))

    async def add_event(self, name: str, data: Mapping[str, Any] | None = None) -> int:
        """Add an event of your own to the session, which belongs to no run; return its number. Durable on return.

        Readers of the session's events get a `CustomEvent` with this name and data.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.

        Raises:
            InvalidInputError: the name or the data cannot be stored; nothing was stored.
            SessionEndedError: the session has ended; nothing was stored.
        """
        return await carry_out_async(self._add_event(name, data))

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the active run; return whether it ended as cancelled.

        Raises:
            NoActiveRunError: no run is active.
        """
        return await carry_out_async(self._cancel(reason))

    async def execution(self, run_id: str) -> AsyncExecutionHandle:
        """Return the handle of a run of this session.

        Raises:
            RunNotFoundError: the session has no such run.
        """
        record = await carry_out_async(self._execution(run_id))
        return AsyncExecutionHandle(self._client, self._stored_id, run_id, record.turn_index)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> AsyncSession:
        """Return a new session that continues after turn `at`, by default the last turn that ended.

        This session does not change.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionExistsError: a session `session_id` exists.
        """
        return await carry_out_async(self._fork(at, session_id))

    async def compact(self, *, explain: bool = False) -> Compaction | None:
        """Compact the window now; return what the overflow strategy changed, None if it changed nothing.

        Without a strategy the result is None. Compaction also happens automatically at the end of runs, and before a
        request that would not fit. Stored turns keep their blocks; the context of the next turn shrinks, in one commit.

        Args:
            explain: return what the strategy would remove and keep, and why, and change nothing.

        Raises:
            StrategyError, CompactionError, WindowOverflowError: nothing was changed.
        """
        return await carry_out_async(self._compact(explain))

    async def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return the blocks that a summary replaced, in order; summaries among them are expanded too.

        Raises:
            InvalidInputError: the summary is not from this session.
        """
        return await carry_out_async(self._expand(summary))

    async def update(
        self, *, title: str | None = None, metadata: Mapping[str, Any] | None = None, merge: bool = True
    ) -> SessionRecord:
        """Change the session's title and metadata, in one commit that is durable on return; return its record.

        An active run is not affected; its engine has the metadata of its start. May be repeated.

        Args:
            title: its name for people, of at most 1,000 characters; "" removes it. None keeps it.
            metadata: a JSON object; see `SessionConfig.max_metadata_bytes`. None keeps the metadata.
            merge: add the given names to the metadata and replace their values; a name whose value is None is removed.
                If false, the given metadata replace all.

        Raises:
            InvalidInputError: the metadata would be too large; nothing was changed.
        """
        request = self._update(title, metadata, merge)
        return await carry_out_async(request)

    async def use(self, engine: str | None) -> None:
        """Use another engine of the manager for later runs, by its name; None for its first. Durable on return.

        Active and queued runs keep their engine. The name is stored with the session, so later managers use their
        engine of this name. Costs nothing if no run follows.

        Raises:
            ConfigError: the manager has no engine of this name; nothing was changed.
        """
        await carry_out_async(self._use(engine))

    async def refresh(self) -> None:
        """Restart the session's `ttl_s` now, as a commit would; durable on return."""
        await carry_out_async(self._ask("refresh"))

    async def end(self) -> None:
        """End the session: cancel its runs and accept no new ones. Ending twice is fine."""
        await carry_out_async(self._client.end(self._stored_id))

    async def clear(self, keep_last: int = 0, *, memory: bool = True, verify: Verify = False) -> Forgotten:
        """Remove the messages of the session for good, with what this manager's memories keep of them.

        The session stays, with its title, its metadata, the records of its runs and their usage; the indexes of turns
        go on. Turns, the texts of their blocks, and their events go, in one commit: also appended prompts that no run
        has used. The turns that stay lose what they were given of the others. Forks keep the blocks that they use. May
        be repeated.

        Args:
            keep_last: how many of the newest turns stay, pending ones included.
            memory: if false, memories keep what they have of the turns.
            verify: how memories are checked afterwards for remains; see `delete`.

        Raises:
            SessionBusyError: a run is active or queued; nothing was removed.
            LongTermMemoryError: memories failed; the error names them. The history was not changed: repeat the call.
        """
        request = self._clear(keep_last, memory, verify)
        return await carry_out_async(request)

    async def delete(self, *, memory: bool = True, verify: Verify = False) -> Forgotten:
        """Delete the session permanently, with what this manager's memories keep of it. Its forks stay complete.

        Args:
            memory: if false, memories keep what they have of the session.
            verify: how memories are checked afterwards for remains: `False` not at all; `True` in the parts that were
                changed, at a cost that grows with what is forgotten; `"files"` in all their files, in the background.
                See `Verify`.

        Raises:
            SessionBusyError: a run is active or queued.
            LongTermMemoryError: memories failed; the error names them. The session was not deleted: repeat the call.
        """
        return await carry_out_async(self._delete(memory, verify))

    async def info(self) -> SessionInfo:
        """Return the session's record, its active and queued runs, and the process that hosts it, if any."""
        info: SessionInfo = await carry_out_async(self._ask("info"))
        return info

"""`AsyncSession`: append prompts, start runs, read turns, fork, compact and delete a conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from pydantic import InstanceOf

from turnwise.actors.client import steps
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.files import AsyncFiles, collect_files
from turnwise.actors.client.importing import read_conversation, send_conversation
from turnwise.actors.client.session_host import AsyncSessionHost
from turnwise.actors.client.session_memory import AsyncSessionMemory
from turnwise.actors.client.shared.arguments import (
    Addressee,
    Blocks,
    Count,
    EngineName,
    Format,
    IdempotencyKey,
    Instructions,
    Kinds,
    Labels,
    Limit,
    Markable,
    MarkName,
    MemoryUseArg,
    Number,
    Removable,
    RunId,
    ScheduleKey,
    Seconds,
    SessionId,
    ShownTurn,
    Text,
    Time,
    Title,
    TurnRef,
    UserId,
    WaitSeconds,
    check_names,
    checked,
    json_object,
)
from turnwise.actors.client.shared.event_page import EventPage
from turnwise.actors.client.shared.run_options import (
    LaterRunOptions,
    RerunOptions,
    RunOptions,
    checked_options,
    later_options,
    takes_long,
    with_records,
)
from turnwise.actors.client.shared.schedule_times import repeatable_id, when_of
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import PackedTurn, SessionInfo, SessionRef
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, custom_event
from turnwise.actors.wire_version import by_version
from turnwise.errors import InvalidInputError, TurnNotFoundError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Summary
from turnwise.memory.conversation.marks import MAX_MARK_BYTES, Mark
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.prompts import Prompt, plain_prompts
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import MemberRole, SessionRecord
from turnwise.memory.conversation.spans import join, places, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.chat_messages import ChatMessage, parse_message_cursor
from turnwise.memory.conversation.views.event_filter import event_filter
from turnwise.memory.conversation.views.message_formats import MessageFormat, Messages, functions_of, to_messages
from turnwise.memory.conversation.views.notebook_display import ListPage, facts_html
from turnwise.memory.deliveries.records import Delivery, Missed
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.base import Page
from turnwise.memory.values.ids import new_id
from turnwise.strategies.compaction import Compaction

if TYPE_CHECKING:
    from turnwise.actors.session.runs.admission import StartOptions

_EXPORTED_AT_ONCE = 100
"""How many turns are read at once for an export."""


class AsyncSession:
    """`Session` with its methods as coroutines: any number at once, from any process; they take effect one at a time.

    A change is durable when its method returns. Most methods are one request to its process. Reads of a session
    without a live process query the store; `export_messages` reads page by page; `cancel` and `end` repeat their
    request until the run has ended. A method whose argument has the wrong type or is out of range raises
    InvalidInputError, which names the argument, and changes nothing.
    """

    def __init__(self, client: SessionsClient, ref: SessionRef, agent: str | None) -> None:
        self._client = client
        self._ref = ref
        self._host = AsyncSessionHost(client, ref)
        self.session_id = ref.key.session_id
        """Its id, which no other session of the user has."""
        self.user_id = ref.key.user_id
        """The user to whom it belongs."""
        self.as_user = ref.as_user
        """The member for whom this object acts; None for the session's user."""
        self.agent = agent
        """The agent whose session it is; None if it has no name."""

    def __repr__(self) -> str:
        acting = f" as {self.as_user!r}" if self.as_user is not None else ""
        return f"<{type(self).__name__} {self.session_id!r} of user {self.user_id!r}{acting}>"

    def _repr_html_(self) -> str:
        return facts_html(type(self).__name__, {"id": self.session_id, "user_id": self.user_id, "agent": self.agent})

    def __reduce__(self) -> tuple[object, ...]:
        return by_version(type(self), client=self._client, ref=self._ref, agent=self.agent)

    @property
    def actor(self) -> Any:
        """The raw Ray handle of the session's actor.

        Raises:
            ConfigError: the placement is `InProcess`.
        """
        return self._client.process(self._ref).actor

    @property
    def memory(self) -> AsyncSessionMemory:
        """The long-term memories of the session's user, and the working memory."""
        return AsyncSessionMemory(self._client, self._ref)

    @property
    def files(self) -> AsyncFiles:
        """The files of the session, which blocks and tools name by their ids."""
        return AsyncFiles(self._client, self._ref.key, self._ref.as_user)

    async def append(self, *prompts: Prompt) -> Turn:
        """Store prompts for the next run; return that run's turn, with all prompts that wait for the run. Durable.

        The history has the prompts in the order in which `append` calls return. An active run does not see them.
        Prompts may be an earlier conversation: `Text`, `Thinking`, `ToolUse` and `ToolResult` blocks too. A result
        follows its call, and a run starts only if each call has one.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        cache = self._client.cache(self._ref)
        packed = await self._host.ask(verbs.append(plain_prompts(self.session_id, prompts), new_id(), cache.held))
        return self._client.unpack(packed, cache)

    @checked(
        format=Format | None,
        system=Instructions | None,
        idempotency_key=IdempotencyKey | None,
        after=Number | None,
        memory=MemoryUseArg,
    )
    async def import_messages(
        self,
        messages: Sequence[Any],
        format: MessageFormat | None = None,
        *,
        system: str | None = None,
        idempotency_key: str | None = None,
        after: int | None = None,
        memory: MemoryUse | bool = False,
    ) -> Turn:
        """Store a conversation from elsewhere behind the newest turn; return its last turn.

        Each of its turns is prompts with their answer, tool calls and results included; it has ended, without a run.
        A conversation of up to 1,000 blocks is one commit. A longer one is several commits, in order, so that other
        calls do not wait long; if they are cut off, a repeated call stores the rest. Prompts at the end wait for the
        next run, like appended ones. Long-term memories get them with `memory`. The conversation is checked as a
        provider would check it. Durable on return. May be repeated: the same conversation is stored once, and again
        only after its turns were cleared. If a conversation begins with all that the session has, only the rest is
        stored.

        Args:
            messages: dicts, or objects of the provider's client or of the library, oldest first; see `MessageFormat`.
                If they have a `created_at`, `createdAt` or `timestamp` (seconds since the epoch, or a time with a time
                zone), a turn's `created_at` is that of its first message.
            format: their format; by default it is detected, which fails if two formats are mixed.
            system: the system prompt, where it is not among the messages. Several become one, at the beginning.
            idempotency_key: identifies this import; by default a digest of the messages does. Pass one to store the
                same messages twice.
            after: an optimistic check: if this is not the index of the newest ended turn, nothing is stored. With -1,
                the session must have no ended turn.
            memory: with `on` or True, the session's long-term memories get the turns as those of runs, in the
                background, also after a kill. Not by default, as some ask a model for each turn. For a conversation
                that is stored already it changes nothing.

        Raises:
            InvalidInputError: names the first message that cannot be read, stored or continued, by its index, and says
                what to do; or prompts wait for a run, or the key was used for other messages. Nothing was stored.
            TurnsChangedError: another turn than `after` is the newest, and nothing was stored; or another turn came
                while a long conversation was stored, which a repeated call goes on with if it can follow that turn.
            ConfigError: the format needs a package that is not installed.
            SessionBusyError, SessionEndedError: nothing was stored.
        """
        conversation = await read_conversation(messages, format, system=system, key=idempotency_key)
        index = await send_conversation(self._host.ask, conversation, after, memory)
        try:
            return await self.turn(index)
        except TurnNotFoundError:  # a repeated import, whose last prompts moved on
            latest = await self.latest()
            if latest is None:
                raise
            return latest

    @checked(format=Format)
    async def export_messages(self, format: MessageFormat) -> Messages:
        """Return the whole conversation as messages of another library, oldest first; see `to_messages`.

        Includes blocks that compaction replaced, and pending prompts. Excludes removed and forgotten blocks, and the
        active run's answer. A fork begins with the blocks that it continues.

        Raises:
            InvalidInputError: there is no such format.
            UnsupportedBlockError: a picture or a file in a form that the format does not have.
            ConfigError: the format needs a package that is not installed.
        """
        functions_of(format, "write")  # before anything is read
        blocks: list[AnyBlock] = []
        after, is_first = -1, True
        while turns := await self.turns(after, _EXPORTED_AT_ONCE):
            for turn in turns:
                is_fork = is_first and turn.parent is not None and turn.parent.rpartition("#")[0] != self.session_id
                is_first = False
                if turn.record.forgotten:
                    continue
                if is_fork and not turn.record.is_open:
                    blocks += turn.blocks
                    continue
                own = turn.asked if turn.record.is_open else turn.new_blocks
                blocks += (block for number, block in enumerate(own) if number not in turn.removed)
            after = turns[-1].index
        if len(blocks) <= _EXPORTED_AT_ONCE:
            return to_messages(blocks, format)
        return await steps.in_thread(partial(to_messages, blocks, format))

    async def start(self, **options: Unpack[RunOptions]) -> AsyncExecutionHandle:
        """Start a run on the appended prompts, like `run` without prompts."""
        return await self.run(**options)

    async def run(self, *prompts: Prompt, **options: Unpack[RunOptions]) -> AsyncExecutionHandle:
        """Start a run on the appended prompts and these; on return the run is durable, and started or queued.

        With `instructions`, a run needs no prompts: the model goes on with the conversation as they say.

        While another run is active, `if_busy` decides:

        | `if_busy` | what is stored | what runs | callers of other runs |
        |---|---|---|---|
        | `reject` | nothing: raises SessionBusyError | the active run | unaffected |
        | `drop` | nothing: returns the active run's handle, with `dropped` set | the active run | unaffected |
        | `enqueue` | the prompts, in a turn of their own | the new prompts, after all queued runs | unaffected |
        | `latest` | the prompts; queued ones are dropped | the new prompts, next | get RunReplacedError if queued |
        | `merge` | the prompts, after the queued ones | the merged prompts, as one turn | get the merged run's answer |
        | `inject` | the prompts | the active run, with the prompts from its next model call on | unaffected |
        | `debounce` | the prompts | all prompts with `debounce`, as one turn, after `debounce_s` | unaffected |
        | `interrupt` | the prompts, after those of the ended runs | the new prompts, next | get RunCancelledError |
        | `rollback` | the prompts; ended runs' are dropped | the new prompts, next | get RunCancelledError |

        Prompts that were stored by `append` are never dropped. `interrupt` keeps the text that the ended run has
        answered; `rollback` drops it.

        After a merge, all handles refer to the merged run. Two runs can be merged if these options are equal: model,
        params, output, instructions, tools, overflow, memory, timeout_s, parent and engine, and if the new run has no
        `turn_id`.
        Otherwise the new run is queued as with `enqueue`.

        An injected prompt is sent with the next tool results or approval decision; its run then ends with the active
        run. It is queued as with `enqueue` in these cases: other runs, or prompts stored by `append`, wait before it;
        it has a picture, a file, or an option other than `labels`, `idempotency_key` and `on_event`; the injected
        prompts would take more than a quarter of the window, or not fit into it with the active turn; or the engine has
        no tool loop.

        `debounce` also waits if no run is active. Meanwhile the session is busy: other policies treat the run as
        queued. Later prompts with `debounce` are merged into the run if they can be, and each restarts the wait. Stored
        prompts survive a process crash; the run starts after `debounce_s`, or when a process next loads the session.

        Args:
            turn_id: your id of the turn, unique in the session: it is on the turn and on all events of the turn, and
                `turn(turn_id)` finds the turn. Without it, the turn has its index only.
            parent: the id of the run, in any session of the user, on whose behalf this run is started, such as that of
                an agent that calls this one; it is in the run's record.
            if_busy: what to do while another run is active; see the table above.
            debounce_s: for `debounce`, how many seconds nobody must have added a prompt before the run begins;
                up to a day.
            idempotency_key: a repeated call with the same key and the same prompts returns the run that the first call
                started.
            timeout_s: the run fails after so many seconds.
            labels: kept with the run, and on each of its events, so that `events(labels=...)` finds them; see
                `max_labels` and `max_label_chars` of `SessionConfig`. `from_session` is reserved: see `send`.
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
            instructions: a system prompt for this run alone. Its requests have it after the engine's and the
                conversation's own; no history has it.
            tools: up to 128 tools for this run alone, made by `external_tool`, beside the engine's own. A run that
                calls them waits until their results come by `provide` of its handle, from any process. Their JSON
                schemas check the arguments. Instructions and tools are recorded with the run and apply to all of its
                steps, also after another process resumes it.
            overflow: how this run alone shortens its requests: by `KeepLast(turns=5)`, `Trim(2_000)` or
                `DeleteOldest()`, of which the first two remove no more than they must, whatever their slack. Later runs
                continue the whole conversation again, by the manager's strategy.
            on_event: a function that is called with each event of the run, deltas included, in order, beside the run:
                in a thread, or in a task of the asynchronous family, which takes coroutine functions too. What it
                raises is logged and changes nothing. `wait` of the returned handle waits for it.

        Raises:
            InvalidInputError: a parameter is wrong, or the engine does not accept it; `output` has no schema of an
                object; the engine does not support typed output, or instructions and tools of runs; or it has a tool of
                the same name. Nothing was stored.
            SessionBusyError, QueueFullError, SessionEndedError: the session takes no run now; nothing was stored.
            EmptyTurnError, InvalidPromptError: there are neither prompts nor `instructions`, or a prompt cannot be
                stored; nothing was stored.
            IdempotencyConflictError, TurnIdTakenError: the key or the id is in use; nothing was stored.
            RunNotFoundError: the user has no run with the id `parent`; nothing was stored.
        """
        run_options = await self._settings(options)
        started = await self._host.start(plain_prompts(self.session_id, prompts), run_options)
        run = self._ref, started.run_id, started.turn_index
        if started.dropped:  # it is another caller's run
            return AsyncExecutionHandle(self._client, *run, started.outcome, dropped=True)
        output, on_event = options.get("output"), options.get("on_event")
        return AsyncExecutionHandle(self._client, *run, started.outcome, output=output, on_event=on_event)

    @checked(at=ShownTurn | None)
    async def rerun(
        self, *prompts: Prompt, at: Turn | int | None = None, **options: Unpack[RerunOptions]
    ) -> AsyncExecutionHandle:
        """Answer a turn anew, with other prompts or with its own; on return the new turn is shown in place of it.

        The conversation goes on with the new turn: the old one, and all that was answered after it, are no longer part
        of what later runs continue, nor of `turns`, `messages` and exports. Nothing is lost: they stay as versions,
        which `turn.versions` numbers, `turn(index)` reads, and `choose` shows again. One commit stores the run and
        replaces the turn. If the run fails or is cancelled, the new version says so; if it is rolled back, the earlier
        version is shown again.

        Of two calls at once for the same turn one wins, and the other one is told which turn is shown now. Long-term
        memories keep what they have of earlier versions, and get each new one; a run of this session recalls only what
        is of shown turns. Removed and forgotten blocks do not come back.

        Args:
            prompts: the new prompts; without any, the turn's own, which are stored again.
            at: the turn, which must be shown, or its index; the last one that has ended if omitted.
            options: those of the new run, which gets none of the earlier one's; see `run`. It has no `if_busy`.

        Raises:
            TurnReplacedError: another version of the turn is shown, or of a turn before it; nothing was stored.
            SessionInUseError: a run is active or queued: wait for it, or cancel it; nothing was stored.
            TurnNotFoundError: there is no such turn; nothing was stored.
            InvalidInputError: prompts that `append` has stored wait for a run, or an option is wrong; nothing was
                stored.
            EmptyTurnError: no prompts were given, and the turn has none, or they were removed; nothing was stored.
            TooManyVersionsError: 500 turns were replaced, or chosen again; nothing was stored.
            SessionEndedError, InvalidPromptError, IdempotencyConflictError, TurnIdTakenError, RunNotFoundError: as of
                `run`; nothing was stored.
        """
        check_names("Session.rerun()", options, list(RerunOptions.__annotations__))
        index = self._index_of("at", at)
        settings = await self._settings(cast(RunOptions, options))
        started = await self._host.rerun(plain_prompts(self.session_id, prompts) if prompts else None, index, settings)
        output, on_event = options.get("output"), options.get("on_event")
        run = self._ref, started.run_id, started.turn_index
        return AsyncExecutionHandle(self._client, *run, started.outcome, output=output, on_event=on_event)

    @checked(turn=ShownTurn)
    async def choose(self, turn: Turn | int, /) -> bool:
        """Show the version of the conversation that has a turn; return whether another one was shown before.

        What was answered after the turn is shown too; if it was continued more than once, the newest continuation.
        Later runs go on from there. One commit, durable on return; choosing a turn that is shown changes nothing.

        Args:
            turn: a turn of this session, such as one of `turn.versions`, or its index.

        Raises:
            TurnNotFoundError: there is no such turn.
            SessionInUseError: a run is active or queued; nothing was changed.
            InvalidInputError: prompts that `append` has stored wait for a run; nothing was changed.
            TooManyVersionsError: 500 turns were replaced, or chosen again; nothing was changed.
        """
        return await self._host.ask(verbs.choose(cast(int, self._index_of("turn", turn)), new_id()))

    def _index_of(self, argument: str, turn: Turn | int | None) -> int | None:
        """Return the index of a turn of this session; None for None."""
        if not isinstance(turn, Turn):
            return turn
        if turn.session_id != self.session_id:
            raise InvalidInputError(argument, shown(turn.session_id), f"it is not of session {self.session_id!r}")
        return turn.index

    @checked(text=Text, key=IdempotencyKey | None)
    async def say(self, text: str, *, key: str | None = None) -> AsyncExecutionHandle:
        """Store a text as the assistant's message, without asking a model; return the handle of its run. Durable.

        The text is the answer of a run of its own, whose events followers get as those of other runs. The prompts that
        `append` has stored, if there are any, come before it in the same turn. In a free session the run has ended on
        return. In a busy one it is queued, as with `if_busy="enqueue"`, and is a run as any other while it waits: a
        cancel, or a later run with `interrupt`, `rollback` or `latest`, ends it, and its text with it.

        Requests to models, the window, long-term memories, forks and archives have the text as they have other answers.

        Args:
            key: the run's `idempotency_key`: a repeated call with the same key and the same text returns the run of the
                first call, and says nothing.

        Raises:
            QueueFullError, SessionEndedError: the session takes no run now; nothing was stored.
            InvalidPromptError: the text is blank, is not valid text or takes more than `max_prompt_bytes`, or a tool
                call among the appended prompts has no result; nothing was stored.
            IdempotencyConflictError: the key is in use; nothing was stored.
        """
        started = await self._host.say(text, key)
        return AsyncExecutionHandle(self._client, self._ref, started.run_id, started.turn_index, started.outcome)

    async def _settings(self, options: RunOptions) -> StartOptions:
        settings = checked_options(options)
        records = partial(with_records, settings, options)
        return await steps.in_thread(records) if takes_long(settings) else records()

    @checked(
        at=Time | None,
        after_s=WaitSeconds | None,
        every_s=Seconds | None,
        cron=Text | None,
        timezone=Text | None,
        until=Time | None,
        key=ScheduleKey | None,
        missed=Missed,
        idempotency_key=IdempotencyKey | None,
    )
    async def schedule(
        self,
        *prompts: Prompt,
        at: float | None = None,
        after_s: float | None = None,
        every_s: float | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        until: float | None = None,
        key: str | None = None,
        missed: Missed = "run_once",
        idempotency_key: str | None = None,
        **options: Unpack[LaterRunOptions],
    ) -> Delivery:
        """Start a run with these prompts later, once or again and again; return the schedule. Durable on return.

        Each occurrence begins exactly one run, whatever is killed: the commit that stores the run moves the schedule
        on, or removes it after the last. The session needs no process meanwhile, and no other prompt. On Ray, runs
        begin as long as the cluster lives, whether or not a manager is open; with `placement=InProcess()`, as long as
        one is. What is due later is carried out when the next manager opens the store, as `missed` says. The session
        answers with the engine of the manager that used it last; see the guide on timers.

        Args:
            prompts: what each run begins with; none if `instructions` say what it is for.
            at: when it is due first, in seconds since the epoch.
            after_s: or in how many seconds.
            every_s: it recurs after each so many seconds, counted from the first time, so that it does not drift.
            cron: or at the times of a line of cron: minute, hour, day of the month, month and day of the week, such as
                `0 9 * * MON-FRI`. Each occurrence comes once, also when clocks are set.
            timezone: the IANA name of the time zone of `cron`, such as `Europe/Lisbon`; UTC if omitted.
            until: the last time at which it may recur, in seconds since the epoch.
            key: names the schedule in its session. If there is one of this name, that one is returned unchanged, so
                the call may be repeated each time a program starts. A new id if omitted.
            missed: what becomes of occurrences that nobody could carry out in time: `run_once` begins one run for all
                of them, `run_all` one for each, and `skip` none for those that are more than a minute late.
            idempotency_key: identifies the call in its session, so that it may be repeated when its answer was lost:
                a schedule that was added by this call before is not added again, also if it has been carried out.
            options: options of the runs; see `run`. `if_busy` is `enqueue` if omitted. With `drop` an occurrence at
                which the session is busy is left out; with `reject` it is tried again until the session is free.

        Raises:
            InvalidInputError: there is no such time, or an option or a prompt is wrong; nothing was stored.
            StoreError: the process that begins scheduled runs cannot be started; nothing was stored.
            SessionEndedError, EmptyTurnError, InvalidPromptError: nothing was stored.
        """
        settings = await self._later_settings("Session.schedule()", {"if_busy": "enqueue", **options})
        plain = plain_prompts(self.session_id, prompts)
        when = when_of(at=at, after_s=after_s, every_s=every_s, cron=cron, timezone=timezone, until=until)
        if when is None:
            raise InvalidInputError("at", None, "pass at, after_s, every_s or cron")
        delivery_id = idempotency_key and repeatable_id(*self._ref.key, idempotency_key, key)
        return await self._host.ask(
            verbs.schedule(
                plain,
                when,
                delivery_id=delivery_id or new_id(),
                key=key,
                missed=missed,
                if_busy=settings["if_busy"],
                options=later_options(settings),
            )
        )

    @checked(
        key=ScheduleKey,
        at=Time | None,
        after_s=WaitSeconds | None,
        every_s=Seconds | None,
        cron=Text | None,
        timezone=Text | None,
        until=Time | None,
        missed=Missed | None,
    )
    async def change_schedule(
        self,
        key: str,
        /,
        *prompts: Prompt,
        at: float | None = None,
        after_s: float | None = None,
        every_s: float | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        until: float | None = None,
        missed: Missed | None = None,
        **options: Unpack[LaterRunOptions],
    ) -> Delivery:
        """Change a schedule, and return it as it is then; what is omitted stays. Durable on return.

        A time replaces all that was said of times: `at` alone makes a schedule that does not recur. Prompts replace
        the prompts and the options of the runs. One that was given up is due again. A run that has begun goes on.

        Args:
            key: the schedule's `key`.
            prompts, at, after_s, every_s, cron, timezone, until, missed, options: see `schedule`.

        Raises:
            DeliveryNotFoundError: the session has no such schedule: it was carried out, or cancelled.
            InvalidInputError: an argument is wrong, or options other than `if_busy` come without prompts; nothing was
                changed.
            SessionLostError: the session's process has died, and the schedule may have been changed.
        """
        run_options = later_options(await self._later_settings("Session.change_schedule()", options))
        when = when_of(at=at, after_s=after_s, every_s=every_s, cron=cron, timezone=timezone, until=until)
        brings_run = bool(prompts) or "instructions" in run_options
        if run_options and not brings_run:
            raise InvalidInputError("prompts", (), f"pass the prompts to which {sorted(run_options)} belong")
        return await self._host.ask(
            verbs.change_schedule(
                key,
                when=when,
                prompts=plain_prompts(self.session_id, prompts) if brings_run else None,
                missed=missed,
                if_busy=options.get("if_busy"),
                options=run_options,
            )
        )

    async def _later_settings(self, of: str, options: LaterRunOptions) -> StartOptions:
        check_names(of, options, list(LaterRunOptions.__annotations__))
        return await self._settings(cast(RunOptions, options))

    @checked(to_session=Addressee, text=Text)
    async def send(self, to_session: str, text: str) -> Delivery:
        """Send a message to another session of the same user; return it as it waits. Durable on return.

        The other session gets it once, whatever is killed: the active run takes it before its next model call, as with
        `run(if_busy="inject")`, and without an active run it begins one. That run has the id `Delivery.run_id`, and
        its label `from_session` says who has sent the message. Messages come in the order in which they were sent,
        unless one could not be delivered at once. If the other session is deleted or ends before, the message stays in
        `schedules()`, with `why`; `cancel_schedule` removes it.

        Args:
            to_session: the id of the other session.

        Raises:
            SessionNotFoundError: the user has no such session; nothing was stored.
            SessionEndedError: this session or the other one has ended; nothing was stored.
            InvalidInputError, EmptyTurnError, InvalidPromptError: the text begins no run; nothing was stored.
        """
        return await self._host.ask(verbs.send(to_session, text, new_id()))

    @checked(key=ScheduleKey)
    async def cancel_schedule(self, key: str) -> bool:
        """Remove a schedule; return whether there was one. Durable on return. A run that has begun goes on.

        If a process dies meanwhile, the call is repeated; it may then find that the first attempt has removed it, and
        return False.
        """
        return await self._host.ask(verbs.cancel_schedule(key))

    @checked(cursor=Text | None, limit=Limit)
    async def schedules(self, *, cursor: str | None = None, limit: int = 100) -> Page[Delivery]:
        """Return a page of the session's schedules, by their ids. Pass its `cursor` to get the next page.

        A schedule whose `due_at` is None was given up, since it failed for three days, or can never succeed; `why` says
        more. It stays until it is changed or cancelled.
        """
        return await self._host.ask(verbs.schedules(cursor, limit))

    @checked(key=ScheduleKey)
    async def get_schedule(self, key: str) -> Delivery:
        """Return the schedule with this key.

        Raises:
            DeliveryNotFoundError: the session has no such schedule: it was carried out, or cancelled.
        """
        return await self._host.ask(verbs.get_schedule(key))

    async def latest(self) -> Turn | None:
        """Return the newest turn, pending prompts included; None if the session has no turns."""
        cache = self._client.cache(self._ref)
        packed = await self._host.ask(verbs.latest(cache.held))
        return self._client.unpack(packed, cache) if packed else None

    @checked(index=TurnRef)
    async def turn(self, index: int | str) -> Turn:
        """Return a turn with all of its blocks, by its index or by the id that `run(turn_id=...)` gave it.

        Raises:
            TurnNotFoundError: no turn has this index or id.
        """
        cache = self._client.cache(self._ref)
        packed = await self._host.ask(verbs.turn(index, cache.held))
        return self._client.unpack(packed, cache)

    @checked(after=Number, limit=Limit)
    async def turns(self, after: int = -1, limit: int = 100) -> ListPage[Turn]:
        """Return up to `limit` turns with an index above `after`, by index.

        A page of large turns is shorter: a megabyte, or one turn. Its `next` says whether there are more.
        """
        cache = self._client.cache(self._ref)
        packed: list[PackedTurn]
        packed, later = await self._host.ask(verbs.turns(after, limit, cache.held))
        turns = ListPage[Turn](next=later)
        for turn in packed:
            turns.append(self._client.unpack(turn, turns[-1].cache if turns else cache))
        return turns

    @checked(limit=Limit, before=Text | None, newest_first=bool)
    async def messages(
        self, limit: int = 100, *, before: str | None = None, newest_first: bool = False
    ) -> Page[ChatMessage]:
        """Return a page of messages, as chat interfaces list them: the newest ones, or those before a cursor.

        Pass the page's `cursor` as `before` to get the page of earlier messages; it is None if there are none. So pages
        go back in time, whichever order the messages on them have. A fork has the messages from the turn on at which it
        was forked; the earlier ones are its parent's. While a run goes on, the last message is what it has answered so
        far, marked `is_partial`.

        Args:
            limit: how many at most.
            before: the cursor of a page, or of a message.
            newest_first: order the page from new to old; otherwise from old to new, as people read them.
        """
        messages, is_more = await self._host.ask(verbs.messages(before, limit))
        cursor = messages[0].cursor if is_more else None
        return Page(tuple(reversed(messages) if newest_first else messages), cursor)

    @checked(after=Number, limit=Limit)
    async def runs(self, after: int = -1, limit: int = 100) -> ListPage[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index.

        A page of large runs is shorter: a megabyte, or one run. Its `next` says whether there are more.
        """
        runs, later = await self._host.ask(verbs.runs(after, limit))
        return ListPage(runs, later)

    @checked(after=Number, limit=Limit, kinds=Kinds | None, labels=Labels | None, wait_s=WaitSeconds)
    async def events(
        self,
        after: int = 0,
        limit: int = 1000,
        *,
        kinds: Collection[str] | None = None,
        labels: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> EventPage:
        """Return up to `limit` events of all runs with a number above `after`, by number.

        The result is a list whose `next` is the `after` of the next page; None if there were no more events. To follow
        a session across its runs, live, repeat the call with `wait_s` and the number of the last event. Deltas are
        among the events until the run after the next one starts.

        Args:
            kinds: only events of these kinds, such as `["run_completed"]`. `limit` then says how many events are read
                at once to find some, so a page may have fewer, and none if these kinds are rare: `next` says whether
                there are more.
            labels: only events that have all of these labels: those of their run, and their own; likewise.
            wait_s: wait up to so many seconds for the first event; without it, for none.

        Raises:
            OverloadedError: too many other callers have been waiting for all of `wait_s`.
        """
        only = event_filter(kinds, labels)
        events, later, is_all = await self._host.follow(after, limit, None, wait_s, only)
        return EventPage(events, None if is_all or (only is None and not events) else later)

    @checked(name=Text, labels=Labels | None)
    async def add_event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> int:
        """Add an event of your own to the session, which belongs to no run; return its number. Durable on return.

        Readers of the session's events get a `CustomEvent` with this name and data.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.
            labels: by which `events(labels=...)` finds it; see `max_labels` and `max_label_chars` of `SessionConfig`.

        Raises:
            InvalidInputError: the name, the data or the labels cannot be stored; nothing was stored.
            SessionEndedError: the session has ended; nothing was stored.
        """
        plain = None if data is None else json_object("data", data, MAX_EVENT_BYTES)
        custom_event(name, plain, labels)
        return await self._host.ask(verbs.add_event(name, plain, new_id(), labels=labels))

    @checked(reason=Text)
    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the active run and wait for its end; return whether it ended as cancelled.

        Never cancels a run that became active after this call began.

        Raises:
            NoActiveRunError: no run is active.
        """
        return await self._host.cancel(reason)

    @checked(run_id=RunId)
    async def execution(self, run_id: str) -> AsyncExecutionHandle:
        """Return the handle of a run of this session.

        Raises:
            RunNotFoundError: the session has no such run.
        """
        record = await self._host.ask(verbs.run(run_id))
        return AsyncExecutionHandle(self._client, self._ref, run_id, record.turn_index)

    @checked(at=Number | None, session_id=SessionId | None, schedules=bool)
    async def fork(
        self, at: int | None = None, session_id: str | None = None, *, schedules: bool = False
    ) -> AsyncSession:
        """Return a new session that continues after turn `at`, by default the last turn that ended.

        This session does not change. It may have an active run. Durable on return. The fork has this session's agent,
        metadata, memory use, model, params, engine and `ttl_s`, but not its title and no pending prompts.

        Args:
            at: the index of a turn that has ended.
            session_id: the fork's id; a new one if omitted.
            schedules: whether the fork gets a copy of each schedule. Both sessions then carry them out.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionExistsError: a session `session_id` exists.
        """
        fork = await self._host.ask(verbs.fork(at, session_id or new_id(), schedules))
        return AsyncSession(self._client, SessionRef.of(fork, self.as_user), self.agent)

    @checked(message=Text | None)
    async def window(self, message: str | None = None) -> tuple[AnyBlock, ...]:
        """Return the blocks of the next request, oldest first, prompts that wait included: always as many as fit.

        What does not fit is compacted as the overflow strategy says, as before a run's request; where that fails, or
        the prompts that wait are too large, the oldest exchanges are left out. A tool's result always has its call.
        Without a strategy no limit is known: see `SessionConfig.max_context_tokens`.

        Args:
            message: a text of the user that will follow in the request, for which there is room then. No room is kept
                if it is already the newest block.

        Raises:
            TurnOverflowError: the newest turn does not fit alone, with the message behind it.
            ReadOnlyStoreError: the manager is read-only, so nothing may be compacted.
        """
        cache = self._client.cache(self._ref)
        packed = await self._host.ask(verbs.window(cache.held, message))
        return self._client.unpack(packed, cache).blocks if packed else ()

    @checked(explain=bool)
    async def compact(self, *, explain: bool = False) -> Compaction | None:
        """Compact the window now; return what the overflow strategy changed, None if it changed nothing.

        Without a strategy the result is None. Compaction also happens automatically at the end of runs, and before a
        request that would not fit. Stored turns keep their blocks; the context of the next turn shrinks, in one commit.
        Prompts that wait for a run stay as they are, so a session that has nothing else has nothing to compact.

        Args:
            explain: return what the strategy would remove and keep, and why, and change nothing.

        Raises:
            StrategyError, CompactionError, WindowOverflowError: nothing was changed.
        """
        return await self._host.ask(verbs.compact(explain))

    @checked(summary=InstanceOf[Summary])
    async def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return the blocks that a summary replaced, in order; summaries among them are expanded too.

        Raises:
            InvalidInputError: the summary is not from this session.
        """
        return tuple(await self._host.ask(verbs.expand(summary)))

    @checked(title=Title | None, merge=bool)
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
        names = None if metadata is None else json_object("metadata", metadata)
        return await self._host.ask(verbs.update(title, names, merge))

    @checked(engine=EngineName | None)
    async def use(self, engine: str | None) -> None:
        """Use another engine of the manager for later runs, by its name; None for its first. Durable on return.

        Active and queued runs keep their engine. The name is stored with the session, so later managers use their
        engine of this name.

        Raises:
            ConfigError: the manager has no engine of this name; nothing was changed.
        """
        await self._host.ask(verbs.use_engine(engine))

    async def refresh(self) -> None:
        """Restart the session's `ttl_s` now, as a commit would; durable on return."""
        await self._host.ask(verbs.refresh())

    @checked(user_id=UserId, role=MemberRole)
    async def add_member(self, user_id: str, role: MemberRole = "member") -> SessionRecord:
        """Share the session with another user, or change a member's role; return its record. Durable on return.

        The member reaches it by `manager.get(session_id, user_id=<its user>, as_user=<the member>)`, and sees the whole
        conversation, also what was said before. What a member starts is the member's own: its prompts name the member
        as `author`, and its runs ask the member's memories. `manager.list(user_id=<the member>, shared=True)` lists it.
        May be repeated.

        Args:
            role: `reader`: reads and follows. `member`: also appends prompts and starts runs, marks messages, and
                cancels, answers anew and decides about calls of the own runs. `owner`: all that its user may.

        Raises:
            InvalidInputError: it is the session's own user, or the session is an agent's.
            NotAllowedError: this object acts for a member who is no owner.
            TooManyError: the session has 100 members.
        """
        return await self._host.ask(verbs.set_member(user_id, role))

    @checked(user_id=UserId)
    async def remove_member(self, user_id: str) -> SessionRecord:
        """Remove a member; return the session's record. Durable on return; may be repeated.

        From then on the session does not exist for this user, and further calls raise SessionNotFoundError. Runs that
        the user has started go on. Every member may remove itself.

        Raises:
            InvalidInputError: it is the session's own user.
            NotAllowedError: this object acts for another member, who is no owner.
        """
        return await self._host.ask(verbs.set_member(user_id, None))

    async def members(self) -> Mapping[str, MemberRole]:
        """Return the roles of those who share the session, by their ids; its user, an owner, is among them."""
        session = (await self.info()).session
        roles: dict[str, MemberRole] = {session.user_id: "owner", **session.members}
        return roles

    async def end(self) -> None:
        """End the session: cancel its runs and accept no new ones. Ending twice is fine.

        Waits until the active run has ended. Pending prompts, and those of queued runs, stay stored; no run uses them.
        """
        await self._host.end()

    @checked(what=Removable, blocks=Blocks)
    async def remove(self, what: Turn | ChatMessage, /, *blocks: int) -> int:
        """Exclude blocks of an ended turn, or pending prompts, from the context of later runs; return how many.

        The results of removed calls are removed too. `messages` no longer shows the blocks. Blocks that cannot be sent
        without them stay there, but are not sent either, so the next request is valid: the call of a removed result,
        the calls of removed thoughts, thoughts of which nothing else is left, and answers before the first prompt. A
        summary that covers a removed block is replaced by the remaining blocks that it summarized.

        One commit, durable on return. Nothing is erased: turns keep their snapshots and name the blocks as `removed`,
        `fork(at=...)` after an earlier turn still has them, and memories keep what they have. To erase, use `clear`,
        or `memory.forget(turn_index=...)` and `delete`.

        Args:
            what: a turn of this session, or one of its `messages`.
            blocks: numbers of its `new_blocks`, or of the message's `blocks`, from 0; all if there are none.

        Raises:
            SessionInUseError: a run is active, waits or is queued; nothing was removed.
            TurnNotFoundError: there is no such turn, or its last waiting prompt was removed meanwhile.
            InvalidInputError: the blocks are not of this turn, or a number is too high; nothing was removed.
        """
        if isinstance(what, ChatMessage) and what.is_partial:
            raise InvalidInputError("what", shown(what.id), "it is still being answered: wait for its run or cancel it")
        spans = join(what.record.prompt, what.record.output) if isinstance(what, Turn) else what.places
        own, index = places(spans), what.index if isinstance(what, Turn) else what.turn_index
        if high := [number for number in blocks if number >= len(own)]:
            raise InvalidInputError("blocks", high[0], f"it has {len(own)} blocks, numbered from 0")
        if what.session_id != self.session_id:
            raise InvalidInputError("what", shown(what.session_id), f"it is not of session {self.session_id!r}")
        removed_spans = join(union([own[number] for number in blocks] if blocks else own))
        return await self._host.ask(verbs.remove(index, removed_spans, new_id()))

    @checked(message=Markable, name=MarkName, by=Text | None)
    async def mark(self, message: ChatMessage | str, name: str, value: Any, *, by: str | None = None) -> Mark | None:
        """Mark a message of an ended turn, such as with a thumb, stars, a note or a flag; return the mark as stored.

        A message has at most one mark of a name: another value replaces it, and None removes it. The mark is stored
        with the message's turn, in one commit that is durable on return, with an event `message_marked`. It is shown by
        `messages`, listed by `manager.marks`, exported with the session, and deleted with the message. Forks have
        none. No model sees marks. May be repeated.

        Args:
            message: one of the session's `messages`, or the id of one, as search also gives it.
            name: of at most 64 characters.
            value: JSON of at most 4,096 bytes; None removes the mark.
            by: who marks it, such as the name of a reviewer; of what a member does, always the member.

        Raises:
            TurnNotFoundError: the session has no such turn.
            InvalidInputError: the turn has not ended, or the message was removed; or the value cannot be stored.
            TooManyError: the message has 32 other marks.
        """
        index, number = self._place_of(message)
        frozen = json_object("value", {"value": value}, MAX_MARK_BYTES)["value"]
        return await self._host.ask(verbs.mark(index, number, name, frozen, by=by))

    def _place_of(self, message: ChatMessage | str) -> tuple[int, int]:
        """Return the index of a message's turn, and its number there."""
        message_id = message if isinstance(message, str) else message.id
        session_id, _, cursor = message_id.rpartition("#")
        try:
            place = parse_message_cursor(cursor)
        except InvalidInputError:
            place = None
        if session_id != self.session_id or place is None:
            raise InvalidInputError("message", shown(message_id), f"it names no message of session {self.session_id!r}")
        return place

    @checked(keep_last=Count, memory=bool, verify=bool, updated_at=Time | None)
    async def clear(
        self, keep_last: int = 0, *, memory: bool = True, verify: bool = False, updated_at: float | None = None
    ) -> Forgotten:
        """Remove the messages of the session for good, with what this manager's memories keep of them.

        The session stays, with its title, its metadata, the records of its runs and their usage; the indexes of turns
        go on. Turns, the texts of their blocks, and their events go, in one commit: also appended prompts that no run
        has used. Remaining turns no longer contain context from removed turns. Forks keep the blocks that they use. May
        be repeated.

        Args:
            keep_last: how many of the newest turns stay, pending ones included.
            memory: if false, memories keep what they have of the turns.
            verify: whether memories are checked afterwards for remains; see `delete`.
            updated_at: clear only if the session's last change was at this time, as `info().session.updated_at` says.

        Raises:
            SessionInUseError: a run is active or queued; nothing was removed.
            SessionChangedError: the last change was not at `updated_at`; nothing was removed.
            LongTermMemoryError: memories failed; the error names them. The history was not changed: repeat the call.
        """
        return await self._host.clear(keep_last, memory=memory, verify=verify, updated_at=updated_at)

    @checked(memory=bool, verify=bool)
    async def delete(self, *, memory: bool = True, verify: bool = False) -> Forgotten:
        """Delete the session permanently, with what this manager's memories keep of it. Its forks stay complete.

        Args:
            memory: if false, memories keep what they have of the session.
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.

        Raises:
            SessionInUseError: a run is active or queued, or waits for a decision: cancel it first.
            LongTermMemoryError: memories failed; the error names them. The session was not deleted: repeat the call.
        """
        report = await self._host.delete(memory=memory, verify=verify)
        await collect_files(self._client)
        return report

    async def info(self) -> SessionInfo:
        """Return the session's record, its active and queued runs, and the process that hosts it, if any."""
        return await self._host.ask(verbs.info())

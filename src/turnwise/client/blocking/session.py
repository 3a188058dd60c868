# Made from src/turnwise/client/session.py by `make blocking`: change that file.
"""`RemoteSession`: a conversation of a service: append prompts, start runs, read turns, fork and delete."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Unpack, cast

from pydantic import InstanceOf

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
from turnwise.actors.client.shared.run_options import LaterRunOptions, RerunOptions, RunOptions
from turnwise.actors.hosting.wire import SessionInfo
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, custom_event
from turnwise.client.blocking import steps
from turnwise.client.blocking.connection import Connection
from turnwise.client.blocking.execution import RemoteExecutionHandle
from turnwise.client.blocking.files import RemoteFiles
from turnwise.client.blocking.session_memory import RemoteSessionMemory
from turnwise.client.shared.answers import Request, Whose, given, most, path_of
from turnwise.client.shared.reading import (
    blocks_of,
    compaction_of,
    delivery_of,
    event_page_of,
    forgotten_of,
    info_of,
    mark_of,
    message_of,
    messages_of,
    page_of,
    run_of,
    session_of,
)
from turnwise.client.shared.sending import FORMATS, block_body, messages_body, prompts_body, run_body
from turnwise.errors import InvalidInputError, RunNotFoundError, SessionExistsError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Summary
from turnwise.memory.conversation.marks import MAX_MARK_BYTES, Mark
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import MemberRole, SessionRecord
from turnwise.memory.conversation.spans import join, places, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.chat_messages import ChatMessage, parse_message_cursor
from turnwise.memory.conversation.views.message_formats import MessageFormat, Messages
from turnwise.memory.conversation.views.notebook_display import ListPage
from turnwise.memory.deliveries.records import Delivery, Missed
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.base import Page
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.records import replace
from turnwise.strategies.compaction import Compaction


class RemoteSession:
    """A conversation of a service. Methods may be called from many threads; they take effect one at a time.

    The verbs are those of `Session`, which says more: what they do, what they raise, and what is durable. Beside that,
    each may raise:
        ServiceAwayError: the service cannot be reached. If its `word` is "unknown", a change may have been made.
        UnauthorizedError: the service does not accept the token.
        OperatorsOnlyError: the token's user may not act for the user of this session.
    """

    def __init__(
        self,
        connection: Connection,
        whose: Whose,
        session_id: str,
        user_id: str,
        agent: str | None,
    ) -> None:
        self._connection = connection
        self._whose = whose
        self.session_id = session_id
        """Its id, which no other session of the user has."""
        self.user_id = user_id
        """The user to whom it belongs."""
        self.as_user = whose.user_id if whose.owner is not None else None
        """The member for whom this object acts; None for the session's user."""
        self.agent = agent
        """The agent whose session it is; None if it has no name."""

    def __repr__(self) -> str:
        acting = f" as {self.as_user!r}" if self.as_user is not None else ""
        return f"<{type(self).__name__} {self.session_id!r} of user {self.user_id!r}{acting}>"

    @property
    def memory(self) -> RemoteSessionMemory:
        """The long-term memories of the session's user, and the working memory."""
        return RemoteSessionMemory(self._connection, self._whose, self.session_id)

    @property
    def files(self) -> RemoteFiles:
        """The files of the session, which blocks and tools name by their ids."""
        return RemoteFiles(self._connection, self._whose, self.session_id)

    def append(self, *prompts: Prompt) -> Turn:
        """Store prompts for the next run; return that run's turn, with all prompts that wait for the run. Durable.

        See `Session.append`.
        """
        return self._stored("append", {"prompt": prompts_body(self.session_id, prompts)}, is_repeatable=False)

    @checked(
        format=Format | None,
        system=Instructions | None,
        idempotency_key=IdempotencyKey | None,
        after=Number | None,
        memory=MemoryUseArg,
    )
    def import_messages(
        self,
        messages: Sequence[Any],
        format: MessageFormat | None = None,
        *,
        system: str | None = None,
        idempotency_key: str | None = None,
        after: int | None = None,
        memory: MemoryUse | bool = False,
    ) -> Turn:
        """Store a conversation from elsewhere behind the newest turn; return its last turn. May be repeated.

        See `Session.import_messages`. Formats are those of OpenAI and Anthropic.
        """
        body: dict[str, Any] = {"messages": messages_body(messages, format), "memory": memory_use(memory)}
        body |= given(format=format, system=system, idempotency_key=idempotency_key, after=after)
        return self._stored("import", body)

    @checked(format=Format)
    def export_messages(self, format: MessageFormat) -> Messages:
        """Return the whole conversation as messages of another library, oldest first: of OpenAI or Anthropic."""
        if format not in FORMATS:
            raise InvalidInputError("format", shown(format), f"over HTTP, pass one of {', '.join(FORMATS)}")
        return messages_of(self._get("export", format=format))

    def start(self, **options: Unpack[RunOptions]) -> RemoteExecutionHandle:
        """Start a run on the appended prompts, like `run` without prompts."""
        return self.run(**options)

    def run(self, *prompts: Prompt, **options: Unpack[RunOptions]) -> RemoteExecutionHandle:
        """Start a run on the appended prompts and these; on return the run is durable, and started or queued.

        See `Session.run` for the options. A start whose answer was lost is repeated, by an idempotency key that each
        run has, and begins one run.
        """
        body, headers = self._run_body(prompts, options, "if_busy")
        data = self._post("runs", body=body, headers=headers)
        return self._execution(data, options)

    @checked(at=ShownTurn | None)
    def rerun(
        self, *prompts: Prompt, at: Turn | int | None = None, **options: Unpack[RerunOptions]
    ) -> RemoteExecutionHandle:
        """Answer a turn anew, with other prompts or with its own; on return the new turn is shown in place of it.

        See `Session.rerun`. May be repeated, as `run`.
        """
        check_names("Session.rerun()", options, list(RerunOptions.__annotations__))
        body, headers = self._run_body(prompts, cast(RunOptions, options))
        body |= given(at=self._index_of("at", at))
        data = self._post("rerun", body=body, headers=headers)
        return self._execution(data, options)

    @checked(turn=ShownTurn)
    def choose(self, turn: Turn | int, /) -> bool:
        """Show the version of the conversation that has a turn; return whether another one was shown before."""
        return bool((self._post("choose", body={"index": self._index_of("turn", turn)}))["changed"])

    def _index_of(self, argument: str, turn: Turn | int | None) -> int | None:
        """Return the index of a turn of this session; None for None."""
        if not isinstance(turn, Turn):
            return turn
        if turn.session_id != self.session_id:
            raise InvalidInputError(argument, shown(turn.session_id), f"it is not of session {self.session_id!r}")
        return turn.index

    @checked(text=Text, key=IdempotencyKey | None)
    def say(self, text: str, *, key: str | None = None) -> RemoteExecutionHandle:
        """Store a text as the assistant's message, without asking a model; return the handle of its run. Durable."""
        headers = {"Idempotency-Key": key or new_id()}
        return self._execution(self._post("say", body={"text": text}, headers=headers), {})

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
    def schedule(
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

        See `Session.schedule`. A call whose answer was lost is repeated, and adds one schedule.
        """
        check_names("Session.schedule()", options, list(LaterRunOptions.__annotations__))
        body, _ = self._run_body(prompts, cast(RunOptions, {"if_busy": "enqueue", **options}), "if_busy")
        body |= given(at=at, after_s=after_s, every_s=every_s, cron=cron, timezone=timezone, until=until, key=key)
        headers = {"Idempotency-Key": idempotency_key or new_id()}
        return delivery_of(self._post("schedules", body={**body, "missed": missed}, headers=headers))

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
    def change_schedule(
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

        See `Session.change_schedule`.
        """
        check_names("Session.change_schedule()", options, list(LaterRunOptions.__annotations__))
        body, _ = self._run_body(prompts, cast(RunOptions, options))
        body |= given(at=at, after_s=after_s, every_s=every_s, cron=cron, timezone=timezone, until=until)
        body |= given(missed=missed, if_busy=options.get("if_busy"))
        return delivery_of(self._ask("PATCH", "schedules", key, body=body, is_repeatable=False))

    @checked(to_session=Addressee, text=Text)
    def send(self, to_session: str, text: str) -> Delivery:
        """Send a message to another session of the same user; return it as it waits. Durable on return.

        See `Session.send`.
        """
        body = {"to_session": to_session, "text": text}
        return delivery_of(self._post("send", body=body, is_repeatable=False))

    @checked(key=ScheduleKey)
    def cancel_schedule(self, key: str) -> bool:
        """Remove a schedule; return whether there was one. Durable on return. A run that has begun goes on."""
        return bool((self._ask("DELETE", "schedules", key))["cancelled"])

    @checked(cursor=Text | None, limit=Limit)
    def schedules(self, *, cursor: str | None = None, limit: int = 100) -> Page[Delivery]:
        """Return a page of the session's schedules, by their ids. Pass its `cursor` to get the next page."""
        return page_of(self._get("schedules", cursor=cursor, limit=most(limit)), delivery_of)

    @checked(key=ScheduleKey)
    def get_schedule(self, key: str) -> Delivery:
        """Return the schedule with this key.

        Raises:
            DeliveryNotFoundError: the session has no such schedule: it was carried out, or cancelled.
        """
        return delivery_of(self._ask("GET", "schedules", key))

    def latest(self) -> Turn | None:
        """Return the newest turn, pending prompts included; None if the session has no turns."""
        cache, held = self._connection.caches.held(self.user_id, self.session_id)
        snapshot = self._get("snapshot", held=held)
        return self._connection.caches.turn_of(self.user_id, cache, snapshot) if snapshot else None

    @checked(index=TurnRef)
    def turn(self, index: int | str) -> Turn:
        """Return a turn with all of its blocks, by its index or by the id that `run(turn_id=...)` gave it.

        Raises:
            TurnNotFoundError: no turn has this index or id.
        """
        return self._turn(**({"index": index} if isinstance(index, int) else {"turn_id": index}))

    @checked(after=Number, limit=Limit)
    def turns(self, after: int = -1, limit: int = 100) -> ListPage[Turn]:
        """Return up to `limit` turns with an index above `after`, by index. Its `next` says whether there are more."""
        cache, held = self._connection.caches.held(self.user_id, self.session_id)
        data = self._get("snapshots", after=after, limit=most(limit), held=held)
        turns = ListPage[Turn](next=data["next"])
        for snapshot in data["items"]:
            turns.append(self._connection.caches.turn_of(self.user_id, turns[-1].cache if turns else cache, snapshot))
        return turns

    @checked(limit=Limit, before=Text | None, newest_first=bool)
    def messages(self, limit: int = 100, *, before: str | None = None, newest_first: bool = False) -> Page[ChatMessage]:
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
        query = {"limit": most(limit), "before": before, "newest_first": newest_first}
        return page_of(self._get("messages", **query), message_of)

    @checked(after=Number, limit=Limit)
    def runs(self, after: int = -1, limit: int = 100) -> ListPage[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by it. Its `next` says whether there are more."""
        data = self._get("runs", after=after, limit=most(limit))
        return ListPage(map(run_of, data["items"]), data["next"])

    @checked(after=Number, limit=Limit, kinds=Kinds | None, labels=Labels | None, wait_s=WaitSeconds)
    def events(
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
        query: dict[str, Any] = {"after": after, "limit": most(limit)}
        query |= {"kinds": None if kinds is None else sorted(kinds)}
        query |= {"labels": labels and json.dumps(dict(labels))}
        path = path_of("sessions", self.session_id, "events")
        request = Request(method="GET", path=path, query={**query, "wait_s": wait_s}, wait_s=wait_s)
        return event_page_of((self._connection.ask(request, self._whose)).data)

    @checked(name=Text, labels=Labels | None)
    def add_event(
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
        body = given(name=name, data=plain, labels=labels and dict(labels))
        return int((self._post("events", body=body, is_repeatable=False))["seq"])

    @checked(reason=Text)
    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the active run and wait for its end; return whether it ended as cancelled.

        Never cancels a run that became active after this call began.

        Raises:
            NoActiveRunError: no run is active.
        """
        return bool((self._post("cancel", body={"reason": reason}, is_repeatable=False))["cancelled"])

    @checked(run_id=RunId)
    def execution(self, run_id: str) -> RemoteExecutionHandle:
        """Return the handle of a run of this session.

        Raises:
            RunNotFoundError: the session has no such run.
        """
        record = self._connection.ask(Request(method="GET", path=path_of("runs", run_id)), self._whose)
        if record.data["session_id"] != self.session_id:
            raise RunNotFoundError(run_id, f"session {self.session_id!r}")
        return self._execution(record.data, {})

    @checked(at=Number | None, session_id=SessionId | None, schedules=bool)
    def fork(self, at: int | None = None, session_id: str | None = None, *, schedules: bool = False) -> RemoteSession:
        """Return a new session that continues after turn `at`, by default the last turn that ended.

        See `Session.fork`.
        """
        fork_id = session_id or new_id()
        body = given(at=at, id=fork_id, schedules=schedules)
        try:
            self._post("fork", body=body, is_repeatable=session_id is None)
        except SessionExistsError:
            if session_id is not None:
                raise
            # an attempt whose answer was lost has made it: nobody else knows this id
        return RemoteSession(self._connection, self._whose, fork_id, self.user_id, self.agent)

    @checked(message=Text | None)
    def window(self, message: str | None = None) -> tuple[AnyBlock, ...]:
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
        return blocks_of((self._post("window", body=given(message=message)))["blocks"])

    @checked(explain=bool)
    def compact(self, *, explain: bool = False) -> Compaction | None:
        """Compact the window now; return what the overflow strategy changed, None if it changed nothing.

        Without a strategy the result is None. Compaction also happens automatically at the end of runs, and before a
        request that would not fit. Stored turns keep their blocks; the context of the next turn shrinks, in one commit.
        Prompts that wait for a run stay as they are, so a session that has nothing else has nothing to compact.

        Args:
            explain: return what the strategy would remove and keep, and why, and change nothing.

        Raises:
            StrategyError, CompactionError, WindowOverflowError: nothing was changed.
        """
        data = self._post("compact", body={"explain": explain}, is_repeatable=explain)
        return None if data is None else compaction_of(data)

    @checked(summary=InstanceOf[Summary])
    def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return the blocks that a summary replaced, in order; summaries among them are expanded too.

        Raises:
            InvalidInputError: the summary is not from this session.
        """
        return blocks_of((self._post("expand", body={"summary": block_body(summary)}, is_read=True))["blocks"])

    @checked(title=Title | None, merge=bool)
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
        names = None if metadata is None else json_object("metadata", metadata)
        return session_of(self._ask("PATCH", body={"merge": merge, **given(title=title, metadata=names)}))

    @checked(engine=EngineName | None)
    def use(self, engine: str | None) -> None:
        """Use another engine of the manager for later runs, by its name; None for its first. Durable on return.

        Active and queued runs keep their engine. The name is stored with the session, so later managers use their
        engine of this name.

        Raises:
            ConfigError: the manager has no engine of this name; nothing was changed.
        """
        self._post("engine", body={"engine": engine})

    def refresh(self) -> None:
        """Restart the session's `ttl_s` now, as a commit would; durable on return."""
        self._post("refresh")

    @checked(user_id=UserId, role=MemberRole)
    def add_member(self, user_id: str, role: MemberRole = "member") -> SessionRecord:
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
        self._ask("PUT", "members", user_id, body={"role": role})
        return (self.info()).session

    @checked(user_id=UserId)
    def remove_member(self, user_id: str) -> SessionRecord:
        """Remove a member; return the session's record. Durable on return; may be repeated.

        From then on the session does not exist for this user, and further calls raise SessionNotFoundError. Runs that
        the user has started go on. Every member may remove itself.

        Raises:
            InvalidInputError: it is the session's own user.
            NotAllowedError: this object acts for another member, who is no owner.
        """
        before = (self.info()).session
        self._ask("DELETE", "members", user_id, is_repeatable=False)
        members = {name: role for name, role in before.members.items() if name != user_id}
        return replace(before, members=FrozenDict(members))

    def members(self) -> Mapping[str, MemberRole]:
        """Return the roles of those who share the session, by their ids; its user, an owner, is among them."""
        roles: dict[str, MemberRole] = (self._get("members"))["members"]
        return roles

    def end(self) -> None:
        """End the session: cancel its runs and accept no new ones. Ending twice is fine.

        Waits until the active run has ended. Pending prompts, and those of queued runs, stay stored; no run uses them.
        """
        self._post("end")

    @checked(what=Removable, blocks=Blocks)
    def remove(self, what: Turn | ChatMessage, /, *blocks: int) -> int:
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
        place = f"{index}~{'~'.join(f'{log}.{start}-{stop}' for log, start, stop in removed_spans)}"
        return int((self._ask("DELETE", "messages", place, is_repeatable=False))["removed"])

    @checked(message=Markable, name=MarkName, by=Text | None)
    def mark(self, message: ChatMessage | str, name: str, value: Any, *, by: str | None = None) -> Mark | None:
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
        path = ("messages", f"{index}:{number}", "marks", name)
        if value is None:
            self._ask("DELETE", *path)
            return None
        frozen = json_object("value", {"value": value}, MAX_MARK_BYTES)["value"]
        return mark_of(self._ask("PUT", *path, body={"value": frozen, **given(by=by)}))

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
    def clear(
        self, keep_last: int = 0, *, memory: bool = True, verify: bool = False, updated_at: float | None = None
    ) -> Forgotten:
        """Remove the messages of the session for good, with what this manager's memories keep of them.

        The session stays, with its title, its metadata, the records of its runs and their usage; the indexes of turns
        go on. Turns, the texts of their blocks, and their events go, in one commit: also appended prompts that no run
        has used. Remaining turns no longer contain context from removed turns. Forks keep the blocks that they use.

        Args:
            keep_last: how many of the newest turns stay, pending ones included.
            memory: if false, memories keep what they have of the turns.
            verify: whether memories are checked afterwards for remains; see `delete`.
            updated_at: clear only if the session's last change was at this time, as `info().session.updated_at` says.

        Raises:
            SessionInUseError: a run is active or queued; nothing was removed.
            SessionChangedError: the last change was not at `updated_at`; nothing was removed.
            LongTermMemoryError: memories failed; the error names them. The history was not changed: repeat the call.
            ServiceAwayError: if its `word` is "unknown", the session may have been cleared. A second call would also
                remove what was said meanwhile, so look at it first.
        """
        body = {"keep_last": keep_last, "memory": memory, "verify": verify, **given(updated_at=updated_at)}
        return forgotten_of(self._post("clear", body=body, is_repeatable=False))

    @checked(memory=bool, verify=bool)
    def delete(self, *, memory: bool = True, verify: bool = False) -> Forgotten:
        """Delete the session permanently, with what this manager's memories keep of it. Its forks stay complete.

        Args:
            memory: if false, memories keep what they have of the session.
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.

        Raises:
            SessionInUseError: a run is active or queued.
            LongTermMemoryError: memories failed; the error names them. The session was not deleted: repeat the call.
        """
        request = Request(
            method="DELETE",
            path=path_of("sessions", self.session_id),
            query={"memory": memory, "verify": verify},
            is_repeatable=False,
        )
        return forgotten_of((self._connection.ask(request, self._whose)).data)

    def info(self) -> SessionInfo:
        """Return the session's record, and its active and queued runs. The process that hosts it is not shown."""
        return info_of(self._get())

    def _run_body(
        self, prompts: Sequence[Prompt], options: RunOptions, *names: str
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the body and the headers by which a run is started. Large schemas are checked by a thread."""
        return steps.in_thread(partial(run_body, self.session_id, prompts, options, names=names))

    def _execution(self, data: Mapping[str, Any], options: Mapping[str, Any]) -> RemoteExecutionHandle:
        run = self._connection, self._whose, self.session_id, str(data["id"]), int(data["turn_index"])
        if data.get("dropped"):  # it is another caller's run
            return RemoteExecutionHandle(*run, dropped=True)
        output, on_event = options.get("output"), options.get("on_event")
        return RemoteExecutionHandle(*run, output=output, on_event=on_event)

    def _stored(self, part: str, body: Any, *, is_repeatable: bool = True) -> Turn:
        cache, held = self._connection.caches.held(self.user_id, self.session_id)
        data = self._post(part, body=body, query={"held": held}, is_repeatable=is_repeatable)
        return self._connection.caches.turn_of(self.user_id, cache, data["snapshot"])

    def _turn(self, **which: Any) -> Turn:
        cache, held = self._connection.caches.held(self.user_id, self.session_id)
        snapshot = self._get("snapshot", **which, held=held)
        return self._connection.caches.turn_of(self.user_id, cache, snapshot)

    def _get(self, *parts: str, **query: Any) -> Any:
        return self._ask("GET", *parts, query=query)

    def _post(self, part: str, **what: Any) -> Any:
        return self._ask("POST", part, **what)

    def _ask(self, method: str, *parts: str, **what: Any) -> Any:
        request = Request(method=method, path=path_of("sessions", self.session_id, *parts), **what)
        return (self._connection.ask(request, self._whose)).data

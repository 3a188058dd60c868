"""`TurnwiseSession`: a session of ours as the `Session` of the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.session import AsyncSession
from turnwise.adapters.version_checks import framework
from turnwise.errors import ConfigError, InvalidInputError, SessionChangedError, SessionInUseError, shown
from turnwise.memory.conversation.blocks import Unknown
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.values.frozen_json import freeze, plain_json
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.ranges import check_seconds

with framework("openai-agents", extra="openai-agents", tested="0.24"):
    from agents.memory import SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

Item = Any
"""An item of the Responses API: `TResponseInputItem`."""

Made = TypeVar("Made")

KIND = "agents_sdk_items"
"""The kind of the stored blocks: each is a change of the list of items."""

MAX_BYTES = 50_000_000
"""The most bytes that the items of one call may take as JSON."""

PAGE = 100
"""How many turns are read at once."""

_WAIT_S = 0.05
"""How long a queued run waits before it looks again."""

_RUNS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By the SDK's wrapper of a run's context: the run's id here."""

_TASKS: weakref.WeakValueDictionary[str, asyncio.Task[Any]] = weakref.WeakValueDictionary()
"""By the run's id: the task that runs it in this process, as long as there is one."""

_NONCE = new_id()


@dataclass(frozen=True)
class _Unsure:
    """A change that was given to the session."""

    id: str
    what: dict[str, Any]
    items: list[Item]
    """The items before it."""


class _ChangeLog:
    """The items, as far as an event loop has read their changes."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew: nothing was read."""
        self.items: list[Item] = []
        self.ids = set[str]()
        """The ids of the changes that were applied."""
        self.last: str | None = None
        """The id of the last one; each change names the one that it follows."""
        self.open: str | None = None
        """The run that has the session."""
        self.turn = -1
        """The newest turn that was read."""
        self.blocks = 0
        """How many of its blocks were read."""
        self.made_at = 0.0
        """When the last change was made, by the clock of the machine that made it."""
        self.made_by: str | None = None
        """The process that made it."""
        self.read_at = 0.0
        """When it was first seen, by the monotonic clock."""
        self.unsure: list[_Unsure] = []
        """The changes that may have been stored though their callers got an error, since the last that succeeded."""

    def stored_before(self, change: Callable[[list[Item]], dict[str, Any] | None]) -> list[Item] | None:
        """Return the items before an equal change that was stored though its caller got an error; None if none was."""
        for unsure in self.unsure:
            if unsure.id in self.ids and change(list(unsure.items)) == unsure.what:
                return unsure.items
        return None

    def apply(self, turns: Iterable[Turn]) -> None:
        """Apply the changes in these turns. One that does not follow the last one is void: it came too late."""
        for turn in turns:
            blocks = turn.new_blocks
            for block in blocks[self.blocks if turn.index == self.turn else 0 :]:
                change = block.payload if isinstance(block, Unknown) and block.stored_kind == KIND else None
                if change and change.get("after") == self.last:
                    self.last, self.open, self.read_at = change["id"], change.get("open"), time.monotonic()
                    self.made_at, self.made_by = change.get("at", time.time()), change.get("by")
                    self.ids.add(change["id"])
                    self.items += change.get("add", ())
                    del self.items[len(self.items) - change.get("pop", 0) :]
            self.turn, self.blocks = turn.index, len(blocks)


class TurnwiseSession:
    """Keeps the history of the Agents SDK in a session: `Runner.run(agent, text, session=TurnwiseSession(...))`.

    Items are kept exactly as they are, of whatever kind. Each change is one commit, durable on return, and takes effect
    at one point between other changes, whichever process makes them: a batch is added whole or not at all, and
    `pop_item` removes the very item that it returns. A change whose caller is cancelled is stored whole or not at all,
    and the cancellation waits until that is known. After a StoreError, which does not say whether it was stored, a
    change may be repeated by the same object: the same items are added once, and the item that was removed is returned.

    **One run at a time.** A `Runner.run` has the session from its first read until it has stored its answer, or its
    calls that wait for approval. Another run, or a change from elsewhere, is refused meanwhile (`reject`) or waits
    (`enqueue`), in any process. A run that raised, or whose answer is a tool's output (`tool_use_behavior`), leaves the
    session when its task ends or begins another run, for other processes `lease_s` after its last change; one whose
    process was killed, the same; and any by `release`. Each change has the time of its
    machine, so the clocks of machines must agree better than `lease_s`.

    The items are no messages of ours: runs, memories and `messages()` of the session do not see them. Let no manager
    run turns in it.

    Args:
        session: a session of a `SessionManager` or an `AsyncSessionManager`; `engine=NoAnswer()` is enough for it.
        if_busy: what a run does while another one has the session.
        lease_s: after how many seconds without a change a run is taken for dead. It must be longer than a model, a tool
            or a person ever takes.
        session_settings: the SDK's settings; `limit` is how many of the newest items `get_items` returns.

    Raises:
        ConfigError: a setting is wrong, or the SDK is not installed.
    """

    def __init__(
        self,
        session: AsyncSession | Session,
        *,
        if_busy: Literal["reject", "enqueue"] = "reject",
        lease_s: float = 600.0,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(session, AsyncSession | Session):
            raise ConfigError("session", shown(session), "must be a session of a manager")
        if if_busy not in ("reject", "enqueue"):
            raise ConfigError("if_busy", if_busy, "must be 'reject' or 'enqueue'")
        check_seconds("lease_s", lease_s, may_be_0=False)
        self.session_id = session.session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(session_settings or SessionSettings())
        self._session = session
        self._if_busy = if_busy
        self._lease_s = lease_s
        self._logs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _ChangeLog] = weakref.WeakKeyDictionary()

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Item]:
        """Return the newest `limit` items, oldest first; all if it is None and the settings have none.

        Args:
            wrapper: the context of the SDK's run that reads, which then has the session.

        Raises:
            SessionInUseError: a run reads, and another one has the session.
        """
        most = resolve_session_limit(limit, self.session_settings)
        if wrapper is not None:
            items = await self._change(wrapper, lambda items: {})
        else:
            async with self._of_loop.lock:
                items = list((await self._read()).items)
        newest = items if most is None else items[-most:] if most > 0 else ()
        return [_plain(item) for item in newest]

    async def add_items(self, items: list[Item], *, wrapper: Any = None) -> None:
        """Add the items, in order, in one commit.

        Raises:
            InvalidInputError: JSON cannot hold an item; nothing was added.
            SessionInUseError: another run has the session; nothing was added.
        """
        if added := [_checked(item) for item in items]:
            await self._change(wrapper, lambda _: {"add": added})

    async def pop_item(self, *, wrapper: Any = None) -> Item | None:
        """Remove and return the newest item; None if there is none.

        Raises:
            SessionInUseError: another run has the session; nothing was removed.
        """
        items = await self._change(wrapper, lambda items: {"pop": 1} if items else None)
        return _plain(items[-1]) if items else None

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Remove all items for good, with what the stored changes hold of them, in one commit.

        Raises:
            SessionInUseError: another run has the session; nothing was removed.
        """
        run = _run_of(wrapper)
        while True:
            async with self._of_loop.lock:
                info = await self._do(self._session.info)
                log = await self._read()
                if log.open in (None, run) or self._is_over(log):
                    clear = partial(self._session.clear, updated_at=info.session.updated_at)
                    with suppress(SessionChangedError):  # another change was stored before it
                        await _settled(self._do(clear))
                        return
                    continue
                self._check_waits(log)
            await asyncio.sleep(_WAIT_S)

    async def release(self) -> None:
        """Let the next run have the session, whoever has it: for a run that raised, and whose task goes on."""
        async with self._of_loop.lock:
            while (await self._read()).open is not None and not await _settled(self._store({"open": None})):
                pass

    @property
    def _of_loop(self) -> _ChangeLog:
        """The changes of a session that this event loop has read."""
        return self._logs.setdefault(asyncio.get_running_loop(), _ChangeLog())

    async def _change(self, wrapper: Any, change: Callable[[list[Item]], dict[str, Any] | None]) -> list[Item]:
        """Store the change that `change` makes of the items, once no other run has the session; return those items."""
        run = _run_of(wrapper)
        while True:
            async with self._of_loop.lock:
                log = await self._read()
                if log.open in (None, run) or self._is_over(log):
                    if (before := log.stored_before(change)) is not None:
                        log.unsure = []
                        return before
                    items = list(log.items)
                    stored_change = change(items)
                    if stored_change is None or (not stored_change and log.open == run):
                        return items
                    own = _Unsure(new_id(), stored_change, items)
                    log.unsure += [own] if stored_change else []
                    opens = {"open": None if _is_answered(stored_change.get("add", ())) else run}
                    if await _settled(self._store({"id": own.id, **opens, **stored_change})):
                        log.unsure = [] if stored_change else log.unsure
                        return items
                    log.unsure = [unsure for unsure in log.unsure if unsure is not own]
                    continue  # another change was stored before it
                self._check_waits(log)
            await asyncio.sleep(_WAIT_S)

    def _check_waits(self, log: _ChangeLog) -> None:
        """Raise SessionInUseError unless this object waits for the run that has the session."""
        if self._if_busy == "reject":
            raise SessionInUseError(self.session_id, log.open)

    def _is_over(self, log: _ChangeLog) -> bool:
        """Return whether the run that has the session has ended without saying so, or is taken for dead."""
        task = _TASKS.get(log.open or "")
        if task is None and log.made_by == _process():
            return True  # the task ended and was garbage-collected
        if task is not None and (task.done() or task is asyncio.current_task()):
            return True
        return max(time.monotonic() - log.read_at, time.time() - log.made_at) > self._lease_s

    async def _store(self, values: dict[str, Any]) -> bool:
        """Store a change after the last one that was read; return False if another one was stored there before."""
        change = {"id": new_id(), "after": self._of_loop.last, "at": time.time(), "by": _process(), **values}
        payload = {name: value for name, value in change.items() if value is not None}
        turn = await self._do(self._session.append, Unknown(stored_kind=KIND, payload=freeze(payload)))
        log = self._of_loop
        log.apply([turn]) if turn.index == log.turn else await self._read()
        return change["id"] in self._of_loop.ids

    async def _read(self) -> _ChangeLog:
        """Read what has changed since the last look."""
        while True:
            log = self._of_loop
            turns: list[Turn] = await self._do(self._session.turns, max(log.turn - 1, -1), PAGE)
            if log.turn >= 0 and (not turns or turns[0].index > log.turn):
                log.forget()  # the session was cleared
                continue
            log.apply(turns)
            if len(turns) < PAGE:
                return log

    async def _do(self, verb: Callable[..., Any], *args: Any) -> Any:
        if isinstance(self._session, Session):
            return await asyncio.to_thread(verb, *args)
        return await verb(*args)


async def _settled(work: Awaitable[Made]) -> Made:
    """Wait until the outcome of a change is known, also if the caller is cancelled; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled:
        if not task.cancelled():
            task.exception()  # marks it as retrieved
        raise cancelled
    return task.result()


def _process() -> str:
    """Return a name of this process, which no other one has."""
    return f"{_NONCE}-{os.getpid()}"


def _run_of(wrapper: Any) -> str | None:
    """Return the id of the run whose context this is; None for a caller that is no run."""
    if wrapper is None:
        return None
    run = _RUNS.setdefault(wrapper, new_id())
    if (task := asyncio.current_task()) is not None:
        _TASKS[run] = task
    return run


def _is_answered(items: Sequence[Any]) -> bool:
    """Return whether a run ends with these items: with an answer, or with a call that waits for approval.

    The outputs of other calls of the same answer may be behind that call.
    """
    if not items:
        return False
    calls = [(str(item.get("type")), str(item["call_id"])) for item in items if item.get("call_id")]
    outputs = {call_id for kind, call_id in calls if kind.endswith("_output")}
    if any(kind.endswith("_call") and call_id not in outputs for kind, call_id in calls):
        return True
    kind, role = str(items[-1].get("type", "message")), items[-1].get("role")
    return role == "assistant" or (role is None and not kind.endswith("_output"))


def _checked(item: Any) -> Any:
    fields = item.model_dump(mode="json", exclude_unset=True) if hasattr(item, "model_dump") else item
    if not isinstance(fields, Mapping):
        raise InvalidInputError("items", shown(item), "an item is a JSON object")
    return plain_json("items", fields, MAX_BYTES)


def _plain(item: Any) -> Any:
    """Return a copy of an item that its receiver may change."""
    if isinstance(item, Mapping):
        return {name: _plain(value) for name, value in item.items()}
    return [_plain(value) for value in item] if isinstance(item, list | tuple) else item

"""`MemoryHost`, the actor that owns a long-term memory, and `RemoteMemory`, its client in every process."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast, runtime_checkable
from weakref import WeakKeyDictionary

import ray
from ray import cloudpickle
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from turnwise.actors.cluster.batcher import Batcher
from turnwise.actors.cluster.identity import identity
from turnwise.actors.cluster.nodes import ANYWHERE, here
from turnwise.actors.cluster.ray_runtime import this_ray
from turnwise.actors.cluster.unix_socket import Connection, path_of, serve
from turnwise.actors.cluster.wire import Refused
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.text_model import EngineModel
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, LongTermMemoryError, TurnwiseError
from turnwise.memory.background import log_failure, retry
from turnwise.memory.longterm.base import (
    ItemChanges,
    LongTermMemory,
    MemoryItem,
    Profiled,
    ProfiledRecall,
    Scope,
    has_profiles,
    is_local,
    is_read_only,
)
from turnwise.memory.longterm.deletion import Erasing, Erasure, erase, searches_of
from turnwise.memory.longterm.retention import Sweeping
from turnwise.memory.longterm.search import word_frequency as frequency
from turnwise.memory.longterm.text_model import TextModel
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.longterm.vector.memory import Recall
from turnwise.strategies.flush import FlushToMemory
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.summarize import Summarize

if TYPE_CHECKING:
    from turnwise.memory.longterm.file_search import FileSearch

MAX_CALLS = 1000
"""How many calls the actor answers at once."""

FAILURES, REST_S = 3, 5.0
"""After so many failures in a row, a memory is not called for so many seconds."""

PATIENCE_S = 0.1
"""How long recalls hold up those that come after them, in seconds: to read all that a user has may take ten."""

LOOK_S = 5.0
"""How often a caller tries to reach the actor's socket at most, in seconds."""

CATCH_UP_S, MOST_PAUSE_S = 1.0, 60.0
"""How long what was left for later waits; and at most, if it fails again and again."""

SWEEP_S = 600.0
"""How often expired items are deleted, in seconds. Expired items are never recalled."""

Answer = TypeVar("Answer")


@runtime_checkable
class Batched(Protocol):
    """Optional protocol of a memory that carries out many requests together faster than one by one."""

    async def remember_many(self, batch: Sequence[tuple[Scope, Sequence[MemoryItem]]]) -> list[Collection[str]]:
        """Carry out every `remember` of the batch, or none of them."""

    async def recall_many(self, batch: Sequence[Recall]) -> list[Sequence[MemoryItem]]:
        """Answer each question of the batch."""


@runtime_checkable
class BatchedProfiled(Batched, Protocol):
    """The protocol of a memory that is both `Batched` and `Profiled`."""

    async def recall_many_with_profiles(self, batch: Sequence[Recall]) -> list[ProfiledRecall]:
        """Answer each question of the batch, with the profile where it is wanted."""


@runtime_checkable
class CatchingUp(Protocol):
    """Optional protocol of a memory that defers a part of its work."""

    async def catch_up(self) -> int:
        """Do some of the deferred work; return roughly how much is left. Raises if it fails now; nothing is lost."""


class MemoryHost:
    """The body of the actor: one memory for all sessions of a cluster. A plain class, so tests need no Ray.

    A `Batched` memory gets one call at a time; requests that arrive meanwhile form the next batch. Any other memory is
    called concurrently, so that no caller waits for another's model. The memory is opened at the first call, and again
    at the next one if that fails. Deferred work is done in the background.
    """

    def __init__(self, memory: bytes) -> None:
        self._pickled = memory
        self._opening: asyncio.Task[LongTermMemory] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._gifts: dict[str, set[asyncio.Future[Collection[str]]]] = {}
        """What a memory that is not `Batched` is being given, by user."""
        self._erasing: dict[Hashable, asyncio.Task[Erasure]] = {}
        """What is being erased: who asks for the same again waits for the same."""
        self._searches: dict[str, tuple[FileSearch, asyncio.Task[None]]] = {}
        """What is searched for, by its name."""
        self._listening: asyncio.Task[str | None] | None = None
        self._server: asyncio.Server | None = None
        self._recalls = Batcher(self._recall_many, patience_s=PATIENCE_S)
        self._writes = Batcher(self._write_many)

    async def call(self, request: bytes) -> bytes:
        """Carry out a pickled verb with its arguments; return its answer, or `Refused`, pickled."""
        verb, args, kwargs = pickle.loads(request)
        try:
            answer = await getattr(self, f"do_{verb}")(*args, **kwargs)
        except TurnwiseError as error:
            answer = Refused(error)
        except Exception as error:  # noqa: BLE001 - whatever a memory raises, its caller has to know
            answer = Refused(LongTermMemoryError(f"{type(error).__name__}: {error}"))
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)

    async def do_listen(self, name: str) -> str | None:
        """Answer requests over a Unix socket as well; return its path, or None if there can be none here."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(name))
        return await asyncio.shield(self._listening)

    async def _listen(self, name: str) -> str | None:
        try:
            path = path_of(name)
            self._server = await serve(path, self.call)
        except OSError as error:
            log_failure("listening on a Unix socket", error, "; all recalls come by Ray")
            return None
        return str(path)

    async def do_warm(self) -> None:
        await asyncio.gather(self._memory(), asyncio.to_thread(frequency.load))

    async def do_remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        memory = await self._memory()
        self._catch_up_soon(memory)
        if isinstance(memory, Batched):
            return cast(Collection[str], await self._writes.ask((scope, items)))
        gift = asyncio.ensure_future(memory.remember(scope, items))
        gifts = self._gifts.setdefault(scope.user_id, set())
        gifts.add(gift)
        try:
            return await gift
        finally:
            gifts.discard(gift)
            if not gifts:
                self._gifts.pop(scope.user_id, None)

    async def do_recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        memory = await self._memory()
        if isinstance(memory, Batched):
            asked = Recall(scope=scope, query=query, **filters)
            return cast(Sequence[MemoryItem], await self._recalls.ask(asked))
        return await memory.recall(scope, query, **filters)

    async def do_recall_with_profile(self, scope: Scope, query: str, **filters: Any) -> ProfiledRecall:
        memory = await self._memory()
        if not isinstance(memory, Profiled):
            raise LongTermMemoryError(f"{type(memory).__name__} has no profiles")
        if isinstance(memory, BatchedProfiled):
            asked = Recall(scope=scope, query=query, with_profile=True, **filters)
            return cast(ProfiledRecall, await self._recalls.ask(asked))
        return await memory.recall_with_profile(scope, query, **filters)

    async def do_pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        memory = await self._memory()
        return isinstance(memory, Profiled) and await memory.pin(scope, id, pinned)

    async def do_update(
        self, scope: Scope, id: str, text: str | None, type: MemoryType | None, **changes: Unpack[ItemChanges]
    ) -> bool:
        return await (await self._memory()).update(scope, id, text, type=type, **changes)

    async def do_forget(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> int:
        memory = await self._behind_gifts(scope)
        count = await memory.forget(scope, ids, **_turn(turn_index))
        self._catch_up_soon(memory)
        return count

    async def do_erase(
        self, scope: Scope, ids: Collection[str] | None, turn_index: int | None, files: bool = False
    ) -> Erasure:
        asked = scope, None if ids is None else frozenset(ids), turn_index, files
        if (erasing := self._erasing.get(asked)) is None:
            work = self._erase_and_search if files else self._erase
            erasing = self._erasing[asked] = asyncio.create_task(work(scope, ids, turn_index))
            erasing.add_done_callback(lambda _: self._erasing.pop(asked))
        return await asyncio.shield(erasing)

    async def _erase(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> Erasure:
        return await erase(await self._behind_gifts(scope), scope, ids, **_turn(turn_index))

    async def _erase_and_search(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> Erasure:
        from turnwise.memory.longterm import file_search  # whose numpy a memory that searches nothing need not load

        memory = await self._behind_gifts(scope)
        name = file_search.name_of(scope, ids, turn_index)
        known, _ = self._searches.get(name, (None, None))
        erasure, search = await file_search.begin(memory, scope, ids, search=known, **_turn(turn_index))
        if search is not None and search.is_under_way and name not in self._searches:
            self._search_on(name, search)
        return erasure

    def _search_on(self, name: str, search: FileSearch) -> None:
        task = asyncio.create_task(self._search(search))
        self._searches[name] = search, task
        task.add_done_callback(lambda _: self._searches.pop(name))

    async def _search(self, search: FileSearch) -> None:
        while search.is_under_way:
            await retry(search.step, f"a search in the files of {await self._memory()}")

    async def _behind_gifts(self, scope: Scope) -> LongTermMemory:
        """Return the memory once it has what the user was given before, so that what is then forgotten stays so."""
        memory = await self._memory()
        if isinstance(memory, Batched):
            await self._writes.ask(None)
        elif gifts := self._gifts.get(scope.user_id):
            await asyncio.wait(set(gifts))
        return memory

    async def _write_many(self, batch: Sequence[_Gift | None]) -> Sequence[Any]:
        """Give a memory that is `Batched` what it is to remember. Who asked with None waits for what came before."""
        memory = cast(Batched, await self._memory())
        gifts = [gift for gift in batch if gift is not None]
        try:
            answers: list[Any] = await memory.remember_many(gifts) if gifts else []
        except Exception as error:  # noqa: BLE001 - it is for those who gave, and not for those who wait
            answers = [error] * len(gifts)
        left = iter(answers)
        return [None if gift is None else next(left) for gift in batch]

    async def _recall_many(
        self, batch: Sequence[Recall]
    ) -> Sequence[Sequence[MemoryItem] | ProfiledRecall | BaseException]:
        memory = await self._memory()
        if not isinstance(memory, BatchedProfiled):
            return await cast(Batched, memory).recall_many(batch)
        answers = await memory.recall_many_with_profiles(batch)
        return [answer if one.with_profile else answer.found for one, answer in zip(batch, answers, strict=True)]

    async def _memory(self) -> LongTermMemory:
        if self._opening is None:
            self._opening = asyncio.create_task(asyncio.to_thread(_open, self._pickled))
        try:
            memory = await asyncio.shield(self._opening)
        except Exception:
            self._opening = None
            raise
        if self._catching_up is None:
            self._catch_up_soon(memory)  # with what an earlier process left
            self._take_up_searches(memory)
        if self._sweeping is None and isinstance(memory, Sweeping):
            self._sweeping = asyncio.create_task(self._sweep(memory))
        return memory

    def _take_up_searches(self, memory: LongTermMemory) -> None:
        if isinstance(memory, Erasing) and (files := searches_of(memory)):
            from turnwise.memory.longterm.file_search import FileSearch

            for name in (file.name.rpartition("-")[2] for file in files):
                try:
                    search = FileSearch(memory, name)
                except TurnwiseError as error:
                    log_failure(f"a search in the files of {memory}", error)
                    continue
                if search.is_under_way and name not in self._searches:
                    self._search_on(name, search)

    async def _sweep(self, memory: Sweeping) -> None:
        while True:
            try:
                await memory.sweep()
            except Exception as error:  # noqa: BLE001 - it is logged, and tried again whoever's error it is
                log_failure(f"sweeping {memory}", error, f", and is tried again in {SWEEP_S:g} s")
            await asyncio.sleep(SWEEP_S)

    def _catch_up_soon(self, memory: LongTermMemory) -> None:
        if isinstance(memory, CatchingUp) and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.create_task(self._catch_up(memory))

    async def _catch_up(self, memory: CatchingUp) -> None:
        pause_s = CATCH_UP_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                if not await memory.catch_up():
                    return
                pause_s = CATCH_UP_S
            except Exception as error:  # noqa: BLE001 - it is logged, and tried again whoever's error it is
                pause_s = min(2 * pause_s, MOST_PAUSE_S)
                log_failure(f"catching up of {memory}", error, f", and is tried again in {pause_s:g} s")


@runtime_checkable
class ModelBound(Protocol):
    """A memory that asks a model has this too: until it is bound its model is an engine."""

    model: Any

    def bind(self, model: TextModel) -> LongTermMemory:
        """Return the memory with the model that is really asked."""


def _open(pickled: bytes) -> LongTermMemory:
    memory: LongTermMemory = pickle.loads(pickled)
    if isinstance(memory, ModelBound) and isinstance(memory.model, EngineBuilder):
        return memory.bind(EngineModel(memory.model))
    return memory


_Gift = tuple[Scope, Sequence[MemoryItem]]


def _turn(index: int | None) -> dict[str, Any]:
    """Return the option of verbs that need not know turns."""
    return {} if index is None else {"turn_index": index}


class RemoteMemory:
    """A long-term memory in an actor of its own: the same settings are the same actor, for all of a namespace.

    Each verb is one Ray call, bounded in time; a recall by a process on the actor's machine goes over a Unix socket,
    once that is open. A memory that fails again and again is left alone for some seconds, so that nobody waits for it;
    what it is not given is the caller's to keep.

    The actor of a memory in files stays on the node of the manager that made it. If that node is lost, each verb raises
    LongTermMemoryError: nobody finds an empty memory elsewhere in the place of a full one.

    Args:
        memory: its settings, as a memory that pickles.
        deadline_s, recall_s: how long a call, and one to recall, may take, in seconds.

    Raises:
        ConfigError: it cannot be pickled.
    """

    def __init__(
        self, memory: LongTermMemory, *, namespace: str, deadline_s: float = 60.0, recall_s: float = 5.0
    ) -> None:
        self.name = type(memory).__name__
        self.read_only = is_read_only(memory)
        self.has_profiles = has_profiles(memory)
        """Whether it has profiles of users, and pins."""
        try:
            self._pickled = cloudpickle.dumps(memory)
            self._digest = identity(memory)[:16]
        except Exception as error:
            why = f"it cannot be pickled ({error}): hold settings in it and open files when they are needed"
            raise ConfigError("memory", self.name, why) from error
        self._namespace = namespace
        self._deadline_s = deadline_s
        self._recall_s = recall_s
        self._is_local = is_local(memory)
        self._set_up()
        self._may_make = True

    def _set_up(self) -> None:
        self._may_make = not self._is_local  # else only who has the files may
        self._actor: Any = None
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
        self._failures = 0
        self._rests_until = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _PER_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_up()

    def __repr__(self) -> str:
        return f"<{self.name} in its actor>"

    def __identity__(self) -> tuple[object, ...]:
        """See `identity`."""
        return self._digest, self._namespace, self._deadline_s, self._recall_s

    @property
    def actor_name(self) -> str:
        """What its actor is called, within the namespace."""
        return f"turnwise/memory/{self._digest}"

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        return cast(Collection[str], await self._ask("remember", scope, tuple(items)))

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
    ) -> Sequence[MemoryItem]:
        found = await self._ask("recall", scope, query, limit=limit, types=types, as_of=as_of)
        return cast(Sequence[MemoryItem], found)

    async def recall_with_profile(
        self, scope: Scope, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None
    ) -> ProfiledRecall:
        found = await self._ask("recall_with_profile", scope, query, limit=limit, types=types)
        return cast(ProfiledRecall, found)

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        return self.has_profiles and bool(await self._ask("pin", scope, id, pinned))

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        return bool(await self._ask("update", scope, id, text, type, **changes))

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        return int(await self._ask("forget", scope, ids, turn_index))

    async def erase(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None, files: bool = False
    ) -> Erasure:
        """See `erasing.erase`; with `files`, `file_search.begin`, and search on behind everything else.

        What takes longer than the deadline goes on; the same call again waits for the same answer.
        """
        return cast(Erasure, await self._ask("erase", scope, ids, turn_index, files))

    def warm(self) -> None:
        """Let its process start and the memory be opened, without waiting for it."""
        if self._actor is None:
            self._actor = self._make_actor()
        self._actor.call.remote(pickle.dumps(("warm", (), {})))

    async def close(self) -> None:
        """Close this event loop's connection. The actor stays, since it serves others too."""
        if line := self._lines.pop(asyncio.get_running_loop(), None):
            await line.close()

    async def _ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        if (left_s := self._rests_until - time.monotonic()) > 0:
            raise LongTermMemoryError(f"{self.name} has failed {self._failures} times: left alone for {left_s:.1f} s")
        request = pickle.dumps((verb, args, kwargs), pickle.HIGHEST_PROTOCOL)
        try:
            if verb in _RECALLS:
                answer = await self._bounded(self._recall(request), self._recall_s)
            else:
                answer = await self._bounded(self._call(request), self._deadline_s)
        except LongTermMemoryError:
            self._failures += 1
            if self._failures >= FAILURES:
                self._rests_until = time.monotonic() + REST_S
            raise
        self._failures = 0
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    async def _bounded(self, call: Awaitable[Answer], timeout_s: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError as error:
            raise LongTermMemoryError(f"{self.name} has not answered within {timeout_s:g} s") from error
        except RayError as error:
            raise LongTermMemoryError(f"{self.name}: its process cannot be reached ({error})") from error

    async def _recall(self, request: bytes) -> Any:
        line = self._lines.setdefault(asyncio.get_running_loop(), _Line(self._listen))
        if connection := line.connection():
            try:
                return pickle.loads(await connection.ask(request))
            except ConnectionError:  # its process has ended: Ray starts another, and says so if it cannot
                pass
        return await self._call(request)

    async def _listen(self) -> str | None:
        """Have the actor listen on a socket; return its path, None if it cannot."""
        name = blake2b(repr((this_ray(), self._namespace, self.actor_name)).encode(), digest_size=12).hexdigest()
        request = pickle.dumps(("listen", (name,), {}), pickle.HIGHEST_PROTOCOL)
        return cast("str | None", await self._bounded(self._call(request), self._recall_s))

    async def _call(self, request: bytes) -> Any:
        while True:
            if self._actor is None:
                self._actor = self._make_actor()
            try:
                return pickle.loads(await self._actor.call.remote(request))
            except ActorUnschedulableError as error:
                self._actor = None
                raise LongTermMemoryError(f"{self.name}: {_FILES_LOST}") from error
            except RayActorError as error:
                self._actor = None
                if error.actor_init_failed:
                    raise
                await asyncio.sleep(0.05)

    def _make_actor(self) -> Any:
        if not self._may_make:
            try:
                return ray.get_actor(self.actor_name, namespace=self._namespace)
            except ValueError as error:
                raise LongTermMemoryError(f"{self.name}: {_FILES_LOST}") from error
        return (
            ray.remote(MemoryHost)
            .options(
                name=self.actor_name,
                namespace=self._namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=MAX_CALLS,
                **(here() if self._is_local else ANYWHERE),
            )
            .remote(self._pickled)
        )


class _Line:
    """The connection of one event loop to the process of a memory's actor, if that is on the same machine.

    It is opened behind the first recall, which nobody holds up for it, and again if it was lost, `LOOK_S` apart.

    Args:
        listen: returns the path of the socket.
    """

    def __init__(self, listen: Callable[[], Awaitable[str | None]]) -> None:
        self._listen = listen
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._again_at = 0.0

    def connection(self) -> Connection | None:
        """Return the connection; None while there is none."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if time.monotonic() >= self._again_at and (self._opening is None or self._opening.done()):
            self._again_at = time.monotonic() + LOOK_S
            self._opening = asyncio.create_task(self._open())
        return None

    async def _open(self) -> None:
        # Without it recalls go by Ray, which also says what is wrong with an actor.
        with suppress(OSError, LongTermMemoryError):
            if path := await self._listen():
                self._connection = await Connection.open(Path(path))

    async def close(self) -> None:
        """Close the connection; what is under way goes by Ray."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._connection is not None:
            self._connection.close()


def equip(
    overflow: OverflowStrategy | None, memories: Sequence[LongTermMemory], namespace: str, config: SessionConfig
) -> tuple[OverflowStrategy | None, tuple[MemorySlot, ...]]:
    """Return a strategy and memories as sessions use them: each memory in its actor, the strategy's the same ones.

    Raises:
        ConfigError: a memory is none, or cannot be pickled.
    """

    def remote_of(memory: LongTermMemory) -> RemoteMemory:
        if isinstance(memory, RemoteMemory):
            return memory
        patience = {"deadline_s": config.compaction_timeout_s, "recall_s": config.memory.timeout_s}
        return RemoteMemory(memory, namespace=namespace, **patience)

    slots: list[MemorySlot] = []
    for memory in memories:
        if isinstance(memory, type) or not callable(getattr(memory, "recall", None)):
            raise ConfigError(
                "memory", type(memory).__name__, "pass LongTermMemory objects, such as StaticMemory([...])"
            )
        remote = remote_of(memory)
        slots.append(_slot(remote, slots))
    strategy = _with_remotes(overflow, remote_of)
    known = {slot.memory.actor_name for slot in slots if isinstance(slot.memory, RemoteMemory)}
    for remote in _remotes_of(strategy):
        if remote.actor_name not in known:
            known.add(remote.actor_name)
            slots.append(_slot(remote, slots, is_used=False))
    return strategy, tuple(slots)


def _slot(remote: RemoteMemory, before: Sequence[MemorySlot], *, is_used: bool = True) -> MemorySlot:
    """Return the slot of a memory, named by its class, and a number if there are others of that."""
    others = sum(slot.memory.name == remote.name for slot in before if isinstance(slot.memory, RemoteMemory))
    name = f"{remote.name}-{others + 1}" if others else remote.name
    return MemorySlot(memory=remote, name=name, section=_SECTIONS.get(remote.name), is_used=is_used)


def _remotes_of(strategy: Any) -> list[RemoteMemory]:
    """Return the memories of a strategy and of its `otherwise`."""
    found: list[RemoteMemory] = list(getattr(strategy, "memories", ())) if isinstance(strategy, FlushToMemory) else []
    after = getattr(strategy, "otherwise", None)
    return found + (_remotes_of(after) if after is not None else [])


_SECTIONS = {"StaticMemory": "static", "VectorMemory": "vector"}


def _with_remotes(strategy: Any, remote_of: Callable[[LongTermMemory], RemoteMemory]) -> Any:
    """Return a strategy whose memories, and those of its `otherwise`, are in their actors."""
    changes: dict[str, Any] = {}
    if isinstance(strategy, FlushToMemory):
        changes["memories"] = tuple(map(remote_of, strategy.memories))
    if isinstance(strategy, FlushToMemory | Summarize) and strategy.otherwise:
        changes["otherwise"] = _with_remotes(strategy.otherwise, remote_of)
    return replace(strategy, **changes) if changes else strategy


_FILES_LOST = "the node with its files is lost: open a manager with it where they are, or keep it in a database"
_RECALLS = ("recall", "recall_with_profile")
_PER_PROCESS = ("_actor", "_lines", "_may_make", "_failures", "_rests_until")

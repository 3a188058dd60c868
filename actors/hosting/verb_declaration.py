"""`Verb`: what callers may ask of a session, declared on the function that carries it out."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from turnwise.actors.hosting.wire import Message, SessionRef
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.actors.session.acting import Acting, check_member
from turnwise.memory.conversation.sessions import MemberRole

if TYPE_CHECKING:
    from turnwise.actors.hosting.events_ahead import EventsAhead
    from turnwise.actors.hosting.session_service import SessionService
    from turnwise.actors.session.state.reads import SessionReads
    from turnwise.memory.stores.base import SessionStore

Params = ParamSpec("Params")
Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Verb(Generic[Params, Answer_co]):
    """What callers may ask of a session. On the wire it is its name, by which a host finds it: see `verbs.VERBS`.

    Calling a verb returns the call, which a client sends: `verbs.turn(3, cached)`. Type checkers compare the arguments
    with those of the function that carries it out.

    Ray repeats a call whose process has died, and a client one that was not answered. So a verb may be carried out
    twice, and the second time changes nothing more: what it stores has a key, or an id, that comes with the call.
    """

    name: str
    carry_out: Callable[..., Awaitable[Answer_co]]
    """The function. It gets a `Reader` or a `SessionService` first."""
    reads: bool = False
    """Whether it changes nothing and activates nothing, so that the store answers it if no process has the session."""
    waits: bool = False
    """Whether it waits for others. Its first argument is how many seconds, its answer a `Waited`; callers that wait
    are counted, and ask again after `SLICE_S` seconds."""
    needs_engine: bool = False
    """Whether it uses the caller's engine, strategy or memories, which the session switches to first."""
    holds_engine: bool = False
    """Whether the function switches to that engine itself, so that no other caller's intervenes. It gets the engine's
    id as its second argument."""
    repeatable: bool = True
    """Whether it may be carried out twice. If not, a call whose answer is lost ends with SessionLostError."""
    role: MemberRole = "owner"
    """The lowest role of a member who may call it. The functions that it calls may ask for a higher one."""
    action: str = ""
    """What it does, for the error of members who may not call it; by default, that it is called."""
    method: Callable[..., Awaitable[Answer_co]] | None = None
    """Of a verb of memories, the method of `SessionMemoryAccess` that carries it out."""

    def acting(self, session: SessionRef) -> Acting | None:
        """Return the member who calls it; None if the session's user does."""
        action = self.action or f"call {self.name!r}"
        return Acting(session.as_user, self.role, action) if session.as_user is not None else None

    def takes(self, message: Message) -> bool:
        """Return whether the function takes the arguments of a message; those of a later version may be others."""
        first = (None, None) if self.holds_engine else (None,)
        try:
            inspect.signature(self.carry_out).bind(*first, **message.arguments)
        except TypeError:
            return False
        return True

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments, in their order: on the wire they go by these."""
        first = 2 if self.holds_engine else 1
        return tuple(inspect.signature(self.carry_out).parameters)[first:]

    def __call__(self, *args: Params.args, **options: Params.kwargs) -> VerbCall[Answer_co]:
        """Return the call of the verb with these arguments; nothing is sent yet."""
        return VerbCall(self, dict(zip(self.names[: len(args)], args, strict=True)) | options)


@dataclass(frozen=True)
class VerbCall(Generic[Answer_co]):
    """A verb with its arguments. The answer has the type that the verb's function returns."""

    verb: Verb[..., Answer_co]
    arguments: dict[str, Any]

    def to(self, session: SessionRef, engine_id: str = "", engine: bytes = b"") -> Message:
        """Return the message that asks a session's process."""
        return Message(session, self.verb.name, self.arguments, engine_id, engine)

    async def read(self, reader: Reader, acting: Acting | None = None) -> Answer_co:
        """Carry the verb out in this process; it must be one that reads."""
        return await reader.read(self.verb, acting, **self.arguments)

    async def on_memories(self, access: SessionMemoryAccess) -> Answer_co:
        """Carry the verb out on a user's memories; it must be one of theirs, see `of_memory`."""
        if self.verb.method is None:
            raise TypeError(f"{self.verb.name} is no verb of memories")
        return await self.verb.method(access, **self.arguments)


@dataclass(frozen=True)
class Reader:
    """What the function of a verb that reads gets: the session's reads, and the process that hosts the session."""

    reads: SessionReads
    pid: int | None = None
    node_id: str | None = None
    """The process and its node; None if the session has no process."""
    ahead: EventsAhead | None = None
    """Reads pages ahead for readers in other processes; None if the session has no process."""

    async def read(self, verb: Verb[..., Answer], acting: Acting | None, /, **arguments: Any) -> Answer:
        """Carry out a verb that reads, for a member or for the session's user.

        A member who is removed while the verb waits gets no answer.
        """
        store, _ = self.reads.stores
        await self._check(acting, store)
        answer = await verb.carry_out(self, **arguments)
        if verb.waits:
            await self._check(acting, store)
        return answer

    async def _check(self, acting: Acting | None, store: SessionStore) -> None:
        if acting:
            await check_member(await self.reads.row(), store, acting)


def reads(
    *, waits: bool = False, role: MemberRole = "reader", action: str = ""
) -> Callable[[Callable[Concatenate[Reader, Params], Awaitable[Answer]]], Verb[Params, Answer]]:
    """Declare a verb that changes nothing; see `Verb` for the arguments."""

    def declare(function: Callable[Concatenate[Reader, Params], Awaitable[Answer]]) -> Verb[Params, Answer]:
        return Verb(function.__name__, function, reads=True, waits=waits, role=role, action=action)

    return declare


def changes(
    *, waits: bool = False, needs_engine: bool = False, repeatable: bool = True, role: MemberRole = "owner"
) -> Callable[[Callable[Concatenate[SessionService, Params], Awaitable[Answer]]], Verb[Params, Answer]]:
    """Declare a verb that needs the session's process, which activates the session; see `Verb` for the arguments."""

    def declare(function: Callable[Concatenate[SessionService, Params], Awaitable[Answer]]) -> Verb[Params, Answer]:
        options: dict[str, Any] = {"waits": waits, "needs_engine": needs_engine, "repeatable": repeatable, "role": role}
        return Verb(function.__name__, function, **options)

    return declare


def starts(function: Callable[Concatenate[SessionService, str, Params], Awaitable[Answer]]) -> Verb[Params, Answer]:
    """Declare a verb that holds the caller's engine, whose id its function gets: `async with service.engine(id)`.

    Members may call it.
    """
    action = "begin runs"
    return Verb(function.__name__, function, needs_engine=True, holds_engine=True, role="member", action=action)


def of_memory(
    method: Callable[Concatenate[SessionMemoryAccess, Params], Awaitable[Answer]],
    *,
    repeatable: bool = True,
    role: MemberRole = "member",
) -> Verb[Params, Answer]:
    """Declare a method of the session's memories, those of the caller, as a verb; `memory.` precedes its name.

    A member reaches the own memory by it, and nobody else's.
    """

    @wraps(method)
    async def carry_out(service: SessionService, *args: Params.args, **options: Params.kwargs) -> Answer:
        return await method(await service.memory_access(), *args, **options)

    options: dict[str, Any] = {"needs_engine": True, "repeatable": repeatable, "role": role, "method": method}
    return Verb(f"memory.{method.__name__}", carry_out, **options)

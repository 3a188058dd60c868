"""`Verb`: what callers may ask of a session, declared on the function that carries it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from turnwise.actors.hosting.wire import Message, SessionRef
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess

if TYPE_CHECKING:
    from turnwise.actors.hosting.session_service import SessionService
    from turnwise.actors.session.state.reads import SessionReads

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

    def __call__(self, *args: Params.args, **options: Params.kwargs) -> VerbCall[Answer_co]:
        """Return the call of the verb with these arguments; nothing is sent yet."""
        return VerbCall(self, args, options)


@dataclass(frozen=True)
class VerbCall(Generic[Answer_co]):
    """A verb with its arguments. The answer has the type that the verb's function returns."""

    verb: Verb[..., Answer_co]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def to(self, session: SessionRef, engine_id: str = "", engine: bytes = b"") -> Message:
        """Return the message that asks a session's process."""
        return Message(session, self.verb.name, self.args, self.options, engine_id, engine)

    async def read(self, reader: Reader) -> Answer_co:
        """Carry the verb out in this process; it must be one that reads."""
        return await self.verb.carry_out(reader, *self.args, **self.options)


@dataclass(frozen=True)
class Reader:
    """What the function of a verb that reads gets: the session's reads, and the process that hosts the session."""

    reads: SessionReads
    pid: int | None = None
    node_id: str | None = None
    """The process and its node; None if the session has no process."""


def reads(
    *, waits: bool = False
) -> Callable[[Callable[Concatenate[Reader, Params], Awaitable[Answer]]], Verb[Params, Answer]]:
    """Declare a verb that changes nothing; see `Verb` for the arguments."""

    def declare(function: Callable[Concatenate[Reader, Params], Awaitable[Answer]]) -> Verb[Params, Answer]:
        return Verb(function.__name__, function, reads=True, waits=waits)

    return declare


def changes(
    *, waits: bool = False, needs_engine: bool = False, repeatable: bool = True
) -> Callable[[Callable[Concatenate[SessionService, Params], Awaitable[Answer]]], Verb[Params, Answer]]:
    """Declare a verb that needs the session's process, which activates the session; see `Verb` for the arguments."""

    def declare(function: Callable[Concatenate[SessionService, Params], Awaitable[Answer]]) -> Verb[Params, Answer]:
        return Verb(function.__name__, function, waits=waits, needs_engine=needs_engine, repeatable=repeatable)

    return declare


def starts(function: Callable[Concatenate[SessionService, str, Params], Awaitable[Answer]]) -> Verb[Params, Answer]:
    """Declare a verb that holds the caller's engine, whose id its function gets: `async with service.engine(id)`."""
    return Verb(function.__name__, function, needs_engine=True, holds_engine=True)


def of_memory(
    method: Callable[Concatenate[SessionMemoryAccess, Params], Awaitable[Answer]], *, repeatable: bool = True
) -> Verb[Params, Answer]:
    """Declare a method of the session's memories, those of the caller, as a verb; `memory.` precedes its name."""

    @wraps(method)
    async def carry_out(service: SessionService, *args: Params.args, **options: Params.kwargs) -> Answer:
        return await method(await service.memory_access(), *args, **options)

    return Verb(f"memory.{method.__name__}", carry_out, needs_engine=True, repeatable=repeatable)

"""Who may reach what: with `enforce_user`, every verb of a manager reaches one user's sessions and runs only."""

import asyncio
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engines import ScriptedEngine
from turnwise.actors.core import SessionCore
from turnwise.actors.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.manager import AsyncSessionManager, SessionManager
from turnwise.actors.session import AsyncSession, Session
from turnwise.errors import (
    ConfigError,
    RunNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    SessionOwnerError,
)
from turnwise.memory.in_memory import InMemoryStore
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.store import Page
from turnwise.memory.usage import Usage

MakeManager = Callable[..., SessionManager]

ALICE, BOB, NONE, DEFAULT = {"user_id": "alice"}, {"user_id": "bob"}, dict[str, str](), {"user_id": "default"}


class Case(NamedTuple):
    """A verb with what it gives to the owner, to another user, to the default one, and to nobody in particular."""

    verb: str
    args: tuple[str, ...]
    owner: Any
    other: Any
    default: Any
    nobody: Any


CASES = [
    Case("open", ("of-alice",), "of-alice", SessionOwnerError, SessionOwnerError, SessionOwnerError),
    Case("get", ("of-alice",), "of-alice", SessionNotFoundError, SessionNotFoundError, ConfigError),
    Case("get", ("of-nobody",), SessionNotFoundError, SessionNotFoundError, SessionNotFoundError, ConfigError),
    Case("execution", ("RUN",), "of-alice", RunNotFoundError, RunNotFoundError, ConfigError),
    Case("execution", ("no run",), RunNotFoundError, RunNotFoundError, RunNotFoundError, ConfigError),
    Case("list", (), ["of-alice"], ["of-bob"], [], ConfigError),
    Case("count", (), 1, 1, 0, ConfigError),
    Case("usage", (), True, False, False, ConfigError),
    Case("forget", (), 0, 0, 0, TypeError),  # of those who have nothing
    Case("sweep", (), TypeError, TypeError, TypeError, ConfigError),  # it goes over all users' sessions
]


def plain(answer: Any) -> Any:
    """Return what of an answer the cases name."""
    match answer:
        case Session() | AsyncSession():
            assert answer.user_id == "alice"
            return answer.id
        case ExecutionHandle() | AsyncExecutionHandle():
            return answer.session_id
        case Page():
            return [session.session_id for session in answer]
        case Usage():
            return answer.seconds > 0
        case int():
            return answer
        case _:
            return answer.sessions


async def outcome(verb: Callable[..., Any], *args: str, **user: str) -> Any:
    """Return what a verb of either family gives, or the error that it raises."""
    try:
        found = verb(*args, **user)
        return plain(await found if inspect.isawaitable(found) else found)
    except Exception as error:  # noqa: BLE001 - the error is the outcome
        return error


def test_every_verb_of_a_manager_reaches_what_is_its_users_and_nothing_else(
    make_manager: MakeManager, tmp_path: Path
) -> None:
    """In both families; what is another's looks the same as what is not there."""
    free = make_manager()
    run_id = free.open("of-alice", user_id="alice").run("slow 3").run_id  # which takes a time that counts
    free.execution(run_id).wait()
    free.open("of-bob", user_id="bob")
    assert free.get("of-alice").user_id == free.open("of-alice").user_id == "alice"
    assert free.get("of-alice", user_id="alice").id == free.execution(run_id, user_id="alice").session_id == "of-alice"
    with pytest.raises(SessionNotFoundError):
        free.get("of-alice", user_id="bob")
    with pytest.raises(RunNotFoundError):
        free.execution(run_id, user_id="bob")

    async def check(manager: Any) -> None:
        for case in CASES:
            args = tuple(run_id if arg == "RUN" else arg for arg in case.args)
            verb = getattr(manager, case.verb)
            users = [{"user_id": "carol"}, {"user_id": "dave"}] if case.verb == "forget" else [ALICE, BOB]
            given = zip((*users, DEFAULT, NONE), case[2:], strict=True)
            for user, expected in given:
                found = await outcome(verb, *args, **user)
                error = isinstance(found, BaseException)
                assert (type(found) if error else found) == expected, f"{case.verb}{args} for {user}: {found!r}"
                if isinstance(found, SessionNotFoundError | RunNotFoundError):
                    there = await outcome(verb, "no such id", **user)
                    assert str(found).replace(repr(args[0]), repr("no such id")) == str(there)
                    assert not found.__cause__, "the error of a store would tell them apart"
        asked = {name for name, _ in inspect.getmembers(type(manager), inspect.isfunction) if not name.startswith("_")}
        assert {case.verb for case in CASES} == asked - {"close"}

    strict = make_manager(enforce_user=True)
    asyncio.run(check(strict))

    async def check_async() -> None:
        settings: dict[str, Any] = {
            "engine": ScriptedEngine(),
            "namespace": free._realm.namespace,
            "enforce_user": True,
        }
        async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as manager:
            await check(manager)

    asyncio.run(check_async())

    # A handle is a capability, and what it leads to stays within its session.
    chat = pickle.loads(pickle.dumps(strict.get("of-alice", user_id="alice")))
    handle = pickle.loads(pickle.dumps(strict.execution(run_id, user_id="alice")))
    assert chat.latest() == handle.wait()
    bobs = strict.get("of-bob", user_id="bob")
    stolen = ExecutionHandle(bobs._realm, "of-bob", run_id, 0)
    asks: list[Callable[[], object]] = [
        *(stolen.wait, stolen.cancel, stolen.info, stolen.pending, stolen.steps),
        *(lambda: list(stolen.events()), lambda: stolen.reject("call"), lambda: bobs.execution(run_id)),
    ]
    for ask in asks:
        with pytest.raises(RunNotFoundError):
            ask()
    mine = bobs.run("hello", idempotency_key="key")
    mine.wait()
    assert chat.run("hello", idempotency_key="key").run_id != mine.run_id
    with pytest.raises(SessionExistsError):
        bobs.fork(session_id="of-alice")
    assert chat.fork(session_id="fork").user_id == "alice"
    assert isinstance(asyncio.run(outcome(strict.open, "fork", **BOB)), SessionOwnerError)


def test_a_fork_of_a_session_that_had_this_id_before_is_given_to_its_owner_only() -> None:
    """Deleted by one user and made anew by another, a session has the turns' names of the first; not its forks."""

    async def talk(store: InMemoryStore, user_id: str) -> SessionCore:
        await store.create(SessionRecord(session_id="s", user_id=user_id))
        core = SessionCore("s", store, ScriptedEngine())
        run = await core.start([f"the secret of {user_id}"], run_id=f"run of {user_id}")
        await core.wait(run.run_id)
        return core

    async def use() -> None:
        store = InMemoryStore()
        first = await talk(store, "alice")
        assert await first.fork(None, "fork") == await first.fork(None, "fork")
        await first.delete()
        second = await talk(store, "bob")
        with pytest.raises(SessionExistsError):
            await second.fork(None, "fork")

    asyncio.run(use())

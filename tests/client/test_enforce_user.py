"""Who may reach what: with `enforce_user`, every verb of a manager reaches one user's sessions and runs only."""

import asyncio
import inspect
import os
import pickle
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engines import ScriptedEngine, process_of
from turnwise.actors.client.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager, SessionManager
from turnwise.actors.client.session import AsyncSession, Session
from turnwise.actors.cluster.placement import Dedicated, Packed, Placement
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    ConfigError,
    EmptyTurnError,
    IdempotencyConflictError,
    InvalidIdError,
    InvalidInputError,
    NoActiveRunError,
    RunFailedError,
    RunNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    SessionOwnerError,
    StoreError,
    TurnNotFoundError,
    TurnwiseError,
)
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.ids import check_id, own_id, public_id
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.items.sql import SQLFacts
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore

MakeManager = Callable[..., SessionManager]

ALICE, BOB, NONE, DEFAULT = {"user_id": "alice"}, {"user_id": "bob"}, dict[str, str](), {"user_id": "default"}


class Case(NamedTuple):
    """A verb with what it gives to the owner, to another user, to the default one, and to nobody in particular."""

    verb: str
    args: tuple[Any, ...]
    owner: Any
    other: Any
    default: Any
    nobody: Any


CASES = [
    Case("open", (), TypeError, TypeError, TypeError, ConfigError),  # with a user it makes one: see below
    Case("get", ("of-alice",), "of-alice", SessionNotFoundError, SessionNotFoundError, ConfigError),
    Case("get", ("of-nobody",), SessionNotFoundError, SessionNotFoundError, SessionNotFoundError, ConfigError),
    Case("execution", ("RUN",), "of-alice", RunNotFoundError, RunNotFoundError, ConfigError),
    Case("execution", ("no run",), RunNotFoundError, RunNotFoundError, RunNotFoundError, ConfigError),
    Case("list", (), ["of-alice"], ["of-bob"], [], ConfigError),
    Case("subscribe", (), TypeError, TypeError, TypeError, TypeError),  # see test_subscriptions.py
    Case("hosts", (), TypeError, TypeError, TypeError, ConfigError),
    Case("import_messages", ("of-alice", []), InvalidInputError, InvalidInputError, InvalidInputError, ConfigError),
    Case("run_once", (), EmptyTurnError, EmptyTurnError, EmptyTurnError, ConfigError),
    Case("runs", (), ["of-alice"], [], [], ConfigError),
    Case("count", (), 1, 1, 0, ConfigError),
    Case("usage", (), True, False, False, ConfigError),
    Case("check_store", (), TypeError, TypeError, TypeError, None),  # it shows nobody's
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
        case int() | None:
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


def test_every_method_of_a_manager_reaches_only_records_of_its_user(make_manager: MakeManager, tmp_path: Path) -> None:
    """In both families; what is another's looks the same as what is not there."""
    free = make_manager(placement=Packed(hosts=1))
    run_id = free.open("of-alice", user_id="alice").run("slow 3").run_id  # which takes a time that counts
    free.execution(run_id).wait()
    free.open("of-bob", user_id="bob")
    assert free.get("of-alice").user_id == free.open("of-alice", user_id="alice").user_id == "alice"
    with pytest.raises(SessionOwnerError):
        free.open("of-alice")
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
                if case.verb == "open" and user:
                    continue
                found = await outcome(verb, *args, **user)
                error = isinstance(found, BaseException)
                assert (type(found) if error else found) == expected, f"{case.verb}{args} for {user}: {found!r}"
                if isinstance(found, SessionNotFoundError | RunNotFoundError):
                    there = await outcome(verb, "no such id", **user)
                    assert str(found).replace(repr(args[0]), repr("no such id")) == str(there)
                    assert not found.__cause__, "the error of a store would tell them apart"
        asked = {name for name, _ in inspect.getmembers(type(manager), inspect.isfunction) if not name.startswith("_")}
        assert {case.verb for case in CASES} == asked - {"across_users", "close"}  # which is an operator's: see below

    strict = make_manager(enforce_user=True, placement=Packed(hosts=1))
    asyncio.run(check(strict))

    async def check_async() -> None:
        settings: dict[str, Any] = {
            "engine": ScriptedEngine(),
            "namespace": free._client.namespace,
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
    stolen = ExecutionHandle(bobs._client, "of-bob", run_id, 0)
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
    assert bobs.fork(session_id="of-alice").user_id == "bob", "it does not say that alice has one of this id"
    assert chat.fork(session_id="fork").user_id == "alice"
    assert strict.open("fork", user_id="bob").latest() is None
    for of_bob in (bobs, free.get("of-bob")):
        with pytest.raises(SessionExistsError):
            of_bob.fork(session_id="fork")


def shown(answers: object) -> str:
    """Return what answers show, which is to have no part of an id that callers do not know."""
    text = f"{answers} {answers!r}"
    assert "\x1f" not in text and "\\x1f" not in text, text
    return text


def use_every_verb(chat: Session, secret: str) -> None:
    """Talk, and look at everything that a session and its runs show."""
    assert chat.latest() is None, "it is new to its user"
    run = chat.run(f"{secret}", idempotency_key="key")
    turn = run.wait(60)
    assert chat.run(f"{secret}", idempotency_key="key").run_id == run.run_id
    where = chat.run("where")
    assert where.wait(60).text == "chat#1 of chat" and where.wait().id == "chat#1"
    events = list(run.events())
    assert {event.session_id for event in (*events, *chat.events())} == {"chat"} == {run.info().session_id}
    for value in (chat, run, turn.id, turn.session_id, chat.latest(), chat.turns(), chat.runs(), chat.events(), events):
        shown(value)
    assert [turn.session_id for turn in chat.turns()] == ["chat"] * 2 and chat.info().session.session_id == "chat"
    shown((chat.info(), run.info(), chat.execution(run.run_id), run.steps()))
    refused: list[tuple[type[TurnwiseError], Callable[[], object]]] = [
        (TurnNotFoundError, lambda: chat.turn(9)),
        (RunNotFoundError, lambda: chat.execution("none")),
        (NoActiveRunError, chat.cancel),
        (SessionExistsError, lambda: chat.fork(session_id="chat")),
        (IdempotencyConflictError, lambda: chat.run("another prompt", idempotency_key="key")),
        (RunFailedError, chat.run("raise").wait),
    ]
    for kind, ask in refused:
        with pytest.raises(kind) as raised:
            ask()
        shown((raised.value, vars(raised.value)))
    fork = pickle.loads(pickle.dumps(chat.fork(0, "fork")))
    assert fork.id == "fork" and fork.run("on").wait(60).parent == "fork#0"
    assert chat.fork(0, "fork").info().session.parent == "chat#0", "the same again"
    assert fork.fork(session_id="fork of the fork").info().session.session_id == "fork of the fork"
    assert secret in shown(fork.turn(0).blocks)


@pytest.mark.parametrize(
    ("store", "placement"),
    [
        ("sqlite", Dedicated()),
        ("sqlite", Packed(hosts=1)),
        ("postgresql", Packed(hosts=1)),
        ("redis", Packed(hosts=1)),
        ("memory", Packed(hosts=1)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__.lower(),
)
def test_two_users_have_sessions_of_one_id_and_nothing_shows_the_other(
    store: str, placement: Placement, make_manager: MakeManager, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = {"sqlite": f"sqlite:///{tmp_path}/own.db", "memory": f"memory://{tmp_path.name}"}.get(store)
    url = url or request.getfixturevalue("database" if store == "postgresql" else "redis_url")
    strict = make_manager(store=url, placement=placement, enforce_user=True)
    free = make_manager(store=url, placement=placement)
    free.open("old", user_id="alice").run("of old").wait(60)

    for user in ("alice", "bob"):
        assert isinstance(asyncio.run(outcome(strict.get, "chat", user_id=user)), SessionNotFoundError)
        use_every_verb(strict.open("chat", user_id=user), f"secret of {user}")
    for user, other in (("alice", "bob"), ("bob", "alice")):
        again = strict.open("chat", user_id=user)
        assert f"secret of {user}" in shown(again.turns()[0].blocks)
        assert other not in shown([turn.blocks for turn in again.turns()])
        names = {"chat", "fork", "fork of the fork"} | ({"old"} if user == "alice" else set())
        assert {record.session_id for record in strict.list(user_id=user)} == names
        shown(strict.list(user_id=user))
        run = strict.get("chat", user_id=user).runs()[0]
        assert strict.execution(run.run_id, user_id=user).wait().session_id == "chat"
        with pytest.raises(RunNotFoundError):
            strict.execution(run.run_id, user_id=other)

    # A session of a manager that does not enforce users stays its user's, and is nobody else's.
    assert "of old" in shown(strict.open("old", user_id="alice").latest())
    assert strict.open("old", user_id="bob").latest() is None
    assert [record.user_id for record in free.list() if record.session_id == "old"] == ["bob", "alice"]

    # That manager reaches what is a user's own by the user's id, and makes no second one.
    assert free.open("chat", user_id="alice").turns()[0].id == free.get("chat", user_id="alice").turns()[0].id
    assert "of alice" in shown(free.open("chat", user_id="alice").turns()[0].blocks)
    assert free.open("chat").latest() is None, "it is the default user's"
    with pytest.raises(SessionOwnerError) as raised:
        free.open("chat", user_id="eve")
    shown(raised.value)

    assert strict.forget("alice").sessions == 4
    assert not strict.list(user_id="alice") and strict.open("chat", user_id="alice").latest() is None
    assert "of bob" in shown(strict.open("chat", user_id="bob").turns()[0].blocks)


def test_sessions_of_one_id_expire_are_archived_and_come_back_each_to_its_user(
    make_manager: MakeManager, tmp_path: Path
) -> None:
    placed = partial(make_manager, placement=Packed(hosts=1))
    strict, free = placed(enforce_user=True), placed()
    for user in ("alice", "bob"):
        strict.open("chat", user_id=user, ttl_s=0).run(f"of {user}").wait(60)
    assert free.sweep(tmp_path / "archive").deleted == ("chat", "chat")
    assert not free.list()

    async def take_back() -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/chats.db")
        for file in (tmp_path / "archive").iterdir():
            assert "\\u001f" not in shown(file.read_text())
            assert (await import_session(store, file.read_text().splitlines())).session_id == "chat"
        lines: list[str] = []
        await export_session(store, "chat", lines.append, user_id="bob")
        assert "of bob" in "".join(lines) and "of alice" not in "".join(lines)
        with pytest.raises(SessionNotFoundError):
            await export_session(store, "chat", lines.append, user_id="eve")
        await store.close()

    asyncio.run(take_back())
    for user in ("alice", "bob"):
        assert f"of {user}" in shown(strict.open("chat", user_id=user).latest())


def test_deleting_a_session_removes_its_items_but_not_those_of_another_user_with_the_same_id(
    make_manager: MakeManager, tmp_path: Path
) -> None:
    memory = [LexicalMemory(SQLFacts(f"sqlite:///{tmp_path}/facts.db"))]
    strict = make_manager(enforce_user=True, memory=memory, placement=Packed(hosts=1))
    chats = [strict.open("chat", user_id=user) for user in ("alice", "bob")]
    for chat in chats:
        chat.run(f"I am {chat.user_id} and like tea").wait(60)
        assert chat.memory.wait(60)
        (item,) = chat.memory.recall("tea")
        assert item.source.session_id == "chat" and chat.user_id in shown(item)
    assert chats[0].delete().items == {"LexicalMemory": 1}
    assert not strict.open("chat", user_id="alice").memory.recall("tea")
    assert len(chats[1].memory.recall("tea")) == 1
    assert chats[1].memory.forget(0).items == {"LexicalMemory": 1}


def test_a_run_of_a_users_own_session_outlives_its_process_and_keeps_its_engine(make_manager: MakeManager) -> None:
    """Its engine is noted under the id that the session is stored under, where the next process looks for it."""
    make_manager(enforce_user=True).open("chat", user_id="alice").run("hello").wait(60)
    chat = make_manager(enforce_user=True, engine=ScriptedEngine("later ")).open("chat", user_id="alice")
    assert chat.run("who").wait(60).text == "later  alice"
    os.kill(process_of(chat.info()), signal.SIGKILL)
    bare = pickle.loads(pickle.dumps(chat))
    assert [turn.text for turn in bare.turns()][-1] == "later  alice"
    assert bare.info().session.session_id == "chat"


def test_no_error_shows_what_an_own_id_adds() -> None:
    stored = own_id("alice", "chat")
    assert stored != own_id("bob", "chat") and public_id(stored) == "chat" and len(stored) == len("chat") + 33
    with pytest.raises(InvalidIdError):
        check_id("session id", stored)
    for error in (SessionNotFoundError(stored), StoreError(f"session {stored!r} of {stored}")):
        assert "chat" in shown((error, error.args, vars(error), pickle.loads(pickle.dumps(error))))


async def test_a_fork_of_a_session_that_had_this_id_before_is_given_to_its_owner_only() -> None:
    """Deleted by one user and made anew by another, a session has the turns' names of the first; not its forks."""

    async def talk(store: InMemoryStore, user_id: str) -> SessionCore:
        await store.create(SessionRecord(session_id="s", user_id=user_id))
        core = SessionCore("s", store, ScriptedEngine())
        run = await core.start([f"the secret of {user_id}"], run_id=f"run of {user_id}")
        await core.reads.wait(run.run_id)
        return core

    store = InMemoryStore()
    first = await talk(store, "alice")
    assert await first.fork(None, "fork") == await first.fork(None, "fork")
    await first.delete()
    second = await talk(store, "bob")
    with pytest.raises(SessionExistsError):
        await second.fork(None, "fork")


def test_a_manager_across_users_reaches_what_each_user_has(make_manager: Callable[..., SessionManager]) -> None:
    strict = make_manager(enforce_user=True, placement=Packed(hosts=1))
    for user in ("alice", "bob"):
        strict.open("chat", user_id=user).run(f"hello {user}").wait()
    wide = strict.across_users()
    assert strict.enforces_user and not wide.enforces_user and not wide.is_read_only
    assert {(session.session_id, session.user_id) for session in wide.list()} == {("chat", "alice"), ("chat", "bob")}
    for user in ("alice", "bob"):
        session = wide.get("chat", user_id=user)
        assert session.user_id == user and user in session.turn(0).text
        assert session.fork(session_id="fork").id == "fork"  # ids stay unique per user
    with pytest.raises(ConfigError, match="enforce_user"):
        strict.list()

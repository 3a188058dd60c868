"""Who may reach what: a session is (user, id), and every verb with a user reaches its sessions and runs only."""

import asyncio
import inspect
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engines import ScriptedEngine, process_of
from scale import one_a_day
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.files import Files
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.blocking.user_memory import UserMemory
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.files import AsyncFiles
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.user_memory import AsyncUserMemory
from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed, Placement
from turnwise.errors import (
    ConfigError,
    EmptyTurnError,
    IdempotencyConflictError,
    InvalidInputError,
    NoActiveRunError,
    RunFailedError,
    RunNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    TurnNotFoundError,
    TurnwiseError,
)
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.ledger import UsageReport
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.sql.store import SQLStore

MakeManager = Callable[..., SessionManager]

ALICE, BOB, NONE, DEFAULT = {"user_id": "alice"}, {"user_id": "bob"}, dict[str, str](), {"user_id": "default"}


class Case(NamedTuple):
    """A verb with what it gives to the owner, to another user, to the default one, and without a user."""

    verb: str
    args: tuple[Any, ...]
    owner: Any
    other_user: Any
    default: Any
    nobody: Any


CASES = [
    Case("open", (), TypeError, TypeError, TypeError, TypeError),  # it makes one: see below
    Case("get", ("of-alice",), "of-alice", SessionNotFoundError, SessionNotFoundError, SessionNotFoundError),
    Case("get", ("of-nobody",), *[SessionNotFoundError] * 4),
    Case("execution", ("RUN",), "of-alice", RunNotFoundError, RunNotFoundError, RunNotFoundError),
    Case("execution", ("no run",), *[RunNotFoundError] * 4),
    Case("list", (), ["of-alice"], ["of-bob"], [], ["of-alice", "of-bob"]),
    Case("subscribe", (), *[TypeError] * 4),  # see test_subscriptions.py
    Case("hosts", (), TypeError, TypeError, TypeError, 1),  # it shows nobody's
    Case("drain", (), TypeError, TypeError, TypeError, ConfigError),  # the tests have one node
    Case("import_messages", ("of-alice", []), *[InvalidInputError] * 4),
    Case("run_once", (), *[EmptyTurnError] * 4),
    Case("runs", (), ["of-alice"], [], [], ["of-alice"]),
    Case("schedules", (), [], [], [], []),
    Case("webhook", (), *[TypeError] * 4),  # see tests/in_process/test_webhooks.py
    Case("webhooks", (), 0, 0, 0, 0),
    Case("set_quota", (), *[TypeError] * 4),  # see tests/in_process/test_quotas.py
    Case("remove_quota", (), *[TypeError] * 4),
    Case("quotas", (), 0, 0, 0, 0),
    Case("set_tenant", (), *[TypeError] * 4),  # see tests/in_process/test_tenants.py
    Case("tenant", (), None, None, None, TypeError),
    Case("tenants", (), TypeError, TypeError, TypeError, []),
    Case("users", ("acme",), TypeError, TypeError, TypeError, []),
    Case("files", (), ["alices"], [], [], []),
    Case("memory", (), ["tea for alice"], [], [], []),
    Case("count", (), 1, 1, 0, 2),
    Case("search", (), ["of-alice"], [], [], TypeError),
    Case("marks", (), [], [], [], TypeError),
    Case("count_marks", (), 0, 0, 0, TypeError),
    Case("usage", (), True, False, False, True),
    Case("check_store", (), TypeError, TypeError, TypeError, None),
    Case("clear", (), 0, 0, 0, TypeError),  # of those who have nothing
    Case("forget", (), 0, 0, 0, TypeError),
    Case("sweep", (), TypeError, TypeError, TypeError, []),  # it goes over all users' sessions
]


def plain(answer: Any) -> Any:  # noqa: PLR0911 - a table
    """Return what of an answer the cases name."""
    match answer:
        case Session() | AsyncSession():
            assert answer.user_id == "alice"
            return answer.session_id
        case ExecutionHandle() | AsyncExecutionHandle():
            return answer.session_id
        case Page():
            return sorted(session.session_id for session in answer)
        case UsageReport():
            return answer.total.seconds > 0
        case list() | dict():
            return len(answer)
        case int() | None:
            return answer
        case Swept():
            return list(answer.deleted)
        case _:
            return answer.sessions


async def outcome(verb: Callable[..., Any], *args: str, **user: str) -> Any:
    """Return what a verb of either family gives, or the error that it raises."""
    try:
        answer = verb(*args, **user)
        answer = await answer if inspect.isawaitable(answer) else answer
        if isinstance(answer, Files | AsyncFiles):
            files = answer.list()
            return [file.name for file in (await files if inspect.isawaitable(files) else files)]
        if isinstance(answer, UserMemory | AsyncUserMemory):
            items = answer.recall("tea")
            return [item.text for item in (await items if inspect.isawaitable(items) else items)]
        return plain(answer)
    except Exception as error:  # noqa: BLE001 - the error is the outcome
        return error


def test_every_method_of_a_manager_reaches_only_records_of_its_user(
    make_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    """In both families; another user's record looks the same as a missing one."""
    memory = [LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))]
    manager = make_manager(memory=memory)
    run_id = manager.open("of-alice", user_id="alice").run("slow 3").run_id  # which takes a time that counts
    manager.memory(user_id="alice").save("tea for alice")
    manager.execution(run_id, user_id="alice").wait()
    manager.open("of-bob", user_id="bob")
    manager.files(user_id="alice").put("alices", b"a")

    async def check(manager: Any) -> None:
        for case in CASES:
            args = tuple(run_id if arg == "RUN" else arg for arg in case.args)
            verb = getattr(manager, case.verb)
            users = [{"user_id": "carol"}, {"user_id": "dave"}] if case.verb in ("clear", "forget") else [ALICE, BOB]
            expectations = zip((*users, DEFAULT, NONE), case[2:], strict=True)
            for user, expected in expectations:
                if case.verb == "open":
                    continue
                words = {"text": "slow 3", "role": "user"} if case.verb == "search" else {}
                answer = await outcome(verb, *args, **user, **words)
                error = isinstance(answer, BaseException)
                assert (type(answer) if error else answer) == expected, f"{case.verb}{args} for {user}: {answer!r}"
                if isinstance(answer, SessionNotFoundError | RunNotFoundError):
                    unknown = await outcome(verb, "no such id", **user)
                    assert str(answer).replace(repr(args[0]), repr("no such id")) == str(unknown)
                    assert not answer.__cause__, "the error of a store would tell them apart"
        verbs = {name for name, _ in inspect.getmembers(type(manager), inspect.isfunction) if not name.startswith("_")}
        assert {case.verb for case in CASES} == verbs - {"close"}

    asyncio.run(check(manager))

    async def check_async() -> None:
        settings: dict[str, Any] = {"engine": ScriptedEngine(), "namespace": namespace, "placement": InProcess()}
        async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", memory=memory, **settings) as awaiting:
            await check(awaiting)

    asyncio.run(check_async())

    # A handle is a capability, and what it leads to stays within its session.
    chat = pickle.loads(pickle.dumps(manager.get("of-alice", user_id="alice")))
    handle = pickle.loads(pickle.dumps(manager.execution(run_id, user_id="alice")))
    assert chat.latest() == handle.wait()
    bobs = manager.get("of-bob", user_id="bob")
    own_run = bobs.run("hello")
    stolen = pickle.loads(pickle.dumps(own_run).replace(own_run.run_id.encode(), run_id.encode()))
    assert stolen.run_id == run_id
    calls: list[Callable[[], object]] = [
        *(stolen.wait, stolen.cancel, stolen.info, stolen.pending, stolen.steps),
        *(lambda: list(stolen.events()), lambda: stolen.reject("call"), lambda: bobs.execution(run_id)),
    ]
    for ask in calls:
        with pytest.raises(RunNotFoundError):
            ask()
    bobs_run = bobs.run("hello", idempotency_key="key")
    bobs_run.wait()
    assert chat.run("hello", idempotency_key="key").run_id != bobs_run.run_id
    assert bobs.fork(session_id="of-alice").user_id == "bob", "it does not say that alice has one of this id"
    assert chat.fork(session_id="fork").user_id == "alice"
    assert manager.open("fork", user_id="bob").latest() is None
    with pytest.raises(SessionExistsError):
        bobs.fork(session_id="fork")


def use_every_verb(chat: Session, secret: str) -> None:
    """Talk, and look at everything that a session and its runs show."""
    assert chat.latest() is None, "it is new to its user"
    run = chat.run(f"{secret}", idempotency_key="key")
    run.wait(60)
    assert chat.run(f"{secret}", idempotency_key="key").run_id == run.run_id
    where = chat.run("where")
    assert where.wait(60).text == "chat#1 of chat" and where.wait().id == "chat#1"
    events = list(run.events())
    assert {event.session_id for event in (*events, *chat.events())} == {"chat"} == {run.info().session_id}
    assert [turn.session_id for turn in chat.turns()] == ["chat"] * 2 and chat.info().session.session_id == "chat"
    refused: list[tuple[type[TurnwiseError], Callable[[], object]]] = [
        (TurnNotFoundError, lambda: chat.turn(9)),
        (RunNotFoundError, lambda: chat.execution("none")),
        (NoActiveRunError, chat.cancel),
        (SessionExistsError, lambda: chat.fork(session_id="chat")),
        (IdempotencyConflictError, lambda: chat.run("another prompt", idempotency_key="key")),
        (RunFailedError, chat.run("raise").wait),
    ]
    for kind, ask in refused:
        with pytest.raises(kind):
            ask()
    fork = pickle.loads(pickle.dumps(chat.fork(0, "fork")))
    assert fork.session_id == "fork" and fork.run("on").wait(60).parent == "fork#0"
    assert chat.fork(0, "fork").info().session.parent == "chat#0", "the same again"
    assert fork.fork(session_id="fork of the fork").info().session.session_id == "fork of the fork"
    assert secret in str(fork.turn(0).blocks)


@one_a_day(
    "store,placement",
    [("sqlite", Dedicated()), ("sqlite", Packed(hosts=1)), ("memory", Packed(hosts=1))],
    ["sqlite-dedicated", "sqlite-packed", "memory-packed"],
)
def test_two_users_have_sessions_of_one_id_and_nothing_shows_the_other(
    store: str, placement: Placement, make_ray_manager: MakeManager, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/own.db" if store == "sqlite" else f"memory://{tmp_path.name}"
    check_two_users(make_ray_manager(store=url, placement=placement))


@pytest.mark.parametrize("server", ["database", "redis_url"])
def test_two_users_have_sessions_of_one_id_on_servers(
    server: str, make_manager: MakeManager, request: pytest.FixtureRequest
) -> None:
    check_two_users(make_manager(store=request.getfixturevalue(server)))


def check_two_users(manager: SessionManager) -> None:
    for user in ("alice", "bob"):
        assert isinstance(asyncio.run(outcome(manager.get, "chat", user_id=user)), SessionNotFoundError)
        use_every_verb(manager.open("chat", user_id=user), f"secret of {user}")
    assert manager.open("chat").latest() is None, "without a user it is the default user's"
    for user, other_user in (("alice", "bob"), ("bob", "alice")):
        again = manager.open("chat", user_id=user)
        assert f"secret of {user}" in str(again.turns()[0].blocks)
        assert other_user not in str([turn.blocks for turn in again.turns()])
        names = {"chat", "fork", "fork of the fork"}
        assert {record.session_id for record in manager.list(user_id=user)} == names
        run = manager.get("chat", user_id=user).runs()[0]
        assert manager.execution(run.run_id, user_id=user).wait().session_id == "chat"
        for nobody in (other_user, None):
            with pytest.raises(RunNotFoundError):
                manager.execution(run.run_id, user_id=nobody)

    assert manager.forget("alice").sessions == 3
    assert not manager.list(user_id="alice") and manager.open("chat", user_id="alice").latest() is None
    assert "of bob" in str(manager.open("chat", user_id="bob").turns()[0].blocks)


def test_sessions_of_one_id_expire_are_archived_and_come_back_each_to_its_user(
    make_manager: MakeManager, tmp_path: Path
) -> None:
    manager = make_manager()
    for user in ("alice", "bob"):
        manager.open("chat", user_id=user, ttl_s=0).run(f"of {user}").wait(60)
    swept = manager.sweep(tmp_path / "archive")
    assert {key.user_id for key in swept.deleted} == {"alice", "bob"} and len(swept.deleted) == 2
    assert not manager.list()

    async def take_back() -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/chats.db")
        for file in (tmp_path / "archive").iterdir():
            assert (await import_session(store, file.read_text().splitlines())).session_id == "chat"
        lines: list[str] = []
        await export_session(store, SessionKey("chat", "bob"), lines.append)
        assert "of bob" in "".join(lines) and "of alice" not in "".join(lines)
        with pytest.raises(SessionNotFoundError):
            await export_session(store, SessionKey("chat", "eve"), lines.append)
        await store.close()

    asyncio.run(take_back())
    for user in ("alice", "bob"):
        assert f"of {user}" in str(manager.open("chat", user_id=user).latest())


def test_deleting_a_session_removes_its_items_but_not_those_of_another_user_with_the_same_id(
    make_manager: MakeManager, tmp_path: Path
) -> None:
    memory = [LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))]
    manager = make_manager(memory=memory)
    chats = [manager.open("chat", user_id=user) for user in ("alice", "bob")]
    for chat in chats:
        chat.run(f"I am {chat.user_id} and like tea").wait(60)
        assert chat.memory.wait(60)
        (item,) = chat.memory.recall("tea")
        assert item.source.session_id == "chat" and chat.user_id in str(item)
    assert chats[0].delete().items == {"LexicalMemory": 1}
    assert not manager.open("chat", user_id="alice").memory.recall("tea")
    assert len(chats[1].memory.recall("tea")) == 1
    assert chats[1].memory.forget(0).items == {"LexicalMemory": 1}


def test_a_run_of_a_users_own_session_outlives_its_process_and_keeps_its_engine(make_ray_manager: MakeManager) -> None:
    make_ray_manager().open("chat", user_id="alice").run("hello").wait(60)
    chat = make_ray_manager(engine=ScriptedEngine("later ")).open("chat", user_id="alice")
    assert chat.run("who").wait(60).text == "later  alice"
    os.kill(process_of(chat.info()), signal.SIGKILL)
    bare = pickle.loads(pickle.dumps(chat))
    assert [turn.text for turn in bare.turns()][-1] == "later  alice"
    assert bare.info().session.session_id == "chat"

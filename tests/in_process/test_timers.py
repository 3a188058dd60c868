"""Schedules of sessions in the caller's process: each occurrence begins one run, whoever is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from patience import within
from servers.over_http import manager_at
from turnwise import AsyncSessionManager, EchoEngine, Encryption, InProcess, SessionConfig, SessionManager
from turnwise.actors.dispatch.dispatcher import DispatchSettings
from turnwise.actors.in_process import hosts
from turnwise.actors.in_process.runtime import InProcessRuntime
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.errors import (
    DeliveryNotFoundError,
    EmptyTurnError,
    InvalidInputError,
    ReadOnlyStoreError,
    SessionEndedError,
)
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores import store_owner
from turnwise.memory.values.ids import new_id

LONG_S = 30.0

until = within(LONG_S)

SETTINGS: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}

DAYS_S = 86_400.0 * 30


MakeManager = Callable[..., AbstractContextManager[SessionManager]]


@pytest.fixture(params=["in process", "over HTTP"])
def manager_of(request: pytest.FixtureRequest) -> MakeManager:
    """Opens a manager of a store, or of a service that has the store."""
    return partial(manager_at, remotely=request.param == "over HTTP")


def texts(session: Any) -> list[str | None]:
    """Return the answers of all turns that have completed."""
    return [turn.text for turn in session.turns() if turn.status == "completed"]


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/a.db"


def test_a_manager_that_resumes_no_lost_runs_carries_out_no_schedules(tmp_path: Path) -> None:
    acting = InProcess(resume_lost=False)
    with SessionManager(url_of(tmp_path), engine=EchoEngine(), placement=acting) as manager:
        chat = manager.open("chat")
        chat.schedule("water the plants", after_s=0.0)
        for text in "abc":
            chat.run(text).wait()
            time.sleep(0.1)
        assert texts(chat) == ["a", "b", "c"]
    with SessionManager(url_of(tmp_path), **SETTINGS) as manager:
        chat = manager.open("chat")
        until(lambda: texts(chat) == ["a", "b", "c", "water the plants"])


def test_a_prompt_begins_a_run_when_it_is_due(manager_of: MakeManager, tmp_path: Path) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        chat = manager.open("chat", user_id="ada")
        reminder = chat.schedule("water the plants", after_s=1.0, key="plants", labels={"by": "timer"}, timeout_s=20.0)
        assert (reminder.key, reminder.schedule) == ("plants", None)
        assert [*chat.schedules()] == [*manager.schedules(user_id="ada")] == [reminder]
        until(lambda: texts(chat) == ["water the plants"])
        (run,) = chat.runs()
        assert (run.run_id, run.labels, run.timeout_s) == (reminder.run_id, {"by": "timer"}, 20.0)
        assert run.created_at == pytest.approx(reminder.occurs_at, abs=1.0)
        assert not chat.schedules().items and not manager.schedules().items


async def test_coroutines_schedule_too() -> None:
    async with AsyncSessionManager("memory://timers", **SETTINGS) as manager:
        chat = await manager.open("chat")
        await chat.schedule("first", "second", at=time.time() + 1.0, key="soon")
        await chat.schedule("never", cron="0 9 * * MON-FRI", timezone="Europe/Lisbon", key="weekly")
        changed = await chat.change_schedule("weekly", cron="0 10 * * *", until=time.time() + DAYS_S)
        assert changed.schedule and changed.schedule.cron == "0 10 * * *" and changed.schedule.timezone == "UTC"
        assert {schedule.key for schedule in await chat.schedules()} == {"soon", "weekly"}
        assert await chat.cancel_schedule("weekly") and not await chat.cancel_schedule("weekly")
        while not await chat.latest():
            await asyncio.sleep(0.02)
        (run,) = await chat.runs()
        turn = await (await chat.execution(run.run_id)).wait(LONG_S)
        assert [block.text for block in turn.asked if block.kind == "user"] == ["first", "second"]


def test_what_recurs_comes_until_it_is_cancelled() -> None:
    with SessionManager("memory://recurring", **SETTINGS) as manager:
        chat = manager.open("chat")
        first = chat.schedule("tick", after_s=0.0, every_s=1.0, key="clock")
        assert chat.schedule("other words", every_s=5.0, key="clock").delivery_id == first.delivery_id
        until(lambda: len(texts(chat)) == 2)
        (clock,) = chat.schedules()
        assert (clock.revision, clock.occurs_at) == (3, first.occurs_at + 2.0)
        assert chat.cancel_schedule("clock")
        time.sleep(1.2)
        assert texts(chat) == ["tick", "tick"]


def test_a_change_replaces_the_time_and_the_prompts_each_alone(manager_of: MakeManager) -> None:
    with manager_of(f"memory://{new_id()}", **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.schedule("old words", after_s=DAYS_S, key="a", labels={"old": "label"})
        other = chat.schedule("other words", after_s=DAYS_S, key="b")
        assert chat.change_schedule("a", "new words", labels={"new": "label"}).occurs_at > time.time() + DAYS_S / 2
        assert chat.change_schedule("b", if_busy="drop", missed="skip").payload == other.payload
        for key in "ab":
            chat.change_schedule(key, after_s=0.1)
            until(lambda key=key: len(texts(chat)) == 1 + "ab".index(key))  # type: ignore[misc]
        assert texts(chat) == ["new words", "other words"]
        assert [run.labels for run in chat.runs()] == [{"new": "label"}, {}]
        with pytest.raises(DeliveryNotFoundError, match=r"'chat' has no delivery 'a'"):
            chat.change_schedule("a", after_s=1.0)


@pytest.mark.parametrize("policy", ["enqueue", "drop", "reject", "interrupt"])
def test_a_busy_session_takes_it_by_its_policy(manager_of: MakeManager, policy: IfBusy) -> None:
    go_on = threading.Event()

    async def answer(turn: Turn) -> AsyncIterator[str]:
        if turn.asked[-1].text == "long":  # type: ignore[union-attr]
            while not go_on.is_set():
                await asyncio.sleep(0.02)
        yield "done"

    settings: dict[str, Any] = {"engine": FunctionEngine(answer), "placement": InProcess()}
    with manager_of(f"memory://{new_id()}", **settings) as manager:
        chat = manager.open("chat")
        long = chat.run("long")
        chat.schedule("short", after_s=0.1, key="short", if_busy=policy)
        if policy == "reject":
            until(lambda: [schedule.attempts for schedule in chat.schedules()] == [1])
            assert "busy" in str(chat.schedules().items[0].why)
        else:
            until(lambda: not chat.schedules().items)
        states = [run.state for run in chat.runs()]
        assert states == {"enqueue": ["running", "queued"], "drop": ["running"], "reject": ["running"]}.get(
            policy, states
        )
        go_on.set()
        if policy != "interrupt":
            long.wait(LONG_S)
        expected = {"drop": 1, "interrupt": 1}.get(policy, 2)
        until(lambda: len(texts(chat)) == expected and not chat.info().active_run_id)
        ends = {run.state for run in chat.runs()}
        assert ends == ({"cancelled", "completed"} if policy == "interrupt" else {"completed"})


def test_a_session_that_is_idle_leaves_and_is_woken() -> None:
    config = SessionConfig(idle_s=0.2)
    with SessionManager("memory://idle", config=config, **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.schedule("wake up", after_s=4.0)
        until(lambda: [host.load.sessions for host in manager.hosts() if host.load] == [0])
        assert not chat.runs(), "it has left before it is due"
        until(lambda: texts(chat) == ["wake up"])


def test_schedules_go_with_their_session_and_their_user() -> None:
    with SessionManager("memory://gone", **SETTINGS) as manager:
        for user_id in ("ada", "alan"):
            for name in ("chat", "other", "ended"):
                manager.open(name, user_id=user_id).schedule(f"{user_id} {name}", after_s=3.0, key="k")
        assert len(manager.schedules().items) == 6
        manager.get("chat", user_id="alan").delete()
        manager.get("ended", user_id="alan").end()
        with pytest.raises(SessionEndedError):
            manager.get("ended", user_id="alan").schedule("too late", after_s=1.0)
        manager.forget("ada")
        left, first_page = manager.schedules(), manager.schedules(limit=1)
        assert [schedule.session_key for schedule in left] == [("other", "alan")]
        assert (first_page.items, first_page.cursor) == (left.items, None)
        assert not manager.schedules(user_id="ada").items
        until(lambda: not manager.schedules().items)
        until(lambda: texts(manager.get("other", user_id="alan")) == ["alan other"])
        assert [run.user_id for run in manager.runs()] == ["alan"]


def test_users_see_their_own_schedules_page_by_page(manager_of: MakeManager) -> None:
    with manager_of(f"memory://{new_id()}", **SETTINGS) as manager:
        chats = {user_id: manager.open("chat", user_id=user_id) for user_id in ("ada", "alan")}
        for number in range(5):
            for user_id, chat in chats.items():
                chat.schedule(f"{user_id} {number}", after_s=DAYS_S, key=f"{number}")
        for user_id, chat in chats.items():
            seen, cursor = [], None
            while True:
                page = manager.schedules(user_id=user_id, cursor=cursor, limit=2)
                assert page.items == chat.schedules(cursor=cursor, limit=2).items
                seen += [schedule.key for schedule in page]
                if (cursor := page.cursor) is None:
                    break
            assert sorted(seen) == ["0", "1", "2", "3", "4"], "those of a millisecond come in any order"
        assert chats["ada"].cancel_schedule("0")
        assert len(chats["alan"].schedules().items) == 5


def test_a_fork_has_copies_if_it_is_to(manager_of: MakeManager) -> None:
    with manager_of(f"memory://{new_id()}", **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.run("hello").wait()
        chat.schedule("again", after_s=1.5, key="again")
        assert not chat.fork().schedules().items
        fork = chat.fork(schedules=True)
        assert [schedule.key for schedule in fork.schedules()] == ["again"]
        until(lambda: texts(chat) == ["hello", "again"] and texts(fork)[-1] == "again")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, InvalidInputError, "pass at, after_s, every_s or cron"),
        ({"at": 1.0, "after_s": 1.0}, InvalidInputError, "either at or after_s"),
        ({"at": -1.0}, InvalidInputError, "seconds since the epoch"),
        ({"at": "tomorrow"}, InvalidInputError, "at"),
        ({"after_s": float("nan")}, InvalidInputError, "after_s"),
        ({"every_s": 0.5}, InvalidInputError, "every_s"),
        ({"every_s": 5.0, "cron": "* * * * *"}, InvalidInputError, "either every_s or cron"),
        ({"cron": "99 * * * *"}, InvalidInputError, "cron"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Atlantis"}, InvalidInputError, "timezone"),
        ({"every_s": 5.0, "timezone": "Europe/Lisbon"}, InvalidInputError, "pass cron"),
        ({"after_s": 5.0, "until": 1e10}, InvalidInputError, "pass every_s or cron"),
        ({"every_s": 5.0, "until": 1.0}, InvalidInputError, "until"),
        ({"after_s": 5.0, "key": ""}, InvalidInputError, "key"),
        ({"after_s": 5.0, "key": "a\0b"}, InvalidInputError, "key"),
        ({"after_s": 5.0, "missed": "perhaps"}, InvalidInputError, "missed"),
        ({"after_s": 5.0, "if_busy": "perhaps"}, InvalidInputError, "if_busy"),
        ({"after_s": 5.0, "if_busy": "debounce"}, InvalidInputError, "debounce_s"),
        ({"after_s": 5.0, "turn_id": "t"}, TypeError, r"Session.schedule\(\) .*'turn_id'"),
        ({"after_s": 5.0, "labels": {"a": 1}}, InvalidInputError, "labels"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(
    manager_of: MakeManager, arguments: Any, error: type[Exception], words: str
) -> None:
    with manager_of(f"memory://{new_id()}", **SETTINGS) as manager:
        chat = manager.open("chat", if_exists="keep")
        with pytest.raises(error, match=words):
            chat.schedule("a word", **arguments)
        with pytest.raises(EmptyTurnError):
            chat.schedule(after_s=5.0)
        assert not chat.schedules().items


def test_a_change_without_its_prompts_is_refused(manager_of: MakeManager) -> None:
    with manager_of(f"memory://{new_id()}", **SETTINGS) as manager:
        chat = manager.open("chat")
        before = chat.schedule("a word", after_s=DAYS_S, key="k")
        with pytest.raises(InvalidInputError, match=r"pass the prompts to which \['labels'\] belong"):
            chat.change_schedule("k", labels={"a": "b"})
        assert chat.schedules().items == (before,)


def test_a_read_only_manager_lists_schedules_and_changes_none(manager_of: MakeManager, tmp_path: Path) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        manager.open("chat").schedule("a word", after_s=DAYS_S, key="k")
    with manager_of(url_of(tmp_path), **SETTINGS, read_only=True) as reader:
        chat = reader.get("chat")
        assert [schedule.key for schedule in chat.schedules()] == ["k"] == [one.key for one in reader.schedules()]
        for change in (
            lambda: chat.schedule("a word", after_s=1.0),
            lambda: chat.change_schedule("k", after_s=1.0),
            lambda: chat.cancel_schedule("k"),
        ):
            with pytest.raises(ReadOnlyStoreError):
                change()


OTHER = "process-7-on-elsewhere"


def set_rivals(monkeypatch: pytest.MonkeyPatch, others: list[str]) -> None:
    async def rivals(store: object) -> list[str]:
        return others

    monkeypatch.setattr(store_owner, "rivals", rivals)
    monkeypatch.setattr(hosts, "rivals", rivals)
    monkeypatch.setattr(hosts, "DISPATCH", DispatchSettings(standby_s=0.05, fresh_s=1e-6))


def test_a_process_waits_while_a_ray_has_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [OTHER, "10.0.0.1:6379"]
    set_rivals(monkeypatch, others)
    with SessionManager("memory://rivals", **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.schedule("a word", after_s=0.0)
        time.sleep(0.5)
        assert not chat.runs()
        others.pop()
        until(lambda: texts(chat) == ["a word"])


@pytest.mark.parametrize("lives", [True, False])
def test_a_process_has_the_lease_as_long_as_it_lives(lives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    set_rivals(monkeypatch, [OTHER] if lives else [])
    store = InProcessRuntime("turnwise", InProcess()).open_shared_store(f"memory://lease-{lives}")
    asyncio.run(store.lease_deliveries(f"{OTHER}/store", 1000.0))
    with SessionManager(f"memory://lease-{lives}", **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.schedule("a word", after_s=0.0)
        if lives:
            time.sleep(0.5)
            assert not chat.runs()
        else:
            until(lambda: texts(chat) == ["a word"])


def test_a_process_yields_to_the_dispatcher_of_a_ray_and_takes_over_when_that_ray_has_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others: list[str] = []
    set_rivals(monkeypatch, others)
    store = InProcessRuntime("turnwise", InProcess()).open_shared_store("memory://yields")

    def lease(holder: str, ttl_s: float | None) -> str:
        return asyncio.run(store.lease_deliveries(holder, ttl_s)).holder

    with SessionManager("memory://yields", **SETTINGS) as manager:
        chat = manager.open("chat")
        until(lambda: lease("", None))
        others.append("10.0.0.1:6379")
        lease(lease("", None), 0.0)
        assert lease("10.0.0.1:6379/dispatcher", 1000.0) == "10.0.0.1:6379/dispatcher"
        chat.schedule("a word", after_s=0.0)
        time.sleep(0.5)
        assert not chat.runs()
        others.clear()
        until(lambda: texts(chat) == ["a word"])


@pytest.mark.by_turns
def test_managers_that_come_and_go_lose_and_double_nothing(tmp_path: Path) -> None:
    rounds = 12
    for number in range(rounds):
        with SessionManager(url_of(tmp_path), **SETTINGS) as manager:
            chat = manager.open("chat", if_exists="keep")
            for part in range(3):
                chat.schedule(f"{number} {part}", after_s=0.002 * part, key=f"{number} {part}")
            time.sleep(number % 4 / 200)
    with SessionManager(url_of(tmp_path), **SETTINGS) as manager:
        chat = manager.get("chat")
        until(lambda: not chat.schedules().items and len(texts(chat)) == 3 * rounds)
        assert sorted(map(str, texts(chat))) == sorted(f"{n} {part}" for n in range(rounds) for part in range(3))


def test_an_encrypted_store_has_no_words_of_a_schedule(tmp_path: Path) -> None:
    encryption = Encryption(key=lambda user_id: bytes(32))
    with SessionManager(url_of(tmp_path), encryption=encryption, **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.schedule("the secret word", after_s=1.5)
        assert "the secret word" in str(manager.schedules().items)
        assert not any(b"secret word" in path.read_bytes() for path in tmp_path.iterdir())
        until(lambda: texts(chat) == ["the secret word"])


SCHEDULING = """
import sys, time
from turnwise import EchoEngine, InProcess, SessionManager
url, after_s = sys.argv[1], float(sys.argv[2])
manager = SessionManager(url, engine=EchoEngine(), placement=InProcess())
chat = manager.open("chat")
for number in range(8):
    chat.schedule(f"once {number}", after_s=after_s + number / 4, key=f"once {number}")
chat.schedule("again", after_s=after_s, every_s=1.0, key="again", missed="run_all")
print("scheduled", flush=True)
time.sleep(60)
"""


def killed_after(script: str, url: str, after_s: float, lives_s: float) -> None:
    """Run a program, and kill it some seconds after its first line."""
    process = subprocess.Popen([sys.executable, "-c", script, url, str(after_s)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "scheduled\n"
        time.sleep(lives_s)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.by_turns
def test_after_kills_each_occurrence_has_begun_one_run(tmp_path: Path) -> None:
    """Killed before the first is due, and between others; keys keep a later program from adding them again."""
    url = url_of(tmp_path)
    killed_after(SCHEDULING, url, 3.0, 0.0)
    with SessionManager(url, **SETTINGS) as manager:
        chat = manager.get("chat")
        begins_at = min(schedule.occurs_at for schedule in chat.schedules())
        assert len(chat.schedules().items) == 9
    for lives_s in (0.3, 0.8, 0.5, 0.6):
        killed_after(SCHEDULING.replace("range(8)", "range(0)"), url, 3.0, lives_s)
    time.sleep(max(0.0, begins_at + 2.0 - time.time()))
    with SessionManager(url, **SETTINGS) as manager:
        chat = manager.get("chat")
        until(lambda: [schedule.key for schedule in chat.schedules()] == ["again"])
        until(lambda: chat.schedules().items[0].occurs_at > time.time())
        chat.cancel_schedule("again")
        until(lambda: not manager.runs(state="running").items and not manager.runs(state="queued").items)
        prompts = [block.text for turn in chat.turns() for block in turn.asked if block.kind == "user"]
        assert sorted(text for text in prompts if text != "again") == [f"once {number}" for number in range(8)]
        begun = {run.run_id for run in chat.runs() if prompts[run.turn_index] == "again"}
        (delivery_id,) = {run_id.rpartition("-")[0] for run_id in begun}
        assert begun == {f"{delivery_id}-{revision}" for revision in range(1, prompts.count("again") + 1)}
        assert prompts.count("again") >= 3


@pytest.mark.by_turns
@pytest.mark.parametrize("server", ["database", "redis_url"])
def test_on_a_server_the_next_process_need_not_wait_for_the_lease(server: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(server)
    killed_after(SCHEDULING.replace("range(8)", "range(1)"), url, 0.2, 1.0)
    with SessionManager(url, **SETTINGS) as manager:
        chat = manager.get("chat")
        done = chat.runs()[-1].turn_index
        chat.schedule("soon", after_s=0.1)
        until(lambda: "soon" in texts(chat)[done:])
        prompts = [turn.asked[-1].text for turn in chat.turns() if turn.asked[-1].kind == "user"]
        assert prompts.count("once 0") == prompts.count("soon") == 1


@pytest.mark.parametrize(("missed", "runs"), [("run_once", 1), ("run_all", 3), ("skip", 0)])
def test_what_was_missed_is_carried_out_as_it_says(
    manager_of: MakeManager, tmp_path: Path, missed: Any, runs: int
) -> None:
    """The occurrences were missed two days ago, the day before, and this day."""
    day_s = 86_400.0
    at = time.time() - 2 * day_s - 120.0
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        chat = manager.open("chat")
        chat.schedule("daily", at=at, every_s=day_s, key="daily", missed=missed)
        until(lambda: chat.schedules().items[0].occurs_at == pytest.approx(at + 3 * day_s))
        until(lambda: len(texts(chat)) == runs)

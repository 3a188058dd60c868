"""Connections that break, answers that are lost, and services that restart or are away."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn

from servers.cuts import Cuts, Ends, Refusal
from servers.over_http import over_http
from turnwise import AsyncSessionManager, EchoEngine, InProcess
from turnwise.client import AsyncRemoteManager, RemoteManager
from turnwise.client.blocking import connection, steps
from turnwise.errors import ServiceAwayError
from turnwise.http import HttpSettings, create_app

WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "sleep", lambda seconds: None)


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts take no time, and only they count."""
    pauses_s: list[float] = []
    monkeypatch.setattr(steps, "sleep", pauses_s.append)
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: sum(pauses_s)))


@pytest.mark.usefixtures("no_pauses")
def test_a_start_whose_answer_was_lost_begins_one_run(tmp_path: Path) -> None:
    cuts = Cuts()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), through=cuts.through) as manager:
        chat = manager.open("chat")
        cuts.then("unsent", "lost", "lost", None)
        run = chat.run("hello")
        assert cuts.requests == ["POST /v1/sessions/chat/runs"] * 4
        assert run.wait().text == "hello" and len(chat.runs()) == 1
        cuts.then("lost")
        assert chat.schedule("later", after_s=1_000).key and len(chat.schedules()) == 1
        cuts.then("lost")
        fork = chat.fork()
        assert fork.latest() == chat.latest() or fork.latest() is not None
        cuts.then("lost")
        assert manager.open().session_id and manager.count() == 3
        cuts.then("lost")
        assert run.cancel() is False
        cuts.then("lost")
        item = chat.say("said")
        assert len(chat.runs()) == 2 and item.wait().text == "said"


@pytest.mark.usefixtures("own_clock")
def test_a_lost_answer_stays_unknown_while_the_service_is_away(tmp_path: Path) -> None:
    cuts = Cuts()
    store = f"sqlite:///{tmp_path}/chats.db"
    with over_http(store, engine=EchoEngine(), through=cuts.through) as manager:
        chat = manager.open("chat")
        chat.run("first").wait()
        starts: list[Callable[[], object]] = [
            lambda: chat.run("second"),
            lambda: chat.rerun("third"),
            lambda: chat.say("fourth"),
            lambda: chat.schedule("later", after_s=1_000),
            lambda: chat.import_messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
            lambda: manager.webhook("https://example.org/hook", events=["run.failed"]),
        ]
        for start in starts:
            cuts.then("unsent", "lost", always="unsent")
            with pytest.raises(ServiceAwayError, match="may have been done") as away:
                start()
            assert away.value.word == "unknown" and len(cuts.requests) > 2
            cuts.then()
            for run in chat.runs():
                chat.execution(run.run_id).wait()
        cuts.then(always="unsent")
        with pytest.raises(ServiceAwayError, match="see whether it runs") as away:
            chat.run("never")
        assert away.value.word == "unsent"


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("refusal", [Refusal(429, "too_many_streams"), Refusal(503, "too_many_connections")])
def test_a_request_without_room_is_sent_again(tmp_path: Path, refusal: Refusal) -> None:
    cuts = Cuts()
    store = f"sqlite:///{tmp_path}/chats.db"
    with over_http(store, engine=EchoEngine(), through=cuts.through) as manager:
        chat = manager.open("chat")
        cuts.then(refusal)
        chat.append("hello")
        run = chat.start()
        cuts.then(refusal, refusal, None)
        assert [event.kind for event in run.events()][-1] == "run_completed"
        assert len(chat.turns()) == 1
        cuts.then(always=refusal)
        with pytest.raises(ServiceAwayError, match="there is no room; nothing was done: try again later") as away:
            chat.append("hello")
        assert away.value.word == "unsent"


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 7])
def test_a_stream_that_is_cut_goes_on_with_each_event_once(tmp_path: Path, pieces: int) -> None:
    cuts = Cuts()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(0.002), through=cuts.through) as manager:
        chat = manager.open("chat")
        run = chat.run(WORDS)
        cuts.then(*[pieces, None] * 4)
        events = list(run.events())
        assert [event.seq for event in events] == sorted({event.seq for event in events})
        assert "".join(event.text for event in events if event.kind == "text_delta") == WORDS
        assert (events[0].kind, events[-1].kind) == ("run_started", "run_completed") and len(cuts.requests) > 2
        again = list(run.events(after=events[5].seq))
        assert again == events[6:]
        assert list(run.events(after=events[-1].seq)) == []


@pytest.mark.usefixtures("no_pauses")
def test_a_stream_that_ends_inside_an_event_goes_on(tmp_path: Path) -> None:
    cuts = Cuts()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), through=cuts.through) as manager:
        chat = manager.open("chat")
        run = chat.run(WORDS)
        run.wait()
        whole = list(run.events())
        for size in (20, 60, 150, 1_000):
            cuts.then(Ends(size))
            assert list(run.events()) == whole and len(cuts.requests) > 1


def test_line_separators_in_a_text_end_no_event(tmp_path: Path) -> None:
    text = "one\u2028two\u2029three\x85four"
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
        chat = manager.open("chat")
        chat.say(text).wait()
        run = chat.rerun(text)
        assert "".join(event.text for event in run.events() if event.kind == "text_delta") == run.wait().text == text


def test_events_end_without_a_request_after_the_last_one(tmp_path: Path) -> None:
    cuts = Cuts()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), through=cuts.through) as manager:
        run = manager.open("chat").run(WORDS)
        cuts.then()
        assert list(run.events())[-1].kind == "run_completed"
        assert cuts.requests == [f"GET /v1/runs/{run.run_id}/events"]


def test_events_of_a_merged_run_go_on_with_the_next_run(tmp_path: Path) -> None:
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(0.01)) as manager:
        chat = manager.open("chat")
        chat.run(WORDS)
        queued = chat.run("two", if_busy="enqueue")
        chat.run("three", if_busy="merge")
        events = list(queued.events())
        assert events[-1].kind == "run_completed" and "two" in queued.wait().text


def test_a_run_goes_on_where_a_service_cancels_runs_of_clients_that_leave(tmp_path: Path) -> None:
    cuts = Cuts()
    settings: Any = {"engine": EchoEngine(0.005), "http": HttpSettings(on_disconnect="cancel")}
    with over_http(f"sqlite:///{tmp_path}/chats.db", through=cuts.through, **settings) as manager:
        run = manager.open("chat").run(WORDS)
        cuts.then(2)
        events = run.events()
        seen = [next(events) for _ in range(4)]
        events.close()  # type: ignore[attr-defined]
        assert len(seen) == 4 and run.wait().text == WORDS


def test_a_service_that_is_away_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    pauses: list[float] = []
    now = time.monotonic
    monkeypatch.setattr(steps, "sleep", pauses.append)
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(pauses))
    with RemoteManager(url, retry_s=20) as manager:
        with pytest.raises(ServiceAwayError, match=r"see whether it runs and listens there") as away:
            manager.open("chat")
        assert away.value.word == "unsent" and 19 < sum(pauses) < 21 and max(pauses) <= 2
        closed = manager
    with pytest.raises(ServiceAwayError, match="this manager was closed"):
        closed.list()


def test_a_silent_service_does_not_hold_a_caller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            RemoteManager(url, timeout_s=0.05, retry_s=0) as manager,
            pytest.raises(ServiceAwayError, match="no answer"),
        ):
            manager.list()


def test_no_connection_is_left_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.PoolTimeout("full")

    with (
        RemoteManager("http://service", retry_s=0, transport=httpx2.MockTransport(full)) as manager,
        pytest.raises(ServiceAwayError, match="raise connections="),
    ):
        manager.list()


async def test_a_service_restarts_while_a_run_goes_on(tmp_path: Path) -> None:
    """On a real server: its streams end, its port is closed for a while, and the handle notices nothing."""
    store = f"sqlite:///{tmp_path}/chats.db"
    async with AsyncSessionManager(store, engine=EchoEngine(0.02), placement=InProcess()) as served:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server, task = await serve(served, port)
        async with AsyncRemoteManager(f"http://127.0.0.1:{port}") as manager:
            chat = await manager.open("chat")
            run = await chat.run(WORDS)
            waiting = asyncio.create_task(run.wait())
            events = []
            async for event in run.events():
                events.append(event)
                if len(events) == 5:
                    await stop(server, task)
                    server, task = await serve(served, port)
            assert "".join(event.text for event in events if event.kind == "text_delta") == WORDS
            assert (await waiting).text == WORDS
            again = await manager.execution(run.run_id)
            assert (await again.wait()) == (await chat.latest())
        await stop(server, task)


async def serve(manager: AsyncSessionManager, port: int) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    app = create_app(manager)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), task
        await asyncio.sleep(0.01)
    return server, task


async def stop(server: Any, task: asyncio.Task[None]) -> None:
    server.config.app.state.service.stop()
    server.should_exit = True
    await task

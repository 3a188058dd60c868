"""`LangGraphEngine` on Ray: an interrupt that outlives the session's process, in both families of managers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engines import process_of
from frameworks.langgraph_models import graph_that_asks
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.adapters import LangGraphEngine, TurnwiseSaver

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


async def test_an_interrupt_is_answered_after_its_process_was_killed(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///graphs.db"  # relative to this process, not to those of sessions
    graph = graph_that_asks().compile(checkpointer=TurnwiseSaver(url))
    engine, hosts = LangGraphEngine(graph), Packed(hosts=1)
    with SessionManager(url, engine=engine, placement=hosts) as manager:
        session = manager.open("chat")
        run = session.run("hello")
        request = next(event for event in run.events() if event.kind == "approval_requested")
        run.wait(until="settled")  # a call is asked for before the run is suspended
        os.kill(process_of(session.info()), signal.SIGKILL)
        manager.execution(run.run_id).approve(request.call_id)
        assert run.wait().text == "got True"
    async with AsyncSessionManager(url, engine=engine, placement=hosts) as managers:
        again = await (await managers.open("chat")).run("and now?")
        async for event in again.events():
            if event.kind == "approval_requested":
                await again.provide(event.call_id, {"to": "Rome"})
        turn = await again.wait()
        assert turn.text == "got {'to': 'Rome'}"
        assert [type(message).__name__ for message in turn.to("langchain")][-1] == "AIMessage"

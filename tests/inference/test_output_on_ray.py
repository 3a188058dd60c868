"""Typed answers on Ray: for both families, and in a run whose process is killed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator
from test_agents_on_ray import WAIT_S
from test_output import MINUS, PARIS, says
from test_sessions_on_ray import kill

from engine_calls import engine_at
from patience import until
from quirks import QuirkServer, Reply
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import InvalidInputError, OutputInvalidError, RunFailedError

MakeManager = Callable[..., SessionManager]


class Place(BaseModel):
    name: str
    people: int = Field(ge=0)


class Small(Place):
    @field_validator("people")
    @classmethod
    def is_small(cls, value: int) -> int:
        if value > 1000:
            raise ValueError("must be a village")
        return value


def test_a_run_that_is_killed_between_retries_continues_with_the_same_type(make_ray_manager: MakeManager) -> None:
    is_killed = threading.Event()

    def held() -> Reply:
        is_killed.wait(WAIT_S)
        return says(PARIS)

    with QuirkServer(says(MINUS), held, says(MINUS), says(PARIS)) as server:
        manager = make_ray_manager(engine=engine_at(server), config=SessionConfig(on_lost="resume"))
        chat = manager.open("chat")
        run = chat.run("What of Paris?", output=Place)
        until(lambda: len(server.requests) == 2)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(run.wait, WAIT_S)
            kill(chat)
            is_killed.set()
            turn = waiting.result()
        assert turn.parsed == Place(name="Paris", people=2100000) and isinstance(turn.parsed, Place)
        sent = [len(request["messages"]) for request in server.requests]
        assert sent == [1, 3, 3, 5], "what was sent back before the kill counts behind it"
        assert {json.dumps(request["response_format"]) for request in server.requests} == {
            json.dumps(server.requests[0]["response_format"])
        }
        record = run.info()
        assert record.resumes == 1 and record.output and record.output["schema"]["required"] == ("name", "people")
        assert [step.kind for step in run.steps()] == ["model", "tool", "model", "tool", "model"]
        again = manager.execution(run.run_id)
        assert again.wait().parsed is None and again.wait().parse(Place) == turn.parsed
        assert list(again.partials())[-1] == turn.parsed.model_dump()
        assert chat.run("And now?").wait(WAIT_S).parsed is None
        with pytest.raises(OutputInvalidError, match="must be a village"):
            turn.parse(Small)


def test_both_families_return_instances_and_partial_objects_and_refuse_invalid_types(
    make_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    with QuirkServer(says(PARIS)) as server:
        manager = make_manager(engine=engine_at(server))
        chat = manager.open("chat")
        run = chat.run("What of Paris?", output=Place)
        *_, last = run.partials()
        assert last == {"name": "Paris", "people": 2100000}
        assert run.wait(WAIT_S).parsed == Place(**last)
        with pytest.raises(OutputInvalidError, match="people: Value error, must be a village"):
            chat.run("And as a village?", output=Small).wait(WAIT_S).parsed  # noqa: B018 - it is made when it is read
        with pytest.raises(InvalidInputError, match="output"):
            chat.run("And now?", output=int)
        assert chat.run("And now?", output=Place.model_json_schema()).wait(WAIT_S).parsed == last
        assert len(chat.runs()) == 3

    async def story() -> None:
        with QuirkServer(says(MINUS), says(PARIS)) as server:
            settings: Any = {"engine": engine_at(server), "namespace": namespace, "placement": InProcess()}
            async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as opened:
                second_session = await opened.open("another")
                run = await second_session.run("What of Paris?", output=Place)
                partials = [partial async for partial in run.partials()]
                assert partials[-1] == {"name": "Paris", "people": 2100000}
                assert (await run).parsed == Place(**partials[-1])
                server.serve(says(MINUS))
                run = await second_session.run("And Rome?", output=Place, output_retries=1)
                with pytest.raises(OutputInvalidError, match="people: -1") as caught:
                    await run.wait(WAIT_S)
                assert isinstance(caught.value, RunFailedError) and caught.value.turn
                assert caught.value.turn.text == MINUS

    asyncio.run(story())

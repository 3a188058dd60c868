"""Replays at scale with Ray Data: the same records as in one process, also if a worker dies, or after a cancel."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turnwise import AsyncSessionManager, Budget, EchoEngine, InProcess, SessionManager
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.replay import AtScale, Progress, replay

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:ray.data", "ignore::DeprecationWarning:ray.data.context"
)
"""Ray Data warns of its own settings."""

SESSIONS, TURNS = 12, 3


@dataclass(frozen=True)
class Noting:
    """Answers in capital letters, and appends each prompt to a file. That of `dies_at` ends its process, once."""

    log: str
    dies_at: str = ""
    wait_s: float = 0.0

    def build(self, session: SessionView) -> "Noting":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        prompt = next(block.text for block in reversed(turn.blocks) if isinstance(block, User))
        with Path(self.log).open("a") as file:  # noqa: ASYNC230 - a line
            file.write(f"{prompt}\n")
        if prompt == self.dies_at and _first_time(f"{self.log}.died"):
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(self.wait_s)
        context.report(usage=Usage(input_tokens=10, output_tokens=5), stop_reason="stop")
        return [Text(text=prompt.upper())]


def _first_time(mark: str) -> bool:
    is_first = not Path(mark).exists()
    Path(mark).touch()
    return is_first


@pytest.fixture(params=["sqlite", "postgresql"])
def talked(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/chats.db" if request.param == "sqlite" else request.getfixturevalue("database")
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        for session in range(SESSIONS):
            chat = manager.open(f"s{session}")
            for turn in range(TURNS):
                chat.run(f"prompt {session}.{turn}").wait()
    return str(url)


def asked(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines())


def texts(out: Path) -> dict[str, str]:
    lines = [line for path in (out / "turns").glob("*.jsonl") for line in path.read_text().splitlines()]
    return {row["prompt"]: row["answer"]["text"] for row in map(json.loads, lines)}


def test_workers_on_ray_find_the_same_and_survive_the_death_of_one(
    ray_session: Any, talked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.replay.scale.plan.CHUNK_SESSIONS", 4)
    log, progress = tmp_path / "asked.txt", list[Progress]()
    scale = AtScale(on_ray=True, workers=2, requests_per_minute=60_000, progress=progress.append)
    with SessionManager(talked, engine=EchoEngine(), placement=InProcess()) as manager:
        engine = Noting(str(log), dies_at="prompt 5.1")
        result = replay(manager, engine=engine, out=tmp_path / "out", at_scale=scale, at_once=2)
        here = replay(manager, engine=Noting(str(tmp_path / "here.txt")), out=tmp_path / "here", at_scale=AtScale())
    assert (result.summary.turns, result.left, result.unreadable) == (SESSIONS * TURNS, 0, ())
    assert texts(tmp_path / "out") == texts(tmp_path / "here")
    assert result.summary.all.metrics["input_tokens"] == here.summary.all.metrics["input_tokens"]
    times = asked(log)
    assert len(times) == SESSIONS * TURNS
    assert sum(times.values()) - len(times) <= 2, times
    assert (progress[-1].expected_turns, progress[-1].failed) == (SESSIONS * TURNS, 0)


async def test_a_replay_on_ray_that_is_cancelled_or_out_of_budget_goes_on(
    ray_session: Any, talked: str, tmp_path: Path
) -> None:
    log, out = tmp_path / "asked.txt", tmp_path / "out"
    async with AsyncSessionManager(talked, engine=EchoEngine(), placement=InProcess()) as manager:
        slow = Noting(str(log), wait_s=0.2)
        work = asyncio.create_task(
            replay(manager, engine=slow, out=out, at_scale=AtScale(on_ray=True, workers=1), at_once=2)
        )
        while not log.exists() or len(asked(log)) < 6:
            await asyncio.sleep(0.02)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        before = sum(asked(log).values())
        assert before < SESSIONS * TURNS - 8
        budget = AtScale(on_ray=True, workers=1, budget=Budget(tokens=15 * (before + 2)))
        some = await replay(manager, engine=slow, out=out, at_scale=budget, at_once=2)
        assert some.stopped is not None
        assert some.left > 0
        result = await replay(manager, engine=slow, out=out, at_scale=AtScale())
    assert (result.summary.turns, result.left) == (SESSIONS * TURNS, 0)
    times = asked(log)
    assert sum(times.values()) - len(times) <= 2, times


def test_a_store_in_memory_is_refused_on_ray(tmp_path: Path) -> None:
    with (
        SessionManager("memory://", engine=EchoEngine(), placement=InProcess()) as manager,
        pytest.raises(ConfigError, match="memory of one process"),
    ):
        replay(manager, engine=EchoEngine(), out=tmp_path, at_scale=AtScale(on_ray=True))

"""Replays at scale: resumed after a kill, within a budget, with damaged sessions, and the same as in one go."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from scale import one_a_day, today
from turnwise import AsyncSessionManager, Budget, EchoEngine, InProcess, SessionManager
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.errors import InvalidInputError, ProviderAwayError, ReplayChangedError, ReplayInUseError
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.replay import AtScale, Progress, Replay, Selection, replay
from turnwise.replay.scale import parts, plan, worker

SESSIONS, TURNS = 5, 3

ASKED: list[str] = []
"""The prompts that engines were asked, in all replays of a test."""


class Killed(BaseException):
    """What a process does that is killed: it goes no further."""


@dataclass(frozen=True)
class Louder:
    """Answers in capital letters, and notes what it is asked."""

    suffix: str = ""
    away: Any = field(default=None, compare=False)
    """Returns whether the provider is away for a prompt."""

    def build(self, session: SessionView) -> "Louder":
        return self

    def __reduce__(self) -> Any:
        return Louder, (self.suffix,)

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        prompt = next(block.text for block in reversed(turn.blocks) if isinstance(block, User))
        before = sum(isinstance(block, Text) for block in turn.blocks)
        ASKED.append(prompt)
        await asyncio.sleep(0)
        if self.away and self.away(prompt):
            raise ProviderAwayError("the provider allows no more requests now")
        context.report(usage=Usage(input_tokens=10, output_tokens=5), stop_reason="stop")
        return [Text(text=f"{prompt.upper()}{self.suffix} {before}")]


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    ASKED.clear()


@contextmanager
def opened(url: str) -> Iterator[SessionManager]:
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        yield manager


def talk(url: str, sessions: int = SESSIONS, turns: int = TURNS) -> None:
    with opened(url) as manager:
        for session in range(sessions):
            chat = manager.open(f"s{session}", user_id=f"user-{session % 2}")
            for turn in range(turns):
                chat.run(f"prompt {session}.{turn}").wait()


@pytest.fixture
def talked(url: str) -> str:
    talk(url)
    return url


def replayed(url: str, out: Path, engine: Any = None, scale: AtScale | None = None, **options: Any) -> Replay:
    with opened(url) as manager:
        return replay(manager, engine=engine or Louder(), out=out, at_scale=scale or AtScale(), **options)


def rows(out: Path) -> list[dict[str, Any]]:
    """Return all records of a folder, without the times that differ each time."""
    found = []
    for path in sorted((out / "turns").glob("*.jsonl")):
        found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in found:
        row["answer"]["first_token_s"] = None
        row["answer"]["usage"].pop("seconds", None)
    return found


def without_times(result: Replay) -> Any:
    metrics = result.summary.all.metrics
    return {name: metric for name, metric in metrics.items() if name not in ("seconds", "first_token_s")}


ALL = sorted(f"prompt {session}.{turn}" for session in range(SESSIONS) for turn in range(TURNS))


@pytest.mark.by_turns
def test_it_finds_the_same_as_a_replay_in_one_go(talked: str, tmp_path: Path) -> None:
    result = replayed(talked, tmp_path / "scale", Louder())
    with opened(talked) as manager:
        other = replay(manager, engine=Louder(), out=tmp_path / "one")
    assert sorted(ASKED) == sorted(ALL * 2)
    assert without_times(result) == without_times(other)
    assert (result.summary.turns, result.summary.conversations) == (15, 5)
    of_one = [json.loads(line) for line in (tmp_path / "one" / "turns.jsonl").read_text().splitlines()]
    assert sorted(row["prompt"] for row in of_one) == sorted(row["prompt"] for row in rows(tmp_path / "scale"))
    assert {turn.prompt: turn.answer.text for turn in result.turns} == {
        turn.prompt: turn.answer.text for turn in other.turns
    }
    assert (result.left, result.stopped, result.unreadable) == (0, None, ())
    assert result.files["report"].read_text(encoding="utf-8").startswith("<!")


@pytest.mark.by_turns
def test_a_second_call_asks_nothing_and_finds_the_same(talked: str, tmp_path: Path) -> None:
    first = replayed(talked, tmp_path)
    before = rows(tmp_path)
    ASKED.clear()
    again = replayed(talked, tmp_path)
    assert ASKED == []
    assert (again.summary, again.turns) == (first.summary, first.turns)
    assert rows(tmp_path) == before
    fewer = replayed(talked, tmp_path, keep=2)
    assert (fewer.summary, fewer.turns) == (first.summary, first.turns[:2])


@pytest.mark.by_turns
def test_a_second_call_reads_no_record_of_complete_parts_unless_sums_are_missing(
    talked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replayed(talked, tmp_path, keep=2)
    read: list[Path] = []
    real = parts.Part._read  # noqa: SLF001 - what is read is no part of the result

    def reading(part: parts.Part, path: Path, *, is_whole: bool) -> None:
        read.append(path)
        real(part, path, is_whole=is_whole)

    monkeypatch.setattr(parts.Part, "_read", reading)
    assert replayed(talked, tmp_path, keep=2).summary == first.summary and not read
    assert len(replayed(talked, tmp_path, keep=5).turns) == 5 and read, "more turns are wanted than were noted"
    read.clear()
    for path in (tmp_path / "turns").glob("*.sums.json"):
        path.write_text("{", encoding="utf-8")
    assert replayed(talked, tmp_path, keep=5).summary == first.summary and read, "a damaged file is made anew"
    read.clear()
    assert replayed(talked, tmp_path, keep=5).summary == first.summary and not read


@contextmanager
def killed_at(number: int) -> Iterator[Callable[[], int]]:
    """Kill the replay before, or in the middle of, the change of the folder with this number; yield their count."""
    count = 0
    is_dead = False
    write, whole, unlink, rename = os.write, parts.write_whole, Path.unlink, Path.rename
    real_close = parts.Part.close

    def step() -> bool:
        nonlocal count, is_dead
        if is_dead:
            raise Killed
        count += 1
        is_dead = count > number
        return is_dead

    def writing(self: parts.Part, text: bytes) -> Any:
        if step():
            if self._journal is not None and number % 2:
                write(self._journal, text[: len(text) // 2])
            raise Killed
        return real_write(self, text)

    def writing_whole(path: Path, lines: Iterator[bytes]) -> Any:
        if step():
            raise Killed
        return whole(path, lines)

    def renaming(self: Path, target: Any) -> Any:
        if self.suffix == ".new" and step():
            raise Killed
        return rename(self, target)

    def unlinking(self: Path, *args: Any, **options: Any) -> None:
        if self.suffix == ".journal" and step():
            raise Killed
        return unlink(self, *args, **options)

    real_write = parts.Part.write_line
    with (
        mock.patch.object(parts.Part, "write_line", writing),
        mock.patch.object(parts.Part, "close", lambda self: None if is_dead else real_close(self)),
        mock.patch.object(parts, "write_whole", writing_whole),
        mock.patch.object(Path, "rename", renaming),
        mock.patch.object(Path, "unlink", unlinking),
    ):
        yield lambda: count


@pytest.mark.by_turns
@one_a_day("forward", [False, True], ["recorded windows", "own answers"])
def test_a_kill_at_any_change_of_the_folder_loses_what_was_in_flight_only(
    tmp_path: Path, forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CHUNK_SESSIONS", 2)
    url = f"sqlite:///{tmp_path}/chats.db"
    talk(url, sessions=3, turns=2)
    at_once = 2
    whole = replayed(url, tmp_path / "whole", at_once=at_once, forward=forward)
    wanted, wanted_rows = whole, rows(tmp_path / "whole")
    number = 0
    while True:
        ASKED.clear()
        out = tmp_path / f"killed-{number}"
        with killed_at(number) as count, suppress(Killed):
            replayed(url, out, at_once=at_once, forward=forward)
        if count() <= number:
            break
        recorded = {prompt for path in out.rglob("*.journal") for prompt in _prompts(path)}
        recorded |= {row["prompt"] for row in rows(out)}
        asked_before = Counter(ASKED)
        result = replayed(url, out, at_once=at_once, forward=forward)
        assert rows(out) == wanted_rows, number
        assert without_times(result) == without_times(wanted), number
        twice = {prompt for prompt, times in Counter(ASKED).items() if times > 1}
        if forward:
            conversations = {prompt.partition(".")[0] for prompt in twice}
            assert len(conversations) <= at_once, (number, twice)
        else:
            assert not twice & recorded, (number, twice)
            assert len(twice) <= at_once, (number, twice)
        assert sum(asked_before.values()) <= len(wanted_rows)
        number += 1
    assert number >= 20  # each record, each end of a conversation, and four changes for each part


def _prompts(journal: Path) -> list[str]:
    lines = journal.read_bytes().split(b"\n")[:-1]
    return [row["prompt"] for row in map(json.loads, lines) if "prompt" in row]


PROGRAM = """
import asyncio, os, random, signal, sys
from dataclasses import dataclass
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.blocks import Text, User
from turnwise.replay import AtScale, replay

url, out, log = sys.argv[1:4]
asked = []

@dataclass(frozen=True)
class Slow:
    def build(self, session):
        return self

    async def run(self, turn, context):
        prompt = next(block.text for block in reversed(turn.blocks) if isinstance(block, User))
        with open(log, "a") as file:
            file.write(prompt + "\\n")
        asked.append(prompt)
        if len(asked) == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.001)
        return [Text(text=prompt.upper())]

with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
    result = replay(manager, engine=Slow(), out=out, at_scale=AtScale(), at_once=3)
    print(result.summary.turns)
"""


@pytest.mark.by_turns
def test_a_process_that_is_killed_twice_asks_each_turn_once_but_for_those_in_flight(
    talked: str, tmp_path: Path
) -> None:
    dice, log = random.Random(today()), tmp_path / "asked.txt"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [sys.executable, str(program), talked, str(tmp_path / "out"), str(log)]
    for _ in range(2):
        killed = subprocess.run([*arguments, str(dice.randint(2, 6))], check=False, capture_output=True)
        assert killed.returncode == -signal.SIGKILL
    ran = subprocess.run([*arguments, "0"], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "15"
    times = Counter(log.read_text().split("\n")[:-1])
    assert sorted(times) == ALL
    assert sum(times.values()) - len(times) <= 2 * 3


STUCK_AT: list[int] = []
"""After how many prompts `Stuck` answers no more; never, if it is empty."""

STOPPED: list[str] = []


@dataclass(frozen=True)
class Stuck:
    """Answers some prompts, and then waits until it is cancelled."""

    def build(self, session: SessionView) -> "Stuck":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        ASKED.append("")
        if STUCK_AT and len(ASKED) > STUCK_AT[0]:
            if STUCK_AT[1:]:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            try:
                await asyncio.Event().wait()
            finally:
                STOPPED.append("")
        return [Text(text="yes")]


async def test_a_cancelled_replay_stops_its_engines_and_goes_on_later(talked: str, tmp_path: Path) -> None:
    STUCK_AT[:], STOPPED[:] = [4], []
    async with AsyncSessionManager(talked, engine=EchoEngine(), placement=InProcess()) as manager:
        work = asyncio.create_task(replay(manager, engine=Stuck(), out=tmp_path, at_scale=AtScale(), at_once=1))
        while len(ASKED) < 5:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert len(STOPPED) == 1
        STUCK_AT.clear()
        ASKED.clear()
        progress: list[Progress] = []
        result = await replay(manager, engine=Stuck(), out=tmp_path, at_scale=AtScale(progress=progress.append))
    assert len(ASKED) == 11
    assert result.summary.turns == 15
    assert (progress[-1].turns, progress[-1].expected_turns, progress[-1].failed) == (15, 15, 0)


def test_ctrl_c_ends_a_replay_that_blocks(talked: str, tmp_path: Path) -> None:
    STUCK_AT[:], STOPPED[:] = [4, 1], []
    with opened(talked) as manager:
        with pytest.raises(KeyboardInterrupt):
            replay(manager, engine=Stuck(), out=tmp_path, at_scale=AtScale(), at_once=1)
        assert len(STOPPED) == 1
        STUCK_AT.clear()
        result = replay(manager, engine=Stuck(), out=tmp_path, at_scale=AtScale(), at_once=1)
    assert result.summary.turns == 15
    assert len(ASKED) == 16


def test_a_budget_stops_it_and_a_higher_one_goes_on(talked: str, tmp_path: Path) -> None:
    first = replayed(talked, tmp_path, scale=AtScale(budget=Budget(tokens=60)), at_once=2)
    assert 4 <= len(ASKED) <= 4 + 1
    assert first.summary.turns == len(ASKED)
    assert first.left > 0
    assert first.stopped is not None and "budget" in first.stopped
    asked = len(ASKED)
    replayed(talked, tmp_path, scale=AtScale(budget=Budget(tokens=60)), at_once=2)
    assert len(ASKED) == asked
    last = replayed(talked, tmp_path, scale=AtScale(budget=Budget(tokens=10_000)))
    assert (last.left, last.stopped, last.summary.turns) == (0, None, 15)
    assert sorted(ASKED) == ALL


def test_a_provider_that_is_away_is_asked_again(talked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    failures = Counter[str]()

    def away(prompt: str) -> bool:
        failures[prompt] += 1
        return prompt == "prompt 2.1" and failures[prompt] <= 2

    result = replayed(talked, tmp_path, Louder(away=away))
    assert (result.left, result.summary.turns) == (0, 15)
    assert result.summary.all.metrics["errors"].replayed == 0
    assert Counter(ASKED)["prompt 2.1"] == 3


def test_turns_whose_provider_stays_away_are_asked_by_the_next_replay(talked: str, tmp_path: Path) -> None:
    def away(prompt: str) -> bool:
        return prompt == "prompt 2.1"

    first = replayed(talked, tmp_path, Louder(away=away), AtScale(retries=0))
    assert (first.left, first.stopped, first.summary.turns) == (1, None, 15)
    assert first.summary.all.metrics["errors"].replayed == pytest.approx(1 / 15)
    ASKED.clear()
    second = replayed(talked, tmp_path, Louder())
    assert ASKED == ["prompt 2.1"]
    assert (second.left, second.summary.turns) == (0, 15)
    assert second.summary.all.metrics["errors"].replayed == 0


def test_a_damaged_session_is_named_and_others_are_replayed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    talk(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        run_id = connection.execute(sa.text("select run_id from turnwise_runs order by run_id limit 1")).scalar_one()
        session = connection.execute(
            sa.text(
                "select session_id from turnwise_sessions where key ="
                " (select session from turnwise_runs where run_id = :run)"
            ),
            {"run": run_id},
        ).scalar_one()
        connection.execute(sa.text("update turnwise_runs set state = 'odd' where run_id = :run"), {"run": run_id})
    engine.dispose()
    for _ in range(2):
        result = replayed(url, tmp_path / "out")
        assert [each.session_id for each in result.unreadable] == [session]
        assert result.unreadable[0].why
        assert (result.summary.conversations, result.left) == (4, 0)
    assert len(ASKED) == 12


@pytest.mark.by_turns
def test_turns_and_sessions_that_come_later_are_not_replayed(talked: str, tmp_path: Path) -> None:
    replayed(talked, tmp_path, scale=AtScale(budget=Budget(tokens=40)), at_once=1)
    assert len(ASKED) == 3
    with opened(talked) as manager:
        manager.open("s0", user_id="user-0").run("later").wait()
        manager.open("late", user_id="user-0").run("later").wait()
        manager.open("s4", user_id="user-0").delete()
    result = replayed(talked, tmp_path)
    assert "later" not in ASKED
    assert result.left == 0
    assert result.summary.turns in (12, 15)


def test_a_sample_is_exact_and_chosen_once(talked: str, tmp_path: Path) -> None:
    select = Selection(sample=4, seed=3)
    result = replayed(talked, tmp_path, select=select)
    assert result.summary.turns == 4
    chosen = sorted(ASKED)
    replayed(talked, tmp_path, select=select)
    assert sorted(ASKED) == chosen


def test_other_settings_are_refused_by_name(talked: str, tmp_path: Path) -> None:
    replayed(talked, tmp_path)
    with pytest.raises(ReplayChangedError, match="engine, select") as raised:
        replayed(talked, tmp_path, Louder("!"), select=Selection(user_id="user-1"))
    assert raised.value.folder == str(tmp_path)
    result = replayed(talked, tmp_path, Louder("!"), AtScale(anew=True), select=Selection(user_id="user-1"))
    assert result.summary.turns == 6
    assert all(turn.answer.text.split()[1].endswith("!") for turn in result.turns)


def test_rates_and_budget_may_differ(talked: str, tmp_path: Path) -> None:
    replayed(talked, tmp_path, scale=AtScale(requests_per_minute=1e6, tokens_per_minute=1e9))
    replayed(talked, tmp_path, scale=AtScale(budget=Budget(cost=1.0)))
    assert sorted(ASKED) == ALL


def test_two_replays_into_one_folder_are_refused(tmp_path: Path) -> None:
    with plan.lock_of(tmp_path), closing(plan.join(tmp_path)):
        second = plan.lock_of(tmp_path, wait_s=0.0)
        with pytest.raises(ReplayInUseError):
            second.__enter__()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": float("inf")}, "tokens_per_minute"),
        ({"retries": -1}, "retries"),
        ({"workers": 2}, "workers"),
        ({"workers": 0, "on_ray": True}, "workers"),
        ({"budget": 3}, "budget"),
        ({"budget": Budget(seconds=3)}, "budget"),
        ({"progress": 3}, "progress"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        AtScale(**settings)
    assert raised.value.field == field


def test_it_needs_a_folder_and_its_own_progress(talked: str, tmp_path: Path) -> None:
    with opened(talked) as manager:
        with pytest.raises(InvalidInputError, match="folder"):
            replay(manager, engine=Louder(), at_scale=AtScale())
        with pytest.raises(InvalidInputError, match="AtScale"):
            replay(manager, engine=Louder(), out=tmp_path, at_scale=AtScale(), progress=print)
        with pytest.raises(InvalidInputError, match="AtScale"):
            replay(manager, engine=Louder(), out=tmp_path, at_scale=True)  # type: ignore[call-overload]

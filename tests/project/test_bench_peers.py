"""`make bench-peers` measures and shows what it says, for turnwise alone, mostly without Ray. No time is tested."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import page_parts
from peers import (
    __main__ as main,
    behind,
    growth,
    many,
    page,
    plots,
    recall,
    replay,
    resident,
    second,
    stopping,
    teams,
    timers,
)
from peers.bench import Bench
from peers.peer import PROMPT, History, Model
from peers.worker import MEMORIES, Worker, WorkerError, carry_out, descendants
from schedules import inline
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id
from turnwise.testing import ScriptedEngine

ROOT = Path(__file__).parents[2]


class Core:
    """A peer: the core of each session, in one process."""

    packages: Sequence[str] = ("turnwise",)

    def __init__(self, model: Model) -> None:
        self.engine = ScriptedEngine([model.text], repeat=True, word_s=0.001) if model.pause_s else EchoEngine()
        self.store, self.memory = InMemoryStore(), LexicalMemory(InMemoryItems())
        self.cores: dict[str, SessionCore] = {}

    async def core(self, chat: str) -> SessionCore:
        if chat not in self.cores:
            await self.store.create(SessionRecord(session_id=chat))
            self.cores[chat] = SessionCore(SessionKey(chat), self.store, self.engine, off_loop=inline)
        return self.cores[chat]

    async def run(self, chat: str, prompt: str) -> tuple[SessionCore, str]:
        core, run_id = await self.core(chat), new_id()
        await core.admission.start([prompt], run_id=run_id)
        return core, run_id

    async def turn(self, chat: str, prompt: str) -> None:
        core, run_id = await self.run(chat, prompt)
        await core.reads.wait(run_id)

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await self.turn(chat, prompt)

    async def timer(self, chat: str, prompt: str, due_at: float) -> Sequence[float]:
        await self.turn(chat, prompt)
        return [due_at + 0.002, due_at + 0.005]

    def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        raise NotImplementedError

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        core, run_id = await self.run(chat, prompt)
        read, last_seq = list[Event](), 0
        while not any(event.kind == "text_delta" for event in read):
            read, last_seq, _ = await core.reads.events(last_seq, run_id=run_id, timeout_s=10.0)
        await core.admission.cancel("enough", run_id)
        return 1.0

    async def history(self, chat: str) -> History:
        messages, _ = await (await self.core(chat)).reads.messages(None, 100)
        return [(message.role, message.text) for message in messages]

    async def save(self, user: str, items: Sequence[tuple[str, str]]) -> None:
        source = Source(session_id=user, turn_index=0)
        await self.memory.remember(Scope(user_id=user), [MemoryItem(id=k, text=t, source=source) for k, t in items])

    async def find(self, user: str, prompts: Sequence[str]) -> list[str]:
        return [item.id for item in await self.memory.recall(Scope(user_id=user), prompts[-1], limit=10)]

    async def close(self) -> None:
        pass


class Here:
    """What `worker.Worker` is, in this process."""

    def __init__(self, name: str, folder: Path, model: Model, env: Mapping[str, str]) -> None:
        self.name, self.folder, self.pid = name, folder, os.getpid()
        self.peer, self.runner = Core(model), asyncio.Runner()
        self.answers: AsyncIterator[Any] | None = None

    def do(self, verb: str, **arguments: Any) -> Any:
        self.ask(verb, **arguments)
        return self.answer()

    def ask(self, verb: str, **arguments: Any) -> None:
        self.answers = carry_out(self.peer, verb, arguments)

    def answer(self) -> Any:
        async def next_one() -> Any:
            assert self.answers
            return await anext(self.answers)

        return json.loads(json.dumps(self.runner.run(next_one())))

    def kill(self, *, all_of_it: bool = True) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.runner.close()


HEAD: Mapping[str, Any] = {
    "machine": "2 cores",
    "versions": {},
    "runs": {question: {"command": "make bench-peers", "day": "2026-11-29"} for question in page.QUESTIONS},
    "seconds": {"growth": 100.0, "many": 80.0},
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(growth, "QUICK_TURNS", 40)
    monkeypatch.setattr(resident, "QUICK_COUNT", 3)
    return Bench(Here, ["turnwise, packed", "the same again"], tmp_path, quick=True)


def test_the_page_has_each_question_with_its_ratios_and_what_the_histories_hold(small: Bench) -> None:
    results = {**HEAD, "versions": {"turnwise, packed": {"turnwise": "1"}}}
    for question in (growth, many, second, stopping, resident):
        results[question.__name__.rpartition(".")[2]] = question.ask(small)
    text = page.text_of(json.loads(json.dumps(results)))
    assert "All parts together took 3 minutes, with: 2 cores.\n\nVersions: turnwise 1." in text
    assert text.count("\n\nMeasured on 2026-11-29 by `make bench-peers`.\n\n") == 5
    for rows in (3, 2, 1):
        times = rf"\| turnwise, packed \| 1 (\| [\d.,]+ ms ){{3}}\| \d+ % \| {20 if rows == 3 else rf'{rows}'} \|"
        assert re.search(times, text) or rows == 1, text
    assert "| turnwise, packed | `SessionBusyError` | user: first; assistant: one two three" in text
    assert "**What the history holds then**" in text and "| turnwise, packed | user: count; assistant: one" in text
    assert next(line for line in text.splitlines() if line.startswith("## ")) == "## Where turnwise is behind"
    assert text.count("\n## ") == 7


def test_the_page_has_how_much_each_long_term_memory_finds(small: Bench) -> None:
    """Words alone find none of what shares no word with a question."""
    results = recall.ask(small)
    assert all(shares == {"meaning": [0.0] * 10} for shares in results["shares"].values())
    text = page.text_of({**HEAD, "recall": json.loads(json.dumps(results))})
    assert all(re.search(rf"\| {name} \| 0\.00 \| \d+\.\d ms \|", text) for name in MEMORIES), text


def test_the_page_has_how_late_timers_are(small: Bench) -> None:
    captions = dict(timers.show(json.loads(json.dumps(timers.ask(small)))))
    (_, row, _), (_, answered, _) = captions.values()
    assert row[:3] == ("turnwise, packed", "1", "2 ms") and answered[:3] == ("turnwise, packed", "1", "5 ms")


def test_who_has_no_teams_has_dashes(small: Bench) -> None:
    ((_, rows),) = teams.show(teams.ask(small))
    assert rows[1:] == [(name, *"------") for name in small.names]


def test_the_page_has_how_fast_turns_are_replayed(small: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "QUICK_SESSIONS", 2)
    ((_, (_, row)),) = replay.show(json.loads(json.dumps(replay.ask(small))))
    assert row[:4] == ("turnwise", "2", "20", "1") and re.fullmatch(r"[\d,]+", row[-1])


async def test_each_file_of_a_folder_has_its_own_questions(tmp_path: Path) -> None:
    turn = {"id": "D1:1", "speaker": "Ann", "text": "The parcel is in Ghent."}
    session = {"session": 1, "date_time": "1:00 pm on 1 May, 2026", "turns": [turn]}
    question = {"question": "Where is the parcel?", "evidence": ["D1:1"], "category": 1}
    for name in ("one", "two"):
        talk = {"sample_id": name, "sessions": [session], "questions": [question]}
        (tmp_path / f"{name}.json").write_text(json.dumps([talk]), encoding="utf-8")
    texts = await recall.material(Core(Model()), str(tmp_path), sample=1)
    data = [f"{name}/{kind}" for name in ("one", "two") for kind in ("bare", "short", "typo", "nothing")]
    assert [kind for kind, *_ in texts["asked"]] == ["meaning", *data]


def test_a_kind_of_questions_names_its_data() -> None:
    assert recall.title_of("meaning") == "no word shared"
    assert recall.title_of("locomo/typo") == "locomo: with a typo"


def test_a_share_is_how_much_of_the_evidence_was_found(small: Bench) -> None:
    worker = small.start_one("turnwise, packed", "recall", Model())
    worker.do("recall.save", user="u", items=[["1", "The parcel is in Ghent."], ["2", "Rain fell on Sunday."]])
    ids, seconds = worker.do("recall.find", user="u", prompts=["Where is the parcel?"])
    assert ids == ["1"] and seconds > 0
    assert recall.share(ids, ["1"]) == 1 and recall.share(ids, ["1", "2"]) == 0.5 and recall.share(ids, ["2"]) == 0
    assert recall.share([], []) == 1 and recall.share(ids, []) == 0
    worker.close()


def test_the_page_says_where_turnwise_is_behind_by_its_own_numbers() -> None:
    own, peers = {"turnwise, packed": [0.002, 0.002]}, {"Quick": [0.001, 0.001], "Alike": [0.0019, 0.0019]}
    shares = {
        "turnwise VectorMemory": {"meaning": [0.0, 0.5]},
        "Near": {"meaning": [1.0, 1.0]},
        "Far": {"meaning": [0.0]},
    }
    times = {"turnwise VectorMemory": [0.001], "Near": [0.002], "Far": [0.002]}
    resident = {"turnwise, packed": {"before": 9e8, "after": 9e8 + 5e4, "count": 2}}
    results = {
        "many": {"taken": {"1": own | peers, "10": peers | {"turnwise, packed": [0.0005]}}, "failed": {}},
        "resident": resident | {"Quick": {"before": 8e7, "after": 8e7 + 4e3, "count": 2}},
        "recall": {"shares": shares, "saved": times, "taken": times, "versions": {}},
    }
    assert behind.table(results)[1:] == [
        ("a turn, of 1 at once", "turnwise, packed", "2 ms", "Quick 1 ms"),
        ("memory with one conversation", "turnwise, packed", "900 MB", "Quick 80 MB"),
        ("memory that a conversation adds", "turnwise, packed", "50 KB", "Quick 4 KB"),
        ("recall at 10: no word shared", "turnwise VectorMemory", "0.25", "Near 1.00"),
    ]


def test_a_peer_that_the_time_limit_stopped_is_named(small: Bench) -> None:
    result = growth.ask(small)
    result["taken"]["the same again"] = result["taken"]["the same again"][:20]
    *tables, (_, growths) = growth.show(result)
    assert [caption for caption, _ in tables] == [
        "Turns 1 to 20",
        "Turns 1 to 20",
        "Turns 21 to 40, before which the same again stopped after 15 s",
    ]
    assert growths[2][1] == "20 (stopped after 15 s)"


def test_the_page_names_the_command_and_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/somewhere/talks.json")
    monkeypatch.setattr(sys, "argv", ["peers", "--questions", "recall"])
    assert main.command() == 'DATA=talks.json make bench-peers ARGS="--questions recall"'
    files = {"/proc/cpuinfo": "model name\t: A Processor 9\n", "/proc/meminfo": "MemTotal:       8000000 kB\n"}
    monkeypatch.setattr(page_parts, "text_of", files.__getitem__)
    assert re.fullmatch(r"\d+ cores of A Processor 9, 8 GB of memory, Python [\d.]+, \w+", page_parts.machine())
    monkeypatch.setattr(page_parts, "text_of", lambda path: "")
    assert re.fullmatch(r"\d+ cores, Python [\d.]+, \w+", page_parts.machine())


@pytest.mark.timeout(120)
def test_the_process_of_turnwise_answers_and_is_killed_with_its_ray(tmp_path: Path) -> None:
    worker = Worker(sys.executable, "turnwise, packed", tmp_path, Model(), {})
    try:
        assert worker.do("versions")["turnwise"]
        seconds = worker.do("growth.turns", count=2, chat="t")
        assert len(seconds) == 2
        assert worker.do("crash.history") == [["user", PROMPT], ["assistant", PROMPT]] * 2
        processes = descendants(worker.pid)
    finally:
        worker.kill()
    assert len(processes) > 2, "Ray's are below it"
    assert worker.process.returncode is not None


def test_a_process_that_fails_tells_what_it_printed_last(tmp_path: Path) -> None:
    worker = Worker(sys.executable, "nobody", tmp_path, Model(), {})
    with pytest.raises(WorkerError, match=r"(?s)the process of nobody failed:.*KeyError: 'nobody'"):
        worker.do("versions")
    worker.close()


def test_each_picture_is_drawn(small: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = {question.__name__.rpartition(".")[2]: question.ask(small) for question in (growth, many, stopping)}
    drawn = plots.draw(json.loads(json.dumps(results)), tmp_path)
    assert [*drawn] == ["growth", "many", "stopping"]
    assert all((tmp_path / Path(path).name).read_text(encoding="utf-8").startswith("<?xml") for path in drawn.values())

"""`ShadowRecords`: what a candidate answered beside runs is compared as a replay compares, and nothing is asked."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer import testing

from patience import within
from turnwise import (
    AsyncSessionManager,
    EchoEngine,
    InProcess,
    OpenAIEngine,
    Price,
    SessionConfig,
    SessionManager,
    tool,
)
from turnwise.cli import app
from turnwise.engines import FunctionEngine, Shadow
from turnwise.errors import InvalidInputError, RunFailedError
from turnwise.memory.conversation.blocks import ToolResult, ToolUse
from turnwise.replay import AtScale, FunctionGrader, Replay, Selection, ShadowRecords, replay
from turnwise.testing import LocalProvider

until = within(30.0)

PROMPTS = ("Hello.", "And now?", "Goodbye.")


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is fine"


def looking(place: str, says: str) -> FunctionEngine:
    """Return an engine that looks at a place, and then says something, unless it was greeted."""

    def answer(turn: Any) -> Any:
        if "Hello" in turn.asked[0].text or isinstance(turn.blocks[-1], ToolResult):
            return f"{says} {turn.asked[0].text}"
        return ToolUse(call_id=f"look {turn.index}", name="look", input={"place": place})

    return FunctionEngine(answer, tools=[look])


NOW, NEW = looking("Bern", "I see."), looking("Rome", "I know.")


def talked(folder: Path, *, texts: bool) -> tuple[str, Path]:
    """Return a store with two conversations, and the folder of the records of a candidate."""
    url, records = f"sqlite:///{folder}/chats.db", folder / "shadows"
    engine = Shadow(NOW, NEW, share=1, sink=records, texts=texts, at_once=100)
    with SessionManager(url, engine=engine, placement=InProcess()) as manager:
        for session in ("one", "two"):
            chat = manager.open(session, user_id="ann", agent=session)
            for prompt in PROMPTS:
                chat.run(prompt).wait()
        end = time.monotonic() + 30
        while len([line for path in records.glob("*") for line in path.read_text().splitlines()]) < 6:
            assert time.monotonic() < end
            time.sleep(0.01)
    return url, records


def compared(url: str, engine: Any, **options: Any) -> Replay:
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        return replay(manager, engine=engine, **options)


def means(result: Replay) -> dict[str, Any]:
    return {
        name: (metric.recorded, metric.replayed, metric.turns) for name, metric in result.summary.all.metrics.items()
    }


def test_records_with_texts_say_what_a_replay_says(tmp_path: Path) -> None:
    url, records = talked(tmp_path, texts=True)
    grader = FunctionGrader("knows", lambda _, answer: "know" in answer.text)
    found = compared(url, ShadowRecords(records), graders=[grader], out=tmp_path / "out", fail_if="stopped > 50%")
    asked = compared(url, NEW, graders=[grader])
    measures = (
        "different",
        "different_text",
        "different_calls",
        "stopped",
        "tool_calls",
        "refusals",
        "errors",
        "knows",
    )
    assert {name: means(found)[name] for name in measures} == {name: means(asked)[name] for name in measures}
    assert means(found)["stopped"][1] == pytest.approx(2 / 3)
    assert found.failed[0].startswith("stopped > 50%: it is 66.7%")
    greeted = [turn for turn in found.turns if turn.prompt == "Hello."]
    assert [turn.answer.text for turn in greeted] == ["I know. Hello."] * 2
    assert {group.name for group in found.summary.groups} >= {"agent=one", "agent=two"}
    assert "I know. Hello." in (tmp_path / "out/report.html").read_text(encoding="utf-8")
    some = compared(url, ShadowRecords(records), select=Selection(agent="one", sample=2))
    assert (some.summary.turns, some.summary.conversations) == (2, 1)


@pytest.mark.parametrize("is_priced", [True, False])
def test_records_have_the_cost_of_the_candidate(is_priced: bool, tmp_path: Path) -> None:
    with LocalProvider(reply="Yes.") as provider:
        now, new = (OpenAIEngine(name, base_url=provider.base_url) for name in ("now", "new"))
        prices = {"now": Price(input=1, output=1), "new": Price(input=3, output=3)}
        config = SessionConfig(prices=prices if is_priced else {"now": prices["now"]})
        engine = Shadow(now, new, share=1, sink=tmp_path / "shadows")
        with SessionManager(
            f"sqlite:///{tmp_path}/chats.db", engine=engine, config=config, placement=InProcess()
        ) as manager:
            manager.open("one").run("Hello.").wait()
            end = time.monotonic() + 30
            while not (lines := [*(tmp_path / "shadows").glob("*")]) or not lines[0].read_text().endswith("\n"):
                assert time.monotonic() < end
                time.sleep(0.01)
            record = json.loads(lines[0].read_text())
            assert record["model"] == "new" and ("cost" in record["usage"]) is is_priced
            options: dict[str, Any] = {"engine": ShadowRecords(tmp_path / "shadows"), "fail_if": "cost > 1.1x"}
            found = replay(manager, **options)
            assert bool(found.undecided) is not is_priced and found.failed
            assert not replay(manager, **options, prices=prices).undecided
            texts = replay(manager, **{**options, "fail_if": "refusals > +1%"})
            assert "Shadow(texts=True)" in texts.undecided[0]


def test_a_candidate_that_took_too_long_is_said_to_have(tmp_path: Path) -> None:
    url, records = f"sqlite:///{tmp_path}/chats.db", tmp_path / "shadows"
    new = FunctionEngine(lambda turn: asyncio.sleep(60, "late"))
    engine = Shadow(NOW, new, share=1, sink=records, timeout_s=0.01)
    with SessionManager(url, engine=engine, placement=InProcess()) as manager:
        manager.open("one").run("Hello.").wait()
        until(lambda: [path for path in records.glob("*") if path.read_text().endswith("\n")])
    (turn,) = compared(url, ShadowRecords(records)).turns
    assert turn.answer.status == "failed" and turn.answer.why == "the candidate took longer than timeout_s"


async def test_records_without_texts_have_measures_only(tmp_path: Path) -> None:
    url, records = talked(tmp_path, texts=False)
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        found = await replay(manager, engine=ShadowRecords(str(records)), out=tmp_path / "out")
    assert (means(found)["different"][1], means(found)["seconds"][2]) == (1.0, 2), "stopped ones have no time"
    assert [means(found)[name][2] for name in ("length", "refusals", "cut", "first_token_s")] == [0, 0, 0, 0]
    (one, _) = [turn for turn in found.turns if turn.prompt == "Hello."]
    assert 0 < one.change["similarity"] < 1 and one.answer.text == ""
    lines = (tmp_path / "out/turns.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["answer"]["unknown"] == ["cost", "cut", "first_token_s", "length", "refusals"]


def test_runs_without_an_answer_and_deleted_sessions_are_left_out(tmp_path: Path) -> None:
    url, records = talked(tmp_path, texts=True)
    (path,) = records.glob("*.jsonl")
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    dropped = json.dumps({**json.loads(first), "status": "dropped"})
    path.write_text("\n".join([dropped, *rest, rest[0][:20]]), encoding="utf-8")  # the last one is torn
    assert compared(url, ShadowRecords(records)).summary.turns == 5
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.get("two", user_id="ann").delete()
    assert compared(url, ShadowRecords(records)).summary.conversations == 1


def test_the_command_compares_a_folder_of_records(tmp_path: Path) -> None:
    url, records = talked(tmp_path, texts=True)
    words = ["replay", url, "--shadow", str(records), "--fail-if", "different > 50%"]
    failed = testing.CliRunner().invoke(app, words)
    assert failed.exit_code == 3 and "6 turns of 2 conversations" in failed.stdout
    assert "different > 50%" in failed.stderr
    both = testing.CliRunner().invoke(app, [*words, "--model", "m"])
    assert both.exit_code == 2 and "--shadow" in both.stderr


def test_what_is_no_record_and_what_asks_an_engine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="no records"):
        ShadowRecords(tmp_path / "empty")
    (tmp_path / "empty" / "other.jsonl").write_text('{"run_id": 1}\n', encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"line 1 of other\.jsonl is no record"):
        ShadowRecords(tmp_path / "empty")
    url, records = talked(tmp_path, texts=True)
    for options in ({"forward": True}, {"memory": [None]}, {"at_scale": AtScale(), "out": tmp_path / "out"}):
        with pytest.raises(InvalidInputError, match="leave it out"):
            compared(url, ShadowRecords(records), **options)
    with (
        SessionManager(url, engine=ShadowRecords(records), placement=InProcess()) as manager,
        pytest.raises(RunFailedError, match=r"pass it to replay\(\)"),
    ):
        manager.open("new").run("Hello.").wait()

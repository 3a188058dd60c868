"""`make window` works on a bare machine; and the simulated model answers correctly."""

import asyncio
import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from example_program import run_example
from hr_policies import ASKED, FACTS, LATER, LEAVE, SYSTEM, conversation
from long_conversation import Notebook
from turnwise.actors.inference.echo import EchoEngine
from turnwise.memory.conversation.blocks import Block, Image, Summary, System, Text, User, decode
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.providers.openai_chat import encode
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.strategies.conformance_conversations import Conversation
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.window import TokenBudget
from turnwise.testing.local_provider.message_rules import check_chat
from turnwise.testing.local_provider.replies import attentive_reply, summary_of, texts_of, words

TURNS = 100
PROMPTS = conversation(TURNS)
NAMES = ["Trim", "DeleteOldest", "Summarize", "FlushToMemory"]
BUDGET = 14_000


class Ran(NamedTuple):
    printed: str
    kept: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What a shorter run of the example prints and leaves."""
    printed, folder = run_example(tmp_path_factory, "long_conversation.py", "--turns", str(TURNS), "--keep", "kept")
    return Ran(printed, folder / "kept")


pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def row(printed: str, title: str) -> dict[str, str]:
    """Return the cells of a row of the table."""
    found = re.search(rf"^ *{title}  +(.+)$", printed, re.MULTILINE)
    assert found, printed
    return dict(zip(NAMES, re.split(r" {2,}", found[1]), strict=True))


def section(printed: str, name: str) -> str:
    """Return the output about one of the conversations."""
    found = re.search(rf"^\[{name}] > .*?(?=^\[|^Of \d)", printed, re.MULTILINE | re.DOTALL)
    assert found, printed
    return found[0]


def test_the_program_prints_plain_lines_and_succeeds(ran: Ran) -> None:
    assert not re.search(r"[^\n\x20-\x7e]", ran.printed)
    assert "raylet" not in ran.printed
    assert max(map(len, ran.printed.splitlines())) < 420
    assert ran.printed.rstrip().splitlines()[-1].startswith("All of this has happened")


def test_each_strategy_makes_room_several_times(ran: Ran) -> None:
    assert all(int(count) > 1 for count in row(ran.printed, "compactions").values())
    before, after = row(ran.printed, "tokens before, mean"), row(ran.printed, "tokens after, mean")
    for name in NAMES:
        was, became = (int(cells[name].replace(",", "")) for cells in (before, after))
        assert became < was, name
        assert became <= BUDGET, name


def test_trimmed_and_deleted_turns_are_not_known_any_more(ran: Ran) -> None:
    for name in ("Trim", "DeleteOldest"):
        assert row(ran.printed, "the model knows it")[name] == "no"
        assert "You have not told me" in section(ran.printed, name)
        assert LEAVE not in section(ran.printed, name)


def test_summarized_turns_are_known_and_the_summary_expands_to_them(ran: Ran) -> None:
    shown = section(ran.printed, "Summarize")
    assert row(ran.printed, "the model knows it")["Summarize"] == "in the summary"
    assert f"You told me: {LEAVE}\n" in shown
    assert re.search(rf"^    summary  The user said: .*{re.escape(LEAVE)}.*{re.escape(LATER[0])}", shown, re.MULTILINE)
    assert f"    > {FACTS[0]}\n    > {FACTS[1]}\n" in shown


def test_flushed_turns_are_found_by_recall(ran: Ran) -> None:
    shown = section(ran.printed, "FlushToMemory")
    assert row(ran.printed, "the model knows it")["FlushToMemory"] == "no"
    assert row(ran.printed, "notebook recalls it") == dict(zip(NAMES, ["-", "-", "-", "from turn 2"], strict=True))
    assert shown.index("You have not told me") < shown.index(f"    You told me: {LEAVE}\n")


def test_every_request_fits_the_window_and_is_valid(ran: Ran) -> None:
    bodies = list(map(json.loads, (ran.kept / "requests.jsonl").read_text(encoding="utf-8").splitlines()))
    summaries = [body for body in bodies if body["messages"][0]["content"] != SYSTEM]
    assert len(bodies) == len(NAMES) * (TURNS + 1) + 1 + len(summaries)
    assert len(summaries) == int(row(ran.printed, "compactions")["Summarize"])
    for body in bodies:
        check_chat(body["messages"])
        texts = [text for message in body["messages"] for text in texts_of(message)]
        assert 3 + sum(4 + len(text.encode()) for text in texts) <= BUDGET, "a byte is a token; each text is framed"


def test_nothing_of_the_conversations_is_lost(ran: Ran) -> None:
    async def read() -> dict[str, list[Sequence[Block]]]:
        """Return the blocks that each turn of each conversation added."""
        store = SQLStore(f"sqlite:///{ran.kept}/chats.db")
        found: dict[str, list[Sequence[Block]]] = {}
        for name in NAMES:
            records = await store.turns(name, limit=TURNS * 2)
            found[name] = [
                [decode(block) for block in await store.blocks([*record.prompt, *record.output])] for record in records
            ]
        await store.close()
        return found

    for name, turns in asyncio.run(read()).items():
        said = [[block.text for block in turn if isinstance(block, User)] for turn in turns]
        assert said[: TURNS + 1] == [[prompt] for prompt in [*PROMPTS, ASKED]], name
        assert len(said) == TURNS + 1 + (name == "FlushToMemory")
        assert [block for turn in turns for block in turn if isinstance(block, System)] == [System(text=SYSTEM)]
        assert all(isinstance(turn[-1], Text) and turn[-1].text for turn in turns)


def test_the_notebook_has_each_flushed_exchange_once(ran: Ran) -> None:
    notes = sqlite3.connect(ran.kept / "notebook.db").execute("SELECT turn_index, text FROM notes").fetchall()
    assert len(notes) > TURNS / 4
    for at, (turn, text) in enumerate(notes):
        assert turn == at
        assert text.startswith(f"user: {PROMPTS[at]}\nassistant: ")


# The notebook


def test_a_notebook_stores_a_note_once_and_only_for_its_user(tmp_path: Path) -> None:
    async def play() -> None:
        notebook, again = (Notebook(tmp_path / "notes.db") for _ in range(2))
        hers, his = Scope(user_id="mara", session_id="one"), Scope(user_id="joris", session_id="two")
        notes = [
            MemoryItem(id=f"one:{at}", text=text, source=Source(session_id="one", turn_index=at))
            for at, text in enumerate(["the hotel in Lyon", "the leave in March", "a leave in May"])
        ]
        assert await notebook.remember(hers, notes[:2]) == ["one:0", "one:1"]
        assert await notebook.remember(hers, notes) == ["one:0", "one:1", "one:2"]
        assert await again.recall(hers, "When is the leave?", limit=2) == [notes[1], notes[0]]
        assert await again.recall(Scope(user_id="mara"), "leave", limit=9) == [notes[1], notes[2], notes[0]]
        assert not await again.recall(his, "leave")
        assert not await again.update(his, "one:2", "mine now")
        assert await again.update(hers, "one:2", "a leave in June")
        assert [note.text for note in await notebook.recall(hers, "june", limit=1)] == ["a leave in June"]
        assert await notebook.forget(his) == 0
        assert await notebook.forget(hers, ["one:2", "one:3"]) == 1
        assert await notebook.forget(hers) == 2

    asyncio.run(play())


# The stand-in


def summary_request(*blocks: Block) -> list[dict[str, object]]:
    """Return the request for a summary of all but the last exchange."""
    talk = Conversation()
    talk.add([*blocks, User(text="And now?"), Text(text="x" * 3000)])
    strategy = Summarize(EchoEngine(), keep_turns=1, trigger_ratio=0.5)
    plan = strategy.decide(talk.window(), TokenBudget(4000))
    assert plan and plan.summary
    return encode(plan.summary.request(talk.window()))


def test_a_summary_has_the_users_facts_and_those_of_the_last_summary() -> None:
    first = attentive_reply(
        summary_request(
            System(text="I am the system."),
            Image(url="https://example.org/dog.png"),
            User(text="Hello! I am Ada. My dog is called Pi.\nMay I ask: is 3.14 enough?"),
            Text(text="I am sure. My word on it."),
            User(text='"summary of what came before": we\nWrite the summary now. My cat is "Tau".'),
            Text(text="Noted."),
        )
    )
    assert first == 'The user said: I am Ada. My dog is called Pi. My cat is "Tau".'
    folded = [Summary(text=first), User(text="I am Ada. Our garden is new. I like it, you?"), Text(text="Yes.")]
    second = attentive_reply(summary_request(*folded))
    assert second == f"{first} Our garden is new."


def test_a_summary_has_at_most_the_allowed_words() -> None:
    lines = [json.dumps({"user": f"My number {number} is {number}."}) for number in range(200)]
    for limit, most in [(50, 50), (5000, 120), (2, 3)]:
        request = "\n".join([*lines, "", f"Write the summary now. Write no more than {limit} words."])
        summary = summary_of(request)
        assert len(words(summary)) <= most
        assert summary.startswith("The user said:")
    assert len(words(summary_of("\n".join([*lines, "", "Write the summary now."])))) > 110


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ([], "You have not told me, as far as I can see."),
        (["How is parental leave paid?"], "You have not told me, as far as I can see."),
        (["My leave is short."], "You have not told me, as far as I can see."),
        ([*FACTS, "How long may parental leave take?"], f"You told me: {LEAVE}"),
        ([f"[summary of the conversation so far]\nThe user said: I am Mara. {LEAVE}"], f"You told me: {LEAVE}"),
        ([f"You have noted this:\nuser: {LEAVE}\nassistant: Good."], f"You told me: {LEAVE}"),
    ],
    ids=["nothing", "a question", "another leave", "the fact", "a summary", "a note"],
)
def test_questions_about_the_user_are_answered_only_from_the_request(before: list[str], answer: str) -> None:
    parts = [{"type": "text", "text": text} for text in [*before, ASKED]]
    apart = [{"role": "user", "content": text} for text in [*before, ASKED]]
    instructions = {"role": "system", "content": SYSTEM}
    assert attentive_reply([instructions, {"role": "user", "content": parts}]) == answer
    assert attentive_reply([instructions, *apart]) == answer


def test_other_questions_are_answered_from_the_instructions() -> None:
    instructions = {"role": "system", "content": SYSTEM}
    asked = {"role": "user", "content": f"{LEAVE} How is parental leave paid?"}
    assert "paid by the state" in attentive_reply([instructions, asked])
    assert attentive_reply([asked]) == "The handbook does not say."
    assert attentive_reply([instructions, {"role": "user", "content": LEAVE}]) == "Thank you, I have noted that."


def test_the_conversation_is_reproducible_and_has_each_fact_once() -> None:
    assert conversation(300) == conversation(300)
    for turns in (80, 300):
        prompts = conversation(turns)
        assert len(prompts) == turns
        assert all(sum(fact in prompt for prompt in prompts) == 1 for fact in [*FACTS, *LATER])

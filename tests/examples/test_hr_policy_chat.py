"""`make memory` works with no key, an empty home and no terminal; and the simulated model answers correctly."""

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from hr_policy_chat import (
    ABOUT_HER,
    BEAST,
    CONFIG,
    FORM,
    HANDBOOK,
    LEAVE,
    MOVED,
    PORTAL,
    SAID,
    SYSTEM,
    TRACES,
    TYPO,
    WRAPPED,
    Story,
    traces,
)
from processes.example_program import run_example
from turnwise.memory.conversation.blocks import Block, Text, User
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory, is_record
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.recall.prompt_sections import RetrievalResult, make_sections
from turnwise.memory.providers.openai_chat import encode
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.testing.local_provider.assistant import assistant_reply, sections_of
from turnwise.testing.local_provider.message_rules import check_chat
from turnwise.testing.local_provider.replies import texts_of

DAYS = 9
pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


class Ran(NamedTuple):
    printed: str
    files: Path
    sent: list[list[dict[str, Any]]]
    """The messages of each request, in order."""
    day: str
    """The day of the first conversation."""

    def requests_for(self, prompt: str) -> list[list[dict[str, Any]]]:
        """Return the requests for an answer to this."""
        return [messages for messages in self.sent if texts_of(messages[-1])[-1] == prompt]


@pytest.fixture(scope="module")
def ran(ray_session: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What the example prints and leaves."""
    began = datetime.now(UTC) - timedelta(days=DAYS)
    args = "--days", str(DAYS), "--keep", "kept"
    address = ray_session.get_runtime_context().gcs_address
    printed, folder = run_example(tmp_path_factory, "hr_policy_chat.py", *args, timeout_s=380, ray_address=address)
    files = folder / "kept"
    sent = list(map(json.loads, (files / "requests.jsonl").read_text(encoding="utf-8").splitlines()))
    return Ran(printed, files, sent, f"{began:%Y-%m-%d}")


def rows_of(files: Path, file: str, query: str) -> list[Any]:
    """Return the rows of a query of one of the SQLite files."""
    with closing(sqlite3.connect(files / "data" / file)) as database:
        return database.execute(query).fetchall()


def bytes_of(files: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each stored file, in which texts of any alphabet can be found."""
    for file in sorted((files / "data").rglob("*")):
        if file.is_file():
            yield file.name, file.read_bytes()


def test_the_program_prints_plain_lines_and_succeeds(ran: Ran) -> None:
    assert not re.search(r"[^\n\x20-\x7e]", ran.printed)
    assert "raylet" not in ran.printed
    assert max(map(len, ran.printed.splitlines())) < 160
    assert ran.printed.rstrip().splitlines()[-1].startswith("All of this has happened")
    assert f"Sarah, on {ran.day}\n" in ran.printed and f"Sarah, {DAYS} days later\n" in ran.printed


def test_every_request_is_valid_and_fits_the_window(ran: Ran) -> None:
    assert CONFIG.max_context_tokens and CONFIG.reserve_output_tokens
    answers = [messages for messages in ran.sent if messages[0]["content"] == SYSTEM]
    assert len(answers) >= 20
    for messages in answers:
        check_chat(messages)
        size = sum(len(text.encode()) for message in messages for text in texts_of(message))
        assert size <= CONFIG.max_context_tokens - CONFIG.reserve_output_tokens


def test_an_answer_is_right_although_the_window_has_lost_its_source(ran: Ran) -> None:
    first, *_ = ran.requests_for(LEAVE)
    texts = [text for message in first[:-1] for text in texts_of(message)]
    earlier_texts = [text for text in texts if "_memory>\n" not in text]
    assert len(earlier_texts) > 3, "the conversation goes on"
    assert not any(fact in text for fact in ABOUT_HER[:2] for text in earlier_texts)
    assert [item.text for item in sections_of(first)["profile"] if "2 March" in item.text] == [ABOUT_HER[1]]
    assert "2 March to 29 May" in assistant_reply(first)


def test_days_later_each_memory_contributes_dated_items(ran: Ran) -> None:
    _, second, *_ = ran.requests_for(LEAVE)
    assert [message["role"] for message in second] == ["system", "user"]
    sections = sections_of(second)
    assert [(item.when[:10], item.topic) for item in sections["profile"] if item.text == ABOUT_HER[1]] == [
        (ran.day, "parental leave")
    ]
    assert "Previous 90 days:" in texts_of(second[-1])[0]
    assert {item.text for item in sections["static"]} <= set(HANDBOOK)
    assert any("paid by the state" in item.text for item in sections["static"])
    assert FORM in texts_of(second[-1])[0]
    request, _ = ran.requests_for(SAID)
    assert ran.day in [item.when[:10] for item in sections_of(request)["vector"] if "Lisbon" in item.text]
    assert not any("Lisbon" in text for message in request[:-1] for text in texts_of(message))


def test_aliases_typos_and_wrapped_questions_find_their_items(ran: Ran) -> None:
    (beast,) = ran.requests_for(BEAST)
    assert [item.text for item in sections_of(beast)["procedural"]] == [PORTAL]
    for prompt in (TYPO, WRAPPED):
        (request,) = ran.requests_for(prompt)
        assert any("Lisbon" in item.text for item in sections_of(request)["vector"])
        assert "procedural" not in sections_of(request)
        assert f"> {prompt}" in ran.printed


def test_a_changed_fact_replaces_the_old_one(ran: Ran) -> None:
    moved = ran.sent.index(ran.requests_for(MOVED)[0])
    later = [messages for messages in ran.sent[moved:] if texts_of(messages[-1])[-1] == LEAVE]
    without, with_it, *_ = later
    assert not sections_of(without) and texts_of(without[-1]) == [LEAVE]
    assert [item.text for item in sections_of(with_it)["profile"] if "leave" in item.text] == [MOVED]


def test_another_user_and_a_forgotten_user_have_only_the_handbook(ran: Ran) -> None:
    *_, of_sam, of_a_stranger = ran.requests_for(LEAVE)
    for messages in (of_sam, of_a_stranger, ran.requests_for(SAID)[-1]):
        assert {item.text for item in sections_of(messages)["static"]} <= set(HANDBOOK)
        text = json.dumps(messages)
        assert not [trace for trace in TRACES if trace in text]
    assert sections_of(of_sam).keys() == sections_of(of_a_stranger).keys() == {"static"}


def test_files_have_nothing_of_the_forgotten_user_and_everything_of_the_other(ran: Ran) -> None:
    files = list(bytes_of(ran.files))
    names = {name for name, _ in files}
    assert {"chats.db", "facts.db", "said.db", "notes.db"} <= names and "chroma.sqlite3" not in names
    for name, content in files:
        for trace in [*TRACES, "sarah-1", "sarah-2", "sarah-3", "One more thing"]:
            for encoded in (trace.encode(), trace.lower().encode(), trace.encode("utf-16-le")):
                assert encoded not in content, f"{trace} in {name}"
    for file in ("chats.db", "facts.db", "said.db"):
        assert any(b"Porto" in content for name, content in files if name.startswith(file)), file
    assert rows_of(ran.files, "notes.db", "SELECT * FROM turnwise_items") == []


def test_the_report_is_printed(ran: Ran) -> None:
    assert "forgotten: 3 sessions, 1 note\n" in ran.printed
    rows = re.findall(r"^    (\w+): (\d+) items; (\d+) files searched, found in (\d+)$", ran.printed, re.MULTILINE)
    assert [(name, count) for name, _, _, count in rows] == [("ExtractiveMemory", "0"), ("VectorMemory", "0")]
    assert all(int(items) >= 5 and int(files) >= 1 for _, items, files, _ in rows)


# What checks its claims


def test_a_false_claim_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(list)
    story.claim(True, "the sky is blue")
    with pytest.raises(SystemExit, match="This is not so: the sky is green"):
        story.claim(False, "the sky is green")
    assert "* the sky is blue" in capsys.readouterr().out


def test_traces_are_found_in_the_bytes_of_any_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file.bin").write_bytes(b"\0\xffGhent\0")
    assert traces(tmp_path, ["Ghent", "Porto"]) == ["Ghent"]


# The stand-in


def request_of(prompt: str, *recalled: RetrievalResult, before: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return a request as a session sends it."""
    text = make_sections(recalled, now=1_700_000_000.0, counter=ByteCounter()).text
    parts = [{"type": "text", "text": part} for part in (text, prompt) if part]
    earlier = [{"role": "user", "content": text} for text in before]
    return [{"role": "system", "content": SYSTEM}, *earlier, {"role": "user", "content": parts}]


def item(text: str, **about: Any) -> MemoryItem:
    return MemoryItem(id=text[:9], text=text, **about)


POLICY = RetrievalResult(items=[item("Parental leave is paid by the state.")], section="static")
FACT = RetrievalResult(items=[item('My parental leave is "booked" for <May>.', topic='the "leave"', created_at=1.7e9)])


def test_sections_are_read_as_they_were_written() -> None:
    memories = sections_of(request_of("When is my leave?", POLICY, FACT))
    assert memories["static"][0].text == "Parental leave is paid by the state."
    (fact,) = memories["semantic"]
    assert (fact.when, fact.topic, fact.text) == ("2023-11-14 22:13", 'the "leave"', FACT.items[0].text)
    assert sections_of(request_of("When is my leave?")) == {}
    assert sections_of([*request_of("When?", FACT), {"role": "user", "content": "And now?"}]) == {}, (
        "only the last counts"
    )


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        (request_of("I am Sam."), "Thank you, I have noted that."),
        (request_of("When is my parental leave?"), "I do not know that."),
        (request_of("When is my parental leave?", FACT), f"You told me: {FACT.items[0].text}"),
        (
            request_of("When is my parental leave?", before=("My parental leave is in May.",)),
            "You told me: My parental leave",
        ),
        (
            request_of("How is parental leave paid?", POLICY, FACT),
            "The handbook says: Parental leave is paid by the state.",
        ),
        (request_of("What did we say about Lisbon?", POLICY, FACT), "I do not know that."),
    ],
)
def test_the_stand_in_answers_only_from_its_request(messages: list[dict[str, Any]], answer: str) -> None:
    assert assistant_reply(messages).startswith(answer)


def test_earlier_conversations_are_quoted_with_their_day() -> None:
    items = [
        item("user: Lisbon, you say?", created_at=1.7e9),
        item("user: Is Lisbon a place for work?\nassistant: Yes.", created_at=1.6e9),
        item("user: It rains.", created_at=1.5e9),
    ]
    answer = assistant_reply(
        request_of("What did we say about work in Lisbon?", RetrievalResult(items=items, section="vector"))
    )
    assert answer == "On 2020-09-13: user: Is Lisbon a place for work? / assistant: Yes."
    answer = assistant_reply(request_of("What did we say about Porto?", RetrievalResult(items=items, section="vector")))
    assert answer == "I do not know that."


class StandIn:
    """Sends requests to the simulated model like an engine."""

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        assert schema is not None
        answer = assistant_reply(encode(request))
        assert isinstance(answer, str)
        return answer


def test_extracted_facts_are_accepted_and_replace_those_with_the_same_topic() -> None:
    ada = Scope(user_id="ada")

    async def facts_after(memory: ExtractiveMemory, id: str, text: str) -> list[tuple[str, str]]:
        blocks = (User(text=text), Text(text="I am a machine. My word on it."))
        await memory.remember(ada, [MemoryItem(id=id, text=text, blocks=blocks, created_at=float(id))])
        page = await memory.store.query(ada)
        return [(item.text, item.type) for item in page if not is_record(item.id)]

    async def play() -> None:
        memory = ExtractiveMemory(StandIn(), InMemoryItems())
        tea = ("I prefer tea.", "preferences")
        march, june = (f"My parental leave is booked for {month}." for month in ("March", "June"))
        assert await facts_after(memory, "1", f"Hello! I prefer tea. I may go, or what? {march}") == [
            (march, "facts"),
            tea,
        ]
        assert await facts_after(memory, "2", f"{march} My word on it?") == [(march, "facts"), tea]
        assert await facts_after(memory, "3", june) == [(june, "facts"), tea]
        counts = {"calls": 5, "checks": 2, "added": 3, "ignored": 1, "superseded": 1}
        assert memory.stats == counts, "and nothing is refused"

    asyncio.run(play())

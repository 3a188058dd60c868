"""The messages and facts of the benchmark of long-term memory."""

import json
import re
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import page_parts
from long_term import fact_set, page
from long_term.finders import BM25Alone
from long_term.messages import KINDS, WORDS, Conversation, Kind, Question, half_of, load_all, messages_of, misspelt
from long_term.report import Report, Speed
from turnwise.memory.longterm.base import MemoryItem

FUNCTION_WORDS = {*WORDS["function words"], "s", "up", "get", "gets", "go", "goes", "not", "no", "out", "user"}

ASKED = {
    "When did Ada paint the barn?": frozenset({"1"}),
    "What instruments does Bo play?": frozenset({"2"}),
    "What is Ada's favourite cheese?": frozenset({"3"}),
    "Would Ada move to Lima?": frozenset({"4"}),
}
TALK = Conversation(
    "ada-and-bo",
    [MemoryItem(id="1", text="Ada: I painted it"), MemoryItem(id="2", text="Bo: I did")],
    [Question(text, evidence) for text, evidence in ASKED.items()],
    ["Ada", "Bo"],
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_messages_and_another_half_gives_others(kind: Kind) -> None:
    messages = messages_of([TALK], kind, seed=3)
    assert messages == messages_of([TALK], kind, seed=3)
    if kind not in ("bare", "changed subject"):
        assert messages != messages_of([TALK], kind, "held out", seed=3)
    if kind != "nothing":
        assert [message.evidence for message in messages] == [*ASKED.values()]


def test_the_halves_share_no_template_and_no_message() -> None:
    for ways in (*WORDS["no_need"].values(), WORDS["short"], WORDS["long"], WORDS["telegram"], WORDS["lower"]):
        dev, held_out = half_of(ways, "dev"), half_of(ways, "held out")
        assert len(dev) >= 7 and len(held_out) >= 7
        assert not any(way in held_out for way in dev)
    needless = [message for half in ("dev", "held out") for message in messages_of([TALK], "nothing", half)]
    assert len({message.prompts[-1] for message in needless}) >= 150
    assert not any(message.evidence for message in needless)


@pytest.mark.parametrize("seed", range(20))
def test_a_follow_up_does_not_name_the_subject_of_the_previous_prompt(seed: int) -> None:
    for message, question in zip(messages_of([TALK], "follow-up", seed=seed), ASKED, strict=True):
        before, newest = message.prompts
        (name,) = {"Ada", "Bo"}.intersection(question.replace("'", " ").split())
        assert name in before and name not in newest
        if message.group == "matter":
            assert all(word in before for word in question.rstrip("?").split()[-2:])


def test_questions_about_meaning_share_no_content_word_with_their_answers() -> None:
    pairs = json.loads((Path(__file__).parents[1] / "bench/long_term/paraphrases.json").read_text(encoding="utf-8"))
    assert len(pairs) >= 60
    for pair in pairs:
        item, question = (
            {word[:5] for word in re.findall(r"[a-z]+", text.casefold()) if word not in FUNCTION_WORDS}
            for text in (pair["item"], pair["question"])
        )
        assert not item & question, pair


@pytest.mark.parametrize("seed", range(50))
def test_a_typo_changes_one_word_by_one_letter(seed: int) -> None:
    spelt, _ = misspelt("instruments", Random(seed))
    assert spelt != "instruments" and abs(len(spelt) - len("instruments")) <= 1
    same = sum(letter == expected for letter, expected in zip(spelt, "instruments", strict=False))
    same_from_behind = sum(letter == expected for letter, expected in zip(spelt[::-1], "stnemurtsni", strict=False))
    assert same + same_from_behind >= len("instruments") - 2


def test_each_expected_fact_is_visible_and_valid() -> None:
    facts_by_id = {fact["id"]: fact for fact in fact_set.SET["facts"]}
    items = {item.id: (scope, item) for scope, item in fact_set.facts()}
    questions = [question for half in ("dev", "held out") for question in fact_set.questions(half)]
    assert len(facts_by_id) == len(items) >= 120 and len({scope.user_id for scope, _ in items.values()}) == 6
    assert len(questions) == len(fact_set.SET["questions"]) >= 120
    for question in questions:
        for name in question.answer:
            scope, item = items[name]
            assert scope.user_id == question.user and scope.agent in (None, question.agent), question
            assert question.types is None or item.type in question.types, question
            ends = item.superseded_at or fact_set.seconds(facts_by_id[name].get("expires_at", "9999-01-01"))
            assert item.created_at <= (question.as_of or fact_set.NOW) < ends, question
            assert facts_by_id[name].get("status") != "resolved", question


def test_a_score_of_facts_counts_exact_and_unwanted_answers() -> None:
    right, wrong, none = fact_set.questions("dev")[:3]
    answers = [(right, [*right.answer]), (wrong, [*wrong.answer, "another"]), (none, [])]
    score = fact_set.score_facts(answers)
    assert (score.precision, score.recall, score.whole) == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert [question for question, _ in score.wrong] == [wrong, none]


def write_conversation(file: Path, speakers: tuple[str, str]) -> None:
    turns = [
        {"id": "D1:1", "speaker": speakers[0], "text": "I sail", "image_caption": "a boat"},
        {"id": "D1:2", "speaker": speakers[1], "text": "Where?"},
    ]
    conversation = {
        "sample_id": "one",
        "sessions": [{"session": 1, "date_time": "1:56 pm on 8 May, 2023", "turns": turns}],
        "questions": [
            {"question": "Who  sails?", "evidence": ["D1:1; D1:2", "D9:9"], "category": 4},
            {"question": "Who flies?", "evidence": [], "category": "abstention"},
        ],
    }
    file.write_text(json.dumps([conversation]), encoding="utf-8")


def test_each_file_of_a_folder_is_a_data_set_and_only_people_are_named_in_texts(tmp_path: Path) -> None:
    write_conversation(tmp_path / "people.json", ("Ada", "bo"))
    write_conversation(tmp_path / "chat.json", ("user", "assistant"))
    data_sets = load_all(tmp_path)
    (people,), (chat,) = data_sets["people"], data_sets["chat"]
    assert [item.text for item in people.items] == ["Ada: I sail [shares a boat]", "bo: Where?"]
    assert [item.text for item in chat.items] == ["I sail", "Where?"]
    assert people.is_of_people and people.speakers == ["Ada", "Bo"] and not chat.is_of_people
    assert people.questions == [Question("Who sails?", frozenset({"D1:1", "D1:2"}), "4")]
    assert load_all(tmp_path / "chat.json") == {"chat": [chat]}


async def test_bm25_ranks_the_rarer_word_and_the_shorter_text_first() -> None:
    texts = {"long": "the sailing of boats and of ships", "short": "he sails", "other": "the rain and the boats"}
    items = [MemoryItem(id=name, text=text) for name, text in texts.items()]
    finder = BM25Alone([Conversation("ada", items, [])])
    assert await finder.ask("ada", ["Who is sailing boats?"]) == ["long", "short", "other"]
    assert await finder.ask("ada", ["Who is sailing?"]) == ["short", "long"]
    assert await finder.ask("ada", ["Who is sailing?"], 1) == ["short"]


def test_a_report_compares_figures_with_the_goals_of_their_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.add("beam_dev", "recall@10", "turnwise, words", 0.53)
    report.add("beam_dev", "recall@10", "turnwise with MiniLM", 0.6599)
    report.add("other", "recall@10", "turnwise, words", 0.1)
    report.show()
    _, _, _, beam, other = capsys.readouterr().out.splitlines()
    assert beam.split()[-6:] == ["0.530,", "0.53", "met", "0.660,", "0.66", "MISSED"]
    assert other.split()[-4:] == ["-", "-", "0.100", "-"]


def test_the_page_of_a_report_begins_with_where_turnwise_is_behind() -> None:
    report = Report(sizes={"beam_dev": "5 conversations"})
    report.add("beam_dev", "recall@10", "BM25", 0.475)
    report.add("beam_dev", "recall@10", "MiniLM's cosine alone", 0.7)
    report.add("beam_dev", "recall@10", "turnwise, words", 0.6)
    report.add("beam_dev", "recall@10", "turnwise with MiniLM", 0.65)
    report.add("beam_dev", "two questions, asked", "BM25", 0.4)
    report.add("beam_dev", "two questions, asked", "turnwise, words", 0.3)
    report.add_speed(Speed("recall", "2.00 ms", 0.17, 0.1, "most"))
    report.add_speed(Speed("recall, 64 at once", "0.50 ms", 4.0, 3.0, "least"))
    text = page.text_of(report, "make bench-memory DATA=data")
    assert f"Measured on {page_parts.today()} by `make bench-memory DATA=data`, with: " in text
    behind, tables = text.partition("## What is found")[::2]
    assert [line for line in behind.splitlines() if line.startswith("| ")][2:] == [
        "| beam_dev, recall@10 | turnwise with MiniLM | 0.650 | MiniLM's cosine alone 0.700, the goal 0.660 |",
        "| beam_dev, two questions, asked | turnwise, words | 0.300 | BM25 0.400 |",
        "| recall |  | 0.17 times | the goal, at most 0.1 times |",
    ]
    assert "**beam_dev**: 5 conversations\n\n|  | BM25 | MiniLM's cosine alone |" in tables
    assert "| recall@10 | 0.475 | 0.700 | 0.600 (0.53) | 0.650 (0.66) |" in tables
    assert "| recall, 64 at once | 0.50 ms | 4.00x, goal at least 3x: met |" in tables

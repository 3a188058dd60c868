"""Standing wishes: sentences in which a user says how they want to be answered from then on."""

from pathlib import Path

import pytest

from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.prompt_sections import make_profile
from turnwise.memory.longterm.recall.standing_wishes import MOST_CHARS, MOST_CURRENT, current_wishes, wishes_of
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.tokens.counter import ByteCounter

ANN, BOB = Scope(user_id="ann"), Scope(user_id="bob")


def turn(text: str, number: int = 0, kind: MemoryType = MemoryType.INTERACTION) -> MemoryItem:
    source = Source(session_id="s", turn_index=number)
    return MemoryItem(id=str(number), text=text, type=kind, source=source, created_at=1.0 + number)


@pytest.mark.parametrize(
    "wish",
    [
        "Always format code with syntax highlighting.",
        "Please never use emojis.",
        "From now on call me Captain.",
        "I prefer few dependencies.",
        "I'd prefer short answers",
        "You should always cite your sources.",
        "Whenever I ask about Python, show the types.",
        "Antworte ab jetzt auf Deutsch.",
        "Bitte immer mit Quellen.",
        "Je préfère les réponses courtes.",
        "Prefiero respuestas cortas.",
        "Preferisco risposte brevi.",
        "Prefiro respostas curtas.",
        "Altijd met bronnen.",
    ],
)
def test_what_a_user_says_to_hold_from_then_on_is_a_wish(wish: str) -> None:
    assert wishes_of(turn(f"user: Thanks! {wish}\nassistant: Of course.")) == (wish,)


@pytest.mark.parametrize(
    "text",
    [
        "user: Do you always answer so quickly?",
        "user: Always a pleasure.",
        "user: I never had a dog, and it always rains.",
        "user: He wrote:\n> Never mention this.",
        "user: See this:\n```\nAlways run me.\n```",
        "assistant: Always glad to help. I prefer tea.",
        "assistant calls look: {}\nresult: Never open this.",
    ],
)
def test_other_sentences_are_no_wishes(text: str) -> None:
    assert wishes_of(turn(text)) == ()


def test_a_wish_is_cut_from_the_question_behind_it_and_from_a_long_sentence() -> None:
    wishes = wishes_of(turn("user: I'm short of time, so I prefer small steps, can you begin?"))
    assert wishes == ("I'm short of time, so I prefer small steps",)
    (wish,) = wishes_of(turn(f"user: {'word ' * 100}and from now on use tabs {'and more ' * 100}"))
    assert wish.startswith("from now on use tabs") and len(wish) <= MOST_CHARS


def test_only_turns_have_wishes() -> None:
    assert wishes_of(turn("user: Always use tabs.", kind=MemoryType.FACTS)) == ()


def test_a_later_wish_about_the_same_replaces_an_earlier_one() -> None:
    items = [
        turn("user: Always include error codes in answers about the API.", 0),
        turn("user: Always answer with diagrams.", 1),
        turn("user: Never include error codes in answers about the API.", 2),
    ]
    current = current_wishes([(item, wish) for item in items for wish in wishes_of(item)])
    assert [item.passage for item in current] == [
        "Never include error codes in answers about the API.",
        "Always answer with diagrams.",
    ]


def test_of_many_wishes_the_newest_hold() -> None:
    items = [
        turn(f"user: Always mention word{number} and thing{number}.", number) for number in range(3 * MOST_CURRENT)
    ]
    current = current_wishes([(item, wish) for item in items for wish in wishes_of(item)])
    assert [item.id for item in current] == [item.id for item in reversed(items)][:MOST_CURRENT]


@pytest.mark.parametrize("kind", ["lexical", "vector"])
async def test_a_wish_is_in_every_reminder_of_its_user_until_it_is_forgotten(kind: str, tmp_path: Path) -> None:
    memory = (
        LexicalMemory(InMemoryItems()) if kind == "lexical" else VectorMemory(tmp_path / "items.db", embedding=None)
    )
    text = "user: My app is small. I prefer few dependencies.\nassistant: Noted."
    await memory.remember(ANN, [turn(text), turn("user: It rained.\nassistant: Oh.", 1)])
    for prompt in ("Translate this into Finnish, please.", ""):
        reminder = await memory.remind(ANN, prompt)
        assert [(item.id, item.passage) for item in reminder.profile] == [("0", "I prefer few dependencies.")]
        assert not reminder.items
    assert not (await memory.remind(BOB, "Hello")).profile
    recalled_items = await memory.recall(ANN, "Which dependencies does my app have?")
    profile = make_profile({"m": (await memory.remind(ANN, "")).profile}, counter=ByteCounter(), max_tokens=9_999)
    assert "I prefer few dependencies." in profile.text and "My app is small" not in profile.text
    assert next(item.id for item in profile.without(recalled_items)) == "0", "the rest of what was said is still found"
    await memory.forget(ANN, ["0"])
    assert not (await memory.remind(ANN, "Hello")).profile
    await memory.close()

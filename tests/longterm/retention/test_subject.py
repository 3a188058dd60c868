"""What a text says of a subject, and what is left of notes without it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from turnwise.errors import InvalidInputError, WorkingMemoryError
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.retention.subject import Subject, is_from, sentences
from turnwise.memory.working.formats import FreeText, JsonForm, Markdown
from turnwise.memory.working.memory import WorkingMemory

VOLVO = Subject("I drive a Volvo")
ADA = Scope(user_id="ada", session_id="s")


def said(subject: Subject, text: str, *names: str) -> list[str]:
    return [text[start:stop] for start, stop in subject.places(text, names)]


@pytest.mark.parametrize(
    "text",
    [
        "The user drives a Volvo.",
        "user: By the way, I drove my old VOLVO to work!\nassistant: Nice.",
        "A Volvo is what I have been driving.",
        "Their car is, e.g. on Sundays, a Volvo that they drive.",
    ],
)
def test_a_sentence_with_all_content_words_says_the_subject_in_any_order_and_form(text: str) -> None:
    assert said(VOLVO, text)


@pytest.mark.parametrize(
    "text",
    [
        "I drive to work. My neighbour has a Volvo.",
        "- drives to work\n- a Volvo is in the garage",
        "I love my Volvo.",
        "",
    ],
)
def test_a_text_that_shares_some_words_does_not_say_the_subject(text: str) -> None:
    assert not said(VOLVO, text)


def test_as_many_neighbouring_sentences_count_as_the_subject_has() -> None:
    subject = Subject("My dog is called Rex. He is old.")
    assert said(subject, "So far so good. The dog's name: called Rex. An old one. Bye.") == [
        "The dog's name: called Rex. An old one."
    ]
    assert not said(subject, "Rex is what the dog is called. Well. It rains. An old hat.")
    assert not said(Subject("an old dog called Rex"), "A dog called Rex. An old one.")


def test_names_of_an_item_count_as_words_of_each_sentence() -> None:
    assert said(Subject("my cat Mimi"), "The user has a cat.", "Mimi") == ["The user has a cat."]
    assert not said(Subject("my cat Mimi"), "The user has a cat.")


def test_other_languages_and_scripts_are_compared_by_their_words() -> None:
    assert said(Subject("Ich fahre einen Volvo"), "user: Ich fahre jetzt einen Volvo, wie du weißt.")
    assert said(Subject("我开沃尔沃"), "用户开一辆沃尔沃。天气很好。") == ["用户开一辆沃尔沃。"]
    assert not said(Subject("我开沃尔沃"), "用户有一辆车。")


@pytest.mark.parametrize("text", ["", "I am", "a", "?!", "this is that"])
def test_a_text_without_a_content_word_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no word that says what is to be forgotten"):
        Subject(text)


def test_a_fact_is_from_the_sentence_that_shares_the_most_words_with_it() -> None:
    turn = "user: I drive a Volvo to work in Ghent. My daughter Mia is five.\nassistant: I see."
    places = VOLVO.places(turn)
    assert is_from("The user's car is a Volvo.", turn, places) and is_from("Works in Ghent.", turn, places)
    assert not is_from("The user's daughter is called Mia.", turn, places)
    assert not is_from("The user sails.", turn, places)
    assert VOLVO.is_half_said("The user's car is a Volvo.") and not VOLVO.is_half_said("Works in Ghent.")


def test_sentences_end_at_marks_and_line_breaks_and_lists_lose_their_bullets() -> None:
    text = "- [ ] Call Ann. Then e.g. a friend.\n\n1) Rest… \n \n三。四！"  # noqa: RUF001 - marks of another script
    assert [text[start:stop] for start, stop in sentences(text)] == [
        *("Call Ann.", "Then e.g. a friend.", "Rest…", "三。", "四！"),  # noqa: RUF001 - as above
    ]


# Notes


def test_sentences_are_removed_from_notes_and_lines_that_have_nothing_left() -> None:
    form, text = FreeText(), "# Facts\n- Drives a Volvo. Lives in Bern.\n- has a Volvo, which she drives\n\nBuy figs."
    parts = form.about(text, VOLVO)
    assert parts == ["Drives a Volvo.", "has a Volvo, which she drives"]
    assert form.without(text, parts) == "# Facts\n- Lives in Bern.\n\nBuy figs."
    assert form.without(text, ["a Volvo", "Drives"]) == text, "only whole sentences are removed"
    assert form.without(form.without(text, parts), parts) == form.without(text, parts)


def test_headings_of_a_template_stay() -> None:
    form = Markdown("# Cars that they drive: Volvo\n# Plans")
    text = "# Cars that they drive: Volvo\nThey drive a Volvo.\n# Plans\nnone"
    assert form.about(text, VOLVO) == ["They drive a Volvo."]
    assert form.without(text, form.about(text, VOLVO)) == "# Cars that they drive: Volvo\n# Plans\nnone"


class Profile(BaseModel):
    home: str
    car: dict[str, Any] = {}
    likes: list[str] = []


def test_values_are_removed_from_notes_in_json_with_their_keys() -> None:
    form = JsonForm(Profile)
    text = form.replace(
        {"home": "Bern", "car": {"drives": "a Volvo", "doors": 5}, "likes": ["driving a Volvo", "figs"]}
    )
    parts = form.about(text, VOLVO)
    assert parts == ["car.drives: a Volvo", "likes: driving a Volvo"]
    assert form.without(text, parts) == form.replace({"home": "Bern", "car": {"doors": 5}, "likes": ["figs"]})
    assert form.without(text, ["car.doors: 4", "likes: fig"]) == text
    with pytest.raises(ValueError, match="home"):
        form.without(text, ["home: Bern"])


async def test_a_working_memory_removes_what_it_finds_and_stores_nothing_where_there_is_nothing() -> None:
    store = InMemoryItems()
    notes = WorkingMemory(store)
    await notes.remove(ADA, ["Drives a Volvo."])
    assert not (await store.scan()).items
    await notes.replace(ADA, "Drives a Volvo. Lives in Bern.")
    parts = await notes.about(ADA, VOLVO)
    assert parts == ("Drives a Volvo.",)
    await notes.merge(ADA, "Buy figs.")
    await notes.remove(ADA, parts)
    assert await notes.read(ADA) == "Lives in Bern.\n\nBuy figs.", "what was added meanwhile stays"
    await notes.remove(ADA, parts)
    assert await notes.read(ADA) == "Lives in Bern.\n\nBuy figs."

    form = WorkingMemory(InMemoryItems(), form=JsonForm(Profile))
    await form.replace(ADA, {"home": "Bern"})
    with pytest.raises(WorkingMemoryError, match="home"):
        await form.remove(ADA, ["home: Bern"])
    assert "Bern" in await form.read(ADA)

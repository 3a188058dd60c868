"""Queries from messages, and what they find: sentences, misspelt words, names, follow-ups, passages."""

import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from turnwise.errors import ConfigError
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Source
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall import word_frequency
from turnwise.memory.longterm.recall.analyzer import stem
from turnwise.memory.longterm.recall.irregular_forms import BASES
from turnwise.memory.longterm.recall.passages import LONG, SIZE, passages_of, shown
from turnwise.memory.longterm.recall.prominence import Similarities, level_of, prominences_of, spread_out
from turnwise.memory.longterm.recall.query import MAX_PARTS, MAX_TERMS, parse, question_of, vector_texts, without_names
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.recall.user_index import find, index_of
from turnwise.memory.longterm.recall.word_frequency import COMMON, RARE, log_frequency

SAID = [
    "Ann: I adopted a greyhound from the shelter in Ghent.",
    "Bob: How lovely! What do you call it?",
    "Ann: Pickles. She sleeps on the sofa all day.",
    "Ann: We painted the kitchen green last weekend.",
    "Bob: I am learning the bassoon, the neighbours hate it.",
    "Ann: My sister moved to Lisbon to work for a shipyard.",
]


OWNED = ("kettle", "lamp", "desk", "chair", "sofa", "piano", "boat", "car", "bicycle", "tent", "stove", "shelf", "drum")


def items(*texts: str, session: str | None = None) -> list[MemoryItem]:
    """Return facts, or what was said in the turns of a session."""
    kind = MemoryType.INTERACTION if session else MemoryType.GENERAL
    return [
        MemoryItem(
            id=str(number),
            text=text,
            type=kind,
            source=Source(session_id=session, turn_index=number if session else None),
        )
        for number, text in enumerate(texts)
    ]


def ids(facts: list[MemoryItem], prompt: str, weights: Weights = FACTS) -> list[str]:
    """Return what a prompt gets without being asked for."""
    return [item.id for item in find(index_of(facts), prompt, limit=10, weights=weights, is_reminder=True)]


def asked(facts: list[MemoryItem], query: str, weights: Weights = FACTS) -> list[str]:
    return [item.id for item in find(index_of(facts), query, limit=10, weights=weights)]


def near(similarities: list[float], *, unrelated: float = 0.1) -> Similarities:
    """Return the similarities of one sentence to the passages, where unrelated texts are all as similar as this."""
    rows, unrelated_rows = np.array([similarities]), np.full((8, len(similarities)), unrelated)
    return Similarities(rows, prominences_of(rows, level_of(unrelated_rows)))


BARE = "Where did Ann adopt the greyhound?"


@pytest.mark.parametrize(
    "message",
    [
        BARE,
        f"Hi! Quick one before I forget it again: {BARE} Thanks, a brief answer is fine.",
        f"Hello there, hope you are doing well. {BARE} Thank you so much!",
        f"What a day. The train was late and it rained. I had soup. {BARE} Anyway, no rush. See you.",
        "where did ann adopt the greyhound thanks",
        "ann greyhound adopted where",
        "Where did Ann adopt the grayhound?",
        "Where did Ann adopt the greyhuond?",
    ],
)
def test_text_around_a_question_does_not_hide_the_answer(message: str) -> None:
    assert ids(items(*SAID, session="s"), message, Weights())[0] == "0"


@pytest.mark.parametrize(
    "message",
    [
        "Hi!",
        "Thanks, that was great.",
        "ok cool",
        "Good morning! How are you?",
        "Translate this into Finnish, please.",
        "def add(a, b):\n    return a + b",
        "",
        "?!",
        "🦀",
        "the of and",
    ],
)
def test_a_message_without_a_subject_recalls_nothing(message: str) -> None:
    assert ids(items(*SAID, session="s"), message, Weights()) == []


def test_neighbouring_turns_are_recalled_too() -> None:
    question = "Where was the greyhound adopted?"
    assert ids(items(*SAID, session="s"), question, Weights())[:3] == ["0", "1", "2"]
    assert ids(items(*SAID), BARE) == ["0"], "facts have no neighbours"


@pytest.mark.parametrize("similarity", [None, 0.5])
def test_an_answer_is_found_by_the_words_and_the_vector_of_its_question(similarity: float | None) -> None:
    talk = ["The greyhound barks.", "Pickles.", *["Rain again."] * 3, "Does the greyhound bark?", "Seldom.", "Rain."]
    turns = items(*(f"Bob: {text}" for text in talk), session="s")
    rows = None
    if similarity is not None:
        rows = near([similarity if "greyhound" in text else 0.1 for text in talk])
    query = "greyhound" if similarity is None else "whippet"
    recalled = find(index_of(turns), query, limit=3, weights=Weights(), near=rows)
    assert [item.text for item in recalled][2] == "Bob: Seldom."


def test_a_name_or_alias_in_the_query_comes_before_plain_words() -> None:
    facts = items("The ship was launched in Bergen in spring.", "Work on it goes on in a shipyard.", "Ships rust.")
    facts[1] = replace(facts[1], name="Project Aurora", aliases=("PX 7", "小船"))
    for query in ("How far is project aurora, the ship?", "What about PX-7 and ships?", "小船很好", "Project Auorra?"):
        assert ids(facts, query)[0] == "1", query
    assert ids(facts, "The aurora over the project", Weights(reach=0))[:1] != ["0"]


def test_a_misspelt_word_matches_the_users_own_words_only() -> None:
    facts = items("Ann plays the bassoon.", "Ann owns a violin.")
    assert ids(facts, "Who has the basoon?") == ["0"]
    assert ids(facts, "Who has a balloon?") == [], "a word that people use is not misspelt"
    assert ids(facts, "Who has the vassoon?") == [], "the first letter is right"
    (recalled,) = find(index_of(facts), "Who plays the basoon?", limit=1, weights=FACTS)
    assert recalled.words == ("basoon", "plays", "the")


def test_similar_facts_are_cut_and_similar_turns_are_not() -> None:
    facts = items("The user is allergic to peanuts.", "The user is allergic to nothing else.", "Peanuts are cheap.")
    assert ids(facts, "Am I allergic to peanuts?") == ["0"]
    assert ids(facts, "Am I allergic to peanuts?", Weights()) == ["0"]
    assert len(ids(facts, "Am I allergic to peanuts?", replace(FACTS, tail=0.0))) == 3
    context = [replace(item, type=MemoryType.CONTEXT) for item in facts]
    assert ids(context, "Am I allergic to peanuts?") == ["0"], "the circumstances are facts too"
    happened = [replace(item, type=MemoryType.INTERACTION) for item in facts]
    assert len(ids(happened, "Am I allergic to peanuts?")) == 3, "of turns nothing is cut"
    mixed = [*facts, replace(happened[2], id="3")]
    assert set(ids(mixed, "Am I allergic to peanuts?")) == {"0", "3"}, "of both, facts only"


def test_a_sentence_of_common_words_finds_a_fact_with_nearly_all_of_them() -> None:
    facts = items(*(f"The user owns a {word}." for word in OWNED), "The user lives in Paris.")
    home = str(len(OWNED))
    assert ids(facts, "Where do I live?") == [home]
    assert ids(facts, "Where do I live?", replace(FACTS, share=2.0)) == [], "it shares no more than is by chance"
    assert ids(facts, "Where do I live, zeppelin?") == [], "most of what it says is nowhere"
    assert ids(facts, "Where do I live?", replace(FACTS, least=8.0)) == [], "it is too little for what was once said"
    assert ids(facts, "Do I own things?") == [], "what is in every fact tells nothing"


def test_one_word_of_a_long_sentence_finds_nothing() -> None:
    assert ids(items(*SAID), "The greyhound and a zeppelin.") == ["0"]
    assert ids(items(*SAID), "The greyhound, a zeppelin, quokkas, vuvuzelas, isotopes and xylophones.") == []


@pytest.mark.parametrize(
    ("message", "similarity", "expected"),
    [
        ("Whippets and xylophones?", 0.5, ["0"]),
        ("Whippets and xylophones?", 0.1, []),
        ("Hi! How are you?", 0.9, []),
    ],
)
def test_vectors_find_items_for_a_question_if_they_stand_out(
    message: str, similarity: float, expected: list[str]
) -> None:
    user_index, count = index_of(items(*SAID)), len(parse(message).parts)
    one = near([similarity, *[0.1] * (len(SAID) - 1)])
    assert one.prominences is not None
    rows = Similarities(np.repeat(one.similarities, count, axis=0), np.repeat(one.prominences, count, axis=0))
    recalled = find(user_index, message, limit=10, weights=FACTS, near=rows, is_reminder=True)
    assert [item.id for item in recalled] == expected


def test_of_a_paraphrase_the_nearest_facts_come_through_and_of_shared_words_the_best() -> None:
    facts = items(*(f"The user owns a {word}." for word in OWNED))
    similarities = [0.1] * (len(OWNED) - 2) + [0.6, 0.45]

    def reminded(prompt: str) -> list[str]:
        user_index = index_of(facts)
        recalled = find(user_index, prompt, limit=10, weights=FACTS, near=near(similarities), is_reminder=True)
        return [item.id for item in recalled]

    last, last_but_one = str(len(OWNED) - 1), str(len(OWNED) - 2)
    assert reminded("Whippets and xylophones?") == [last_but_one, last]
    assert reminded(f"Where is my {OWNED[-2]}?") == [last_but_one]


def test_a_query_by_vectors_returns_the_most_similar_items_always() -> None:
    facts = items(*(f"The user owns a {word}." for word in OWNED))
    similarities = near([0.2] * (len(OWNED) - 1) + [0.25])
    recalled = find(index_of(facts), "Whippets and xylophones?", limit=3, weights=Weights(), near=similarities)
    assert [item.id for item in recalled] == [str(len(OWNED) - 1), "0", "1"]
    scores = [item.score or 0.0 for item in recalled]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[1]


def test_a_remark_comes_after_what_says_more_and_is_a_little_less_similar() -> None:
    remark = "That sounds lovely!"
    statement = "I soldered the frame of my grandfather's bicycle in the cellar, and painted it turquoise last weekend."

    def order(facts: list[MemoryItem], similarities: list[float]) -> list[str]:
        weights = Weights(reach=0)
        found = find(index_of(facts), "How is the hobby?", limit=9, weights=weights, near=near(similarities))
        return [item.id for item in found]

    turns, facts = items(remark, statement, session="s"), items(remark, statement)
    assert order(turns, [0.52, 0.5]) == ["1", "0"]
    assert order(turns, [0.5, 0.1]) == ["0", "1"], "not if it is much more similar"
    assert order(facts, [0.52, 0.5]) == ["0", "1"], "facts are short"


def test_a_query_returns_what_shares_a_word_however_common_in_the_memory() -> None:
    facts = items(*(f"Step {number} of the deployment process." for number in range(26)))
    assert len(asked(facts, "deployment process")) == 10
    assert asked(facts, "Whippets and xylophones?") == [], "nothing is shared"


def test_a_text_of_many_passages_does_not_hide_a_short_one() -> None:
    chatter = "We talked about the weather, the garden and the price of bread for a while. " * 60
    long = [replace(item, id=f"long {item.id}") for item in items(*[f"{chatter} The greyhound slept. {chatter}"] * 9)]
    assert asked([*long, *items("The greyhound slept.")], "Who slept, the greyhound?")[0] == "0"


def test_what_is_told_around_a_question_takes_few_places() -> None:
    told = [f"Ann: We painted the kitchen {color}." for color in ("green", "white", "blue", "grey", "brown")]
    wanted = [f"Ann: I adopted a greyhound in {city}." for city in ("Ghent", "Lille", "Bern", "Graz", "Turin")]
    message = "I am in the kitchen. Where did Ann adopt each greyhound?"
    found = find(index_of(items(*told, *wanted)), message, limit=6, weights=Weights())
    assert [int(item.id) >= len(told) for item in found].count(True) == len(wanted)


def test_what_is_wished_around_a_question_of_unknown_words_does_not_take_its_place() -> None:
    weekends = [f"Ann: What a lovely weekend we had in {city}!" for city in ("Ghent", "Lille", "Bern", "Graz", "Turin")]
    facts = items(*weekends, "Bob: The bassoon is with somebody in Antwerp until March.", session="s")
    question = "Which craftsman repairs the cracked bassoon joints, and for what price?"
    for message in (f"{question} Have a lovely weekend!", f"Have a lovely weekend! {question}"):
        found = find(index_of(facts), message, limit=2, weights=Weights())
        assert {item.id for item in found} > {str(len(weekends))}
        assert ids(facts, message, Weights())[0] != str(len(weekends)), "a reminder needs more than one shared word"


@pytest.mark.parametrize(("question", "found"), [("Marimbas?", ["0", "1"]), ("Marimbas, xylophones?", ["0", "2"])])
def test_a_question_of_one_word_is_about_what_stands_beside_it(question: str, found: list[str]) -> None:
    facts = items("Ann: I adopted a greyhound.", "Bob: My greyhound is grey.", "Bob: It is late.", "Ann: So it is.")
    rows = np.array([[0.5, 0.45, 0.1, 0.1], [0.5, 0.45, 0.1, 0.1], [0.1, 0.1, 0.5, 0.45]])
    prominences = np.array([[9.0, 8.0, -5.0, -5.0], [-5.0, -5.0, 0.0, -1.0]])
    message, similar = f"Greyhounds of Ann. {question}", Similarities(rows, prominences)
    recalled = find(index_of(facts), message, limit=2, weights=Weights(reach=0), near=similar)
    assert [item.id for item in recalled] == found


def test_a_sentence_gives_no_place_to_what_it_does_not_find() -> None:
    painted = [f"Ann: The kitchen was painted {color} by Bob." for color in ("green", "white", "blue", "grey", "brown")]
    warm = [f"Ann: The kitchen is warm in {month}." for month in ("May", "June", "July")]
    facts = items(*painted, "Ann: I adopted a greyhound.", *warm)
    message = "I am in the warm kitchen. Where is the greyhound?"
    found = find(index_of(facts), message, limit=4, weights=Weights(reach=0))
    assert {item.text for item in found} == {"Ann: I adopted a greyhound.", *warm}


def test_two_questions_have_as_many_places() -> None:
    rooms = [f"Ann: We painted the kitchen {color}." for color in ("green", "white", "blue", "grey", "brown")]
    dogs = [f"Ann: I adopted a greyhound in {city}." for city in ("Ghent", "Lille", "Bern", "Graz", "Turin")]
    message = "How did we paint the kitchen? Where did Ann adopt each greyhound from a shelter?"
    found = find(index_of(items(*rooms, *dogs)), message, limit=6, weights=Weights())
    assert [int(item.id) < len(rooms) for item in found].count(True) == 3


def test_a_match_by_chance_is_likelier_among_many_passages() -> None:
    prompt = "Whippets, xylophones and ocelots"
    short = [f"Ann: The parcel number {number} came." for number in range(50)]
    long = [" ".join(f"{text[:-1]}, part {part}." for part in range(200)) for text in short]
    reminded = [ids(items(*texts[:-1], f"{texts[-1]} It is a whippet."), prompt, Weights()) for texts in (short, long)]
    assert reminded == [["49"], []]


def test_a_vector_stands_out_by_chance_more_often_among_several_sentences() -> None:
    def reminded(prompt: str) -> list[str]:
        one, count = near([0.149, *[0.1] * (len(SAID) - 1)]), len(parse(prompt).parts)
        assert one.prominences is not None and FACTS.prominence < one.prominences.max() < FACTS.prominence + 0.4
        rows = Similarities(np.repeat(one.similarities, count, axis=0), np.repeat(one.prominences, count, axis=0))
        recalled = find(index_of(items(*SAID)), prompt, limit=10, weights=FACTS, near=rows, is_reminder=True)
        return [item.id for item in recalled]

    assert reminded("Whippets and xylophones?") == ["0"]
    assert reminded("Whippets and xylophones? Ocelots and marimbas? Lynxes and didgeridoos?") == []


def test_each_question_of_a_prompt_has_its_answer() -> None:
    facts = items(
        *(f"The greyhound of Ann sleeps in the {word}, said Bob of Ghent." for word in OWNED),
        "The bassoon was bought in Lisbon.",
    )
    answer = str(len(OWNED))
    prompt = "Where does the greyhound of Ann sleep, as Bob of Ghent said? And where was the bassoon bought?"
    assert answer in ids(facts, prompt, Weights(reach=0)) and len(ids(facts, prompt, Weights(reach=0))) == 10
    happened = [replace(item, type=MemoryType.INTERACTION) for item in facts]
    assert answer in ids(happened, prompt, Weights(reach=0))
    assert answer in asked(facts, prompt)


def test_a_question_after_a_colon_is_a_query_of_its_own() -> None:
    facts = items("The user is allergic to peanuts.", "The user ordered a desk.")
    assert ids(facts, "Quick check before I bring the cake: what am I allergic to?") == ["0"]


def test_a_weekday_finds_items_that_name_it_and_not_items_saved_on_it() -> None:
    monday = 1_700_477_000.0
    facts = [
        replace(item, created_at=monday) for item in items("The user sings in a choir.", "The bin goes out on Monday.")
    ]
    assert ids(facts, "What about Monday?") == ["1"]
    assert ids(facts[:1], "What about Monday?") == []
    assert ids(facts[:1], "What about November 2023?") == ["0"]


@pytest.mark.parametrize(
    "day", ["5 January 2024", "5 Jan 2024", "Jan 5, 2024"], ids=["in full", "after a number", "before one"]
)
def test_a_month_is_found_by_its_name_and_its_abbreviation(day: str) -> None:
    january = 1_704_448_000.0
    facts = [replace(fact, created_at=january) for fact in items("The user sings.", "The user swims.")]
    assert asked(facts[:1], f"{day}, please") == ["0"]
    assert asked(items(f"The user was born on {day}.", "The user swims."), "Who was born in January?") == ["0"]
    assert asked(facts, "Is Jan well?") == [], "a number beside it tells a month from a name"


def test_a_word_that_asks_finds_nothing() -> None:
    assert asked(items("Which one does he mean, and why?"), "Why does it rain, and in which month?") == []


@pytest.mark.parametrize(
    ("statement", "question"),
    [
        ("The user bought a bassoon.", "What did I buy?"),
        ("The user will buy a bassoon.", "Where was it bought?"),
        ("The user has two children.", "Does he have a child?"),
        ("The user flew to Reykjavik.", "Where do I fly?"),
    ],
)
def test_irregular_forms_of_a_word_find_each_other(statement: str, question: str) -> None:
    assert ids(items("The user owns a violin.", statement, "Rain is wet."), question) == ["1"]


def test_the_stemmer_finds_no_base_of_an_irregular_form() -> None:
    assert len(BASES) > 150
    for form, base in BASES.items():
        assert base not in BASES and stem(form) != stem(base), (form, base)


@pytest.mark.parametrize(
    ("prompt", "before", "is_included"),
    [
        ("When exactly?", "Did Ann adopt a greyhound?", True),
        ("And where does she live?", "Tell me about the greyhound of Ann.", True),
        ("Okay. Why?", "Ann moved to Lisbon.", True),
        ("Thanks!", "Did Ann adopt a greyhound?", False),
        ("How are you?", "Did Ann adopt a greyhound?", False),
        ("My neighbour lost a coin. Must she report it?", "Did Ann adopt a greyhound?", False),
        ("Where can I buy a bassoon in Ghent?", "Did Ann adopt a greyhound?", False),
        ("When exactly?", "", False),
    ],
)
def test_a_follow_up_includes_the_prompt_that_it_refers_to(prompt: str, before: str, is_included: bool) -> None:
    query = question_of(prompt, before)
    assert query.startswith(prompt) and (query != prompt) == is_included
    if is_included:
        assert any(word in query.split("\n")[1] for word in ("ann", "greyhound", "lisbon"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("When did Kate visit Art Basel?", "When did visit"),
        ("What are Kate's hobbies? Does Ann ski?", "What are hobbies? Does ski?"),
        ("And was Željko there with him and Анна too?", "And was there with him and too?"),
        ("Which API do I use?", ""),
        ("Kate skis. Does she?", ""),
        ("When Did Kate Visit Art Basel?", ""),
        ("", ""),
    ],
)
def test_a_text_without_names_lacks_words_with_a_capital_within_a_sentence(text: str, expected: str) -> None:
    assert without_names(text) == expected


@pytest.mark.parametrize("is_reminder", [False, True])
def test_a_name_is_half_of_the_similarity_to_a_turn_and_all_of_that_to_a_fact(is_reminder: bool) -> None:
    text = "When does the passport of Tiago expire?"
    own, nameless = [0.9, 0.9], [0.5, 0.5]
    assert vector_texts(text, is_reminder=is_reminder).texts == (text, "When does the passport of expire?")
    is_fact = np.array([True, False])
    similar = spread_out(Similarities(np.array([own, nameless])), text, is_fact=is_fact, is_reminder=is_reminder)
    assert similar is not None and similar.similarities.tolist() == [[0.9, 0.7]]


def test_no_noun_of_german_is_taken_for_a_name() -> None:
    text = "Wann hat sie den Kuchen für das Fest mit der Schule gebacken?"
    assert vector_texts(text, is_reminder=False).texts == (text,)
    assert len(vector_texts("When did she bake for the feast with Kate?", is_reminder=False).texts) == 2


@given(st.text(max_size=300))
def test_any_text_is_a_query_of_bounded_size(text: str) -> None:
    for prompt in (text, text * 50):
        query = parse(prompt)
        assert len(query.terms) <= MAX_TERMS and len(query.parts) <= MAX_PARTS
        assert all(0 <= position < len(query.terms) for part in query.parts for position in part)


def test_the_query_of_a_long_message_is_its_beginning_and_its_end() -> None:
    facts = items(*SAID)
    filler = "Nothing of it matters here. " * 400_000
    assert ids(facts, f"{BARE} {filler}") == ids(facts, f"{filler} {BARE}") == ["0"]


def test_common_words_are_frequent_and_names_are_not() -> None:
    assert log_frequency("the") == log_frequency("hello") == COMMON
    assert log_frequency("question") > log_frequency("violin") > log_frequency("greyhound") >= RARE
    assert log_frequency("xyzzy") == RARE
    assert log_frequency("frage", "german") > log_frequency("geige", "german")


def test_a_long_turn_is_found_by_any_passage_and_shows_it() -> None:
    chatter = "We talked about the weather and the food for a while. " * 40
    text = f"user: {chatter}\nassistant: {chatter}The lighthouse keeper is called Ingrid. {chatter}"
    long = MemoryItem(id="long", text=text, source=Source(session_id="s", turn_index=9))
    (recalled, *_) = find(
        index_of([*items(*SAID, session="s"), long]), "Who keeps the lighthouse?", limit=3, weights=Weights()
    )
    assert recalled.id == "long" and recalled.text == text
    assert recalled.passage is not None and "called Ingrid." in recalled.passage
    assert recalled.passage.startswith("[…] assistant: ") and recalled.passage.endswith(" […]")
    assert len(recalled.passage) <= 3 * SIZE + 100


@given(st.text(alphabet="ab. \n:?", max_size=4000), st.integers(0, 3))
def test_passages_cover_their_text_in_order(text: str, more: int) -> None:
    text += "word. " * more * 200
    passages = passages_of(text)
    assert [passage.start for passage in passages] == sorted(passage.start for passage in passages)
    covered = "".join(char for position, char in enumerate(text) if any(p.start <= position < p.stop for p in passages))
    assert covered.split() == text.split()
    assert all(passage.stop - passage.start <= (LONG if len(passages) == 1 else SIZE) for passage in passages)
    assert not text.strip() or shown(text, passages).strip()


def test_blank_and_huge_items_can_be_saved_and_recalled() -> None:
    facts = items("...", "🦀🦀", "x" * 1_000_000, "word " * 200_000, *SAID)
    assert ids(facts, BARE) == ["4"]
    assert ids(facts, "🦀") == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("tail", 1.5, "from 0 to 1"),
        ("around", -0.1, "from 0 to 1"),
        ("part", float("nan"), "from 0 to 1"),
        ("vectors", -1, "from 0 to a million"),
        ("vectors", True, "from 0 to a million"),
        ("name", "20", "from 0 to a million"),
        ("reach", 2.5, "a whole number"),
        ("text_words", 0, "from 1 to a million"),
        ("prominence", None, "a number"),
        ("margin", float("nan"), "a number"),
        ("saturation", 0.0, "from 0.01 to a million"),
        ("speaker", float("inf"), "from 0 to a million"),
        ("common", 11.0, "below Weights.rare, which is 11.0"),
    ],
)
def test_a_weight_out_of_range_is_refused_by_name(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"Weights\.{name}={re.escape(repr(value))}: must be .*{reason}"):
        replace(FACTS, **{name: value})


def test_items_outlive_pickling_with_all_of_their_values() -> None:
    original = MemoryItem(
        id="1", text="a", source=Source(session_id="s", spans=(Span("l", 0, 2),)), score=0.5, words=("a",)
    )
    copied = pickle.loads(pickle.dumps(original))
    assert [getattr(copied, field.name) for field in fields(MemoryItem)] == [
        getattr(original, field.name) for field in fields(MemoryItem)
    ]
    assert "MemoryItem" in repr(copied) and len(pickle.dumps(original)) < 600


def test_queries_that_come_first_at_the_same_time_load_the_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def slowly(language: str) -> dict[str, float]:
        read.append(language)
        time.sleep(0.05)
        return {"whale": -9.0}

    monkeypatch.setattr(word_frequency, "_tables", {})
    monkeypatch.setattr(word_frequency, "_read", slowly)
    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(log_frequency, ["whale"] * 8)} == {-9.0}
    assert read == ["english"]

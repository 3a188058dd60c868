"""How indexes grow: by what is new, in steps, by a bounded part of each item; and that work ends with its caller."""

from __future__ import annotations

import asyncio
import gc
import random
import string
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rapidfuzz import process

from memories.vector_memories import item
from turnwise.errors import StoreError
from turnwise.memory.background import check_awaited, on_thread, putting_off_after
from turnwise.memory.longterm.base import MemoryItem, Scope, Source, trouble_of
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.rows import Revision, Row
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.recall import analyzer, index_growth, item_words, query as queries, user_index
from turnwise.memory.longterm.recall.analyzer import words
from turnwise.memory.longterm.recall.item_indexes import numbers_between
from turnwise.memory.longterm.recall.query import MAX_TERMS, parse
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.recall.similarity import BATCH, Similarity
from turnwise.memory.longterm.recall.user_index import UserIndex, arrivals_of, find, index_of, rank_all
from turnwise.memory.longterm.vector import VectorMemory

ANN, BOB = Scope(user_id="ann"), Scope(user_id="bob")


def distinct(count: int, seed: int = 1) -> str:
    """Return a text of so many different words, of seven letters on average."""
    dice, words = random.Random(seed), dict[str, None]()
    while len(words) < count:
        words["".join(dice.choices(string.ascii_lowercase, k=dice.randint(5, 9)))] = None
    return " ".join(words)


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the passages that were analysed."""
    texts: list[str] = []

    def watched(text: str) -> list[str]:
        texts.append(text)
        return words(text)

    monkeypatch.setattr(user_index, "words", watched)
    return texts


Make = Callable[[], Any]


@pytest.fixture(params=["lexical", "vector"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Make memories of the same items, as processes that start one after the other."""
    facts = InMemoryItems()
    is_lexical = request.param == "lexical"
    return lambda: LexicalMemory(facts) if is_lexical else VectorMemory(tmp_path / "x.db", embedding=None)


async def ids(memory: Any, query: str, scope: Scope = ANN) -> list[str]:
    return [recalled.id for recalled in await memory.recall(scope, query)]


async def test_only_items_that_are_new_or_changed_are_analysed(make: Make, analysed: list[str]) -> None:
    memory = make()
    await memory.remember(ANN, [item(str(number), f"Note {number} about a walrus") for number in range(50)])
    assert await ids(memory, "walrus") and len(analysed) == 50
    analysed.clear()
    await memory.remember(ANN, [item("new", "The lighthouse is white")])
    assert await ids(memory, "lighthouse") == ["new"] and analysed == ["The lighthouse is white"]
    analysed.clear()
    await memory.update(ANN, "7", "Note 7 about a harpsichord")
    assert await ids(memory, "harpsichord") == ["7"]
    assert set(analysed) <= {"Note 7 about a walrus", "Note 7 about a harpsichord"}
    analysed.clear()
    await memory.forget(ANN, ["new"])
    assert await ids(memory, "lighthouse") == [] and set(analysed) <= {"The lighthouse is white"}
    analysed.clear()
    await memory.pin(ANN, "9", True)
    assert "7" not in await ids(memory, "walrus") and set(analysed) <= {"Note 9 about a walrus"}
    await memory.close()


async def test_what_is_forgotten_is_in_no_index(make: Make) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "The harpsichord is Antje's", pinned=True), item("2", "A harpsichard")])
    await memory.remember(ANN, [item(str(number), f"Note {number}") for number in range(3, 9)])
    assert await ids(memory, "harpsychord") == ["1"] and items_in_memory("Antje")
    await memory.forget(ANN, ["1"])
    assert await ids(memory, "harpsychord") == ["2"], "no misspelt word is taken for one that is gone"
    until = time.monotonic() + 10
    while items_in_memory("Antje") and time.monotonic() < until:
        await asyncio.sleep(0.05)  # a thread that has answered may still be about to drop its answer
    assert not items_in_memory("Antje")
    await memory.close()


def items_in_memory(word: str) -> list[MemoryItem]:
    """Return the items with a word that this process has."""
    return [entry for entry in gc.get_objects() if isinstance(entry, MemoryItem) and word in entry.text]


TEXTS = ("Ann: hello", "Bob: a walrus", "no name", "the walrus and a seal", "seals, walruses: 7 of them")


@pytest.mark.by_turns
@given(st.data())
def test_a_changed_index_equals_one_made_at_once(data: st.DataObject) -> None:
    rows: dict[int, Row] = {}
    grown = UserIndex()
    for step in range(data.draw(st.integers(1, 5))):
        removed = data.draw(st.sets(st.sampled_from(sorted(rows)))) if rows else set[int]()
        new = data.draw(st.sets(st.integers(0, 12), max_size=6)) - (rows.keys() - removed)
        more = []
        for number in sorted(new):
            source = Source(session_id=data.draw(st.sampled_from(["a", "b", None])), turn_index=number)
            name = data.draw(st.sampled_from([None, "Blue Whale"]))
            text = data.draw(st.sampled_from(TEXTS))
            expires_at = data.draw(st.sampled_from([None, 5.0]))
            new_item = item(
                f"{number} {step}", text, source=source, name=name, pinned=number % 2 == 0, expires_at=expires_at
            )
            more.append(Row(row=number, agent=None, item=new_item, key=str(number)))
        rows = {number: row for number, row in rows.items() if number not in removed} | {row.row: row for row in more}
        grown = grown.changed(Revision(1, step, len(rows)), arrivals_of(more), removed)
        once = UserIndex().grown(Revision(1, step, len(rows)), [rows[number] for number in sorted(rows)])
        assert grown.rows == once.rows
        assert len(grown.missing()) == len(once.missing())
        for query in (
            "Ann walrus",
            "hello",
            "Bob",
            "seal",
            "is it a blue whale?",
            "wallrus",
            "waldrussees",
            "Ann: helo",
        ):
            for weights in (FACTS, Weights()):
                for which in (ItemFilter(superseded=True), ItemFilter(live_at=6.0)):
                    assert ranked(grown, query, which, weights) == ranked(once, query, which, weights)


def ranked(index: UserIndex, query: str, which: ItemFilter, weights: Weights) -> list[MemoryItem]:
    return rank_all([index.match(parse(query), ANN, which, limit=9)], weights)[0]


@given(
    st.lists(
        st.none() | st.integers(0, 40).map(lambda number: number << 20), max_size=20, unique_by=lambda n: n or object()
    )
)
def test_numbers_differ_and_ascend_where_there_is_room(existing: list[int | None]) -> None:
    numbers = numbers_between(existing)
    assert len(set(numbers)) == len(existing) and all(
        before in (None, after) for before, after in zip(existing, numbers, strict=True)
    )
    existing_numbers = [number for number in existing if number is not None]
    if existing_numbers == sorted(existing_numbers):
        assert numbers == sorted(numbers)


# An item's part


def found_words(index: UserIndex, words: Sequence[str]) -> list[str]:
    """Return those of these words by each of which an item is found."""
    return [word for word in words if find(index, f"What about {word}?", limit=3, weights=FACTS)]


@pytest.mark.by_turns
def test_an_item_has_a_bounded_part_in_an_index() -> None:
    text, topic = distinct(30_000).split(), distinct(1_000, seed=2).split()
    huge = MemoryItem(id="huge", text=" ".join(text), topic=" ".join(topic))
    index = index_of([huge])
    assert len(index.rows) <= 2_048
    # Longer words: none is like another one.
    indexed, others = text[: item_words.MOST_WORDS], text[item_words.MOST_WORDS :]
    named, unnamed = topic[: item_words.MOST_NAMED], topic[item_words.MOST_NAMED :]
    some, some_others, some_named, some_unnamed = (
        [word for word in words if len(word) == 9][::step]
        for words, step in ((indexed, 100), (others, 200), (named, 1), (unnamed, 1))
    )
    assert found_words(index, [*some, *some_named]) == [*some, *some_named]
    assert found_words(index, [*some_others, *some_unnamed]) == []
    assert len(index_of([MemoryItem(id="huge", text="A word. " * 500_000)]).rows) <= 2_048


def test_the_first_different_words_of_an_item_are_indexed_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_words, "MOST_WORDS", 3)
    index = index_of([MemoryItem(id="long", text="walrus violin walrus lemon tractor")])
    assert found_words(index, ["walrus", "violin", "lemon", "tractor"]) == ["walrus", "violin", "lemon"]


@pytest.mark.by_turns
def test_a_text_of_fifty_kilobytes_is_found_by_each_of_its_words() -> None:
    text = distinct(6_600)
    assert len(text) > 50_000
    index = index_of([MemoryItem(id="long", text=text), MemoryItem(id="other", text="a walrus")])
    words = text.split()
    assert found_words(index, words) == words


@pytest.mark.parametrize(
    "text", ["x" * 200_000, "word " * 40_000, "名前" * 50_000, "a b. " * 40_000, "A: b\n" * 40_000]
)
def test_odd_texts_of_any_size_are_indexed(text: str) -> None:
    index = index_of([MemoryItem(id="odd", text=text, topic=text, name=text, aliases=(text,))])
    assert len(index.rows) <= 2_048
    assert len(find(index, text, limit=3, weights=FACTS)) <= 1


# Queries


def test_of_a_long_query_only_the_words_that_are_used_are_stemmed(monkeypatch: pytest.MonkeyPatch) -> None:
    stemmed: list[str] = []
    real = analyzer.stems_of

    def watched(word: str, language: str) -> tuple[str, ...]:
        stemmed.append(word)
        return real(word, language)

    monkeypatch.setattr(queries, "stems_of", watched)
    query = parse(distinct(30_000, seed=7))
    assert len(query.terms) == MAX_TERMS == len(stemmed)


def test_a_query_is_compared_with_a_bounded_number_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = process.extract

    def watched(word: str, candidates: Sequence[str], **options: Any) -> Any:
        compared.append(len(candidates))
        return real(word, candidates, **options)

    monkeypatch.setattr(process, "extract", watched)
    monkeypatch.setattr(user_index, "COMPARED", 20_000)
    alike = [
        f"zq{''.join(letters)}x" for letters in zip(*[iter(distinct(4_000, seed=3).replace(" ", ""))] * 5, strict=False)
    ]
    words_index = index_of(
        [MemoryItem(id=str(start), text=" ".join(alike[start : start + 50])) for start in range(0, len(alike), 50)]
    )
    find(words_index, " ".join(f"zq{word}" for word in distinct(96, seed=4).split()), limit=3, weights=FACTS)
    assert 0 < sum(compared) <= 20_000 + max(compared)


# Steps, and work that nobody waits for


async def test_work_on_a_thread_ends_with_its_caller() -> None:
    began, ended = threading.Event(), threading.Event()
    steps = 0

    def work() -> None:
        nonlocal steps
        try:
            while True:
                began.set()
                steps += 1
                check_awaited()
        finally:
            ended.set()

    task = asyncio.create_task(on_thread(work))
    assert await asyncio.to_thread(began.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 60)
    check_awaited()  # what is called elsewhere goes on


async def test_a_recall_that_was_given_up_stops_and_the_next_one_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one item has some 100 passages. Each is analysed once, but for the one that the recall stopped at."""
    memory = make()
    await memory.remember(ANN, [item("huge", distinct(12_000))])
    analysed, stop_at = list[str](), 10
    reached, goes_on = threading.Event(), threading.Event()

    def watched(text: str) -> list[str]:
        analysed.append(text)
        if len(analysed) == stop_at:
            reached.set()
            goes_on.wait()
        return words(text)

    monkeypatch.setattr(user_index, "words", watched)
    task = asyncio.create_task(memory.recall(ANN, "What was it?"))
    assert await asyncio.to_thread(reached.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    goes_on.set()
    await memory.recall(BOB, "And then?")
    assert len(analysed) == stop_at
    await memory.recall(ANN, "What was it?")
    distinct_texts = set(analysed)
    assert len(analysed) - len(distinct_texts) <= stop_at and len(distinct_texts) > 50
    await memory.close()


async def test_a_process_that_meets_a_large_user_finds_more_at_each_recall(make: Make, analysed: list[str]) -> None:
    earlier, memory = make(), make()
    texts = [
        f"Note k{number}x tells of {' '.join(random.Random(number).choices(NOUNS, k=12))}" for number in range(3_000)
    ]
    await earlier.remember(ANN, [item(str(number), text) for number, text in enumerate(texts)])
    first_ids, recalls, sizes = list[str](), 0, list[int]()
    while len(first_ids) < 2:
        with putting_off_after(0):
            prompts = [f"What does note k{number}x tell of?" for number in (0, 2_999)]
            answers = [(await memory.remind(ANN, prompt)).items for prompt in prompts]
        first_ids = [answer[0].id for answer in answers if answer]
        assert len(first_ids) == 2 or any(map(trouble_of, answers))
        recalls += 1
        sizes.append(len(analysed))
    assert first_ids == ["0", "2999"] and 1 < recalls < 30
    assert len(analysed) <= 3_000 and max(b - a for a, b in zip([0, *sizes], sizes, strict=False)) < 1_500
    with putting_off_after(0):
        last = [(await memory.remind(ANN, "What does note k7x tell of?")).items for _ in range(9)][-1]
    assert trouble_of(last) is None and len(analysed) == 3_000
    await earlier.close()
    await memory.close()


NOUNS = [
    f"{first}{second}"
    for first in ("stone", "water", "iron", "summer", "night")
    for second in ("bridge", "mill", "road")
]


async def test_a_huge_item_of_one_user_holds_up_no_other(make: Make, analysed: list[str]) -> None:
    """On one thread, so that the steps of both take turns."""
    memory = make()
    await memory.remember(BOB, [item("1", "a walrus")])
    assert await ids(memory, "walrus", BOB) == ["1"]
    await memory.remember(ANN, [item(str(number), distinct(25_000, seed=number)) for number in range(2)])
    await memory.remember(BOB, [item("2", "a lighthouse")])
    analysed.clear()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    slow = asyncio.create_task(memory.recall(ANN, "What was it?"))
    while not analysed and not slow.done():
        await asyncio.sleep(0)
    assert await ids(memory, "lighthouse", BOB) == ["2"]
    passages = index_growth.STEP_CHARS // 800 + 1
    assert len(analysed) <= 8 * passages and not slow.done()
    slow.cancel()
    await memory.close()


def test_vectors_are_made_in_batches_until_nobody_waits() -> None:
    batches: list[Sequence[str]] = []
    goes_on = threading.Event()

    class Slow:
        """Is slow to make the second batch, and makes no further one."""

        def __call__(self, input: Sequence[str]) -> list[Any]:
            batches.append(input)
            if len(batches) == 2:
                goes_on.wait()
            elif len(batches) > 2:
                raise ConnectionError
            return [[1.0, float(len(text))] for text in input]

        def embed_query(self, input: Sequence[str]) -> list[Any]:
            return [[1.0, 0.0] for _ in input]

    similarity = Similarity(Slow(), limit_s=0.01)
    texts = [f"text {number}" for number in range(10 * BATCH)]
    with pytest.raises(StoreError, match="not answered"):
        similarity.near("query", texts)
    goes_on.set()

    def are_cached(texts: Sequence[str]) -> bool:
        with suppress(StoreError):
            return similarity.near("query", texts) is not None
        return False

    deadline = time.monotonic() + 60
    while not are_cached(texts[: 2 * BATCH]):
        assert time.monotonic() < deadline, "what was made is kept"
    similarity.close()
    for thread in threading.enumerate():
        if thread.name.startswith("turnwise-similarity"):
            thread.join(60)
    assert not any(texts[2 * BATCH] in batch for batch in batches), "the third batch is not begun"


async def test_lists_of_one_user_have_indexes_of_their_own(analysed: list[str]) -> None:
    memory = LexicalMemory(InMemoryItems())
    await memory.remember(ANN, [item("1", "a walrus"), item("2", "a seal")])
    everything = await memory.items(ANN)
    empty_filter = ItemFilter(types=())
    for _ in range(3):
        assert await memory.ranked(ANN, "walrus", everything, limit=3)
        assert not await memory.ranked(ANN, "walrus", [], empty_filter, limit=3)
    assert len(analysed) == 2
    await memory.close()

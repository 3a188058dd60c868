"""`VectorMemory`: items found by their words and their vectors together."""

import asyncio
import itertools
import random
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from hypothesis import given, strategies as st

from memories.vector_memories import FlakyEmbedding, bytes_in, constant, free_port, item
from scale import share
from turnwise.errors import ConfigError, InvalidMemoryError, StoreError
from turnwise.memory.longterm import conformance as contract
from turnwise.memory.longterm.base import MemoryItem, Recall, Scope, Source, trouble_of
from turnwise.memory.longterm.index.locations import ChromaFolder, ChromaInMemory, ChromaPlace, ChromaServer
from turnwise.memory.longterm.index.vector_index import MAX_EMBEDDED, VectorIndex
from turnwise.memory.longterm.items.rows import Revision, key_of
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.items.sql_statements import Statements
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall import passages, user_index
from turnwise.memory.longterm.recall.analyzer import words
from turnwise.memory.longterm.recall.passages import MOST_VECTORS
from turnwise.memory.longterm.retention.deletion import erase
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.values.ids import new_id
from turnwise.testing.embedding import HashEmbedding

pytestmark = pytest.mark.usefixtures("restless")

ANN = Scope(user_id="ann")
USERS = ["user-1", "user-10", "user_1", "user%", "%", "_", "'", '"', "'; DROP TABLE x; --", "User-1", " user-1", "文"]


class MakeMemory:
    """Makes memories on the same data. `items` and `index` are those of the latest."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "memory.db"
        self._folder = ChromaFolder(folder / "chroma")
        self._name = f"test-{new_id()}"
        self._made: list[VectorMemory] = []

    def __call__(self, embedding: Any = None, place: ChromaPlace | None = None, **settings: Any) -> VectorMemory:
        self.index = VectorIndex(place or self._folder, embedding or HashEmbedding(), name=self._name)
        self.items = SQLItems(f"sqlite:///{self.file}")
        self._made.append(VectorMemory(self.items, self.index, **settings))
        return self._made[-1]

    async def close(self) -> None:
        for memory in self._made:
            await memory.close()

    async def lacking(self) -> int:
        """Return how many items have no vectors in the index."""
        return await self.items.lacking(self.index.embedding)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeMemory]:
    made = MakeMemory(tmp_path)
    yield made
    asyncio.run(made.close())


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_memories_obey_the_law_that(law: Law, make: MakeMemory) -> None:
    """Cases 50, 51, 52 and 54, as each law says."""
    asyncio.run(check_law(law, lambda: make(place=ChromaInMemory())))


async def ids(memory: VectorMemory, query: str, scope: Scope = ANN, **options: Any) -> list[str]:
    """Return the items that share words with a query, the best first."""
    return [recalled.id for recalled in await memory.recall(scope, query, **options) if recalled.words]


async def test_all_types_are_recalled_by_default(make: MakeMemory) -> None:
    memory = make()
    saved = [item(f"{kind}", f"The {kind} of the walrus", type=kind) for kind in MemoryType]
    assert set(await memory.remember(ANN, saved)) == {entry.id for entry in saved}
    for entry in saved:
        recalled = await memory.recall(ANN, entry.text)
        assert recalled[0] == entry
        assert 0 < (recalled[0].score or 0) <= 1
    assert await ids(memory, "walrus", limit=3, types=[MemoryType.SKILL]) == ["skill"]
    assert len(await ids(memory, "walrus", limit=3)) == 3
    assert await ids(memory, "walrus", limit=0) == []
    await memory.close()


async def test_an_item_with_the_same_text_keeps_its_vector(make: MakeMemory) -> None:
    memory = make(keep_s=0)
    await memory.remember(ANN, [item("dog", "My dog is called Max")])
    assert await make.lacking() == 0
    assert await memory.update(ANN, "dog", name="Max", expires_at=9e9)
    assert await make.lacking() == 0 and await make.items.dropped() == []
    assert (await memory.check()).missing == 0
    assert await memory.update(ANN, "dog", "My dog is called Rex")
    assert await ids(memory, "Rex") == ["dog"] and (await memory.check()).missing == 0
    await memory.close()


async def test_a_single_item_is_found_by_related_queries_only(make: MakeMemory) -> None:
    memory = make()
    assert await ids(memory, "anything") == []
    await memory.remember(ANN, [item("dog", "My dog is called Max")])
    assert await ids(memory, "What is my dog's name?") == ["dog"]
    assert await ids(memory, "dgo Max") == ["dog"]
    for query in ("Which capital has Mongolia?", "Who was it?", "", "?!", "🦀", "x" * 1_000_000):
        assert await ids(memory, query) == []
    await memory.close()


async def test_a_named_speaker_comes_first(make: MakeMemory) -> None:
    memory = make()
    texts = ["Ann: I bought a violin", "Bob: I bought a violin", "Ann: how nice", "Bob: it rains"]
    await memory.remember(ANN, [item(str(number), text) for number, text in enumerate(texts)])
    assert (await ids(memory, "Which violin does Ann have?"))[0] == "0"
    assert (await ids(memory, "Which violin does Bob have?"))[0] == "1"
    await memory.close()


async def test_a_hundred_users_are_separate(make: MakeMemory) -> None:
    memory = make()
    users = [*USERS, *(f"user-{number}" for number in range(100, 188))]
    await memory.remember_many([(Scope(user_id=user), [item("1", f"{user} has a walrus")]) for user in users])
    together = await memory.recall_many([Recall(scope=Scope(user_id=user), query="walrus") for user in users])
    assert [[entry.text for entry in result] for result in together] == [[f"{user} has a walrus"] for user in users]
    assert await ids(memory, "walrus", Scope(user_id="user")) == []
    assert await memory.forget(Scope(user_id="user-1")) == 1
    assert await ids(memory, "walrus", Scope(user_id="user-1")) == []
    assert await ids(memory, "walrus", Scope(user_id="user-10")) == ["1"]
    await memory.close()


async def test_items_of_others_do_not_change_scores(make: MakeMemory) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "a walrus and a lighthouse"), item("2", "a walrus")])
    before = await memory.recall(ANN, "walrus lighthouse")
    await memory.remember(Scope(user_id="bob"), [item(str(number), "lighthouse") for number in range(50)])
    after = await memory.recall(ANN, "walrus lighthouse")
    assert [(entry.id, entry.score) for entry in before] == [(entry.id, entry.score) for entry in after]
    await memory.close()


async def test_a_restart_keeps_items_and_vectors(make: MakeMemory) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "a walrus", source=Source(session_id="s", turn_index=1))])
    before = await memory.recall(ANN, "walrus")
    await memory.close()
    memory = make()
    after = await memory.recall(ANN, "walrus")
    assert [(entry, entry.score) for entry in before] == [(entry, entry.score) for entry in after]
    assert (await memory.check()).ok
    await memory.close()


async def test_updates_and_deletions_reach_words_and_vectors(make: MakeMemory) -> None:
    memory = make(FlakyEmbedding())
    await memory.remember(ANN, [item("1", "a walrus", created_at=7.0), item("2", "a bassoon")])
    assert await memory.update(ANN, "1", "a penguin", type=MemoryType.SKILL)
    assert not await memory.update(ANN, "missing", "text")
    assert not await memory.update(Scope(user_id="bob"), "1", "text")
    assert await ids(memory, "walrus") == []
    (recalled,) = await memory.recall(ANN, "penguin")
    assert (recalled.type, recalled.created_at) == (MemoryType.SKILL, 7.0)
    assert recalled.updated_at
    assert await memory.forget(Scope(user_id="bob"), ["1", "2"]) == 0
    assert await memory.forget(ANN, ["1", "missing"]) == 1
    assert await ids(memory, "penguin") == []
    health = await memory.check()
    assert (health.ok, health.count, health.strays) == (True, 1, 0)
    await memory.remember(ANN, [item("1", "a penguin")])
    assert await ids(memory, "penguin") == []
    await memory.close()


async def test_the_same_id_is_embedded_and_kept_once(make: MakeMemory) -> None:
    memory = make()
    for _ in range(2):
        assert set(await memory.remember(ANN, [item("1", "a walrus"), item("1", "a penguin")])) == {"1"}
    assert await ids(memory, "penguin") == []
    assert await ids(memory, "walrus") == ["1"]
    assert (await memory.check()).count == 1
    with pytest.raises(InvalidMemoryError):
        await memory.remember(ANN, [item("2", " ")])
    await memory.close()


async def test_while_embeddings_fail_items_are_saved_and_found_by_words(make: MakeMemory) -> None:
    embedding = FlakyEmbedding()
    memory = make(embedding, pause_s=0.0)
    await memory.remember(ANN, [item("1", "a walrus")])
    embedding.down = True
    await memory.remember(ANN, [item("2", "a lighthouse")])
    assert "down" in (memory.trouble or "")
    assert await ids(memory, "lighthouse") == ["2"]
    assert await memory.forget(ANN, ["1"]) == 1
    with pytest.raises(StoreError):
        await memory.catch_up()
    embedding.down = False
    assert await memory.catch_up() == 0
    assert memory.trouble is None
    health = await memory.check()
    assert (health.ok, health.count) == (True, 1)
    await memory.close()


async def has_caught_up(memory: VectorMemory) -> bool:
    """Return whether all items have vectors now; on a busy machine the calls that hung take a while to end."""
    try:
        return await memory.catch_up() == 0
    except StoreError:
        return False


async def test_while_embeddings_hang_items_are_saved_and_found_by_words(make: MakeMemory) -> None:
    """Case 55."""
    embedding = FlakyEmbedding()
    memory = make(embedding, embed_s=0.2, query_s=0.1, pause_s=0.0)
    embedding.goes_on.clear()
    for number in range(3):
        assert await memory.remember(ANN, [item(f"{number}", f"Walrus {number} is fed")])
        assert await ids(memory, f"walrus {number}") and "not answered within 0.1 s" in str(memory.trouble)
    with pytest.raises(StoreError, match=r"not answered within 0\.2 s"):
        await memory.catch_up()
    embedding.goes_on.set()
    async with asyncio.timeout(60):
        while not await has_caught_up(memory):
            pass
    assert memory.trouble is None and (await memory.check()).ok
    await memory.close()


async def test_only_users_without_cached_vectors_are_affected_by_an_outage_of_chroma(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make(pause_s=0.0)
    await memory.remember(ANN, [item("1", "a walrus")])
    bob = Scope(user_id="bob")
    await memory.remember(bob, [item("1", "a walrus")])
    await memory.recall(ANN, "walrus")
    await memory.flush()

    def away(keys: object) -> None:
        raise StoreError("Chroma is away")

    monkeypatch.setattr(make.index, "get", away)
    requests = [Recall(scope=scope, query="walrus") for scope in (ANN, bob)]
    results = await memory.recall_many(requests)
    assert [trouble_of(result) for result in results] == [None, "Chroma is away"] and all(results)
    await memory.close()


async def test_after_a_failure_recalls_do_not_wait_for_vectors_for_a_while(make: MakeMemory) -> None:
    embedding = FlakyEmbedding()
    memory = make(embedding, pause_s=60.0)
    embedding.down = True
    await memory.remember(ANN, [item("1", "a walrus")])
    for _ in range(3):
        assert await ids(memory, "walrus") == ["1"]
    assert len(embedding.calls) == 1
    await memory.close()


async def test_while_chroma_is_down_items_are_saved_and_found_by_words(make: MakeMemory, tmp_path: Path) -> None:
    memory = make(place=ChromaServer(host="127.0.0.1", port=free_port()), pause_s=0.0)
    await memory.remember(ANN, [item("1", "a walrus")])
    await memory.flush()
    assert memory.trouble
    assert await ids(memory, "walrus") == ["1"]
    assert await memory.forget(ANN) == 1
    await memory.close()


async def test_another_embedding_function_or_dimension_needs_a_rebuild(make: MakeMemory) -> None:
    memory = make(constant(4))
    await memory.remember(ANN, [item(str(number), f"walrus {number}") for number in range(600)])
    await memory.close()
    memory = make(constant(5))
    await memory.recall(ANN, "walrus")
    with pytest.raises(ConfigError, match="rebuild"):
        await memory.remember(ANN, [item("new", "a walrus")])
    with pytest.raises(ConfigError, match="rebuild"):
        await memory.recall(ANN, "walrus")
    assert await memory.rebuild() == 600
    assert len(await ids(memory, "walrus", limit=20)) == 20
    await memory.close()
    memory = make()
    assert await memory.catch_up(limit=1000) == 0
    assert await ids(memory, "walrus 77", limit=1) == ["77"]
    assert (await memory.check()).ok
    await memory.close()


async def test_a_scrub_leaves_no_forgotten_text_in_any_file(
    make: MakeMemory, tmp_path: Path, small_batches: int
) -> None:
    many = 2500 // small_batches
    memory = make(FlakyEmbedding(64))
    bob = Scope(user_id="bob-the-forgotten")
    await memory.remember(bob, [item(f"{number}", f"xylophone number {number}") for number in range(many)])
    await memory.remember(ANN, [item("1", "a lighthouse")])
    await memory.flush()
    key = key_of(bob.user_id, "7", "xylophone number 7").encode()

    def held() -> bytes:
        return bytes_in(tmp_path)

    assert b"xylophon" in held() and key in held()
    assert await memory.forget(bob) == many
    await memory.scrub()
    assert await ids(memory, "lighthouse") == ["1"]
    assert (await memory.check()).ok
    await memory.close()
    assert b"xylophon" not in held()
    assert b"bob-the-forgotten" not in held()
    assert key not in held()


async def test_concurrent_recalls_share_one_call_of_the_embedding_function(make: MakeMemory) -> None:
    embedding = FlakyEmbedding()
    memory = make(embedding)
    scopes = [Scope(user_id=f"user-{number}") for number in range(20)]
    await memory.remember_many([(scope, [item("1", "a walrus"), item("2", "lighthouse")]) for scope in scopes])
    alone = [await memory.recall(scope, "walrus") for scope in scopes]
    embedding.calls.clear()
    requests = [Recall(scope=scope, query="walrus") for scope in scopes]
    together = await memory.recall_many(requests)
    assert [[(entry.id, entry.score) for entry in result] for result in together] == [
        [(entry.id, entry.score) for entry in result] for result in alone
    ]
    assert embedding.calls == [20]
    assert await memory.recall_many([]) == []
    await memory.close()


@pytest.mark.parametrize("together", [20, 10_000])
async def test_a_batch_gives_what_its_recalls_give_alone(
    make: MakeMemory, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where items have names or several passages, and where the batch is ranked in parts."""
    monkeypatch.setattr("turnwise.memory.longterm.vector.TOGETHER", together)
    memory, rand = make(), random.Random(8)
    said = ["Anna sails to Oslo", "Who sails?", "the red boat leaks", "my dog Rex sleeps", "We met in May. " * 90, "ok"]
    saves = [
        (
            Scope(user_id=f"user-{number}"),
            [item(str(place), rand.choice(said), name=rand.choice([None, None, "Rex"])) for place in range(number)],
        )
        for number in range(12)
    ]
    await memory.remember_many(saves)
    asked = ["When does Anna sail?", "Is it red? And who is Rex!", "Thanks! The boat, is it dry?", "xylophone", ""]
    requests = [
        Recall(scope=scope, query=query, limit=limit, is_reminder=limit == 3, per_category=limit == 1)
        for scope, _ in saves
        for query in asked
        for limit in (1, 3, 10)
    ]
    rand.shuffle(requests)
    alone = [(await memory.answer_many([request]))[0] for request in requests]
    assert await memory.answer_many(requests) == alone
    scores = [[entry.score for entry in answer.items] for answer in await memory.answer_many(requests)]
    assert scores == [[entry.score for entry in answer.items] for answer in alone]
    assert sum(map(bool, scores)) > len(requests) // 2


class QuickEmbedding(HashEmbedding):
    """Knows which threads have called it."""

    is_quick = True

    def __init__(self) -> None:
        super().__init__(64)
        self.callers: list[str] = []

    def __call__(self, input: Sequence[str]) -> list[Any]:
        self.callers.append(threading.current_thread().name)
        return super().__call__(input)


class SubclassOfQuick(QuickEmbedding):
    """Says nothing about how quick it is."""


@pytest.mark.parametrize(("kind", "is_on_loop"), [(QuickEmbedding, True), (SubclassOfQuick, False)])
async def test_queries_are_embedded_by_the_loop_only_where_the_class_says_it_is_quick(
    make: MakeMemory, kind: type[QuickEmbedding], is_on_loop: bool
) -> None:
    embedding = kind()
    memory = make(embedding)
    await memory.remember(ANN, [item("1", "a walrus")])
    assert await ids(memory, "walrus") == ["1"]
    embedding.callers.clear()
    assert await ids(memory, "walrus") == ["1"]
    assert {name == threading.current_thread().name for name in embedding.callers} == {is_on_loop}
    embedding.callers.clear()
    assert await ids(memory, "walrus " * 400) == ["1"]  # which takes longer
    assert threading.current_thread().name not in embedding.callers


async def test_an_error_of_a_quick_embedding_leaves_a_recall_by_words(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = QuickEmbedding()
    memory = make(embedding)
    await memory.remember(ANN, [item("1", "a walrus")])
    monkeypatch.setattr(embedding, "embed_query", None)
    recall = await memory.recall(ANN, "walrus")
    assert [entry.id for entry in recall] == ["1"]
    assert "embedding function" in str(trouble_of(recall))


async def test_a_small_cache_has_one_user_and_finds_all_items(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make(cache_bytes=1)
    cached_users: list[list[str]] = []
    load = make.items.load

    async def noted(users: Collection[str], revisions: Mapping[str, Revision], *args: Any, **options: Any) -> Any:
        cached_users.append(list(revisions))
        return await load(users, revisions, *args, **options)

    scopes = [Scope(user_id=f"user-{number}") for number in range(5)]
    for scope in scopes:
        await memory.remember(scope, [item("1", "a walrus")])
        assert await ids(memory, "walrus", scope) == ["1"]
    monkeypatch.setattr(make.items, "load", noted)
    assert await ids(memory, "walrus", scopes[-1]) == ["1"] and not cached_users, "the last one is cached"
    for scope in scopes[-2::-1]:
        cached_users.clear()
        assert await ids(memory, "walrus", scope) == ["1"]
        assert cached_users[0] == [], "no other is"
    await memory.close()


async def test_concurrent_readers_and_writers_agree_in_the_end(make: MakeMemory) -> None:
    memory = make()
    chance = random.Random(5)

    async def act(number: int) -> None:
        scope = Scope(user_id=f"user-{number % 3}")
        await memory.remember(scope, [item(str(number), f"walrus {number}")])
        await memory.recall(scope, f"walrus {chance.randrange(60)}")
        if number % 4 == 0:
            assert await memory.forget(scope, [str(number)]) == 1

    await asyncio.gather(*map(act, range(60)))
    await memory.catch_up()
    for number in range(60):
        recalled_ids = await ids(memory, f"walrus {number}", Scope(user_id=f"user-{number % 3}"), limit=1)
        assert (recalled_ids == [str(number)]) == (number % 4 != 0)
    health = await memory.check()
    assert (health.ok, health.count, health.strays) == (True, 45, 0)
    await memory.close()


def test_any_text_and_any_query_is_accepted(make: MakeMemory) -> None:
    memory, users = make(place=ChromaInMemory()), itertools.count()

    async def use(query: str, texts: list[str]) -> None:
        items_with_text = [item(str(number), text) for number, text in enumerate(texts) if text.strip()]
        scope = Scope(user_id=str(next(users)))
        await memory.remember(scope, items_with_text)
        assert memory.trouble is None
        for entry in items_with_text:
            await memory.recall(scope, entry.text)
        assert len(await memory.recall(scope, query)) <= len(items_with_text)

    @given(query=st.text(max_size=100), texts=st.lists(st.text(max_size=60), min_size=1, max_size=4))
    def check(query: str, texts: list[str]) -> None:
        runner.run(use(query, texts))

    with asyncio.Runner() as runner:
        check()
        runner.run(memory.close())


async def test_forgotten_items_lose_their_vectors_of_all_embedding_functions(
    make: MakeMemory,
) -> None:
    memory = make(FlakyEmbedding(64, "before"))
    await memory.remember(ANN, [item("1", "a walrus"), item("2", "a lighthouse")])
    await memory.close()
    memory = make(FlakyEmbedding(128, "after"))
    while await memory.catch_up():
        pass
    keys = await memory.keys(ANN, ["1"])
    erased = await erase(memory, ANN, ["1"])
    assert (erased.items, erased.verified, erased.why) == (1, True, None)
    assert await ids(memory, "lighthouse") == ["2"]
    await memory.close()
    before = make(FlakyEmbedding(64, "before"))
    assert len(make.index.keys()) == 1 and not make.index.get(keys)
    await before.close()


async def test_new_vectors_are_used_at_once_and_written_to_chroma_in_batches(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make(constant(4))
    counts: list[int] = []
    add = make.index.add

    def counted(keys: Any, *args: Any, **options: Any) -> None:
        counts.append(len(keys))
        add(keys, *args, **options)

    monkeypatch.setattr(make.index, "add", counted)
    for number in range(5):
        await memory.remember(ANN, [item(f"{number}", f"walrus {number}")])
    recalled = await memory.recall(ANN, "an embedding that finds an elephant and is the same for all")
    assert sorted(item.id for item in recalled) == list("01234")
    assert not counts and await make.lacking() == 5
    assert await memory.forget(ANN, ["0"]) == 1
    await memory.flush()
    assert counts == [5] and await make.lacking() == 0
    health = await memory.check()
    assert (health.ok, health.count, health.strays) == (True, 4, 0)
    await memory.close()


async def test_vectors_lost_by_a_kill_are_made_again(make: MakeMemory) -> None:
    killed = make(constant(4), keep_s=1e6)  # its process is lost before Chroma is given the vectors
    await killed.remember(ANN, [item("1", "a walrus")])
    await make.items.close()
    make.index.close()
    memory = make(constant(4))
    assert (await memory.check()).count == 0
    assert await memory.catch_up() == 0
    health = await memory.check()
    assert (health.ok, health.count) == (True, 1)
    await memory.close()


STORY = "user: " + " ".join(f"Sentence {number} of this long story says nothing of note." for number in range(80))


class Spotting:
    """Gives one vector to all texts about one subject, and another vector to all others."""

    def __call__(self, input: Any) -> Any:
        return [[1.0, 0.0] if "crab" in text or "crustacean" in text else [0.0, 1.0] for text in input]


async def test_a_passage_deep_in_a_long_item_is_found_and_forgotten_with_it(make: MakeMemory) -> None:
    memory = make(Spotting())
    deep = STORY + " Somewhere there was a crab." + STORY
    assert len(deep) > MAX_EMBEDDED
    lighthouses = [item(f"{number}", f"A lighthouse, number {number}") for number in range(20)]
    await memory.remember(ANN, [item("deep", deep), *lighthouses])
    for _ in range(2):
        (recalled, *_) = await memory.recall(ANN, "Which edible crustaceans inhabit saltwater, crustacean-wise?")
        assert recalled.id == "deep" and "there was a crab" in (recalled.passage or "")
        await memory.close()
        memory = make(Spotting())  # where the vectors are those that Chroma has
    keys = await memory.keys(ANN, ["deep"])
    assert len(keys) > 10 and len(make.index.get(keys)) == len(keys) - 1  # none is of the item as a whole
    erased = await erase(memory, ANN, ["deep"])
    assert (erased.items, erased.verified, erased.why) == (1, True, None)
    assert not make.index.get(keys) and len(make.index.keys()) == len(lighthouses)
    await memory.close()


WALRUSES = "Walruses said it. " * 30_000
HUGE = {
    "words": f"{WALRUSES} The lighthouse keeper is Quint. {WALRUSES}",
    "one word": "x" * 1_000_000,
    "punctuation": "?!.,;:- " * 20,
    "much punctuation": "?!" * 50_000,
    "emoji": "🦀🦭" * 20,
    "many emoji": "🦀" * 50_000,
    "nothing one can see": "\u200b\u200d\ufeff" * 50,
}


async def test_items_of_any_size_and_without_words_hide_no_others(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (passages, user_index):
        monkeypatch.setattr(module, "MOST_VECTORS", MOST_VECTORS // 32)
    memory = make()
    huge_items = [item(name, text) for name, text in HUGE.items()]
    assert set(await memory.remember(ANN, huge_items)) == {*HUGE}
    await memory.remember(ANN, [item("dog", "My dog is called Max")])
    for query in ("What is my dog called?", "My dgo is called Max"):
        assert (await ids(memory, query))[0] == "dog"
    (recalled, *_) = await memory.recall(ANN, "Who is the lighthouse keeper?")
    assert recalled.id == "words" and "Quint" in (recalled.passage or "") and len(recalled.passage or "") < 10_000
    for name in ("punctuation", "emoji", "much punctuation", "many emoji"):
        assert len(await memory.recall(ANN, HUGE[name])) <= len(HUGE)
    assert await make.lacking() == 0 or await memory.catch_up() == 0
    health = await memory.check()
    assert health.ok and health.count <= len(HUGE) * MOST_VECTORS // 32 + 1
    assert await memory.forget(ANN, [*HUGE]) == len(HUGE)
    while await memory.catch_up():
        pass
    assert len(make.index.keys()) == 1 and await ids(memory, "dog") == ["dog"]
    await memory.close()


@pytest.mark.by_turns
async def test_a_question_of_ten_megabytes_has_a_bounded_answer(make: MakeMemory) -> None:
    embedding = FlakyEmbedding()
    memory = make(embedding)
    await memory.remember(ANN, [item("dog", "My dog is called Max"), item("cat", "My cat is called Tom")])
    for query in ("padding " * 1_250_000, "?!" * 5_000_000, "🦀" * 2_500_000, "x" * 10_000_000):
        assert await ids(memory, query) == []
        recalled = await memory.recall(ANN, f"What is my dog called?\n{query}")
        assert recalled[0].id == "dog" and len(recalled) <= 2 and trouble_of(recalled) is None
    await memory.close()


async def test_a_change_of_the_dimension_loses_no_item(make: MakeMemory) -> None:
    memory = make(constant(4), keep_s=0)
    await memory.remember(ANN, [item("1", "a walrus")])
    await memory.close()
    memory = make(constant(5), keep_s=0, pause_s=0.0)
    await memory.remember(ANN, [item("2", "a walrus too")])  # Chroma was not asked yet, so nobody knows
    assert "4: rebuild() computes all vectors again" in (memory.trouble or "")
    with pytest.raises(ConfigError, match="rebuild"):
        await memory.remember(ANN, [item("3", "a walrus as well")])
    assert await memory.rebuild() == 2
    assert await ids(memory, "walrus") == ["1", "2"] and (await memory.check()).ok
    await memory.close()


async def test_a_rebuild_is_refused_while_the_embedding_function_is_not_ready(make: MakeMemory) -> None:
    embedding = FlakyEmbedding()
    memory = make(embedding)
    await memory.remember(ANN, [item("1", "a walrus")])
    await memory.flush()
    embedding.is_ready = False
    with pytest.raises(StoreError, match="not ready: no vector was deleted"):
        await memory.rebuild()
    assert len(await asyncio.to_thread(make.index.keys)) == 1
    embedding.is_ready = True
    assert await memory.rebuild() == 1 and (await memory.check()).ok
    await memory.close()


@pytest.mark.soak
async def test_new_items_of_a_user_with_many_items_cost_only_themselves(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    analysed_count, count = 0, share(100_000)

    def counted(text: str) -> list[str]:
        nonlocal analysed_count
        analysed_count += 1
        return words(text)

    monkeypatch.setattr(user_index, "words", counted)
    memory = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/many.db"), embedding=None)
    rng = random.Random(1)
    items: list[MemoryItem] = []
    for first in range(0, count, 5_000):
        texts = [
            f"Note k{number}x tells of {' '.join(rng.choices(NOUNS, k=12))}" for number in range(first, first + 5_000)
        ]
        items = [
            item(str(first + number), text, source=Source(session_id=str(number))) for number, text in enumerate(texts)
        ]
        await memory.remember(ANN, items)
    assert await ids(memory, "What does note k3777x tell of?", limit=1) == ["3777"]
    await memory.remember(ANN, [item("new", "A walrus has come")])
    assert await ids(memory, "Which walrus came?", limit=1) == ["new"]
    assert analysed_count == count + 1, "nothing is made anew"
    assert user_index.index_of(items).bytes < len(items) * 5_000
    assert await ids(memory, " ".join(NOUNS)) and len(await memory.recall(ANN, "note", limit=10)) <= 10
    await memory.close()


NOUNS = [
    f"{first}{second}"
    for first in ("stone", "water", "iron", "summer", "night")
    for second in ("bridge", "mill", "road")
]


async def test_a_recall_of_cached_items_does_not_wait_for_writes(make: MakeMemory) -> None:
    memory, items, other_memory = make(), make.items, make()
    await memory.remember(ANN, [item("1", "Her walrus is called Antje")])
    assert await ids(memory, "What is the walrus called?") == ["1"]
    with closing(sqlite3.connect(make.file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(items.put(Scope(user_id="bob"), [item("1", "Her walrus is called Bella")]))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await ids(memory, "Who is called Antje?") == ["1"]
        assert not write.done()
        writer.execute("ROLLBACK")
    assert await write == ["1"]
    # What another process has written meanwhile is found too.
    await other_memory.remember(ANN, [item("2", "Her seal is called Robbie")])
    assert (await ids(memory, "Who is called Robbie?"))[0] == "2"
    assert await other_memory.forget(ANN, ["1"]) == 1
    assert "1" not in await ids(memory, "Who is called Antje?")
    await other_memory.close()


async def test_items_beside_a_profile_are_as_many_as_requested(make: MakeMemory) -> None:
    memory = make()
    await memory.remember(ANN, [item(str(number), f"Her walrus number {number} eats fish") for number in range(12)])
    for number in range(6):
        assert await memory.pin(ANN, str(number), True)
    for limit in (0, 1, 4, 20):
        profiled = await memory.remind(ANN, "What does her walrus eat?", limit=limit)
        pinned = {entry.id for entry in profiled.profile}
        assert len(pinned) == 6
        assert sum(entry.id not in pinned for entry in profiled.items) == min(limit, 6)
        assert sum(entry.id in pinned for entry in profiled.items) == min(limit, 6)


async def test_recalls_that_are_the_first_at_once_open_one_connection_for_revisions(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "Her walrus is called Antje")])
    opened: list[object] = []
    connect = sqlite3.dbapi2.connect

    def noted(*args: Any, **options: Any) -> Any:
        opened.append(args)
        return connect(*args, **options)

    monkeypatch.setattr(sqlite3.dbapi2, "connect", noted)
    results = await asyncio.gather(*(make.items.load(["ann"], {}) for _ in range(8)))
    assert len(results) == 8
    assert await make.items.load(["ann"], {}) and len(opened) == 2, "one for loads, one for revisions"
    await memory.close()
    assert str(make.file) not in [file.path for file in psutil.Process().open_files()]


async def test_vectors_that_are_made_later_are_used_by_the_next_recall(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = FlakyEmbedding()
    memory = make(embedding, pause_s=0, keep_s=0)
    embedding.down = True
    await memory.remember(ANN, [item("1", "Her walrus is called Antje")])
    assert trouble_of(await memory.recall(ANN, "What is the walrus called?"))
    embedding.down = False
    await memory.catch_up()
    keys_read: list[list[str]] = []
    get = make.index.get

    def noted(keys: Sequence[str]) -> Any:
        keys_read.append([*keys])
        return get(keys)

    monkeypatch.setattr(make.index, "get", noted)
    for _ in range(2):
        assert await ids(memory, "Who is called Antje?") == ["1"]
    assert keys_read == [await memory.keys(ANN)], "read once"
    await memory.close()


async def test_a_revision_is_read_again_once_anything_was_written(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "a walrus")])
    assert await ids(memory, "walrus") == ["1"]
    revision, users_read = Statements.revision, list[str]()

    def counted(statements: Statements, user_id: str) -> Revision:
        users_read.append(user_id)
        return revision(statements, user_id)

    monkeypatch.setattr(Statements, "revision", counted)
    assert await ids(memory, "walrus") == await ids(memory, "walrus") == ["1"]
    assert users_read == []
    another = make()
    await another.remember(ANN, [item("2", "another walrus")])
    assert sorted(await ids(memory, "walrus")) == ["1", "2"]
    await another.forget(ANN, ["1"])
    assert await ids(memory, "walrus") == ["2"]
    await another.remember(Scope(user_id="bob"), [item("3", "a walrus of his")])
    assert await ids(memory, "walrus") == ["2"]
    assert await ids(memory, "walrus", Scope(user_id="bob")) == ["3"]


async def test_a_recall_of_a_user_whose_index_is_current_reads_the_revision_once(
    make: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "Her walrus is called Antje")])
    assert await ids(memory, "walrus") == ["1"]
    users_read: list[list[str]] = []
    revisions = make.items.revisions

    def counted(users: Collection[str]) -> dict[str, Revision] | None:
        users_read.append([*users])
        return revisions(users)

    monkeypatch.setattr(make.items, "revisions", counted)
    assert await ids(memory, "walrus") == ["1"]
    assert (await memory.remind(ANN, "What is my walrus called?")).items
    assert users_read == [["ann"]] * 2
    await memory.close()

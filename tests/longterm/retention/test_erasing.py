"""Verified deletion: forgotten text is in no file, and a search of what the deletion wrote confirms it; case 54."""

import asyncio
import json
import pickle
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from memories.extraction_models import Model, told
from memories.vector_memories import FlakyEmbedding, bytes_in, item
from scale import share
from turnwise.errors import InvalidInputError
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index.locations import ChromaFolder, ChromaInMemory, ChromaPlace
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items import rows, sql_statements
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.retention import byte_search
from turnwise.memory.longterm.retention.byte_search import Found
from turnwise.memory.longterm.retention.deletion import Erasing, Erasure, Scrubbing, erase
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.ids import new_id
from turnwise.testing.embedding import HashEmbedding

pytestmark = pytest.mark.usefixtures("restless")

Make = Callable[[], LongTermMemory]

ANN, BOB = Scope(user_id="ann"), Scope(user_id="bob")
LONG = "\n".join(
    f"Dear diary, page {number}: the {word} quokka said “hüpf!” to me."
    for number, word in enumerate(
        f"{first}{second}"
        for first in ("xylo", "zyg", "quiz", "jinx")
        for second in ("phone", "ote", "zical", "ed") * 20
    )
)


KINDS = ("lexical", "extractive", "vector")


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes memories on the same files."""
    name = f"test-{new_id()}"

    def make() -> LongTermMemory:
        if request.param == "vector":
            index = VectorIndex(ChromaFolder(tmp_path / "chroma"), HashEmbedding(), name=name)
            return VectorMemory(SQLItems(f"sqlite:///{tmp_path}/memory.db"), index)
        facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
        return LexicalMemory(facts) if request.param == "lexical" else ExtractiveMemory(Model(), facts)

    return make


@pytest.fixture(scope="module")
def searcher() -> Iterator[ProcessPoolExecutor]:
    """A process that searches files."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def one_searcher(searcher: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """All searches are made by one process. With `make races`, and without this fixture, each starts its own."""

    def search(pages: Mapping[Path, Collection[int] | None], texts: Collection[str]) -> Found:
        of_files = {str(file): numbers for file, numbers in pages.items()}
        return searcher.submit(byte_search.search_files, of_files, texts).result()

    if share(20) < 20:
        monkeypatch.setattr(byte_search, "search", search)


def vector_memory(folder: Path, place: ChromaPlace) -> VectorMemory:
    return VectorMemory(
        SQLItems(f"sqlite:///{folder}/memory.db"), VectorIndex(place, HashEmbedding(), name=f"test-{new_id()}")
    )


def of(session: str, turn: int, id: str, text: str, **more: Any) -> MemoryItem:
    return item(id, text, source=Source(session_id=session, turn_index=turn), **{"created_at": 1.0, **more})


ITEMS = [
    of("s", 1, "1", "Her password hint is zyzzyva.", topic="kerfuffle"),
    of("s", 1, "2", "Fährt “gern” nach Schlumpfhausen.", superseded_at=5.0, superseded_by="3"),
    of("s", 2, "3", "休暇はシュルンプ村で取る。"),
    of("t", 1, "4", LONG),
]
WORDS = {
    "1": (b"zyzzyva", b"kerfuffle"),
    "2": (b"Schlumpfhausen", b"Schlumpf"),
    "3": ("シュルンプ".encode(), json.dumps("シュルンプ")[1:-1].encode()),
    "4": (b"jinxzical", b"xylophone"),
}


WAYS: dict[str, tuple[Scope, list[str] | None, int | None, str]] = {
    "user": (ANN, None, None, "1234"),
    "session": (Scope(user_id="ann", session_id="s"), None, None, "123"),
    "turn": (Scope(user_id="ann", session_id="s", agent="a"), None, 1, "12"),
    "ids": (ANN, ["4", "3", "none"], None, "34"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("one_searcher")
async def test_forgotten_text_is_in_no_file(make: Make, tmp_path: Path, way: str) -> None:
    scope, ids, turn, deleted_ids = WAYS[way]

    def remaining() -> set[str]:
        contents = bytes_in(tmp_path)
        return {name for name, words in WORDS.items() if any(word in contents for word in words)}

    memory = make()
    assert isinstance(memory, Erasing)
    for user in ("bob", "cid"):
        await memory.remember(Scope(user_id=user), [item("1", f"{user} keeps a lighthouse."), item("2", "A kettle.")])
    await memory.remember(ANN, ITEMS)
    assert remaining() == set("1234")
    erased = await erase(memory, scope, ids, turn_index=turn)
    assert (erased.items, erased.found, erased.verified, erased.why) == (len(deleted_ids), (), True, None)
    assert erased.files >= 1
    assert remaining() == set("1234") - set(deleted_ids)
    for user in ("bob", "cid"):
        recalled, *_ = await memory.recall(Scope(user_id=user), "lighthouse")
        assert recalled.text == f"{user} keeps a lighthouse."
    await memory.close()
    assert remaining() == set("1234") - set(deleted_ids)
    memory = make()
    await memory.remember(ANN, ITEMS)
    for entry in ITEMS:
        recalled_ids = {recalled.id for recalled in await memory.recall(ANN, entry.text[:60], as_of=3.0)}
        assert (entry.id in recalled_ids) == (entry.id not in deleted_ids)
    await memory.close()


@pytest.mark.parametrize(("ids", "session"), [(None, "s"), (["1", "2"], None)], ids=["session", "ids"])
@pytest.mark.usefixtures("one_searcher")
async def test_a_user_without_any_item_left_leaves_no_id_in_any_file(
    make: Make, tmp_path: Path, ids: list[str] | None, session: str | None
) -> None:
    """However the last items were deleted."""
    user = Scope(user_id="quixotrix")
    memory = make()
    await memory.remember(BOB, [of("s", 1, "1", "bob keeps a lighthouse.")])
    for number in range(2):
        await memory.remember(
            user, [of("s", number, name, f"A kettle number {number}.") for name in (f"{number}1", f"{number}2")]
        )
        assert user.user_id.encode() in bytes_in(tmp_path)
        chosen = ids and [f"{number}{name}" for name in ids]
        assert await memory.forget(Scope(user_id=user.user_id, session_id=session), chosen) == 2
        assert user.user_id.encode() not in bytes_in(tmp_path)
    await memory.close()


@pytest.mark.usefixtures("one_searcher")
async def test_texts_that_other_items_contain_may_stay(make: Make) -> None:
    """Whole or as a part of a longer text; names of tables and columns do not count either."""

    memory = make()
    own_items = [
        item("1", "The zyzzyva is a weevil.", topic="type"),
        item("2", "quagga", topic="created_at"),
        item("3", "a", topic="collections"),
        item("4", "The quick brown fox\njumps over a very lazy dog.", topic="superseded_by"),
    ]
    other_items = [
        item("1", "Did you know? The zyzzyva is a weevil."),
        item("2", "a quagga is a zebra"),
        item("4", "He wrote: jumps over a very lazy dog."),
    ]
    await memory.remember(ANN, own_items)
    await memory.remember(BOB, other_items)
    erased = await erase(memory, ANN)
    assert (erased.items, erased.found, erased.verified) == (4, (), True)
    assert (await memory.recall(BOB, "zyzzyva weevil"))[0].id == "1"
    second = await erase(memory, BOB)
    assert (second.items, second.verified) == (3, True)
    assert (await erase(memory, BOB)).items == 0
    await memory.close()


RESTS = [
    "The zyzzyva is a “weevil”.".encode(),
    json.dumps("The zyzzyva is a “weevil”.").encode(),
    json.dumps({"a": "The zyzzyva is a “weevil”."}, ensure_ascii=False).encode(),
    LONG[2450:2700].encode(),  # a part of it, as on a page
    json.dumps(LONG.splitlines()[77]).encode(),
    b"kerfuffle",
]


def leave_copy(file: Path, text: bytes) -> None:
    """Leave a deleted row with this text in a page of items, as SQLite does when it moves a row to another page."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TEMP TABLE copy AS SELECT * FROM turnwise_items ORDER BY row DESC LIMIT 1")
        connection.execute("UPDATE copy SET row = row + 1, digest = 'copy', text = ?", (text,))
        connection.execute("INSERT INTO turnwise_items SELECT * FROM copy")
        connection.execute("DELETE FROM turnwise_items WHERE digest = 'copy'")


def written(file: Path) -> bytes:
    """Return the bytes of a SQLite file after its log is written into it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.read_bytes()


@pytest.mark.parametrize(("make", "rest"), list(zip(KINDS * 2, RESTS, strict=True)), indirect=["make"])
@pytest.mark.usefixtures("one_searcher")
async def test_a_copy_in_a_written_page_is_found_and_overwritten(
    make: Make, tmp_path: Path, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every form in which a file stores texts."""
    memory = make()
    assert isinstance(memory, Erasing)
    rewritten: list[Any] = []
    scrub = type(memory).scrub

    async def noted(self: Any, files: Collection[str] | None = None) -> None:
        rewritten.append(files)
        await scrub(self, files)

    monkeypatch.setattr(type(memory), "scrub", noted)
    await memory.remember(ANN, [item("4", LONG)])
    await memory.remember(ANN, [item("1", "The zyzzyva is a “weevil”.", topic="kerfuffle")])
    await memory.remember(BOB, [item("1", "A lighthouse.")])
    main = memory.paths()[0]
    before = written(main).count(rest)
    leave_copy(main, rest)
    assert written(main).count(rest) > before
    erased = await erase(memory, ANN)
    assert (erased.items, erased.found, erased.verified, erased.why) == (2, (), True, None)
    (files,) = rewritten
    assert str(main) in files
    assert rest not in bytes_in(tmp_path)
    await memory.close()


async def test_text_that_a_reader_keeps_in_the_file_is_found(tmp_path: Path) -> None:
    """SQLite cannot write the deletion into the file while another connection reads what was there before."""
    memory = LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db", lock_timeout_s=0.5))
    await memory.remember(ANN, [item("1", "zyzzyva")])
    await memory.remember(BOB, [item("1", "A lighthouse.")])
    with closing(sqlite3.connect(tmp_path / "facts.db", isolation_level=None)) as reader:
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        reader.execute("BEGIN")
        assert len(reader.execute("SELECT * FROM turnwise_items").fetchall()) == 2
        erased = await erase(memory, ANN)
    assert (erased.items, erased.verified) == (1, False) and "try again" in (erased.why or "")
    await memory.close()


async def test_extracted_facts_are_searched_for(tmp_path: Path) -> None:
    """By the turn or the item that they come from; records of read items have no texts."""

    facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
    memory = ExtractiveMemory(Model(), facts)
    items = [told(number, f"I own zyzzyva {number}.", f"I own quokka {number}.") for number in range(3)]
    await memory.remember(ANN, items)
    session = Scope(user_id="ann", session_id="s")
    assert sorted(await memory.texts(session, turn_index=1)) == ["I own quokka 1.", "I own zyzzyva 1."]
    assert sorted(await memory.texts(ANN, [items[0].id, "none"])) == ["I own quokka 0.", "I own zyzzyva 0."]
    assert len(await memory.texts(ANN)) == len(await memory.texts(session)) == 6
    erased = await erase(memory, ANN, [items[0].id])
    assert (erased.items, erased.verified) == (2, True)
    erased = await erase(memory, session, turn_index=1)
    assert (erased.items, erased.verified) == (2, True)
    contents = bytes_in(tmp_path)
    assert b"zyzzyva 2" in contents and b"zyzzyva 1" not in contents and b"zyzzyva 0" not in contents
    await memory.remember(ANN, items)
    assert sorted(recalled.text for recalled in await memory.recall(ANN, "zyzzyva")) == ["I own zyzzyva 2."]
    await memory.close()


@pytest.mark.by_turns
async def test_forgetting_many_batches_leaves_nothing(tmp_path: Path, small_batches: int) -> None:
    """More than one batch of everything: pages of SQLite, vectors of Chroma, words."""
    many = 2500 // small_batches

    memory = vector_memory(tmp_path, ChromaFolder(tmp_path / "chroma"))
    await memory.remember(BOB, [item(str(number), f"a lighthouse {number}") for number in range(many // 2)])
    await memory.remember(
        ANN, [of(f"s{number % 2}", number, str(number), f"zyzzyva number {number}.") for number in range(many)]
    )
    erased = await erase(memory, Scope(user_id="ann", session_id="s0"))
    assert (erased.items, erased.found, erased.verified) == (many // 2, (), True)
    contents = bytes_in(tmp_path)
    assert b"zyzzyva number 149." in contents and b"zyzzyva number 150." not in contents
    erased = await erase(memory, ANN)
    assert (erased.items, erased.verified) == (many // 2, True)
    assert b"zyzzyv" not in bytes_in(tmp_path)  # nor the stem that words are indexed by
    assert len(await memory.recall(BOB, "lighthouse", limit=2000)) == many // 2
    assert (await memory.check()).ok
    await memory.close()
    assert b"zyzzyv" not in bytes_in(tmp_path)


@pytest.mark.by_turns
async def test_vectors_of_forgotten_items_are_in_no_file_of_chroma(tmp_path: Path) -> None:
    """Neither in its index nor in its database; the vectors of other users stay."""

    index = VectorIndex(ChromaFolder(tmp_path / "chroma"), HashEmbedding(), name=f"test-{new_id()}")
    memory = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/memory.db"), index)
    for number in range(10):
        for scope, count in ((ANN, 20), (BOB, 100)):
            of_them = [
                item(f"{number}-{index}", f"{scope.user_id} saw {new_id()} and {new_id()}") for index in range(count)
            ]
            await memory.remember(scope, of_them)
    await memory.flush()
    vectors = list(index.get(await memory.keys(ANN)).values())[::4]
    other_vectors = index.get(await memory.keys(BOB))

    def remaining() -> int:
        contents = bytes_in(tmp_path / "chroma")
        return sum(vector.tobytes()[400:440] in contents for vector in vectors)

    assert remaining() > 25
    erased = await erase(memory, ANN)
    assert (erased.items, erased.verified, erased.why) == (200, True, None)
    assert remaining() == 0
    assert (
        index.get(list(other_vectors)).keys() == other_vectors.keys()
        and len(index.keys()) == len(other_vectors) == 1000
    )
    await memory.close()
    assert remaining() == 0


def test_erasing_one_user_costs_the_same_with_many_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in texts that are embedded and in items that are read: as many with two users as with ten."""
    read = 0
    decode = rows.item_of

    def counted(user_id: str, values: Sequence[Any]) -> MemoryItem:
        nonlocal read
        read += 1
        return decode(user_id, values)

    monkeypatch.setattr(sql_statements, "item_of", counted)

    async def story(users: int) -> tuple[int, int]:
        nonlocal read
        embedding = FlakyEmbedding()
        index = VectorIndex(ChromaFolder(tmp_path / f"chroma-{users}"), embedding)
        memory = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/{users}.db"), index)
        for user in range(users):
            items = [item(str(number), f"user {user} has {new_id()}") for number in range(10)]
            await memory.remember(Scope(user_id=str(user)), items)
        embedding.calls.clear()
        read = 0
        erased = await erase(memory, Scope(user_id="1"))
        assert (erased.items, erased.verified) == (10, True)
        count = read
        await memory.close()
        return sum(embedding.calls), count

    few, many = asyncio.run(story(2)), asyncio.run(story(10))
    assert few == many and few[0] == 0 and 10 <= few[1] <= 70


async def test_other_users_recall_and_save_during_an_erasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step blocks the event loop, the file or the index until the erasure ends."""
    monkeypatch.setattr("turnwise.memory.longterm.index.item_vectors.DELETED", 4)
    monkeypatch.setattr("turnwise.memory.longterm.index.item_vectors.REST", 2)

    memory = vector_memory(tmp_path, ChromaFolder(tmp_path / "chroma"))
    await memory.remember(ANN, [item(str(number), f"zyzzyva {number}") for number in range(share(300, 15))])
    await memory.remember(BOB, [item("1", "a lighthouse")])
    erasing = asyncio.create_task(erase(memory, ANN))
    done = 0
    while not erasing.done():
        await memory.remember(BOB, [item(f"more-{done}", f"kettle {done}")])
        assert (await memory.recall(BOB, "lighthouse"))[0].id == "1"
        done += 1
        await asyncio.sleep(0.01)
    assert (await erasing).verified and done >= 5 and memory.trouble is None
    kettles = [recalled for recalled in await memory.recall(BOB, "kettle", limit=done + 1) if recalled.words]
    assert len(kettles) == done
    await memory.close()


async def test_deletions_on_a_database_server_are_not_verified(database: str) -> None:
    memory = LexicalMemory(SQLItems(database))
    await memory.remember(ANN, [item("1", "zyzzyva")])
    erased = await erase(memory, ANN)
    assert (erased.items, erased.files, erased.verified) == (1, 0, False)
    await memory.close()


class Plain:
    """A memory without methods for files, and without turns."""

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        return []

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        return []

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Collection[str] | None = None) -> int:
        return 3

    async def close(self) -> None:
        pass


async def test_memories_without_files_are_not_verified(tmp_path: Path) -> None:
    assert await erase(StaticMemory(["a fact"]), ANN) == Erasure(items=0, files=0, found=(), verified=True)
    erased = await erase(Plain(), ANN)  # type: ignore[arg-type]
    assert (erased.items, erased.verified) == (3, False)
    assert erased.why == "Plain does not say in which files it stores items"
    memory = LexicalMemory(InMemoryItems())
    await memory.remember(ANN, [item("1", "zyzzyva")])
    erased = await erase(memory, ANN)
    assert (erased.items, erased.verified) == (1, False) and "not in files" in (erased.why or "")
    vectors = vector_memory(tmp_path, ChromaInMemory())
    await vectors.remember(ANN, [item("1", "zyzzyva")])
    erased = await erase(vectors, ANN)
    assert (erased.items, erased.verified, erased.found) == (1, True, ())
    await vectors.close()


async def test_items_are_deleted_even_if_the_verification_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/facts.db"
    memory, hasty = LexicalMemory(SQLItems(url)), LexicalMemory(SQLItems(url, lock_timeout_s=0.5))
    await memory.remember(ANN, [item("1", "zyzzyva"), item("2", "quokka")])
    reader = sqlite3.connect(tmp_path / "facts.db", isolation_level=None)
    reader.execute("BEGIN")
    assert len(reader.execute("SELECT * FROM turnwise_items").fetchall()) == 2
    erased = await erase(hasty, ANN, ["1"])
    assert (erased.items, erased.files, erased.verified) == (1, 0, False)
    assert "try again" in (erased.why or "")
    reader.close()
    await hasty.close()
    assert [recalled.id for recalled in await memory.recall(ANN, "zyzzyva quokka")] == ["2"]
    await memory.scrub()
    assert b"zyzzyva" not in bytes_in(tmp_path)
    monkeypatch.setattr("sys.executable", "/bin/false")
    erased = await erase(memory, ANN)
    assert (erased.items, erased.files, erased.verified) == (1, 0, False)
    assert "ended with 1" in (erased.why or "")
    with pytest.raises(InvalidInputError):
        await erase(memory, ANN, turn_index=1)
    await memory.close()


def test_a_pickled_store_uses_the_same_files_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors that own memories have another working directory than the program that made them."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    kinds: tuple[Callable[[str], Scrubbing], ...] = (SQLStore, SQLItems)
    stores = [kind("sqlite:///made.db") for kind in kinds]
    pickled = pickle.dumps([*stores, ChromaFolder("vectors")])
    monkeypatch.chdir(tmp_path / "elsewhere")
    *opened, folder = pickle.loads(pickled)
    assert [store.paths()[0] for store in opened] == [tmp_path / "made.db"] * 2
    assert folder.path == tmp_path / "vectors"

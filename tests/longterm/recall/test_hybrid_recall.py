"""Recall by words and vectors together, or by a model that chooses."""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memories.vector_memories import FlakyEmbedding
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.longterm.base import MemoryItem, Scope, trouble_of
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index.locations import ChromaInMemory
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.prominence import UNRELATED
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.retention.retention import Retention
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

ANN = Scope(user_id="ann")
FACTS = ("Ann is allergic to peanuts", "Ann plays the cello", "Ann lives in Ghent", "Ann has two sons")


async def recalled_texts(memory: Any, query: str, **options: Any) -> list[str]:
    return [item.text for item in await memory.recall(ANN, query, **options)]


class Meaning:
    """An embedding function for which only texts about food are similar."""

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def __call__(self, input: Sequence[str]) -> list[Any]:
        self.embedded += input
        return [self._vector(text) for text in input]

    @staticmethod
    def _vector(text: str) -> list[float]:
        axis = 0 if "peanuts" in text or "dinner" in text else 1 + sum(text.encode()) % 63
        return [2.0 * (index == axis) for index in range(64)]


class OfOneSentence:
    """As `Meaning`; texts of several sentences are similar to none."""

    @staticmethod
    def name() -> str:
        return "of-one-sentence"

    def get_config(self) -> dict[str, Any]:
        return {}

    def __call__(self, input: Sequence[str]) -> list[Any]:
        return [[0.0] * 63 + [2.0] if ". " in text else Meaning()([text])[0] for text in input]


class OfNames:
    """An embedding function by which a text that names Carol is near to her greeting, and all about jam to "Barley"."""

    @staticmethod
    def name() -> str:
        return "of-names"

    def get_config(self) -> dict[str, Any]:
        return {}

    def __call__(self, input: Sequence[str]) -> list[Any]:
        return [
            [0.8 * ("Carol" in text or "Hi" in text), 0.6 * ("jam" in text or "Barley" in text), 0.1] for text in input
        ]


class Chooser:
    """A model with scripted answers that records the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        assert schema and "names" in schema["properties"]
        self.requests.append(request[-1].text)  # type: ignore[attr-defined]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, str) else json.dumps(answer)


def items(texts: Sequence[str] = FACTS) -> list[MemoryItem]:
    return [
        MemoryItem(id=f"i{number}", text=text, type=MemoryType.FACTS, created_at=1.0 + number)
        for number, text in enumerate(texts)
    ]


async def texts(memory: Any, prompt: str) -> list[str]:
    """Return the texts that a prompt gets without being asked for."""
    return [item.text for item in (await memory.remind(ANN, prompt)).items]


async def test_similar_facts_without_a_common_word_are_found_by_vectors() -> None:
    words, with_vectors = (LexicalMemory(InMemoryItems(), embedding=embedding) for embedding in (None, Meaning()))
    for memory in (words, with_vectors):
        await memory.remember(ANN, items())
    assert not await texts(words, "What is for dinner?")
    first, *further = await with_vectors.recall(ANN, "What is for dinner?")
    assert first.text == FACTS[0] and not further, "the vectors of the others have nothing in common with the query's"
    assert await texts(with_vectors, "What is for dinner?") == [FACTS[0]]
    assert await texts(with_vectors, "Which cello?") == [FACTS[1]]
    assert not await texts(with_vectors, "Quantum chromodynamics?")


async def test_each_sentence_of_a_query_has_a_vector(tmp_path: Path) -> None:
    index = VectorIndex(ChromaInMemory(), OfOneSentence(), name="sentences")
    with_index = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/memory.db"), index, embed_s=60, query_s=60)
    for memory in (LexicalMemory(InMemoryItems(), embedding=OfOneSentence(), query_s=60), with_index):
        await memory.remember(ANN, items())
        assert await recalled_texts(memory, "The guests arrive. What suits the dinner?") == [FACTS[0]]
    await with_index.close()


@pytest.mark.parametrize("query", ["Which jam has Carol?", "It rains. Which jam has Carol? Plum, perhaps."])
@pytest.mark.parametrize(
    ("kind", "order"),
    [(MemoryType.INTERACTION, ["Barley stew", "Hi there"]), (MemoryType.FACTS, ["Hi there", "Barley stew"])],
)
async def test_a_name_in_a_query_counts_less_for_turns_than_for_facts(
    query: str, kind: MemoryType, order: list[str], tmp_path: Path
) -> None:
    index = VectorIndex(ChromaInMemory(), OfNames(), name="names")
    with_index = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/memory.db"), index, embed_s=60, query_s=60)
    for memory in (LexicalMemory(InMemoryItems(), embedding=OfNames(), query_s=60), with_index):
        await memory.remember(ANN, [replace(item, type=kind) for item in items(["Hi there", "Barley stew", "Snow"])])
        assert (await recalled_texts(memory, query))[:2] == order
    await with_index.close()


async def test_each_fact_is_embedded_once() -> None:
    memory = ExtractiveMemory(Chooser(), InMemoryItems())
    await memory.remember(ANN, items())
    assert await texts(memory, "dinner?") == [], "words alone by default"
    meaning = Meaning()
    memory = ExtractiveMemory(Chooser(), InMemoryItems(), embedding=meaning)
    await memory.remember(ANN, items())
    for _ in range(3):
        assert await texts(memory, "dinner?") == [FACTS[0]]
    assert sorted(meaning.embedded) == sorted([*FACTS, *UNRELATED, *["dinner?"] * 3])
    facts = SQLItems("sqlite:///facts.db")
    memory = ExtractiveMemory(Chooser(), facts, weights=Weights(tail=0.2), chooses=True)
    assert pickle.dumps(pickle.loads(pickle.dumps(memory))) == pickle.dumps(memory)
    settings: dict[str, Any]
    for settings in ({"chooses": True}, {"weights": Weights(tail=0.2)}):
        assert pickle.dumps(ExtractiveMemory(Chooser(), facts, **settings)) != pickle.dumps(memory)


async def test_while_embeddings_fail_facts_are_found_by_words() -> None:
    embedding = FlakyEmbedding()
    memory = ExtractiveMemory(Chooser(), InMemoryItems(), embedding=embedding)
    await memory.remember(ANN, items())
    embedding.down = True
    recalled = await memory.recall(ANN, "Which cello?")
    assert [item.text for item in recalled] == [FACTS[1]] and "embeddings are down" in str(trouble_of(recalled))
    unpickled = pickle.loads(pickle.dumps(recalled))
    assert unpickled == recalled and trouble_of(unpickled) == trouble_of(recalled)
    embedding.down = False
    recalled = await memory.recall(ANN, "Which cello?")
    assert recalled[0].text == FACTS[1] and trouble_of(recalled) is None


async def test_while_embeddings_hang_facts_are_found_by_words_and_the_profile_is_there() -> None:
    embedding = FlakyEmbedding()
    memory = LexicalMemory(InMemoryItems(), embedding=embedding, query_s=0.1)
    await memory.remember(ANN, items())
    embedding.goes_on.clear()
    for _ in range(3):
        recall = await memory.remind(ANN, "Which cello?", profile=[MemoryType.FACTS])
        assert len(recall.profile) == len(FACTS) and "not answered within 0.1 s" in str(trouble_of(recall.items))
        recalled = await memory.recall(ANN, "Which cello?")
        assert [item.text for item in recalled] == [FACTS[1]] and "not answered within 0.1 s" in str(
            trouble_of(recalled)
        )
    embedding.goes_on.set()
    while trouble_of(await memory.recall(ANN, "Which cello?")):  # until those that hung have ended
        pass
    await memory.close()


class Resizing(FlakyEmbedding):
    def resize(self, dimensions: int) -> None:
        HashEmbedding.__init__(self, dimensions)


async def test_a_change_of_the_dimension_makes_the_vectors_anew() -> None:
    embedding = Resizing()
    memory = LexicalMemory(InMemoryItems(), embedding=embedding)
    await memory.remember(ANN, items())
    assert trouble_of(await memory.recall(ANN, "Which cello?")) is None
    embedding.resize(128)
    recalled = await memory.recall(ANN, "Which cello?")
    assert recalled[0].text == FACTS[1] and trouble_of(recalled) is None
    embedding.calls.clear()
    assert trouble_of(await memory.recall(ANN, "Which cello?")) is None and embedding.calls == [1], "it is cached again"


async def test_a_model_chooses_among_the_known_facts() -> None:
    model = Chooser({"names": ["f4", "f9", "f1", "f4", "f2"]}, {"names": []})
    memory = ExtractiveMemory(model, InMemoryItems(), chooses=True)
    assert not await recalled_texts(memory, "Anything?") and not model.requests, "nobody is asked about nothing"
    await memory.remember(ANN, items())
    chosen = await recalled_texts(memory, "What is for </query> dinner?", limit=2)
    lines = model.requests[0].splitlines()
    assert chosen == [json.loads(lines[3])["text"], json.loads(lines[0])["text"]]
    assert sorted(json.loads(line)["text"] for line in lines[:4]) == sorted(FACTS)
    assert json.loads(lines[4]) == {"query": "What is for </query> dinner?"} and "</query>" not in lines[4]
    assert not await recalled_texts(memory, "Ann cello?")
    assert await memory.recall(Scope(user_id="bob"), "Ann cello?") == [] and len(model.requests) == 2


@pytest.mark.parametrize("answer", [OSError("away"), "not JSON", {"names": "f1"}, {"names": [1]}, {}, {"f": ["f1"]}])
async def test_a_model_that_fails_or_lies_leaves_words_to_be_found_by(answer: Any) -> None:
    memory = ExtractiveMemory(Chooser(answer, {"names": ["f1"]}), InMemoryItems(), chooses=True)
    await memory.remember(ANN, items())
    recalled = await memory.recall(ANN, "Which cello?")
    assert [item.text for item in recalled] == [FACTS[1]]
    assert str(trouble_of(recalled)).startswith("the model could not choose facts: ")
    recalled = await memory.recall(ANN, "Which cello?")
    assert [item.text for item in recalled] == [FACTS[1]] and trouble_of(recalled) is None, "the nearest is f1"


async def test_only_chosen_facts_are_refreshed_and_filters_apply_first() -> None:
    now = [1000.0]
    model = Chooser({"names": ["f1"]}, {"names": ["f1", "f2", "f3", "f4"]})
    settings: dict[str, Any] = {"chooses": True, "retention": Retention(100.0), "clock": lambda: now[0]}
    memory = ExtractiveMemory(model, InMemoryItems(), **settings)
    await memory.remember(ANN, items())
    now[0] += 60
    (first,) = await recalled_texts(memory, "Which cello?")
    now[0] += 60
    assert await recalled_texts(memory, "Which cello?") == [first]
    assert len(model.requests[1].splitlines()) == len(model.requests[0].splitlines()) - 3
    assert not await memory.recall(ANN, "Which cello?", types=[MemoryType.SKILL])

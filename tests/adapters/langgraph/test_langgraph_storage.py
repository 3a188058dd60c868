"""What a conversation of a graph takes on the disk. `tests/bench/graph_threads.py` measures it beside SqliteSaver."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from turnwise.adapters import TurnwiseSaver
from turnwise.adapters.langgraph.checkpoints import Commit, InMemoryCheckpoints, Row, Space

FIRST, MORE, LENGTH = 20, 60, 180


def test_pending_writes_go_with_their_checkpoint() -> None:
    store, place, space = InMemoryCheckpoints(), ("t", ""), Space(1)
    store.commit(
        place, Commit(before=None, after=space, rows=[Row("a", None, None, b"row")], writes=[("a", 1, b"write")])
    )
    assert store.writes(1, ["a"]) == {"a": [b"write"]}
    store.commit(place, Commit(before=space, after=space, removed=["a"]))
    assert store.writes(1, ["a"]) == store.early_writes(1) == {}


def test_the_file_of_a_conversation_has_at_most_ten_times_its_text(tmp_path: Path) -> None:
    chance = random.Random(1)

    def text() -> str:
        return "".join(chance.choices(string.ascii_letters + " ", k=LENGTH))

    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda _: {"messages": [AIMessage(text())]})
    graph.add_edge(START, "model")
    thread: Any = {"configurable": {"thread_id": "t"}}
    sizes = []
    for turns in (FIRST, MORE):
        with TurnwiseSaver(f"sqlite:///{tmp_path}/threads.db") as saver:
            app: Any = graph.compile(checkpointer=saver)
            for _ in range(turns):
                app.invoke({"messages": [("user", text())]}, thread)
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
    assert sizes[1] - sizes[0] <= 9.5 * MORE * 2 * LENGTH, "with an empty file, more than ten times after 200 turns"

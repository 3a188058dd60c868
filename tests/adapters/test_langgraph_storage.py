"""What a conversation of a graph takes on the disk. `tests/bench/graph_threads.py` measures it beside SqliteSaver."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from turnwise.adapters import TurnwiseSaver

TURNS, LENGTH = 200, 180


def test_the_file_of_a_conversation_has_at_most_ten_times_its_text(tmp_path: Path) -> None:
    chance = random.Random(1)

    def text() -> str:
        return "".join(chance.choices(string.ascii_letters + " ", k=LENGTH))

    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda _: {"messages": [AIMessage(text())]})
    graph.add_edge(START, "model")
    thread: Any = {"configurable": {"thread_id": "t"}}
    with TurnwiseSaver(f"sqlite:///{tmp_path}/threads.db") as saver:
        app: Any = graph.compile(checkpointer=saver)
        for _ in range(TURNS):
            app.invoke({"messages": [("user", text())]}, thread)
        assert len(app.get_state(thread).values["messages"]) == 2 * TURNS
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size <= 10 * TURNS * 2 * LENGTH

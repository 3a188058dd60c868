"""What a conversation of a LangGraph graph costs: with `TurnwiseSaver`, and with `SqliteSaver`.

    python tests/bench/graph_threads.py turnwise
    python tests/bench/graph_threads.py sqlite    where `pip install langgraph langgraph-checkpoint-sqlite` was done

Holds one conversation in a SQLite file, of `--turns` turns with 180 characters of words each way, with a model that
answers at once. Prints the time of a turn at the beginning and at the end, with that of the processor, and the size
of the file when it is closed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

LENGTH = 180
WORDS = (Path(__file__).parent / "long_term/messages.json").read_text(encoding="utf-8").split()


def saver_of(name: str, file: Path) -> AbstractContextManager[Any]:
    if name == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]

        saver: AbstractContextManager[Any] = SqliteSaver.from_conn_string(str(file))
        return saver
    from turnwise.adapters.langgraph.saver import TurnwiseSaver

    return TurnwiseSaver(f"sqlite:///{file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("saver", choices=["turnwise", "sqlite"])
    parser.add_argument("--turns", type=int, default=1020)
    options = parser.parse_args()
    chance = random.Random(1)

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=LENGTH))[:LENGTH]

    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda _: {"messages": [AIMessage(text())]})
    graph.add_edge(START, "model")
    thread: Any = {"configurable": {"thread_id": "t"}}
    with tempfile.TemporaryDirectory() as folder:
        times, work = [], []
        with saver_of(options.saver, Path(folder, "threads.db")) as saver:
            app: Any = graph.compile(checkpointer=saver)
            for _ in range(options.turns):
                request = {"messages": [("user", text())]}
                began, worked = time.perf_counter(), time.process_time()
                app.invoke(request, thread)
                times.append(time.perf_counter() - began)
                work.append(time.process_time() - worked)
            assert len(app.get_state(thread).values["messages"]) == 2 * options.turns
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    words = options.turns * 2 * LENGTH
    early, late, early_work, late_work = (
        median(part) * 1000 for part in (times[10:31], times[-21:], work[10:31], work[-21:])
    )
    print(f"turn 20: {early:.1f} ms, {early_work:.1f} of the processor's")
    print(f"turn {options.turns}: {late:.1f} ms, {late_work:.1f} of the processor's")
    print(f"{size / 1e6:.2f} MB, {size / words:.1f} times the text")


if __name__ == "__main__":
    main()

"""What a conversation of a LangGraph graph costs: with `TurnwiseSaver`, and with `SqliteSaver`.

    python tests/bench/graph_threads.py turnwise
    python tests/bench/graph_threads.py sqlite    where `pip install langgraph langgraph-checkpoint-sqlite` was done
    python tests/bench/graph_threads.py turnwise sqlite    both, turn by turn, on a machine that does much besides

Holds one conversation with each in a SQLite file, of `--turns` turns with 180 characters of words each way. The model
answers at once. Prints the time of a turn at the beginning and at the end, with that of the processor, and the size
of the file when it is closed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
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
    parser.add_argument("savers", nargs="+", choices=["turnwise", "sqlite"])
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
        times: dict[str, list[float]] = {name: [] for name in options.savers}
        work: dict[str, list[float]] = {name: [] for name in options.savers}
        with ExitStack() as stack:
            apps: dict[str, Any] = {}
            for name in options.savers:
                Path(folder, name).mkdir()
                saver = stack.enter_context(saver_of(name, Path(folder, name, "threads.db")))
                apps[name] = graph.compile(checkpointer=saver)
            for _ in range(options.turns):
                for name, app in apps.items():
                    request = {"messages": [("user", text())]}
                    began, worked = time.perf_counter(), time.process_time()
                    app.invoke(request, thread)
                    times[name].append((time.perf_counter() - began) * 1000)
                    work[name].append((time.process_time() - worked) * 1000)
            for app in apps.values():
                assert len(app.get_state(thread).values["messages"]) == 2 * options.turns
        for name in options.savers:
            size = sum(file.stat().st_size for file in Path(folder, name).iterdir())
            print(name)
            for turn, part in ((20, slice(10, 31)), (options.turns, slice(-21, None))):
                took, worked = median(times[name][part]), median(work[name][part])
                print(f"turn {turn}: {took:.1f} ms, {worked:.1f} of the processor's")
            print(f"{size / 1e6:.2f} MB, {size / (options.turns * 2 * LENGTH):.1f} times the text")


if __name__ == "__main__":
    main()

"""A LangGraph chat in a file: two runs at once do not mix, an earlier checkpoint can be branched from.

    pip install 'turnwise[langgraph]'; python examples/adapters/langgraph_store.py

Its node answers without a model.
"""

import tempfile
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from turnwise.adapters import TurnwiseSaver
from turnwise.errors import CheckpointFencedError

THREAD: RunnableConfig = {"configurable": {"thread_id": "sarah"}}


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(f"You said: {state['messages'][-1].content}")]}


with TurnwiseSaver(f"sqlite:///{Path(tempfile.mkdtemp(), 'threads.db')}") as saver:
    builder = StateGraph(MessagesState).add_node("model", model).add_edge(START, "model")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("Do whales sleep?")]}, THREAD)

    (slow, *_) = saver.list(THREAD, limit=1)  # what a run that hangs had read
    graph.invoke({"messages": [HumanMessage("For how long?")]}, THREAD)
    try:
        saver.put_writes(slow.config, [("messages", [AIMessage("too late")])], "task")
    except CheckpointFencedError as error:
        print(f"refused: {error}")

    first = next(state for state in graph.get_state_history(THREAD) if len(state.values["messages"]) == 2)
    branch = graph.invoke({"messages": [HumanMessage("And dolphins?")]}, first.config)
    print([message.content for message in branch["messages"]])

"""A LangGraph node that keeps facts in TurnwiseStore: by user, found by meaning, and deleted after a time.

    pip install 'turnwise[langgraph]'; python examples/adapters/langgraph_memory.py

Its node answers without a model; an embedding of a model's makes the search better.
"""

import tempfile
import uuid
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph

from turnwise.adapters import TurnwiseStore
from turnwise.testing.embedding import HashEmbedding


def model(state: MessagesState, config: RunnableConfig) -> dict[str, list[AIMessage]]:
    """Store the user's text, and answer with the stored text that fits best."""
    store, notes, message = get_store(), ("notes", config["configurable"]["user"]), state["messages"][-1].text
    memories = [item.value["text"] for item in store.search(notes, query=message, limit=1)]
    store.put(notes, str(uuid.uuid4()), {"text": message}, ttl=60 * 24 * 30)  # minutes: a month
    return {"messages": [AIMessage(f"I know: {memories}")]}


file = Path(tempfile.mkdtemp(), "notes.db")
for user, text in [("sarah", "I eat no meat."), ("sarah", "What meat?"), ("tom", "What meat?")]:
    with TurnwiseStore(f"sqlite:///{file}", embedding=HashEmbedding(), fields=["text"]) as store:  # as after a restart
        builder = StateGraph(MessagesState).add_node("model", model).add_edge(START, "model")
        answer = builder.compile(store=store).invoke(
            {"messages": [HumanMessage(text)]}, {"configurable": {"user": user}}
        )
        print(f"{user}: {answer['messages'][-1].text}")

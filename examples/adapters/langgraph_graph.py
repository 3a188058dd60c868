"""LangGraph: a graph answers a durable session, and waits there until somebody approves a payment.

    pip install 'turnwise[langgraph]'; python examples/adapters/langgraph_graph.py

A simulated model answers.
"""

from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from turnwise import SessionManager
from turnwise.adapters import LangGraphEngine, TurnwiseSaver


def make_graph() -> StateGraph[MessagesState]:  # called where the session runs: clients cannot travel
    model = FakeListChatModel(responses=["I would pay the hotel 700 euros. "])  # your ChatOpenAI, ChatAnthropic, ...

    async def plan(state: MessagesState) -> dict[str, object]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def pay(state: MessagesState) -> dict[str, object]:
        is_paid = interrupt({"pay": "the hotel", "euros": 700})
        return {"messages": [("ai", "The hotel is paid." if is_paid else "Nothing was paid.")]}

    return StateGraph(MessagesState).add_sequence([plan, pay]).add_edge(START, "plan")


def main() -> None:
    url = "sqlite:///clerks.db"
    with SessionManager(url, engine=LangGraphEngine(make_graph, checkpointer=TurnwiseSaver(url))) as manager:
        run = manager.open("trip").run("Pay the hotel.")
        request = next(event for event in run.events() if event.kind == "approval_requested")
        print(f"waits for {request.name}({dict(request.input['value'])})")
        run.approve(request.call_id)  # from any process, after any restart: manager.execution(run.run_id)
        print(run.wait().text)


if __name__ == "__main__":
    main()

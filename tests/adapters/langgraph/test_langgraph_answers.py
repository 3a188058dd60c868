"""Which messages of a graph's channel are the answer of a turn: those that LangGraph alone adds in the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from typing_extensions import TypedDict

from frameworks.langgraph_models import ScriptedChat, State
from frameworks.langgraph_stage import Stage, output
from turnwise.adapters import LangGraphEngine
from turnwise.memory.conversation.events import TextDelta

Node = Callable[[Any], Any]


def graph_of(*nodes: Node, state: Any = State) -> Any:
    """Return a graph whose nodes run one after the other."""
    graph: Any = StateGraph(state)
    names = [f"{index}" for index, _ in enumerate(nodes)]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for before, after in zip([START, *names], names, strict=False):
        graph.add_edge(before, after)
    return graph


def says(text: str, key: str = "messages") -> Node:
    model = ScriptedChat(reply=lambda _: AIMessage(text))

    async def node(state: Any) -> Any:
        return {key: [await model.ainvoke(state[key])]}

    return node


def summarises(*, keep: int, kind: type[Any], internal: bool = False) -> Node:
    """Return a node that puts a model's summary in the place of all but the newest messages."""
    model = ScriptedChat(reply=lambda messages: AIMessage(f"SUMMARY of {len(messages)}"))

    async def node(state: Any) -> Any:
        config: Any = {"metadata": {"lc_source": "summarization"}} if internal else {}
        summary = await model.ainvoke(state["messages"], config)
        kept_messages = state["messages"][-keep:] if keep else []
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), kind(summary.content), *kept_messages]}

    return node


def changes(change: Callable[[Sequence[Any]], list[Any]]) -> Node:
    return lambda state: {"messages": change(state["messages"])}


@pytest.mark.parametrize("kind", [HumanMessage, SystemMessage, AIMessage])
@pytest.mark.parametrize("keep", [0, 1, 2])
async def test_a_summary_of_the_conversation_is_no_answer(keep: int, kind: type[Any]) -> None:
    stage = Stage(LangGraphEngine(graph_of(summarises(keep=keep, kind=kind, internal=True), says("the answer"))))
    outcome = None
    for number in range(3):
        outcome = await stage.run(run_id="run" if not number else f"run-{number}")
        assert output(outcome) and outcome.turn
        assert outcome.turn.text == "the answer"
    assert outcome and outcome.turn
    texts = [block.text for block in outcome.turn.blocks if hasattr(block, "text")]
    assert texts == ["go", "the answer"] * 3
    shown = [event.text for event in await stage.events() if isinstance(event, TextDelta)]
    assert kind is AIMessage or "SUMMARY" not in "".join(shown), "a model's message of a node streams as it comes"


ENDINGS: dict[str, tuple[list[Node], str]] = {
    "edits its answer": (
        [says("a draft"), changes(lambda messages: [AIMessage("the answer", id=messages[-1].id)])],
        "the answer",
    ),
    "replaces its answer": (
        [says("a draft"), changes(lambda messages: [RemoveMessage(id=messages[-1].id), AIMessage("the answer")])],
        "the answer",
    ),
    "removes its draft": (
        [
            says("a draft"),
            changes(lambda messages: [RemoveMessage(id=messages[-1].id)]),
            changes(lambda _: [AIMessage("the answer")]),
        ],
        "the answer",
    ),
    "replaces all": (
        [says("a draft"), changes(lambda _: [RemoveMessage(id=REMOVE_ALL_MESSAGES), AIMessage("the answer")])],
        "the answer",
    ),
    "trims what was before": (
        [says("the answer"), changes(lambda messages: [RemoveMessage(id=message.id) for message in messages[:-1]])],
        "the answer",
    ),
    "reorders": (
        [says("the answer"), changes(lambda messages: [RemoveMessage(id=REMOVE_ALL_MESSAGES), *reversed(messages)])],
        "the answer",
    ),
    "copies what was before": (
        [
            changes(
                lambda messages: [
                    RemoveMessage(id=REMOVE_ALL_MESSAGES),
                    *(message.model_copy(update={"id": None}) for message in messages),
                ]
            ),
            says("the answer"),
        ],
        "the answer",
    ),
    "tells itself what to do": (
        [changes(lambda _: [HumanMessage("Think!"), SystemMessage("Be brief.")]), says("the answer")],
        "the answer",
    ),
    "ends with an order": ([says("the answer"), changes(lambda _: [HumanMessage("Rate the answer.")])], "the answer"),
    "removes all at its end": (
        [says("the answer"), changes(lambda _: [RemoveMessage(id=REMOVE_ALL_MESSAGES)])],
        "the answer",
    ),
}


@pytest.mark.parametrize("durable", [False, True], ids=["no checkpointer", "checkpointer"])
@pytest.mark.parametrize("case", ENDINGS)
async def test_the_answer_is_what_the_run_leaves_in_the_channel(case: str, durable: bool) -> None:
    nodes, expected = ENDINGS[case]
    stage = Stage(LangGraphEngine(graph_of(*nodes), checkpointer=InMemorySaver() if durable else None))
    for run_id in ("run", "second"):
        outcome = await stage.run(run_id=run_id)
        assert output(outcome) and outcome.turn
        assert outcome.turn.text == expected


@pytest.mark.parametrize("reducer", [add_messages, lambda _, new: new], ids=["adds", "replaces"])
async def test_a_channel_of_another_name_is_read_alike(reducer: Any) -> None:
    class Talk(TypedDict):
        talk: Annotated[list[AnyMessage], reducer]

    Talk.__annotations__["talk"] = Annotated[list[AnyMessage], reducer]
    graph = graph_of(says("a thought", "talk"), says("the answer", "talk"), state=Talk)
    stage = Stage(LangGraphEngine(graph, messages_key="talk"))
    outcome = await stage.run()
    assert output(outcome) and outcome.turn
    assert outcome.turn.text == ("the answer" if reducer is not add_messages else "a thoughtthe answer")


async def test_an_answer_that_another_model_polishes_is_not_lost() -> None:
    polish = ScriptedChat(reply=lambda _: AIMessage("polished"))

    async def polishes(state: Any) -> Any:
        polished = await polish.ainvoke(state["messages"])
        return {"messages": [AIMessage(polished.content, id=state["messages"][-1].id)]}

    outcome = await Stage(LangGraphEngine(graph_of(says("a draft"), polishes))).run()
    assert output(outcome) and outcome.turn and outcome.turn.text.endswith("polished")

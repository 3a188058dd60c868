"""Decisions about interrupts in tools reach the tool that asked: compared with LangGraph alone, by the same script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from frameworks.langgraph_models import ScriptedChat, State, agent, calls, script
from frameworks.langgraph_stage import Stage, copied, output
from stored.watched_store import WatchedStore
from turnwise.actors.inference.tools.loop import LOST
from turnwise.adapters import LangGraphEngine, TurnwiseSaver
from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse
from turnwise.memory.stores.in_memory import InMemoryStore

NAMES = ["a", "b", "c"]


@dataclass
class Scene:
    """Tools that ask before they delete, and what came of it."""

    deeds: list[str] = field(default_factory=list)
    answers: dict[str, list[Any]] = field(default_factory=dict)
    """By the question's name, the answers that its tool got."""

    def got(self, name: str, answer: Any) -> Any:
        self.answers.setdefault(name, []).append(answer)
        return answer

    def ask(self, name: str) -> bool:
        return self.got(name, interrupt({"ask": name})) is True

    def review(self, name: str) -> bool:
        action = {"action": "delete", "args": {"name": name}}
        (answer,) = interrupt([{"action_request": action, "config": {}, "description": f"delete {name}"}])
        return bool(self.got(name, answer["type"]) == "accept")

    def delete(self, name: str) -> str:
        self.deeds.append(name)
        return f"deleted {name}"


def asks_once(scene: Scene) -> BaseTool:
    @tool
    async def delete(name: str) -> str:
        """Delete."""
        return scene.delete(name) if scene.ask(name) else f"kept {name}"

    return delete


def asks_on_a_thread(scene: Scene) -> BaseTool:
    @tool
    def delete(name: str) -> str:
        """Delete."""
        return scene.delete(name) if scene.ask(name) else f"kept {name}"

    return delete


def asks_for_a_review(scene: Scene) -> BaseTool:
    @tool
    async def delete(name: str) -> str:
        """Delete."""
        return scene.delete(name) if scene.review(name) else f"kept {name}"

    return delete


def asks_twice(scene: Scene) -> BaseTool:
    @tool
    async def delete(name: str) -> str:
        """Delete."""
        if scene.ask(name) and scene.ask(f"{name}, surely"):
            return scene.delete(name)
        return f"kept {name}"

    return delete


def is_reviewed_twice(scene: Scene) -> BaseTool:
    @tool
    async def delete(name: str) -> str:
        """Delete."""
        if scene.review(name) and scene.ask(f"{name}, surely"):
            return scene.delete(name)
        return f"kept {name}"

    return delete


def asks_in_a_subgraph(scene: Scene) -> BaseTool:
    class Inner(BaseModel):
        name: str
        answer: bool = False

    inner: Any = StateGraph(Inner)
    inner.add_node("ask", lambda state: {"answer": scene.ask(state.name)})
    inner.add_edge(START, "ask")
    compiled = inner.compile()

    @tool
    async def delete(name: str) -> str:
        """Delete."""
        state = await compiled.ainvoke({"name": name})
        return scene.delete(name) if state["answer"] else f"kept {name}"

    return delete


def works_before_it_asks(scene: Scene) -> BaseTool:
    @task
    async def prepare(name: str) -> str:
        return f"prepared {name}"

    @tool
    async def delete(name: str) -> str:
        """Delete."""
        prepared = await prepare(name)
        return scene.delete(name) if scene.ask(name) and prepared.endswith(name) else f"kept {name}"

    return delete


TOOLS: dict[str, Callable[[Scene], BaseTool]] = {
    make.__name__: make
    for make in (
        asks_once,
        asks_on_a_thread,
        asks_for_a_review,
        asks_twice,
        is_reviewed_twice,
        asks_in_a_subgraph,
        works_before_it_asks,
    )
}


def one_node(scene: Scene, delete_tool: BaseTool, names: Sequence[str]) -> Any:
    """Return an agent whose calls are all made by one tool node."""
    return agent(
        ScriptedChat(reply=script(calls(*(("delete", {"name": name}) for name in names)), "Done.")), [delete_tool]
    )


def many_tasks(scene: Scene, delete_tool: BaseTool, names: Sequence[str]) -> Any:
    """Return an agent each of whose calls is a task of its own."""
    graph = one_node(scene, delete_tool, names)
    changed: Any = StateGraph(State)
    changed.add_node("agent", graph.nodes["agent"].runnable)
    changed.add_node("tools", graph.nodes["tools"].runnable)
    changed.add_edge(START, "agent")
    changed.add_conditional_edges(
        "agent", lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls], ["tools"]
    )
    changed.add_edge("tools", "agent")
    return changed


def beside_a_node(scene: Scene, delete_tool: BaseTool, names: Sequence[str]) -> Any:
    """Return an agent whose tool node runs beside a node that asks, too."""
    graph = one_node(scene, delete_tool, names)
    changed: Any = StateGraph(State)
    changed.add_node("agent", graph.nodes["agent"].runnable)
    changed.add_node("tools", graph.nodes["tools"].runnable)
    changed.add_node("beside", lambda _: {"messages": []} if scene.ask("beside") else {})
    changed.add_edge(START, "agent")
    changed.add_conditional_edges(
        "agent", lambda state: ["tools", "beside"] if state["messages"][-1].tool_calls else [], ["tools", "beside"]
    )
    changed.add_edge("tools", "agent")
    return changed


GRAPHS = {make.__name__: make for make in (one_node, many_tasks, beside_a_node)}


def name_of(value: Any) -> str:
    """Return which question an interrupt asks."""
    if isinstance(value, dict) and "ask" in value:
        return str(value["ask"])
    request = (value[0] if isinstance(value, list | tuple) else value)["action_request"]
    return str(request["args"]["name"])


async def by_langgraph_alone(graph: Any, approved: set[str]) -> None:
    """Run a graph, and answer its interrupts by their ids."""
    compiled, config = graph.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "t"}}
    graph_input: Any = {"messages": [("user", "go")]}
    for _ in range(30):
        state = await compiled.ainvoke(graph_input, config)
        if not (waiting := state.get("__interrupt__")):
            return
        answers: dict[str, Any] = {}
        for question in waiting:
            yes = name_of(question.value) in approved
            answers[question.id] = [{"type": "accept" if yes else "ignore", "args": None}]
            if isinstance(question.value, dict):
                answers[question.id] = yes
        graph_input = Command(resume=answers)
    raise AssertionError("it asks for ever")


def question_of(call: Any) -> str:
    """Return which question a waiting call stands for."""
    return name_of(call.input["value"]) if call.name == "interrupt" else str(call.input["name"])


async def by_turnwise(stage: Stage, approved: set[str], chance: Random) -> Sequence[Any]:
    """Decide the waiting calls in any order, with kills in between; return the run's output."""
    for _ in range(30):
        while (run := await stage.core.reads.run("run")).state == "running":
            await asyncio.sleep(0)
        if run.state != "awaiting_approval":
            return output(await stage.outcome())
        waiting = list(await stage.core.reads.pending("run"))
        chance.shuffle(waiting)
        for call in waiting:
            if chance.random() < 0.3:
                stage.new_core()
            await stage.decide(call.call_id, "approved" if question_of(call) in approved else "rejected")
    raise AssertionError("it asks for ever")


def approvals(chance: Random) -> set[str]:
    questions = [*NAMES, *(f"{name}, surely" for name in NAMES), "beside"]
    return {name for name in questions if chance.random() < 0.5}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", TOOLS)
async def test_each_decision_reaches_the_tool_that_asked(kind: str, graph: str, seed: int) -> None:
    """LangGraph alone makes a call again whose result is not stored; else all is the same."""
    chance = Random(f"{kind} {graph} {seed}")
    approved, names = approvals(chance), NAMES[: chance.choice([2, 3])]
    alone, in_session = Scene(), Scene()
    reference = asks_once if kind == "asks_on_a_thread" else TOOLS[kind]  # alone, threads race for the answers
    await by_langgraph_alone(GRAPHS[graph](alone, reference(alone), names), approved)
    stage = Stage(
        LangGraphEngine(GRAPHS[graph](in_session, TOOLS[kind](in_session), names), checkpointer=InMemorySaver())
    )
    await stage.begin()
    blocks = await by_turnwise(stage, approved, chance)
    assert sorted(in_session.deeds) == sorted(set(alone.deeds)), "each approved deed is done once, and no other"
    refused = {name for name, answers in alone.answers.items() if answers[-1] == "ignore"}
    assert {name: answers[-1] for name, answers in in_session.answers.items()} == {
        name: answers[-1] for name, answers in alone.answers.items() if name not in refused
    }, "a rejected call is not made, so its tool gets no answer"
    results = [block for block in blocks if isinstance(block, ToolResult) and block.call_id.startswith("c")]
    assert [block.call_id for block in results] == [f"c{index}" for index, _ in enumerate(names, 1)]
    assert [result.text == f"deleted {name}" for name, result in zip(names, results, strict=True)] == [
        name in in_session.deeds for name in names
    ]
    assert blocks[-1] == Text(text="Done.")


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["asks_once", "asks_for_a_review", "is_reviewed_twice"])
async def test_a_kill_at_any_moment_gives_no_decision_to_another_question(kind: str) -> None:
    """Each copy of store and checkpointer is one that a process which was killed before or after a commit leaves."""
    scene, approved = Scene(), {"a", "c"} if kind != "is_reviewed_twice" else {"a", "c", "a, surely", "c, surely"}
    saver = InMemorySaver()
    engine = LangGraphEngine(one_node(scene, TOOLS[kind](scene), NAMES), checkpointer=saver)
    stage, kills = Stage(engine, on_lost="resume"), list[tuple[InMemoryStore, InMemorySaver, list[str]]]()
    stage.store = WatchedStore(lambda twin: kills.append((twin, copied(saver), list(scene.deeds))))
    stage.new_core()
    await stage.begin()
    await by_turnwise(stage, approved, Random(1))
    assert scene.deeds == ["a", "c"]
    stores, checkpoints, deeds = zip(*kills[1:-1], strict=True)
    moments = [*zip(stores, checkpoints, deeds, strict=True), *zip(stores, checkpoints[1:], deeds[1:], strict=False)]
    for store, checkpointer, before in moments:
        scene.deeds[:] = before
        again = Stage(replace(engine, checkpointer=copied(checkpointer)), on_lost="resume")
        again.store = twin(store)
        again.new_core()
        blocks = await by_turnwise(again, approved, Random(2))
        assert set(scene.deeds) <= {"a", "c"} and len(scene.deeds) == len(set(scene.deeds))
        results = {block.call_id: block.text for block in blocks if isinstance(block, ToolResult)}
        assert results["c1"] in ("deleted a", LOST) and results["c3"] in ("deleted c", LOST)
        assert results["c2"] in ("kept b", "rejected", LOST)
        uses = sorted(block.call_id for block in blocks if isinstance(block, ToolUse))
        assert uses == sorted(block.call_id for block in blocks if isinstance(block, ToolResult))
        assert blocks[-1] == Text(text="Done.")


def twin(store: InMemoryStore) -> InMemoryStore:
    """Return a copy of a store, which a second process may go on from."""
    copy = InMemoryStore()
    copy.__dict__.update(deepcopy(vars(store)))
    return copy


@pytest.mark.parametrize("stop", ["interrupt_before", "interrupt_after"])
async def test_a_kill_at_any_moment_passes_no_breakpoint(stop: str) -> None:
    scene = Scene()

    @tool
    async def delete(name: str) -> str:
        """Delete."""
        return scene.delete(name)

    saver = InMemorySaver()
    graph = one_node(scene, delete, NAMES[:2])
    stops: Any = {stop: ["tools"] if stop == "interrupt_before" else ["agent"]}
    engine = LangGraphEngine(graph.compile(checkpointer=saver, **stops))
    stage, kills = Stage(engine, on_lost="resume"), list[tuple[InMemoryStore, InMemorySaver]]()
    stage.store = WatchedStore(lambda copy: kills.append((copy, copied(saver))))
    stage.new_core()
    await stage.begin()
    await stage.until_it_waits()
    stores, checkpoints = zip(*kills[1:], strict=True)
    for store, checkpointer in [*zip(stores, checkpoints, strict=True), *zip(stores, checkpoints[1:], strict=False)]:
        again = Stage(LangGraphEngine(graph.compile(checkpointer=copied(checkpointer), **stops)), on_lost="resume")
        again.store = twin(store)
        again.new_core()
        assert [call.call_id for call in await again.until_it_waits()] == ["c1", "c2"] and not scene.deeds
        await again.decide("c1", "rejected")
        await again.decide("c2", "approved")
        assert output(await again.outcome())[-1] == Text(text="Done.")
        assert scene.deeds == ["b"]
        scene.deeds.clear()


async def test_an_edit_stays_with_its_call_while_another_asks() -> None:
    scene, used = Scene(), list[str]()

    @tool
    async def delete(name: str) -> str:
        """Delete."""
        used.append(name)
        if scene.review(name):
            await asyncio.sleep(0)
            scene.ask(f"{name}, surely")
        return scene.delete(name)

    engine = LangGraphEngine(one_node(scene, delete, ["a", "b"]), checkpointer=TurnwiseSaver("memory://"))
    stage = Stage(engine)
    await stage.begin()
    for _ in range(10):
        while (run := await stage.core.reads.run("run")).state == "running":
            await asyncio.sleep(0)
        if run.state != "awaiting_approval":
            break
        for call in await stage.core.reads.pending("run"):
            edited: dict[str, Any] = {"input": {"name": "x"}} if call.input.get("name") == "a" else {}
            await stage.decide(call.call_id, "approved", **edited)
    output(await stage.outcome())
    assert sorted(scene.deeds) == ["b", "x"], used


async def test_two_calls_of_equal_arguments_are_two_questions() -> None:
    scene = Scene()
    graph = many_tasks(scene, asks_for_a_review(scene), ["a", "a"])
    stage = Stage(LangGraphEngine(graph, checkpointer=InMemorySaver()))
    await stage.begin()
    assert [call.call_id for call in await stage.until_it_waits()] == ["c1", "c2"]
    await stage.decide("c1", "rejected")
    await stage.decide("c2", "approved")
    output(await stage.outcome())
    assert scene.deeds == ["a"]


async def test_a_node_that_asks_after_its_tools_gets_its_own_answer() -> None:
    scene = Scene()
    graph = one_node(scene, asks_once(scene), ["a", "b"])

    def check(value: Any) -> Any:
        assert scene.got("check", interrupt({"ask": "check"})) == "fine"
        return value

    changed: Any = StateGraph(State)
    changed.add_node("agent", graph.nodes["agent"].runnable)
    changed.add_node("tools", graph.nodes["tools"].runnable | check)
    changed.add_edge(START, "agent").add_edge("tools", "agent")
    changed.add_conditional_edges("agent", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
    stage = Stage(LangGraphEngine(changed, checkpointer=InMemorySaver()))
    await stage.begin()
    for verdict, text in (("approved", ""), ("rejected", ""), ("provided", "fine")):
        (call,) = await stage.until_it_waits()
        await stage.decide(call.call_id, verdict, text=text)
        while (await stage.core.reads.run("run")).state == "running":
            await asyncio.sleep(0)
    assert output(await stage.outcome())[-1] == Text(text="Done.")
    assert scene.deeds == ["a"] and set(scene.answers["check"]) == {"fine"}

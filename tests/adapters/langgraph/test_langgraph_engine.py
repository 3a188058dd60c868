"""`LangGraphEngine` in a `SessionCore`, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import Send, interrupt
from pydantic import BaseModel
from ray import cloudpickle
from typing_extensions import TypedDict

from frameworks.langgraph_models import OpenAIChat, ScriptedChat, State, agent, calls, said_by_tools, script
from frameworks.langgraph_stage import Stage, copied, output
from schedules import SESSION
from stored.watched_store import WatchedStore
from turnwise.actors.hosting.identity import identity
from turnwise.actors.inference.engine import Closable, SessionView, check_taken
from turnwise.actors.inference.text_model import EngineModel
from turnwise.actors.inference.tools.loop import LOST
from turnwise.actors.session.engines.budget import Budget
from turnwise.adapters import LangGraphEngine, TurnwiseSaver
from turnwise.errors import ConfigError, InvalidInputError, StoreClosedError
from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import TextDelta, ToolEnded
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing import LocalProvider, tool_script


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


@tool
async def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


async def test_a_graph_answers_with_tools_and_streams(provider: LocalProvider) -> None:
    provider.reply = tool_script([[("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})], "Both are sunny."])
    stage = Stage(LangGraphEngine(agent(OpenAIChat(base_url=provider.base_url), [weather])))
    outcome = await stage.run()
    first, second, *results, answer = output(outcome)
    assert isinstance(first, ToolUse) and first.input == {"city": "Oslo"} and isinstance(second, ToolUse)
    assert [block.text for block in results if isinstance(block, ToolResult)] == ["sunny in Oslo", "sunny in Rome"]
    assert answer == Text(text="Both are sunny.")
    deltas = [event.text for event in await stage.events() if isinstance(event, TextDelta)]
    assert "".join(deltas) == "Both are sunny." and len(provider.requests) == 2
    usage = outcome.run.usage
    assert usage and (usage.calls, usage.tool_calls) == (2, 2) and usage.input_tokens and usage.output_tokens
    again = await stage.run("and Paris?", run_id="second")
    assert output(again)
    sent = provider.requests[2].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "assistant", "user"]


DECISIONS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "approve": ("approved", {}, "True", "approved"),
    "reject": ("rejected", {"text": "no"}, "False", "rejected: no"),
    "provide": ("provided", {"text": '{"a": [1]}', "is_json": True}, "{'a': [1]}", '{"a": [1]}'),
}


def asking(value: Any, *, schema: Any = None) -> Any:
    """Return a graph whose model speaks, and whose next node asks for a decision."""
    graph = agent(ScriptedChat(reply=script("Shall I?")))

    def ask(state: Any) -> Any:
        return {"messages": [AIMessage(f"got {interrupt(value, response_schema=schema)!r}")]}

    graph.add_node("ask", ask)
    graph.add_edge("agent", "ask")
    return graph


@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_decision_about_an_interrupt_is_the_value_that_the_graph_gets(decision: str) -> None:
    verdict, options, value, expected = DECISIONS[decision]
    saver = InMemorySaver()
    stage = Stage(LangGraphEngine(asking({"question": "really?"}), checkpointer=saver))
    await stage.begin()
    (call,) = await stage.until_it_waits()
    assert (call.name, call.input, call.wants) == ("interrupt", {"value": {"question": "really?"}}, "approval")
    (thread,) = saver.storage
    assert thread.endswith(f"-{SESSION}#0")
    stage.new_core()  # as after a restart
    await stage.decide(call.call_id, verdict, **options)
    text, use, result, answer = output(await stage.outcome())
    assert text == Text(text="Shall I?") and answer == Text(text=f"got {value}")
    assert isinstance(use, ToolUse) and isinstance(result, ToolResult) and result.text == expected
    await stage.begin("again", run_id="second")
    await stage.until_it_waits("second")
    again = thread.replace("#0", "#1")
    assert list(saver.storage) == [again], "the checkpoints of a turn are deleted when the next one begins"
    model = stage.engine.graph.nodes["agent"].runnable.afunc.__closure__[0].cell_contents
    assert [message.text for message in model.requests[-1]] == ["go", f"Shall I?got {value}", "again"]
    await stage.core.admission.cancel("second")
    assert (await stage.outcome("second")).run.state == "cancelled"


class Age(BaseModel):
    years: int


async def test_a_value_that_the_graph_did_not_ask_for_is_asked_again() -> None:
    stage = Stage(LangGraphEngine(asking("how old?", schema=Age), checkpointer=InMemorySaver()))
    await stage.begin()
    (call,) = await stage.until_it_waits()
    assert call.input["response_schema"]["title"] == "Age"
    await stage.decide(call.call_id, "provided", text="seven")
    while not (waiting := await stage.core.reads.pending("run")):
        await asyncio.sleep(0.005)
    assert waiting[0].call_id == f"{call.call_id}-2" and "not what the graph asked for" in str(waiting[0].why)
    await stage.decide(waiting[0].call_id, "provided", text='{"years": 7}', is_json=True)
    assert output(await stage.outcome())[-1] == Text(text="got Age(years=7)")


def reviewed(model: Any, tools: Sequence[Any], *, old: bool = False) -> Any:
    """Return an agent that has its calls reviewed, as LangChain's middleware does; `old`: as its forerunner did."""
    graph = agent(model, tools)

    def review(state: Any) -> Any:
        message = state["messages"][-1]
        if not message.tool_calls:
            return {}
        actions = [
            {"name": call["name"], "args": call["args"], "description": "careful"} for call in message.tool_calls
        ]
        if old:
            requests = [{"action_request": {"action": action["name"], "args": action["args"]}} for action in actions]
            answers = interrupt(requests)
            kinds = {"accept": "approve", "ignore": "reject", "edit": "edit", "response": "reject"}
            decisions: Any = [
                {
                    "type": kinds[answer["type"]],
                    "message": answer["args"],
                    "edited_action": {"name": "", "args": (answer["args"] or {}).get("args")}
                    if answer["type"] == "edit"
                    else {},
                }
                for answer in answers
            ]
        else:
            reviews = [{"action_name": action["name"], "allowed_decisions": ["approve", "edit"]} for action in actions]
            decisions = interrupt({"action_requests": actions, "review_configs": reviews})["decisions"]
        calls_made: list[Any] = []
        refused: list[Any] = []
        for call, decision in zip(message.tool_calls, decisions, strict=True):
            if decision["type"] == "edit":
                call = {**call, "args": decision["edited_action"]["args"]}  # noqa: PLW2901
            if decision["type"] == "reject":
                refused.append(ToolMessage(f"no: {decision.get('message')}", tool_call_id=call["id"], status="error"))
            calls_made.append(call)
        return {"messages": [message.model_copy(update={"tool_calls": calls_made}), *refused]}

    def route(state: Any) -> Any:
        answered = {message.tool_call_id for message in state["messages"] if isinstance(message, ToolMessage)}
        message = next(message for message in reversed(state["messages"]) if isinstance(message, AIMessage))
        open_calls = [call for call in message.tool_calls if call["id"] not in answered]
        return [Send("tools", [call]) for call in open_calls] or ("agent" if message.tool_calls else END)

    changed: Any = StateGraph(State)
    changed.add_node("agent", graph.nodes["agent"].runnable)
    changed.add_node("tools", graph.nodes["tools"].runnable)
    changed.add_node("review", review)
    changed.add_edge(START, "agent")
    changed.add_edge("agent", "review")
    changed.add_conditional_edges("review", route, ["tools", "agent", END])
    changed.add_edge("tools", "agent")
    return changed


@pytest.mark.parametrize("old", [False, True], ids=["middleware", "human interrupt"])
async def test_calls_under_review_wait_for_their_decisions(old: bool) -> None:
    cities = [("weather", {"city": city}) for city in ("Oslo", "Rome", "Bonn", "Bern")]
    model = ScriptedChat(reply=script(calls(*cities), "Done."))
    stage = Stage(LangGraphEngine(reviewed(model, [weather], old=old), checkpointer=InMemorySaver()))
    await stage.begin()
    waiting = await stage.until_it_waits()
    assert [(call.call_id, call.input["city"]) for call in waiting] == list(
        zip(["c1", "c2", "c3", "c4"], ["Oslo", "Rome", "Bonn", "Bern"], strict=True)
    )
    assert {call.why for call in waiting} == {None if old else "careful"}
    await stage.decide("c1", "approved")
    await stage.decide("c2", "approved", input={"city": "Paris"})
    with pytest.raises(InvalidInputError, match="city"):
        await stage.decide("c3", "approved", input={"town": "Paris"})
    stage.new_core()
    await stage.decide("c3", "rejected", text="not there")
    await stage.decide("c4", "provided", text="raining")
    blocks = output(await stage.outcome())
    assert [block.input["city"] for block in blocks if isinstance(block, ToolUse)] == ["Oslo", "Paris", "Bonn", "Bern"]
    texts = [block.text for block in blocks if isinstance(block, ToolResult)]
    assert texts == ["sunny in Oslo", "sunny in Paris", "rejected: not there", "raining"]
    assert blocks[-1] == Text(text="Done.")


async def test_a_breakpoint_before_the_tools_makes_their_calls_wait() -> None:
    cities = [("weather", {"city": city}) for city in ("Oslo", "Rome", "Bonn")]
    model = ScriptedChat(reply=script(calls(*cities), "Done."))
    graph = agent(model, [weather]).compile(checkpointer=InMemorySaver(), interrupt_before=["tools"])
    stage = Stage(LangGraphEngine(graph))
    await stage.begin()
    assert [call.call_id for call in await stage.until_it_waits()] == ["c1", "c2", "c3"]
    await stage.decide("c1", "approved")
    await stage.decide("c2", "approved", input={"city": "Paris"})
    await stage.decide("c3", "rejected")
    texts = [block.text for block in output(await stage.outcome()) if isinstance(block, ToolResult)]
    assert texts == ["sunny in Oslo", "sunny in Paris", "rejected"]
    assert said_by_tools(model.requests[-1]) == texts, "the graph's model gets what was decided"


async def test_a_breakpoint_elsewhere_waits_as_a_call_of_its_own() -> None:
    graph = asking("x").compile(checkpointer=InMemorySaver(), interrupt_after=["agent"])
    stage = Stage(LangGraphEngine(graph))
    await stage.begin()
    (call,) = await stage.until_it_waits()
    assert call.input == {"value": {"next": ("ask",)}}
    await stage.decide(call.call_id, "rejected")
    outcome = await stage.outcome()
    assert outcome.run.state == "failed" and "was rejected" in str(outcome.run.why)


async def test_an_interrupt_without_a_checkpointer_fails_the_run_and_names_the_remedy() -> None:
    stage = Stage(LangGraphEngine(asking("?")))
    outcome = await stage.run()
    assert outcome.run.state == "failed" and "checkpointer=TurnwiseSaver" in str(outcome.run.why)
    assert (await stage.run("again", run_id="second")).run.state == "failed", "the session goes on"


async def test_a_decision_whose_graph_has_lost_its_state_fails_the_run() -> None:
    stage = Stage(LangGraphEngine(asking("?"), checkpointer=InMemorySaver))
    await stage.begin()
    (call,) = await stage.until_it_waits()
    stage.new_core()
    await stage.decide(call.call_id, "approved")
    outcome = await stage.outcome()
    assert outcome.run.state == "failed" and "InMemorySaver" in str(outcome.run.why)


@pytest.mark.parametrize("repeatable", [False, True], ids=["once", "repeatable"])
@pytest.mark.parametrize("durable", [False, True], ids=["no checkpointer", "checkpointer"])
async def test_a_call_with_a_result_is_not_made_again_after_a_loss(durable: bool, repeatable: bool) -> None:
    called: list[str] = []

    @tool
    async def quick() -> str:
        """Be quick."""
        called.append("quick")
        return "quick"

    @tool
    async def slow() -> str:
        """Be slow."""
        called.append("slow")
        await asyncio.sleep(60 if called.count("slow") == 1 else 0)
        return "slow"

    model = ScriptedChat(reply=script(calls(("quick", {}), ("slow", {})), "Done."))
    engine = LangGraphEngine(
        agent(model, [quick, slow]),
        checkpointer=InMemorySaver() if durable else None,
        repeatable=["slow"] if repeatable else [],
    )
    stage = Stage(engine, on_lost="resume")
    await stage.begin()
    while not any(isinstance(event, ToolEnded) for event in await stage.events()):
        await asyncio.sleep(0.005)
    stage.new_core()
    blocks = output(await stage.outcome())
    again = durable and repeatable
    assert called == (["quick", "slow", "slow"] if again else ["quick", "slow"])
    texts = [block.text for block in blocks if isinstance(block, ToolResult)]
    assert texts == ["quick", "slow" if again else LOST] == said_by_tools(model.requests[-1])
    assert blocks[-1] == Text(text="Done.")


async def test_an_interrupt_in_a_tool_repeats_that_tool_only() -> None:
    called: list[str] = []

    @tool
    async def plain() -> str:
        """Work for a moment."""
        called.append("plain")
        await asyncio.sleep(0.02)
        return "plain"

    @tool
    async def asks() -> str:
        """Ask."""
        called.append("asks")
        return f"answer: {interrupt('which?')}"

    model = ScriptedChat(reply=script(calls(("plain", {}), ("asks", {})), "Done."))
    stage = Stage(LangGraphEngine(agent(model, [plain, asks]), checkpointer=InMemorySaver()))
    await stage.begin()
    (call,) = await stage.until_it_waits()
    stage.new_core()
    await stage.decide(call.call_id, "provided", text="the red one")
    blocks = output(await stage.outcome())
    texts = {block.call_id: block.text for block in blocks if isinstance(block, ToolResult)}
    assert texts == {"c1": "plain", "c2": "answer: the red one", call.call_id: "the red one"}
    assert called == ["plain", "asks", "asks"]


async def test_ids_that_a_server_repeats_are_told_apart() -> None:
    steps = [calls(("weather", {"city": city})) for city in ("Oslo", "Rome")]
    model = ScriptedChat(reply=script(*steps, "Done."))
    blocks = output(await Stage(LangGraphEngine(agent(model, [weather]))).run())
    assert [block.call_id for block in blocks if isinstance(block, ToolUse)] == ["c1", "c1_2"]
    texts = [block.text for block in blocks if isinstance(block, ToolResult)]
    assert texts == ["sunny in Oslo", "sunny in Rome"] == said_by_tools(model.requests[-1])


async def test_a_graph_that_does_not_end_reaches_its_limit() -> None:
    model = ScriptedChat(reply=script(calls(("weather", {"city": "Oslo"}))))
    outcome = await Stage(LangGraphEngine(agent(model, [weather]), config={"recursion_limit": 5})).run()
    assert (outcome.run.state, outcome.run.code) == ("failed", "step_limit")
    assert "recursion_limit" in str(outcome.run.why)
    assert outcome.turn and isinstance(outcome.turn.output[-1], ToolResult), "what was done is kept"


async def test_a_budget_ends_a_graph_before_its_next_model_call() -> None:
    model = ScriptedChat(reply=script("one", "two", "three"))
    graph: Any = StateGraph(State)
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    outcome = await Stage(LangGraphEngine(graph), run_budget=Budget(calls=2)).run()
    assert (outcome.run.state, outcome.run.code) == ("failed", "budget") and len(model.requests) == 2
    assert outcome.turn and [block.text for block in outcome.turn.output if isinstance(block, Text)] == ["one", "two"]


async def test_a_failing_tool_or_node_fails_only_its_run() -> None:
    @tool
    async def broken() -> str:
        """Break."""
        failures.append(len(failures))
        return f"{1 / failures[-1]}"

    failures: list[int] = []
    stage = Stage(LangGraphEngine(agent(ScriptedChat(reply=script(calls(("broken", {})), "Done.")), [broken])))
    outcome = await stage.run()
    assert outcome.run.state == "failed" and "ZeroDivisionError: division by zero" in str(outcome.run.why)
    assert outcome.turn
    use, result = outcome.turn.output
    assert isinstance(use, ToolUse) and isinstance(result, ToolResult) and result.is_error
    assert output(await stage.run("again", run_id="second"))


async def test_a_cancel_closes_the_connection_to_the_provider(provider: LocalProvider) -> None:
    provider.token_delay_s = 0.02
    provider.reply = "word " * 500
    stage = Stage(LangGraphEngine(agent(OpenAIChat(base_url=provider.base_url)), checkpointer=InMemorySaver()))
    await stage.begin()
    while not any(isinstance(event, TextDelta) for event in await stage.events()):
        await asyncio.sleep(0.005)
    await stage.core.admission.cancel("run")
    outcome = await stage.outcome()
    assert outcome.run.state == "cancelled" and outcome.turn and outcome.turn.text.startswith("word")
    (request,) = provider.requests
    assert await asyncio.to_thread(request.ended.wait, 5) and request.hung_up_at


@pytest.mark.parametrize(("fault", "code"), [("400", "refused"), ("429", None)])
async def test_an_error_of_the_provider_fails_the_run_with_its_message(
    provider: LocalProvider, fault: str, code: str | None
) -> None:
    stage = Stage(LangGraphEngine(agent(OpenAIChat(base_url=provider.base_url, model=f"local/{fault}-once"))))
    outcome = await stage.run()
    assert (outcome.run.state, outcome.run.code) == ("failed", code) and fault in str(outcome.run.why)
    provider.reply = "fine"
    assert output(await stage.run("again", run_id="second")) == (Text(text="fine"),)


async def test_parameters_reach_the_graph_if_it_takes_them() -> None:
    received: list[Any] = []

    class Context(TypedDict, total=False):
        temperature: float

    def node(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        received.append((config["configurable"], runtime.context))
        return {"messages": [AIMessage("ok")]}

    graph: Any = StateGraph(State, context_schema=Context)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    engine = LangGraphEngine(graph, takes=["model", "temperature", "max_output_tokens"])
    params = {"temperature": 0.5, "max_output_tokens": 9}
    assert output(await Stage(engine).run(model="big", params=params)) == (Text(text="ok"),)
    ((config, context),) = received
    assert (config["model"], config["temperature"], config["max_tokens"]) == ("big", 0.5, 9)
    assert config["session_id"] == SESSION and context == {"temperature": 0.5}
    with pytest.raises(InvalidInputError, match="takes="):
        check_taken(engine, None, {"seed": 1})


async def test_a_graph_without_messages_is_refused() -> None:
    with pytest.raises(ConfigError, match="no channel 'messages', only question"):
        LangGraphEngine(without_messages())
    stage = Stage(LangGraphEngine(without_messages))
    outcome = await stage.run()
    assert outcome.run.state == "failed" and "no channel 'messages'" in str(outcome.run.why)


WRONG: dict[str, dict[str, Any]] = {
    "graph": {"graph": 3},
    "place": {"graph": "nowhere"},
    "takes": {"graph": "a:b", "takes": ["colour"]},
    "repeatable": {"graph": "a:b", "repeatable": "tool"},
    "config": {"graph": "a:b", "config": 3},
    "checkpointer": {"graph": "a:b", "checkpointer": 3},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError):
        LangGraphEngine(**WRONG[name])


def build_graph() -> Any:
    return agent(ScriptedChat(reply=script("made")))


async def made_async() -> Any:
    return build_graph().compile()


@pytest.mark.parametrize(
    "graph", [build_graph, made_async, "frameworks.langgraph_models:ready", "frameworks.langgraph_models:make"]
)
async def test_a_graph_can_be_made_where_the_session_runs(graph: Any) -> None:
    assert output(await Stage(LangGraphEngine(graph)).run())[-1].kind == "text"


async def test_a_compiled_graph_travels_as_it_was_compiled() -> None:
    saver = InMemorySaver()
    graph = asking("?").compile(checkpointer=saver, interrupt_before=["agent"], name="clerk")
    engine = LangGraphEngine(graph.with_config(recursion_limit=7), takes=["model"])
    there = cloudpickle.loads(cloudpickle.dumps(engine))
    assert identity(there) == identity(engine) and identity(there) != identity(LangGraphEngine(graph))
    compiled = there.build(None)._graph  # noqa: SLF001 - all that it was compiled with
    assert (compiled.name, compiled.interrupt_before_nodes, compiled.config["recursion_limit"]) == (
        "clerk",
        ["agent"],
        7,
    )
    stage = Stage(there)
    await stage.begin()
    (call,) = await stage.until_it_waits()
    await stage.decide(call.call_id, "approved")
    while call in (waiting := await stage.core.reads.pending("run")) or not waiting:
        await asyncio.sleep(0.005)
    await stage.decide(waiting[0].call_id, "approved")
    assert output(await stage.outcome())[-1] == Text(text="got True")


@pytest.mark.parametrize(
    "graph", ["no_such_module:graph", "frameworks.langgraph_models:nothing", "frameworks.langgraph_models:NUMBER"]
)
async def test_a_place_without_a_graph_fails_the_run(graph: str) -> None:
    outcome = await Stage(LangGraphEngine(graph)).run()
    assert outcome.run.state == "failed" and graph in str(outcome.run.why)


async def test_what_internal_models_and_subgraphs_say_is_counted_and_not_recorded() -> None:
    inner = agent(ScriptedChat(reply=script("inner thought"))).compile()

    async def think(state: Any) -> Any:
        thought = await inner.ainvoke({"messages": [("user", "think")]})
        return {"messages": [HumanMessage(f"note: {thought['messages'][-1].text}", name="thinker")]}

    graph = agent(ScriptedChat(reply=script("answer")))
    graph.add_node("think", think)
    changed: Any = StateGraph(State)
    changed.add_node("think", think).add_node("agent", graph.nodes["agent"].runnable)
    changed.add_edge(START, "think").add_edge("think", "agent")
    outcome = await Stage(LangGraphEngine(changed)).run()
    assert [block.text for block in output(outcome) if isinstance(block, Text)] == ["note: inner thought", "answer"]
    assert outcome.run.usage and outcome.run.usage.calls == 2


async def test_tool_calls_of_a_subgraph_are_not_recorded() -> None:
    @tool
    def count(word: str) -> str:
        """Count letters."""
        return str(len(word))

    node = ToolNode([count])  # of both graphs, so the run is asked before each call
    model = ScriptedChat(reply=script(calls(("count", {"word": "boats"})), "inner thought"))
    inner = agent(model, [count], node=node).compile()

    async def think(state: Any) -> Any:
        thought = await inner.ainvoke({"messages": [("user", "think")]})
        assert [message.text for message in thought["messages"] if isinstance(message, ToolMessage)] == ["5"]
        return {"messages": [HumanMessage("note", name="thinker")]}

    changed: Any = StateGraph(State)
    changed.add_node("think", think)
    changed.add_node("agent", agent(ScriptedChat(reply=script("answer"))).nodes["agent"].runnable)
    changed.add_node("tools", node)
    changed.add_edge(START, "think").add_edge("think", "agent").add_edge("tools", "agent")
    outcome = await Stage(LangGraphEngine(changed)).run()
    assert [type(block) for block in output(outcome)] == [Text, Text]


async def test_only_a_checkpointer_that_a_function_made_is_closed_with_its_session() -> None:
    saver = TurnwiseSaver("memory://")
    view = SessionView(session_id=SESSION, user_id="u", agent=None, metadata={})
    for checkpointer, is_closed in ((saver, False), (lambda: saver, True)):
        runner: Any = LangGraphEngine(asking("?"), checkpointer=checkpointer).build(view)
        assert isinstance(runner, Closable)
        await runner.close()
        if is_closed:
            with pytest.raises(StoreClosedError):
                saver.get_tuple({"configurable": {"thread_id": "t"}})
        else:
            assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None


def without_messages() -> Any:
    class Other(TypedDict):
        question: str

    graph: Any = StateGraph(Other)
    graph.add_node("node", lambda state: state)
    return graph.add_edge(START, "node")


async def later() -> Any:
    return without_messages()


def without_entry() -> Any:
    graph: Any = StateGraph(State)
    return graph.add_node("node", lambda state: state)


def with_its_own() -> Any:
    return build_graph().compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("graph", [without_messages, later, without_entry, with_its_own])
async def test_no_checkpointer_stays_open_if_the_graph_fails_or_has_its_own(graph: Any) -> None:
    opened = []

    class Saver(InMemorySaver):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

        def close(self) -> None:
            opened.remove(self)

    stage = Stage(LangGraphEngine(graph, checkpointer=Saver))
    assert (await stage.run()).run.state == ("completed" if graph is with_its_own else "failed")
    assert opened == []


async def test_checkpoints_of_a_deleted_session_are_not_those_of_its_successor() -> None:
    saver = InMemorySaver()
    engine = LangGraphEngine(asking("?"), checkpointer=saver)
    first = Stage(engine)
    await first.begin(run_id="run")
    await first.until_it_waits()
    second = Stage(engine)  # another store: a session of this id that begins anew
    await second.store.create(SessionRecord(session_id=SESSION))
    await second.begin("hello", run_id="other")
    await second.until_it_waits("other")
    model = engine.graph.nodes["agent"].runnable.afunc.__closure__[0].cell_contents
    assert [message.text for message in model.requests[-1]] == ["hello"]


@pytest.mark.parametrize("user", ["bob", "ann"])
async def test_users_with_equal_session_ids_do_not_share_checkpoints(user: str) -> None:
    engine = LangGraphEngine(asking("?"), checkpointer=InMemorySaver())
    first, second = Stage(engine), Stage(engine)  # each has a store of its own
    for stage, owner, run_id in ((first, "ann", "first"), (second, user, "second")):
        await stage.store.create(SessionRecord(session_id=SESSION, user_id=owner))
        stage.new_core(owner)
        await stage.begin(run_id=run_id)
        await stage.until_it_waits(run_id)
    (call,) = await second.until_it_waits("second")
    await second.decide(call.call_id, "approved", run_id="second")
    assert output(await second.outcome("second"))
    await second.begin("again", run_id="third")
    await second.until_it_waits("third")
    (call,) = await first.until_it_waits("first")
    await first.decide(call.call_id, "approved", run_id="first")
    assert output(await first.outcome("first"))[-1] == Text(text="got True")


async def test_summaries_leave_no_checkpoints_and_touch_none() -> None:
    saver = InMemorySaver()
    model = ScriptedChat(reply=script("short"))
    summarizer = EngineModel(LangGraphEngine(agent(model), checkpointer=saver))
    assert [await summarizer.answer([User(text=text)]) for text in ("a", "b")] == ["short", "short"]
    assert [[message.text for message in prompt] for prompt in model.requests] == [["a"], ["b"]]
    assert not saver.storage


async def test_the_checkpoints_of_a_session_are_found_by_its_id() -> None:
    saver = InMemorySaver()
    stage = Stage(LangGraphEngine(agent(ScriptedChat(reply=script("Hi."))), checkpointer=saver))
    output(await stage.run())
    threads = {
        checkpoint.config["configurable"]["thread_id"]
        for checkpoint in saver.list(None, filter={"session_id": SESSION})
    }
    assert threads == set(saver.storage) and len(threads) == 1


@pytest.mark.parametrize("durable", [False, True], ids=["no checkpointer", "checkpointer"])
async def test_a_kill_at_any_commit_makes_no_call_twice(durable: bool) -> None:
    """Store and checkpointer are copied at each commit; a process that finds the copy goes on from there."""
    called: list[str] = []

    @tool
    async def work(name: str) -> str:
        """Work."""
        called.append(name)
        return f"{name} done"

    steps: list[Any] = [
        calls(("work", {"name": "a"}), ("work", {"name": "b"})),
        calls(("work", {"name": "c"}), first=3),
        "Done.",
    ]
    saver = InMemorySaver()
    engine = LangGraphEngine(agent(ScriptedChat(reply=script(*steps)), [work]), checkpointer=saver if durable else None)
    stage, kills = Stage(engine, on_lost="resume"), list[tuple[InMemoryStore, InMemorySaver, list[str]]]()
    stage.store = WatchedStore(lambda twin: kills.append((twin, copied(saver), list(called))))
    stage.new_core()
    output(await stage.run())
    assert called == ["a", "b", "c"] and len(kills) > 5
    for store, checkpoints, before in kills[1:-1]:
        called[:] = before
        again = Stage(replace(engine, checkpointer=checkpoints if durable else None), on_lost="resume")
        again.store = store
        again.new_core()
        blocks = output(await again.outcome())
        uses = sorted(block.call_id for block in blocks if isinstance(block, ToolUse))
        assert uses == sorted(block.call_id for block in blocks if isinstance(block, ToolResult))
        assert len(set(called)) == len(called), called
        assert blocks[-1] == Text(text="Done.")

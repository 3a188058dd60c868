"""Agents end to end: real actors, a real SQLite file, real kills, and a simulated provider over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_sessions_on_ray import audit, kill, python

from engines import SlowlyBuilt, process_of
from patience import until
from scale import ONE_PLACEMENT
from tools import agent_tools
from tools.agent_tools import charge, driver, fail, far_away, note, pause, pay, prompt, search, stubborn, whoami
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed, Placement
from turnwise.actors.inference.middleware import SystemPrompt
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.loop import LOST
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.budget import Budget, Price
from turnwise.errors import (
    CallDecidedError,
    CallNotFoundError,
    InvalidInputError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunLimitError,
)
from turnwise.memory.conversation.blocks import Image, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import ApprovalRequested, HookFailed, RunResumed, ToolEnded, ToolStarted
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_chat import PARAGRAPH
from turnwise.memory.providers.openai_responses import unpack_reasoning
from turnwise.memory.values.records import replace
from turnwise.testing import LocalProvider, Message, tool_script

WAIT_S = 120.0


def obey(messages: list[Message]) -> Message:
    """Answer as the user's last message says: see `agent_tools.prompt`."""
    content = [message["content"] for message in messages if message["role"] == "user"][-1]
    text = content if isinstance(content, str) else content[-1]["text"]
    instructions = json.loads(text.split(PARAGRAPH)[-1])  # behind what was recalled for it
    return tool_script(instructions["steps"], reasoning=instructions["thought"])(messages)


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(reply=obey) as provider:
        yield provider


class Bench:
    """The agents of one test, the notes of their tools, and the provider's requests."""

    def __init__(self, make_manager: Callable[..., SessionManager], provider: LocalProvider, path: Path) -> None:
        self.provider = provider
        self.labels = {"notes": str(path)}
        self.make_manager = make_manager
        self._path = path

    def engine(
        self,
        *tools: Tool,
        registry: Mapping[str, Any] | None = None,
        kind: type[OpenAIEngine] = OpenAIEngine,
        **settings: Any,
    ) -> OpenAIEngine:
        options: dict[str, Any] = {"base_url": self.provider.base_url, "max_retries": 0, **settings}
        return kind("local", tools=ToolRegistry(*tools, **(registry or {})), **options)

    def manager(
        self, *tools: Tool, config: Mapping[str, Any] | None = None, placement: Placement | None = None, **settings: Any
    ) -> SessionManager:
        chosen: dict[str, Any] = {"config": SessionConfig(**(config or {}))}
        if placement:
            chosen["placement"] = placement
        return self.make_manager(engine=self.engine(*tools, **settings), **chosen)

    def notes(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []

    def noted(self, note: str) -> None:
        """Wait for a note."""
        until(lambda: note in self.notes())

    def sent(self) -> list[Message]:
        """Return the conversation of the provider's last request."""
        body = self.provider.requests[-1].body
        sent: list[Message] = body["messages"] if "messages" in body else body["input"]
        return sent


@pytest.fixture
def bench(make_manager: Callable[..., SessionManager], provider: LocalProvider, tmp_path: Path) -> Bench:
    return Bench(make_manager, provider, tmp_path / "notes")


@pytest.fixture
def ray_bench(make_ray_manager: Callable[..., SessionManager], provider: LocalProvider, tmp_path: Path) -> Bench:
    return Bench(make_ray_manager, provider, tmp_path / "notes")


def awaited(run: ExecutionHandle) -> list[PendingCall]:
    """Return the calls that the run waits for, when it does."""
    until(lambda: run.status() == "awaiting_approval")
    return run.pending()


def results(turn: Turn | None) -> list[tuple[str, bool]]:
    """Return the text of each tool result of the turn, and whether it is an error."""
    assert turn
    return [(block.text, block.is_error) for block in turn.output if isinstance(block, ToolResult)]


def packed(thought: Thinking) -> tuple[str, str]:
    reasoning = unpack_reasoning(thought.signature)
    assert reasoning
    return reasoning.id, reasoning.encrypted_content


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Tools


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_parallel_results_are_in_order_and_thoughts_go_back_unchanged(bench: Bench, api: str) -> None:
    """Cases 26, 31 and 32: one call is slow, one fails, one names no tool, one has wrong arguments."""
    manager = bench.manager(note, pause, fail, api=api)
    chat = manager.open("chat", user_id="ada")
    calls: agent_tools.Calls = [
        ("pause", {"seconds": 0.5}),
        ("fail", {"how": "tool"}),
        ("missing", {}),
        ("note", {"text": "a", "loud": True}),
        ("note", {"text": "b"}),
    ]
    run = chat.run(prompt(calls, [("note", {"text": "c"})], "done", thought="let me see"), labels=bench.labels)
    turn = run.wait(WAIT_S)
    assert turn.text == "done" and turn.stop_reason in ("stop", "completed")
    assert [text.partition(":")[0].partition(".")[0] for text, _ in results(turn)] == [
        "waited 0",
        "there is no such train",
        "There is no tool 'missing'",
        "The arguments do not match the schema of 'note'",
        "noted b",
        "noted c",
    ]
    assert [is_error for _, is_error in results(turn)] == [False, True, True, True, False, False]
    assert bench.notes() == ["paused", "b", "c"]
    uses = [block.call_id for block in turn.output if isinstance(block, ToolUse)]
    assert [block.call_id for block in turn.output if isinstance(block, ToolResult)] == uses
    thoughts = [block for block in turn.output if isinstance(block, Thinking)]
    assert [block.text for block in thoughts] == ["let me see"] * 3
    if api == "responses":
        sent = [(item["id"], item["encrypted_content"]) for item in bench.sent() if item["type"] == "reasoning"]
        assert sent == [packed(block) for block in thoughts[:2]]
        answered = [item["call_id"] for item in bench.sent() if item["type"] == "function_call_output"]
    else:
        answered = [message["tool_call_id"] for message in bench.sent() if message["role"] == "tool"]
    assert answered == uses

    steps = run.steps()
    assert [step.name or step.kind for step in steps].count("model") == 3 and steps[-1].kind == "model"
    slow, fast = (next(step for step in steps if step.name == name) for name in ("pause", "note"))
    assert slow.seconds and slow.seconds > 0.4 and fast.started_at < slow.started_at + slow.seconds
    assert all(step.seconds is not None for step in steps)
    assert {step.name: step.is_error for step in steps if step.kind == "tool"}["fail"]
    assert [step.usage.calls for step in steps if step.usage] == [1, 1]
    assert turn.usage and (turn.usage.calls, turn.usage.tool_calls) == (3, 4)
    audit(manager, "chat", user_id="ada")


def test_a_tool_that_aborts_ends_the_run_and_keeps_other_results(bench: Bench) -> None:
    """Case 31."""
    manager = bench.manager(note, pause, fail, registry={"on_error": "abort"})
    chat = manager.open("chat")
    calls: agent_tools.Calls = [("note", {"text": "a"}), ("pause", {"seconds": 30.0})]
    run = chat.run(prompt([("note", {"text": "a"})], [*calls[1:], ("fail", {"how": "x"})], "done"), labels=bench.labels)
    with pytest.raises(RunFailedError, match=r"fail.*KeyError.*abort") as failed:
        run.wait(WAIT_S)
    assert results(failed.value.turn)[0] == ("noted a", False)
    assert [is_error for _, is_error in results(failed.value.turn)] == [False, True, True]
    assert chat.run(prompt("and on"), labels=bench.labels).wait(WAIT_S).text == "and on"
    audit(manager, "chat")


def test_a_cancel_does_not_wait_for_a_tool_and_drops_its_result(bench: Bench) -> None:
    """Cases 8, 9 and 21: one tool ignores the cancel, one reacts to it, and one has ended before."""
    manager = bench.manager(note, pause, stubborn, config={"cancel_grace_s": 1.0})
    chat = manager.open("chat")
    both: agent_tools.Calls = [("stubborn", {}), ("pause", {"seconds": 30.0})]
    run = chat.run(prompt([("note", {"text": "a"})], both, "done"), labels=bench.labels)
    bench.noted("began")
    assert run.cancel("changed my mind")
    assert run.cancel("again") and "ended" not in bench.notes()
    with pytest.raises(RunCancelledError, match="changed my mind") as cancelled:
        run.wait(WAIT_S)
    cut = ("cancelled: changed my mind", True)
    assert results(cancelled.value.turn) == [("noted a", False), cut, cut]
    agent_tools.write(bench.labels, "let go")
    bench.noted("ended")
    after = chat.run(prompt("and on"), labels=bench.labels).wait(WAIT_S)
    assert after.text == "and on" and "late result" not in str(after.blocks)
    results_sent = [message["content"] for message in bench.sent() if message["role"] == "tool"]
    assert results_sent == ["noted a", *["[error] cancelled: changed my mind"] * 2]
    assert bench.notes().count("began") == 1, "cancelled calls are not made again"
    assert [event.kind for event in run.events() if event.terminal] == ["run_cancelled"]
    audit(manager, "chat")


def test_a_run_at_its_step_limit_keeps_results_and_says_why(bench: Bench) -> None:
    """Case 22: a model that always calls a tool."""
    manager = bench.manager(note, registry={"max_steps": 3})
    chat = manager.open("chat")
    with pytest.raises(RunLimitError, match="max_steps") as limited:
        chat.run(prompt([("note", {"text": "again"})]), labels=bench.labels).wait(WAIT_S)
    turn = limited.value.turn
    assert turn and turn.stop_reason == "step_limit" and turn.status == "failed"
    assert results(turn) == [("noted again", False)] * 3 == [("noted again", False)] * len(bench.notes())
    assert (chat.runs()[0].code, chat.runs()[0].finish) == ("step_limit", "error")
    assert chat.run(prompt("and on")).wait(WAIT_S).text == "and on"
    audit(manager, "chat")


def test_a_tool_gets_the_sessions_user_and_usage_adds_up_by_user(bench: Bench) -> None:
    """Case 50, for tools."""
    prices = {"local": Price(input=1.0, output=1_000_000.0)}
    manager = bench.manager(whoami, config={"prices": prices})
    forged = {"user_id": "eve", "context": {"session": {"user_id": "eve"}}}
    story = prompt([("whoami", {"user_id": "eve"}), ("whoami", forged)], "done")
    spent: dict[str, Usage] = {}
    for session_id, user_id in (("a1", "ada"), ("a2", "ada"), ("b1", "ada-1")):
        turn = manager.open(session_id, user_id=user_id).run(story).wait(WAIT_S)
        (first_result, _), (refused, is_error) = results(turn)
        assert first_result == f"{user_id} in {session_id}, not eve"
        assert is_error and "context: Extra inputs" in refused
        assert turn.usage and turn.usage.cost == pytest.approx(turn.usage.output_tokens + turn.usage.input_tokens / 1e6)
        spent[session_id] = turn.usage
    sum_of_ada = spent["a1"] + spent["a2"]
    sum_of_ada = replace(sum_of_ada, seconds=round(sum_of_ada.seconds, 6), cost=round(sum_of_ada.cost, 9))
    assert manager.usage(user_id="ada").total == sum_of_ada
    assert manager.usage(user_id="ada-1").total == spent["b1"]
    assert manager.usage().total.calls == 6 and manager.usage(user_id="eve").total == Usage()


def test_ray_tasks_and_actor_methods_are_tools(ray_bench: Bench, ray_session: ModuleType) -> None:
    counter: Any = ray_session.remote(num_cpus=0)(agent_tools.Counter).remote()
    manager = ray_bench.manager(far_away, tool(counter.add, like=agent_tools.Counter.add))
    calls: agent_tools.Calls = [("far", {"text": "hi"}), ("add", {"number": 2}), ("add", {"number": 3})]
    turn = manager.open("chat", user_id="ada").run(prompt(calls, "done")).wait(WAIT_S)
    uses = [block.call_id for block in turn.output if isinstance(block, ToolUse)]
    (far, *added) = results(turn)
    assert far == (f"hi for ada by {uses[0]}", False)
    assert sorted(added) in ([("2", False), ("5", False)], [("3", False), ("5", False)])
    ray_session.kill(counter)


# Kills


def test_a_run_killed_in_a_tool_continues_after_its_last_result(ray_bench: Bench) -> None:
    """Case 33: calls with a result are not repeated; calls that had begun only if they are repeatable."""
    manager = ray_bench.manager(note, charge, search, api="responses", config={"on_lost": "resume"})
    chat = manager.open("chat")
    calls: agent_tools.Calls = [("note", {"text": "a"}), ("charge", {"euros": 5}), ("search", {"text": "x"})]
    run = chat.run(prompt(calls, "done", thought="let me see"), labels=ray_bench.labels)
    until(lambda: any(isinstance(event, ToolEnded) for event in chat.events()))
    ray_bench.noted("charge 5")
    ray_bench.noted("search x")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.wait, WAIT_S)
        kill(chat)
        turn = waiting.result()
    assert turn.text == "done" and turn == run.wait(WAIT_S)
    assert results(turn) == [("noted a", False), (LOST, True), ("found x", False)]
    assert sorted(ray_bench.notes()) == ["a", "charge 5", "search x", "search x"]
    stored = [event for event in run.events() if not event.live]
    assert [event.name for event in stored if isinstance(event, ToolStarted)] == ["note", "charge", "search", "search"]
    assert [type(event) for event in stored].count(RunResumed) == 1
    assert chat.runs()[0].resumes == 1
    assert turn.usage and (turn.usage.calls, turn.usage.tool_calls) == (2, 4)
    first = next(block for block in turn.output if isinstance(block, Thinking))
    sent = [(item["id"], item["encrypted_content"]) for item in ray_bench.sent() if item["type"] == "reasoning"]
    assert sent == [packed(first)]
    assert chat.run(prompt("and on")).wait(WAIT_S).text == "and on"
    audit(manager, "chat")


@pytest.mark.parametrize(
    ("api", "placement"), [("chat", Dedicated()), ("responses", Packed(hosts=1))], ids=["chat", "responses"]
)
def test_a_resumed_run_forces_a_call_only_in_its_first_step(ray_bench: Bench, api: str, placement: Placement) -> None:
    config = SessionConfig(on_lost="resume")
    engine = ray_bench.engine(search, api=api, temperature=1.0)
    manager = ray_bench.make_manager(engine=engine, config=config, placement=placement)
    chat = manager.open("chat", model="large", params={"temperature": 0.25, "metadata": {"team": "blue"}})
    assert manager.open("chat", params={"temperature": 0.75}).info().session.params["temperature"] == 0.25
    before = len(ray_bench.provider.requests)
    params: ModelParams = {"top_p": 0.5, "tool_choice": "required"}
    run = chat.run(prompt([("search", {"text": "x"})], "done"), labels=ray_bench.labels, params=params)
    ray_bench.noted("search x")
    kill(chat)
    assert run.wait(WAIT_S).text == "done"
    first, *later = [request.body for request in ray_bench.provider.requests[before:]]
    for body, tool_choice in ((first, "required"), *((body, "auto") for body in later)):
        sent = {name: body.get(name) for name in ("model", "temperature", "top_p", "metadata", "tool_choice")}
        settings = {"model": "large", "temperature": 0.25, "top_p": 0.5, "metadata": {"team": "blue"}}
        assert sent == {**settings, "tool_choice": tool_choice}
    assert len(later) == 1
    (record,) = chat.runs()
    assert (record.resumes, record.model, record.params) == (
        *(1, "large"),
        {"temperature": 0.25, "metadata": {"team": "blue"}, "top_p": 0.5, "tool_choice": "required"},
    )
    with pytest.raises(InvalidInputError, match="no such tool; it has search"):
        chat.run(prompt("x"), params={"tool_choice": {"type": "function", "function": {"name": "paint"}}})
    with pytest.raises(InvalidInputError, match="no such tool"):
        manager.open("other", params={"tool_choice": {"type": "function", "function": {"name": "paint"}}})
    assert manager.count() == 1
    audit(manager, "chat")


def test_a_killed_run_without_resume_is_interrupted_and_keeps_its_results(ray_bench: Bench) -> None:
    """Case 33."""
    manager = ray_bench.manager(note, charge)
    chat = manager.open("chat")
    story = prompt([("note", {"text": "a"})], [("note", {"text": "b"}), ("charge", {"euros": 5})], "done")
    run = chat.run(story, labels=ray_bench.labels)
    until(lambda: [isinstance(event, ToolEnded) for event in chat.events()].count(True) == 2)
    ray_bench.noted("charge 5")
    kill(chat)
    with pytest.raises(RunInterruptedError, match=run.run_id) as interrupted:
        run.wait(WAIT_S)
    kept_results = results(interrupted.value.turn)
    assert kept_results[:2] == [("noted a", False), ("noted b", False)]
    assert kept_results[2][0].startswith("cancelled: ") and kept_results[2][1]
    after = chat.run(prompt("and on")).wait(WAIT_S)
    assert after.text == "and on" and sorted(ray_bench.notes()) == ["a", "b", "charge 5"]
    audit(manager, "chat")


# Decisions

ASK = """
import pickle, sys, ray
from tools.agent_tools import prompt
from turnwise import SessionManager
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
engine, config = pickle.loads(bytes.fromhex(sys.argv[4]))
manager = SessionManager(sys.argv[2], engine=engine, config=config, namespace=sys.argv[3])
story = prompt([("note", {"text": "a"}), ("pay", {"euros": 800}), ("pay", {"euros": 3})], "done")
chat = manager.open("chat")
run = chat.run(story, labels={"notes": sys.argv[5]})
queued = chat.run(prompt("after it"), if_busy="enqueue")
print(run.run_id, queued.run_id, flush=True)
sys.stdin.read()
"""


def test_a_run_waits_for_approval_without_its_process_and_without_its_caller(
    ray_bench: Bench, ray_session: ModuleType, tmp_path: Path, namespace: str
) -> None:
    """Approvals survive the caller's exit and the session's idle time; the call is made once, with edited arguments."""
    config = SessionConfig(idle_s=0.5)
    engine = ray_bench.engine(note, pay)
    watcher = ray_bench.manager(note, pay, config={"idle_s": 0.5})
    address, store = ray_session.get_runtime_context().gcs_address, f"sqlite:///{tmp_path}/chats.db"
    packed = pickle.dumps((engine, config)).hex()
    asker = python(ASK, address, store, namespace, packed, ray_bench.labels["notes"], stdin=-1)
    assert asker.stdout and asker.stdin
    run_id, queued_id = asker.stdout.readline().split()
    run = watcher.execution(run_id)
    dear, cheap = awaited(run)
    assert (dear.name, dear.wants, dict(dear.input), dict(cheap.input)) == (
        "pay",
        "approval",
        {"euros": 800},
        {"euros": 3},
    )
    pid = process_of(watcher.open("chat").info())
    asker.send_signal(signal.SIGKILL)
    asker.wait()
    asker.stdin.close()
    asker.stdout.close()
    until(lambda: not is_alive(pid))
    watcher.close()

    manager = ray_bench.manager(note, pay, config={"idle_s": 60.0})
    run = manager.execution(run_id)
    assert run.status() == "awaiting_approval" and [call.call_id for call in run.pending()] == [
        dear.call_id,
        cheap.call_id,
    ]
    run.approve(dear.call_id, input={"euros": 80})
    run.approve(dear.call_id, input={"euros": 80})
    with pytest.raises(CallDecidedError, match="approved"):
        run.reject(dear.call_id)
    with pytest.raises(CallNotFoundError, match="nobody"):
        run.approve("nobody")
    assert run.status() == "awaiting_approval" and [call.call_id for call in run.pending()] == [cheap.call_id]
    run.reject(cheap.call_id, "one is enough")
    turn = run.wait(WAIT_S)
    run.reject(cheap.call_id, "one is enough")
    with pytest.raises(CallDecidedError, match="rejected"):
        run.approve(cheap.call_id)
    assert manager.execution(queued_id).wait(WAIT_S).text == "after it"
    assert ray_bench.notes() == ["a", "paid 80"]
    assert results(turn) == [("noted a", False), ("paid 80", False), ("rejected: one is enough", True)]
    assert [dict(block.input) for block in turn.output if isinstance(block, ToolUse)][1:] == [
        {"euros": 80},
        {"euros": 3},
    ]
    messages = [message for message in ray_bench.sent() if message["role"] in ("assistant", "tool")]
    assert [call["function"]["arguments"] for call in messages[0]["tool_calls"]][1] == '{"euros": 80}'
    assert [message["content"] for message in messages[1:4]] == [
        "noted a",
        "paid 80",
        "[error] rejected: one is enough",
    ]
    requests = [event for event in run.events() if isinstance(event, ApprovalRequested)]
    assert [dict(event.input) for event in requests] == [{"euros": 800}, {"euros": 3}], "the events tell what was asked"
    audit(manager, "chat")


def test_a_waiting_run_can_be_cancelled_and_the_queue_continues(bench: Bench) -> None:
    manager = bench.manager(note, pay)
    chat = manager.open("chat")
    run = chat.run(prompt([("pay", {"euros": 8})], "paid"), labels=bench.labels)
    (call,) = awaited(run)
    queued = chat.run(prompt([("note", {"text": "b"})], "noted"), if_busy="enqueue", labels=bench.labels)
    assert queued.status() == "queued"
    assert run.cancel("nobody answers")
    with pytest.raises(RunCancelledError, match="nobody answers") as cancelled:
        run.wait(WAIT_S)
    assert results(cancelled.value.turn) == [("cancelled: nobody answers", True)]
    with pytest.raises(CallDecidedError, match="cancelled"):
        run.approve(call.call_id)
    assert queued.wait(WAIT_S).text == "noted" and bench.notes() == ["b"]

    first = chat.run(prompt([("pay", {"euros": 9})], "paid"), labels=bench.labels)
    second = chat.run(prompt("after it"), if_busy="enqueue", labels=bench.labels)
    (call,) = awaited(first)
    assert second.status() == "queued"
    first.approve(call.call_id)
    assert (first.wait(WAIT_S).text, second.wait(WAIT_S).text) == ("paid", "after it")
    assert bench.notes() == ["b", "paid 9"]
    audit(manager, "chat")


PROVIDE = """
import asyncio, pickle, sys, ray
from turnwise import AsyncSessionManager, EchoEngine, blocks
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

async def main():
    async with AsyncSessionManager(sys.argv[2], engine=EchoEngine(), namespace=sys.argv[3]) as manager:
        run = await manager.execution(sys.argv[4])
        first, second = await run.pending()
        await run.provide(first.call_id, "he comes at 12")
        try:
            await run.provide(second.call_id, [blocks.Image(data="%", media_type="image/png")])
        except Exception as error:
            print(error, flush=True)
        await run.provide(second.call_id, ["he has left", blocks.Image.from_bytes(b"here", "image/png")], is_error=True)
        print((await run.wait(60)).text, flush=True)

asyncio.run(main())
"""


def test_another_process_can_provide_the_result_of_a_call(
    ray_bench: Bench, ray_session: ModuleType, tmp_path: Path, namespace: str
) -> None:
    manager = ray_bench.manager(driver, api="responses")
    calls: agent_tools.Calls = [("driver", {"question": "when?"}), ("driver", {"question": "where?"})]
    run = manager.open("chat").run(prompt(calls, "thanks"))
    first, _ = awaited(run)
    assert first.wants == "result"
    with pytest.raises(InvalidInputError, match="provide"):
        run.approve(first.call_id)
    address = ray_session.get_runtime_context().gcs_address
    provider_process = python(PROVIDE, address, f"sqlite:///{tmp_path}/chats.db", namespace, run.run_id)
    refused, answer = provider_process.communicate(timeout=WAIT_S)[0].splitlines()
    assert "the image (image/png): its data is not base64" in refused and answer == "thanks"
    turn = run.wait(WAIT_S)
    assert results(turn) == [("he comes at 12", False), ("he has left", True)]
    picture = Image.from_bytes(b"here", "image/png")
    assert [block.blocks for block in turn.output if isinstance(block, ToolResult)] == [(), (picture,)]
    with pytest.raises(InvalidInputError, match="item 1 is a int"):
        run.provide(first.call_id, [picture, 1])
    steps = [(step.name, step.is_error) for step in run.steps() if step.kind == "tool"]
    assert steps == [("driver", False), ("driver", True)], "what was provided, too"
    audit(manager, "chat")


@ONE_PLACEMENT
def test_edited_arguments_are_checked_after_a_restart(ray_bench: Bench, placement: Placement) -> None:
    manager = ray_bench.make_manager(engine=ray_bench.engine(pay), placement=placement)
    chat = manager.open("chat")
    run = chat.run(prompt([("pay", {"euros": 800})], "paid"), labels=ray_bench.labels)
    (call,) = awaited(run)
    os.kill(pid := process_of(chat.info()), signal.SIGKILL)
    until(lambda: not is_alive(pid))
    for wrong in ({"euros": "lots"}, {"pounds": 8}, {}):
        with pytest.raises(InvalidInputError, match=r"^input=.*'pay'.*euros"):
            run.approve(call.call_id, input=wrong)
    assert run.pending() == [call]
    run.approve(call.call_id, input={"euros": 8})
    assert results(run.wait(WAIT_S)) == [("paid 8", False)] and ray_bench.notes() == ["paid 8"]
    audit(manager, "chat")


def test_async_handles_can_approve_and_reject(bench: Bench, tmp_path: Path, namespace: str) -> None:
    async def story() -> None:
        settings: Any = {"engine": bench.engine(pay, driver), "namespace": namespace, "placement": InProcess()}
        async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as opened:
            chat = await opened.open("chat")
            calls: agent_tools.Calls = [("pay", {"euros": 8}), ("pay", {"euros": 9}), ("driver", {})]
            run = await chat.run(prompt(calls, "done"), labels=bench.labels)
            async for event in run.events():
                if isinstance(event, ApprovalRequested) and len(await run.pending()) == 3:
                    break
            first, second, third = await run.pending()
            with pytest.raises(InvalidInputError, match=r"'pay'.*euros"):
                await run.approve(first.call_id, input={"euros": "lots"})
            await asyncio.gather(*(run.approve(first.call_id, input={"euros": 1}) for _ in range(5)))
            await asyncio.gather(run.reject(second.call_id, "no"), run.provide(third.call_id, "yes"))
            assert results(await run) == [("paid 1", False), ("rejected: no", True), ("yes", False)]
            assert [step.name for step in await run.steps() if step.kind == "tool"] == ["driver", "pay"]
            assert (await opened.usage()).total.tool_calls == 1

    asyncio.run(story())
    assert bench.notes() == ["paid 1"]


# Budgets

DEAR = {"prices": {"local": Price(input=1_000_000.0, output=0)}}


@pytest.fixture
def endless(bench: Bench) -> str:
    """A prompt that calls a tool again and again."""
    return prompt([("note", {"text": "again"})])


def test_a_run_over_its_budget_fails_and_names_the_limit(bench: Bench, endless: str) -> None:
    """One session, with other settings in each run."""
    spent = 0
    for budget, more, reason in (
        (Budget(calls=2), {}, "2 of 2 calls"),
        (Budget(tool_calls=3), {}, "3 of 3 tool calls"),
        (Budget(tokens=1), {}, "of 1 tokens"),
        (Budget(cost=0.5), DEAR, "of 0.5 cost"),
        (Budget(seconds=1e-6), {}, "of 1e-06 seconds"),
    ):
        manager = bench.manager(note, config={"run_budget": budget, **more}, kind=SlowlyBuilt)
        with pytest.raises(RunLimitError, match=rf"the run has spent .*{reason}.*run_budget") as limited:
            manager.open("chat").run(endless, labels=bench.labels).wait(WAIT_S)
        turn = limited.value.turn
        assert turn and turn.stop_reason == "budget"
        assert all(result == ("noted again", False) for result in results(turn))
        spent += len(results(turn))
    assert len(bench.notes()) == spent == 2 + 3 + 1 + 1 + 0
    manager = bench.manager(
        note, config={"run_budget": Budget(cost=1.0), "prices": {"other": Price(input=1, output=1)}}
    )
    with pytest.raises(RunFailedError, match=r"'local' has no price: add it to SessionConfig\(prices"):
        manager.open("chat").run(endless, labels=bench.labels).wait(WAIT_S)
    audit(manager, "chat")


def test_a_run_over_its_budget_can_wait_for_approval(ray_bench: Bench) -> None:
    config = {"run_budget": Budget(calls=2), "over_budget": "ask", "idle_s": 60.0}
    manager = ray_bench.manager(note, config=config)
    chat = manager.open("chat")
    steps: list[Any] = [[("note", {"text": str(number)})] for number in range(5)]
    run = chat.run(prompt(*steps, "done"), labels=ray_bench.labels)
    for number in (1, 2):
        (call,) = awaited(run)
        assert (call.call_id, call.wants, call.name) == (f"budget-{number}", "budget", "budget")
        assert call.why and f"{2 * number} of {2 * number} calls" in call.why
        with pytest.raises(InvalidInputError, match="budget"):
            run.provide(call.call_id, "more")
        if number == 2:
            kill(chat)
        run.approve(call.call_id)
        run.approve(call.call_id)
    turn = run.wait(WAIT_S)
    assert turn.text == "done" and ray_bench.notes() == list("01234")
    assert turn.usage and turn.usage.calls == 6
    run = chat.run(prompt(*steps, "done"), labels=ray_bench.labels)
    (call,) = awaited(run)
    run.reject(call.call_id, "enough is enough")
    with pytest.raises(RunLimitError, match="2 of 2 calls") as limited:
        run.wait(WAIT_S)
    assert len(results(limited.value.turn)) == 2 and limited.value.turn and limited.value.turn.stop_reason == "budget"
    audit(manager, "chat")


def test_a_sessions_budget_is_spent_by_all_its_runs(ray_bench: Bench) -> None:
    manager = ray_bench.manager(note, config={"session_budget": Budget(calls=4)})
    chat = manager.open("chat")
    story = prompt([("note", {"text": "a"})], "done")
    for _ in range(2):
        assert chat.run(story, labels=ray_bench.labels).wait(WAIT_S).text == "done"
    kill(chat)
    with pytest.raises(RunLimitError, match=r"the session has spent 4 of 4 calls.*session_budget"):
        chat.run(story, labels=ray_bench.labels).wait(WAIT_S)
    assert manager.open("another").run(story, labels=ray_bench.labels).wait(WAIT_S).text == "done"
    audit(manager, "chat")


# What stands around a run


def test_hooks_and_middleware_run_in_the_sessions_process_at_each_step(bench: Bench) -> None:
    """Case 59, for hooks: a failing hook does not fail the run."""
    engine: dict[str, Any] = {
        "middleware": [
            agent_tools.Named("outer"),
            SystemPrompt("Be brief."),
            agent_tools.Named("inner"),
            SystemPrompt("Be kind."),
        ],
        "hooks": [agent_tools.trip, agent_tools.watch],
    }
    chat = bench.manager(note, **engine).open("chat")
    run = chat.run(prompt([("note", {"text": "a"})], "done"), labels=bench.labels)
    turn = run.wait(WAIT_S)
    assert turn.text == "done" and not any(block.kind == "system" for block in turn.blocks)
    chain = ["outer in", "inner in", "inner out", "outer out"]
    notes_before = ["before_inference 1", *chain, "after_inference 2", "a", "after_tools 3"]
    assert bench.notes() == [*notes_before, "before_inference 3", *chain, "after_inference 4"]
    assert [message["content"] for message in bench.sent() if message["role"] == "system"] == ["Be kind."]
    (failed,) = [event for event in run.events() if isinstance(event, HookFailed)]
    assert failed.hook == "after_tools: trip" and failed.why == "ValueError: the hook broke"
    assert turn.blocks[-1] == Text(text="done")

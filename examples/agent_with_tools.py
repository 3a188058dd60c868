"""An agent with tools: concurrent calls, approval by a person, a killed process, a result from outside.

    pip install turnwise
    python examples/agent_with_tools.py                       with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/agent_with_tools.py    with a real model, set by OPENAI_BASE_URL and OPENAI_MODEL

Exits with 0 only if everything that it prints was checked.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import asyncio
import contextlib
import functools
import logging
import os
import signal
import tempfile
import time
from pathlib import Path

# Ray reads these when it is imported: send no statistics, and do not report the process that is killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

import ray

from turnwise import (
    Budget,
    ExecutionHandle,
    OpenAIEngine,
    PendingCall,
    Price,
    SessionConfig,
    SessionManager,
    ToolContext,
    blocks,
    events,
    external_tool,
    tool,
)
from turnwise.engines import ToolRegistry
from turnwise.testing import LocalProvider, Message, Step, tool_script

TRIP = "How is the weather in Ghent, and how long is the train there from Paris? Look both up at once."
BOOK = "Book 6 seats on train 9317."
BOOK_MORE = "Book 3 seats on train 9999."
PAY = "At once: charge me 80 euros for the trip, and find the quietest train of the day."
TAXI = "Ask the taxi driver whether he can be at the station of Ghent at 12."


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.8)
    return f"rain in {city}, 14 degrees"


@tool
async def travel_time(start: str, end: str) -> dict[str, str | int]:
    """Return the duration of a train journey between two cities, in minutes."""
    await asyncio.sleep(0.6)
    return {"from": start, "to": end, "minutes": 155}


@tool(approval=lambda arguments, context: int(arguments["seats"]) > 1)
def book(train: str, seats: int, context: ToolContext) -> str:
    """Book seats on a train."""
    done(f"book {train} {seats}")
    return f"{seats} seats on {train}, for {context.user_id}"


@tool
def charge(euros: int, context: ToolContext) -> str:
    """Charge the user."""
    done(f"charge {euros} for {context.user_id}")
    return f"charged {euros} euros"


@tool(repeatable=True)
def quietest_train() -> str:
    """Find the quietest train of the day. Takes a while, and may be repeated."""
    if done("search") == 1:
        time.sleep(60)  # long enough to be killed in
    return "the 10:25 is the quietest"


ask_driver = external_tool(
    "ask_driver",
    "Asks the taxi driver, who answers when he can.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
)


def done(action: str) -> int:
    """Write a tool's action to a file, so that it survives the process; return the number of such actions."""
    with Path(os.environ["AGENT_NOTES"]).open("a", encoding="utf-8") as file:
        file.write(f"{action}\n")
    return notes().count(action)


def notes() -> list[str]:
    """Return the actions in the file."""
    path = Path(os.environ["AGENT_NOTES"])
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def two_at_once(manager: SessionManager) -> None:
    """The tool calls of one answer run concurrently."""
    run = ask(manager, "ada/trip", TRIP)
    tell(run.wait(60).text)
    steps = run.steps()
    for step in steps:
        bar = " " * round(20 * (step.started_at - steps[0].started_at)) + "=" * max(1, round(20 * (step.seconds or 0)))
        tell(f"  {step.name or 'model':<12} {step.seconds or 0:6.3f} s  {bar}")
    first, second = (step for step in steps if step.kind == "tool")
    assert second.started_at < first.started_at + (first.seconds or 0)


def with_leave(manager: SessionManager, other_manager: SessionManager) -> None:
    """A person approves one call, with other arguments, and rejects another. The waiting run costs nothing."""
    run = ask(manager, "ada/trip", BOOK)
    call = waiting_call(run)
    tell(f"* {run.status()}: {call.name} {dict(call.input)}")
    other_manager.execution(run.run_id, user_id="ada").approve(call.call_id, input={"train": "9317", "seats": 2})
    tell("* approved by another, for 2 seats")
    turn = run.wait(60)
    tell(turn.text)
    assert [block.input["seats"] for block in turn.new_blocks if isinstance(block, blocks.ToolUse)] == [2]
    run = ask(manager, "ada/trip", BOOK_MORE)
    run.reject(waiting_call(run).call_id, "there is no such train")
    tell("* rejected: there is no such train")
    tell(run.wait(60).text)
    assert [note for note in notes() if note.startswith("book")] == ["book 9317 2"]


def killed_midway(manager: SessionManager) -> None:
    """The session's process is killed between two results. The run continues in a new one, after the first result."""
    run = ask(manager, "alan/trip", PAY)
    chat = manager.get("alan/trip", user_id="alan")
    run_events = run.events()
    next(event for event in run_events if isinstance(event, events.ToolEnded) and event.name == "charge")
    while "search" not in notes():
        time.sleep(0.02)
    pid = chat.info().pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    tell(f"* charged; process {pid} was killed while it searched")
    resumed = next(event for event in run_events if isinstance(event, events.RunResumed))
    tell(f"* resumed by process {chat.info().pid}: {resumed.why}")
    tell(run.wait(60).text)
    charges, searches = notes().count("charge 80 for alan"), notes().count("search")
    tell(f"* times called: charge {charges}, quietest_train {searches}")
    assert (charges, searches) == (1, 2)
    assert chat.info().pid != pid


def elsewhere(manager: SessionManager) -> None:
    """An external tool: the program provides the result of the call, at any time."""
    run = ask(manager, "grace/taxi", TAXI)
    call = waiting_call(run)
    tell(f"* {run.status()}: {call.name} {dict(call.input)}")
    run.provide(call.call_id, "yes, he waits at the east side")
    tell(run.wait(60).text)


def ask(manager: SessionManager, chat: str, prompt: str) -> ExecutionHandle:
    """Start a run in a session of the user whose name begins the session's id."""
    tell(f"\n[{chat}] > {prompt}")
    return manager.open(chat, user_id=chat.partition("/")[0]).run(prompt)


def waiting_call(run: ExecutionHandle) -> PendingCall:
    """Wait until the run waits for a decision; return its call."""
    request = next(event for event in run.events() if isinstance(event, events.ApprovalRequested))
    while run.status() != "awaiting_approval":
        time.sleep(0.02)
    return next(call for call in run.pending() if call.call_id == request.call_id)


def stand_in(messages: list[Message]) -> Message:
    """Simulate a model: make the calls for this prompt, then report their results."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    results = [message["content"] for message in messages[last:] if message["role"] == "tool"]
    return tool_script([CALLS[messages[last]["content"]], f"What I found out: {'; '.join(results)}"])(messages)


CALLS: dict[str, Step] = {
    TRIP: [("weather", {"city": "Ghent"}), ("travel_time", {"start": "Paris", "end": "Ghent"})],
    BOOK: [("book", {"train": "9317", "seats": 6})],
    BOOK_MORE: [("book", {"train": "9999", "seats": 3})],
    PAY: [("charge", {"euros": 80}), ("quietest_train", {})],
    TAXI: [("ask_driver", {"question": "Can you be at the station of Ghent at 12?"})],
}

tell = functools.partial(print, flush=True)


def main() -> None:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        key, base_url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        model = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
        if not key:
            provider = stack.enter_context(LocalProvider(token_delay_s=0.01, reply=stand_in))
            key, base_url, model = "no-key", provider.base_url, "stand-in"
            os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-"))
        os.environ["AGENT_NOTES"] = f"{home}/notes"  # this too
        tell(f"An agent with tools\n  with {model} at {base_url or 'OpenAI'}")

        stack.callback(ray.shutdown)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        tools = ToolRegistry(weather, travel_time, book, charge, quietest_train, ask_driver, max_steps=8)
        engine = OpenAIEngine(model, base_url=base_url, api_key=key, tools=tools)
        config = SessionConfig(
            on_lost="resume", run_budget=Budget(tokens=50_000), prices={model: Price(input=0.25, output=2.0)}
        )
        store = f"sqlite:///{home}/agent.db"
        manager = stack.enter_context(SessionManager(store, engine=engine, config=config))
        other_manager = stack.enter_context(SessionManager(store, engine=engine, config=config))
        two_at_once(manager)
        with_leave(manager, other_manager)
        killed_midway(manager)
        elsewhere(manager)

        tell("\nWhat it has cost")
        spent = {user: manager.usage(user_id=user).total for user in ("ada", "alan", "grace")}
        for user, used in spent.items():
            tokens = f"{used.input_tokens} + {used.output_tokens} tokens"
            tell(f"  {user:<6} {used.calls} calls of the model, {used.tool_calls} of tools, {tokens}: ${used.cost:.6f}")
        assert all(used.cost > 0 for used in spent.values())
        assert manager.usage().total.calls == sum(used.calls for used in spent.values())
    tell(f"\nAll of this has happened, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

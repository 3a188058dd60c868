"""`ToolRegistry`: checks of calls, the context, signals, errors, retries, timeouts and cancels."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import gc
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, NoReturn

import pytest
from ray import cloudpickle
from test_tools import Place, find, later, plain, plain_tool

from tools.tool_calls import LONG_S, answer, call, context, error, until, use
from turnwise.actors.inference.tools.context import CancelSignal, ToolContext
from turnwise.actors.inference.tools.registry import ToolOutcome, ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, tool
from turnwise.errors import ConfigError, ToolAbortError, ToolError

# Unknown tools and bad arguments: acceptance 32


@pytest.mark.parametrize("on_error", ["continue", "abort", "retry"])
def test_unknown_and_disallowed_tools_and_invalid_arguments_give_error_results_without_attempts(on_error: Any) -> None:
    calls = []

    @tool
    def count(number: int, place: Place | None = None) -> str:
        calls.append(number)
        return "counted"

    registry = ToolRegistry(count, find, plain_tool, deny=["find"], on_error=on_error)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("nothing", {}, "There is no tool 'nothing'. The tools are: count, plain."),
        ("find", {"query": "q"}, "There is no tool 'find'. The tools are: count, plain."),
        ("count", {}, "The arguments do not match the schema of 'count': number: Field required"),
        ("count", {"number": "x", "user_id": 1}, "number: Input should be a valid integer, unable to parse"),
        ("count", {"number": 1, "user_id": 1}, "user_id: Extra inputs are not permitted"),
        ("count", {"number": 1, "place": {}}, "place.city: Field required"),
        ("count", {"number": 1, "place": {"city": "Atlantis"}}, "ZeroDivisionError: it sank"),
        ("count", {"number": "\ud83d"}, "do not match"),
    ]
    for name, arguments, reason in cases:
        outcome = call(registry, name, **arguments)
        assert outcome.result.is_error and reason in outcome.result.text, outcome
        assert outcome.result.call_id == "c1" and outcome.tries == 0
        assert "pydantic" not in outcome.result.text
        assert registry.check(use(name, arguments)) == outcome.result
    assert calls == []
    assert "There are no tools." in call(ToolRegistry(), "x").result.text


def test_allow_and_deny_select_the_tools() -> None:
    registry = ToolRegistry(find, later, plain_tool, allow=["plain", "find"], deny=("find",))
    assert [definition.name for definition in registry.definitions()] == ["plain"]
    assert registry.find("plain") is plain_tool
    assert registry.find("find") is registry.find("undecorated") is registry.find("nothing") is None
    assert ToolRegistry(find, allow=[]).definitions() == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"allow": ["nothing"]},
        {"deny": ["nothing"]},
        {"on_error": "ignore"},
        {"retries": -1},
        {"backoff_s": -1},
        {"timeout_s": 0},
        {"max_parallel": 0},
        {"max_steps": 0},
        {"max_result_chars": 0},
    ],
)
def test_a_setting_out_of_its_range_is_a_config_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        ToolRegistry(find, **settings)
    assert raised.value.setting == next(iter(settings))


def test_two_tools_with_one_name_and_a_plain_function_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="'find'"):
        ToolRegistry(find, tool(plain, name="find"))
    with pytest.raises(ConfigError, match="@tool"):
        ToolRegistry(plain)  # type: ignore[arg-type]


def test_a_registry_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ToolRegistry().max_steps = 3  # type: ignore[misc]


# What a tool is told


@tool
def whoami(question: str, tool_context: ToolContext, maybe: ToolContext | None = None) -> dict[str, Any]:
    """Say who asks."""
    assert maybe is tool_context
    return {
        "user": tool_context.session.user_id,
        "key": tool_context.idempotency_key,
        "turn": tool_context.turn_index,
        "call": tool_context.call_id,
    }


def test_the_context_comes_from_the_session_and_never_from_arguments() -> None:
    """Acceptance 50."""
    assert list(whoami.parameters["properties"]) == ["question"]
    assert answer(whoami, question="who?") == '{"user":"ada","key":"r1/c1","turn":3,"call":"c1"}'
    forged: Any = {"session": {"session_id": "s", "user_id": "eve", "agent": None, "metadata": {}}}
    for name, value in [("told", forged), ("maybe", forged), ("user_id", "eve"), ("context", forged)]:
        assert f"{name}: Extra inputs" in error(whoami, question="who?", **{name: value})


def test_the_context_has_the_call_and_the_attempt() -> None:
    attempts = []

    @tool(retries=2)
    def flaky(tool_context: Annotated[ToolContext, "given"]) -> str:
        attempts.append((tool_context.try_number, tool_context.call_id, tool_context.idempotency_key))
        raise ConnectionError("down")

    registry = ToolRegistry(flaky, backoff_s=0)
    asyncio.run(registry.call(use("flaky", call_id="c7"), context()))
    assert attempts == [(number, "c7", "r1/c7") for number in (1, 2, 3)]


def test_a_pickled_context_has_a_signal_that_is_never_set() -> None:
    tool_context = context(labels={"a": "b"})
    tool_context.cancelled.set()
    for pickled in (pickle.dumps(tool_context), cloudpickle.dumps(tool_context)):
        again = pickle.loads(pickled)
        assert again == tool_context and not again.cancelled.is_set()
        tool_context.cancelled.set()
        assert not again.cancelled.is_set()


async def test_context_variables_reach_tools() -> None:
    locale = contextvars.ContextVar("locale", default="none")

    @tool
    def there() -> str:
        locale_then, _ = locale.get(), locale.set("changed")
        return locale_then

    @tool(name="here")
    async def here() -> str:
        return locale.get()

    locale.set("de")
    registry = ToolRegistry(there, here)
    outcomes = [await registry.call(use(name), context()) for name in ("there", "here", "there")]
    assert [outcome.result.text for outcome in outcomes] == ["de", "de", "de"]


def test_synchronous_tools_run_on_threads_and_asynchronous_ones_on_the_loop() -> None:
    threads = {}

    @tool
    def there() -> str:
        threads["there"] = threading.current_thread()
        return "x"

    @tool
    async def here() -> str:
        threads["here"] = threading.current_thread()
        return "x"

    answer(there)
    answer(here)
    assert threads["here"] is threading.current_thread()
    assert threads["there"] is not threading.current_thread() and threads["there"].daemon


def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    @tool
    def wrapper(text: str) -> Any:
        return later(text)

    assert answer(wrapper, text="so") == "so"


def test_approval_is_a_setting_or_a_function() -> None:
    def is_dear(arguments: Mapping[str, Any], tool_context: ToolContext) -> bool:
        return arguments["price"] > 10 or tool_context.session.user_id != "ada"

    buy = tool(plain, name="buy", approval=is_dear)
    assert later.needs_approval({}, context())
    assert not find.needs_approval({}, context())
    assert [buy.needs_approval({"price": price}, context()) for price in (5, 50)] == [False, True]


@pytest.mark.parametrize("approval", [lambda price: price > 10, lambda: True, "yes"], ids=["one", "none", "text"])
def test_an_approval_that_cannot_be_asked_is_refused(approval: Any) -> None:
    with pytest.raises(ConfigError, match=r"'buy'.*a function of two arguments"):
        tool(plain, name="buy", approval=approval)


# Signals


async def test_a_signal_wakes_threads_and_coroutines() -> None:
    signal = CancelSignal()
    woken = []
    thread = threading.Thread(target=lambda: woken.append(signal.wait(LONG_S)))
    thread.start()

    waiting = [asyncio.create_task(signal.wait_async()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert not signal.is_set() and not signal.wait(0)
    threading.Timer(0.1, signal.set).start()  # nothing else wakes the loop
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*waiting[1:], signal.wait_async())
    assert waiting[0].cancelled()
    thread.join(LONG_S)
    assert woken == [True] and signal.is_set()


def test_a_wait_that_was_given_up_keeps_nothing_of_its_loop() -> None:
    signal = CancelSignal()

    async def give_up() -> weakref.ref[asyncio.AbstractEventLoop]:
        waiting = asyncio.create_task(signal.wait_async())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(give_up())
    gc.collect()
    assert loop() is None and not signal.is_set()


def test_listeners_are_called_once_and_not_after_their_removal() -> None:
    signal = CancelSignal()
    heard: list[int] = []
    first, second, third = (functools.partial(heard.append, number) for number in (1, 2, 3))
    signal.listen(first)
    signal.listen(second)
    signal.forget(second)
    signal.forget(third)
    signal.set()
    signal.set()
    signal.listen(third)
    assert heard == [1, 3]


# Errors, retries, timeouts, cancels: acceptance 31 and 9


def failing(times: int, **options: Any) -> tuple[Tool, list[float]]:
    """Return a tool that fails this number of times before it works, and the list of its calls' times."""
    calls: list[float] = []

    @tool(**options)
    def flaky() -> str:
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise ConnectionError(f"failure {len(calls)}")
        return "up"

    return flaky, calls


@pytest.mark.parametrize(
    ("times", "settings", "options", "tries", "is_error"),
    [
        (2, {"on_error": "retry"}, {}, 3, False),
        (3, {"on_error": "retry"}, {}, 3, True),
        (1, {"on_error": "continue"}, {}, 1, True),
        (3, {"on_error": "continue"}, {"retries": 3}, 4, False),
        (1, {"on_error": "retry"}, {"retries": 0}, 1, True),
        (1, {"on_error": "abort"}, {"retries": 1}, 2, False),
    ],
)
def test_a_tools_retries_override_the_registrys(
    times: int, settings: dict[str, Any], options: dict[str, Any], tries: int, is_error: bool
) -> None:
    flaky, calls = failing(times, **options)
    outcome = call(ToolRegistry(flaky, backoff_s=0.001, **settings), "flaky")
    assert (outcome.tries, len(calls), outcome.result.is_error) == (tries, tries, is_error)
    assert outcome.result.text == (f"ConnectionError: failure {tries}" if is_error else "up")


def test_retries_back_off_and_the_outcome_has_the_duration() -> None:
    flaky, calls = failing(2)
    outcome = call(ToolRegistry(flaky, on_error="retry", backoff_s=0.1), "flaky")
    assert calls[1] - calls[0] >= 0.05
    assert calls[2] - calls[1] >= 0.1
    assert outcome.seconds >= 0.15


def test_a_tool_error_is_not_retried() -> None:
    calls = []

    @tool
    def refuse() -> NoReturn:
        calls.append(1)
        raise ToolError("no such city")

    assert error(refuse, {"on_error": "retry", "backoff_s": 0}) == "no such city"
    assert calls == [1]


def test_abort_raises_with_the_tool_the_call_and_why() -> None:
    flaky, _ = failing(1)
    with pytest.raises(ToolAbortError) as raised:
        call(ToolRegistry(flaky, on_error="abort"), "flaky")
    assert raised.value.args == ("flaky", "c1", "ConnectionError: failure 1")


async def test_a_cancel_ends_a_pause_and_a_set_signal_ends_retries() -> None:
    flaky, calls = failing(9)
    registry = ToolRegistry(flaky, on_error="retry", backoff_s=1000)

    calling = asyncio.create_task(registry.call(use("flaky"), context()))
    await until(lambda: calls)
    await asyncio.sleep(0.05)
    calling.cancel()
    async with asyncio.timeout(LONG_S):
        with pytest.raises(asyncio.CancelledError):
            await calling
    tool_context = context()
    tool_context.cancelled.set()
    async with asyncio.timeout(LONG_S):
        assert (await registry.call(use("flaky"), tool_context)).tries == 1
    assert len(calls) == 2


@asynccontextmanager
async def stuck_call(registry: ToolRegistry, started: threading.Event) -> AsyncIterator[asyncio.Task[ToolOutcome]]:
    calling = asyncio.create_task(registry.call(use(registry.tools[0].name), context()))
    await until(started.is_set)
    yield calling


async def test_a_synchronous_tool_that_times_out_is_signalled_and_its_result_dropped() -> None:
    """Acceptance 31 and 9: its late result is dropped, and the next attempt does not wait for it."""
    signals, release, ended = [], threading.Event(), threading.Event()

    @tool(timeout_s=0.05, retries=1)
    def stuck(tool_context: ToolContext) -> str:
        signals.append(tool_context.cancelled)
        if tool_context.try_number == 2:
            return "second"
        release.wait(LONG_S)
        ended.set()
        return "late"

    outcome = await ToolRegistry(stuck, backoff_s=0).call(use("stuck"), context())
    assert not ended.is_set() and signals[0].is_set()
    release.set()
    await until(ended.is_set)
    await asyncio.sleep(0.02)
    assert (outcome.result.text, outcome.tries) == ("second", 2)


@pytest.mark.parametrize("own", [True, False])
async def test_timeouts_end_coroutines_with_an_error_result(own: bool) -> None:
    """Acceptance 31, for coroutines that react to the cancel, and for those that ignore it."""
    ends = []

    async def polite(tool_context: ToolContext) -> str:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ends.append(tool_context.cancelled.is_set())
        return "late"

    async def stubborn() -> str:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "late"

    options: dict[str, Any] = {"timeout_s": 0.05} if own else {}
    registry = ToolRegistry(tool(polite, **options), tool(stubborn, **options), timeout_s=None if own else 0.05)
    outcomes = [await registry.call(use(name), context()) for name in ("polite", "stubborn")]
    await until(lambda: ends)
    await asyncio.sleep(0.1)
    assert [outcome.result.text for outcome in outcomes] == ["TimeoutError: the tool did not end within 0.05 s"] * 2
    assert ends == [True]


def test_cancelling_a_call_signals_its_thread_and_does_not_wait() -> None:
    """Acceptance 9."""
    started, release, told_so = threading.Event(), threading.Event(), threading.Event()

    @tool
    def stuck(tool_context: ToolContext) -> str:
        started.set()
        if tool_context.cancelled.wait(LONG_S):
            told_so.set()
        release.wait(LONG_S)
        return "late"

    troubles: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
        async with stuck_call(ToolRegistry(stuck), started) as calling:
            calling.cancel()
            done, _ = await asyncio.wait({calling}, timeout=LONG_S)
            assert done and calling.cancelled()
            await until(told_so.is_set)
            release.set()
            await until(lambda: not any(thread.name == "turnwise-call" for thread in threading.enumerate()))
            await asyncio.sleep(0)  # its late result has come by now

    asyncio.run(main())
    assert troubles == []


async def test_cancelling_a_call_cancels_its_coroutine_and_does_not_wait() -> None:
    """Acceptance 9, with a coroutine that delays the cancel."""
    started, release = threading.Event(), asyncio.Event()
    states: list[Any] = []

    @tool
    async def stubborn(tool_context: ToolContext) -> str:
        try:
            started.set()
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            states.append(tool_context.cancelled.is_set())
            await release.wait()
            states.append("late")
        return "late"

    async with stuck_call(ToolRegistry(stubborn), started) as calling:
        calling.cancel()
        done, _ = await asyncio.wait({calling}, timeout=LONG_S)
        assert done and calling.cancelled()
        await until(lambda: states)
        assert states == [True]
        release.set()
        await until(lambda: len(states) == 2)


async def test_a_runs_signal_reaches_the_tool_but_not_the_other_way() -> None:
    started = threading.Event()

    @tool
    async def patient(tool_context: ToolContext) -> str:
        started.set()
        await tool_context.cancelled.wait_async()
        return "stopped"

    tool_context = context()
    calling = asyncio.create_task(ToolRegistry(patient).call(use("patient"), tool_context))
    await until(started.is_set)
    tool_context.cancelled.set()
    assert (await calling).result.text == "stopped"

    tool_context = context()
    signals = []

    @tool
    def keep(tool_context: ToolContext) -> str:
        assert not tool_context.cancelled.is_set()
        signals.append(tool_context.cancelled)
        return "x"

    await ToolRegistry(keep).call(use("keep"), tool_context)
    assert signals[0].is_set(), "what it left running learns that nobody waits"
    assert not tool_context.cancelled.is_set()
    signal_id = id(signals.pop())

    def is_gone() -> bool:
        gc.collect()
        return signal_id not in {id(entry) for entry in gc.get_objects() if isinstance(entry, CancelSignal)}

    await until(is_gone)  # as soon as its thread has ended: a long run does not gather the signals of its calls


def test_stuck_tools_block_neither_other_tools_nor_the_end_of_the_loop() -> None:
    release, ended = threading.Event(), threading.Event()

    @tool(timeout_s=0.1)
    def stuck() -> None:
        release.wait(LONG_S)
        ended.set()

    @tool
    def quick() -> str:
        return "quick"

    registry = ToolRegistry(stuck, quick)

    async def main() -> str:
        await asyncio.gather(*(registry.call(use("stuck"), context()) for _ in range(60)))
        return (await registry.call(use("quick"), context())).result.text

    try:
        assert asyncio.run(main()) == "quick"
        assert not ended.is_set(), "nobody has waited for a stuck one"
    finally:
        release.set()


def test_a_stuck_tool_does_not_block_the_exit_of_the_process() -> None:
    script = """
        import asyncio, time
        from turnwise import ToolContext, blocks, tool
        from turnwise.engines import SessionView, ToolRegistry

        @tool(timeout_s=0.1)
        def stuck() -> None:
            time.sleep(60)

        session = SessionView(session_id="s", user_id="u", agent=None, metadata={})
        context = ToolContext(session=session, run_id="r", turn_index=0, call_id="c")
        outcome = asyncio.run(ToolRegistry(stuck).call(blocks.ToolUse(call_id="c", name="stuck"), context))
        print(outcome.result.text)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "TimeoutError: the tool did not end within 0.1 s\n"
    assert ended.stderr == ""

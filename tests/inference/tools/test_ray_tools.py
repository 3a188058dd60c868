"""Tools on Ray: tasks and actor methods, their errors, the death of a worker, and cancels."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ray import cloudpickle

from turnwise.actors import wire_version
from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.registry import ToolOutcome, ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, tool
from turnwise.actors.wire_version import WireVersion
from turnwise.errors import ConfigError, ToolError
from turnwise.memory.conversation.blocks import Document, ToolUse

SESSION = SessionView(session_id="s1", user_id="ada", agent=None, metadata={})
LONG_S = 20.0


def context() -> ToolContext:
    return ToolContext(session=SESSION, run_id="r1", turn_index=0, call_id="c1")


def start(remote_tool: Tool, /, **arguments: Any) -> asyncio.Task[ToolOutcome]:
    use = ToolUse(call_id="c1", name=remote_tool.name, input=arguments)
    return asyncio.create_task(ToolRegistry(remote_tool, backoff_s=0).call(use, context()))


def call(remote_tool: Tool, /, **arguments: Any) -> ToolOutcome:
    async def main() -> ToolOutcome:
        return await start(remote_tool, **arguments)

    return asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.02)


def whereabouts(text: str, tool_context: ToolContext, times: int = 2) -> dict[str, Any]:
    """Say it, and where.

    Args:
        text: what to say
    """
    assert not tool_context.cancelled.is_set()
    return {
        "said": text * times,
        "user": tool_context.session.user_id,
        "try": tool_context.try_number,
        "pid": os.getpid(),
    }


def fail(how: str, marks: str = "") -> str:
    if marks:
        with Path(marks).open("a", encoding="utf-8") as file:
            file.write("x")
    if how == "tool":
        raise ToolError("use the {English} name")
    if how == "exit":
        os._exit(3)
    raise KeyError(how)


def touch(path: str) -> None:
    Path(path).touch()


def draw(missing: str) -> list[Document]:
    """Return a document as another version may: with a field more, and without one."""
    document = Document(text="a plan", name="plan.txt")
    vars(document)["mood"] = "calm"
    del vars(document)[missing]
    return [document]


def linger(begun: str, ended: str) -> str:
    Path(begun).touch()
    try:
        for _ in range(1000):
            time.sleep(0.02)
    except KeyboardInterrupt:
        Path(ended).touch()
        raise
    return "late"


class Counter:
    """An actor's body."""

    def __init__(self, *, broken: bool = False) -> None:
        if broken:
            raise ValueError("no counter")
        self.total = 0

    def add(self, number: int, tool_context: ToolContext | None = None) -> str:
        """Add to the total."""
        assert tool_context is not None
        self.total += number
        return f"{self.total} for {tool_context.session.user_id}"

    def leave(self) -> str:
        """Leave for good."""
        os._exit(3)

    async def linger(self, begun: str, ended: str) -> str:
        """Stay for long."""
        touch(begun)
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            touch(ended)
            raise
        return "late"


class SlowCounter(Counter):
    async def add_later(self, number: int) -> int:
        """Add on an asyncio actor."""
        await asyncio.sleep(0)
        self.total += number
        return self.total


@pytest.fixture
def make_actor(ray_session: ModuleType) -> Iterator[Callable[..., Any]]:
    actors = []

    def make(body: type, **arguments: Any) -> Any:
        actors.append(ray_session.remote(num_cpus=0)(body).remote(**arguments))
        return actors[-1]

    yield make
    for actor in actors:
        ray_session.kill(actor)


def test_a_ray_task_is_a_tool_in_another_process(ray_session: ModuleType) -> None:
    remote_tool = tool(ray_session.remote(num_cpus=0)(whereabouts), timeout_s=LONG_S)
    assert (remote_tool.name, remote_tool.is_remote, remote_tool.is_async) == ("whereabouts", True, False)
    assert remote_tool.definition.description.startswith("Say it, and where.")
    assert remote_tool.parameters["properties"]["text"] == {"type": "string", "description": "what to say"}
    for copy in (remote_tool, pickle.loads(cloudpickle.dumps(remote_tool))):
        outcome = call(copy, text="ab")
        assert outcome.result.text.startswith('{"said":"abab","user":"ada","try":1,"pid":')
        assert str(os.getpid()) not in outcome.result.text
    refused = call(remote_tool, text="ab", told={"session": {"user_id": "eve"}})
    assert refused.tries == 0 and "told: Extra inputs" in refused.result.text


def test_a_task_with_options_is_a_tool_like_its_function(ray_session: ModuleType) -> None:
    task = ray_session.remote(whereabouts).options(num_cpus=0)
    with pytest.raises(ConfigError, match="like="):
        tool(task)
    assert '"said":"a"' in call(tool(task, like=whereabouts), text="a", times=1).result.text


def test_an_actors_method_is_a_tool_and_keeps_its_state(make_actor: Callable[..., Any]) -> None:
    counter = make_actor(Counter)
    with pytest.raises(ConfigError, match="like="):
        tool(counter.add)
    remote_tool = tool(counter.add, like=Counter.add, name="count")
    assert (remote_tool.name, remote_tool.description) == ("count", "Add to the total.")
    assert list(remote_tool.parameters["properties"]) == ["number"]
    assert call(remote_tool, number=2).result.text == "2 for ada"
    assert call(pickle.loads(cloudpickle.dumps(remote_tool)), number=3).result.text == "5 for ada"
    assert "number: Field required" in call(remote_tool).result.text
    slow = make_actor(SlowCounter)
    assert call(tool(slow.add_later, like=SlowCounter.add_later), number=4).result.text == "4"


def test_a_remote_error_is_shown_without_traceback_and_retried(ray_session: ModuleType, tmp_path: Path) -> None:
    remote_tool = tool(ray_session.remote(num_cpus=0)(fail), retries=1)
    marks = tmp_path / "marks"
    outcome = call(remote_tool, how="spelling", marks=str(marks))
    assert (outcome.result.text, outcome.result.is_error, outcome.tries) == ("KeyError: 'spelling'", True, 2)
    assert marks.read_text(encoding="utf-8") == "xx"
    refused = call(remote_tool, how="tool")
    assert (refused.result.text, refused.tries) == ("use the {English} name", 1)


def test_a_context_that_does_not_fit_the_worker_s_version_is_an_error_result_that_names_both(
    ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote_tool = tool(ray_session.remote(num_cpus=0)(whereabouts), timeout_s=LONG_S)
    own, later = wire_version.OWN, WireVersion(9, 9, "9.0.0")
    monkeypatch.setattr(wire_version, "OWN", later)
    outcome = call(remote_tool, text="ab")
    says = f"WireVersionError: this process has turnwise {own} and was sent something by turnwise {later}: "
    assert outcome.result.is_error and outcome.result.text.startswith(says), outcome.result.text


def test_a_result_of_another_version_has_the_fields_that_this_one_knows(ray_session: ModuleType) -> None:
    remote_tool = tool(ray_session.remote(num_cpus=0)(draw), timeout_s=LONG_S)
    (document,) = call(remote_tool, missing="url").result.blocks
    assert document == Document(text="a plan", name="plan.txt") and "mood" not in vars(document)


def test_the_death_of_a_worker_is_an_error_result(ray_session: ModuleType, make_actor: Callable[..., Any]) -> None:
    task = call(tool(ray_session.remote(num_cpus=0, max_retries=0)(fail)), how="exit")
    assert task.result.is_error and task.result.text.startswith("WorkerCrashedError: ")
    counter = make_actor(Counter)
    left_outcome = call(tool(counter.leave, like=Counter.leave))
    assert left_outcome.result.text == "ActorDiedError: The actor died unexpectedly before finishing this task."
    broken = make_actor(Counter, broken=True)
    unborn = call(tool(broken.add, like=Counter.add), number=1)
    assert unborn.result.text.startswith("ActorDiedError: The actor died because of an error raised in its creation")
    for outcome in (task, left_outcome, unborn):
        assert not any(word in outcome.result.text for word in ("Traceback", "pid", "ip=", "\n", "\x1b"))


@pytest.mark.parametrize("kind", ["task", "actor"])
@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_cancel_and_a_timeout_reach_tools_on_ray(
    kind: str, by: str, ray_session: ModuleType, make_actor: Callable[..., Any], tmp_path: Path
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    lingering = ray_session.remote(num_cpus=0)(linger) if kind == "task" else make_actor(Counter).linger

    def calling_for(timeout_s: float) -> asyncio.Task[ToolOutcome]:
        remote_tool = tool(lingering, like=linger if kind == "task" else Counter.linger, timeout_s=timeout_s)
        return start(remote_tool, begun=str(begun), ended=str(ended))

    if by == "cancel":
        calling = calling_for(LONG_S)
        await until(begun.exists)
        calling.cancel()
        done, _ = await asyncio.wait({calling}, timeout=LONG_S)
        assert done and calling.cancelled()
    else:
        for timeout_s in (2, 8, 32):  # until there is a process in which it begins before its time is up
            outcome = await calling_for(timeout_s)
            assert outcome.result.text == f"TimeoutError: the tool did not end within {timeout_s} s"
            if begun.exists():
                break
    await until(ended.exists)


def test_a_task_cancelled_by_others_is_an_error_result(ray_session: ModuleType, tmp_path: Path) -> None:
    refs = []

    class Spied:
        """Has `.remote`, as all that runs on Ray has."""

        @staticmethod
        def remote(**arguments: Any) -> Any:
            refs.append(ray_session.remote(num_cpus=0)(linger).remote(**arguments))
            return refs[-1]

    async def main() -> ToolOutcome:
        calling = start(tool(Spied(), like=linger), begun=str(tmp_path / "b"), ended=str(tmp_path / "e"))
        await until((tmp_path / "b").exists)
        ray_session.cancel(refs[0])
        outcome: ToolOutcome = await calling
        return outcome

    outcome = asyncio.run(main())
    assert outcome.result.is_error and "TaskCancelledError" in outcome.result.text

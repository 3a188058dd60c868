"""A process that starts a Ray of its own: by what manager, on which thread, and with SIGINT ignored.

Run as a program it is such a process: `python test_own_ray.py FOLDER` prints what it found as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.cluster.ray_runtime import connect
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import ConfigError

pytestmark = pytest.mark.ray

LONG_S = 60.0


async def until(condition: Any) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.02)


async def count_ticks(over: asyncio.Event) -> int:
    """Return how often the event loop got to this until it was over."""
    ticks = 0
    while not over.is_set():
        await asyncio.sleep(0.01)
        ticks += 1
    return ticks


async def first_life(folder: Path) -> dict[str, Any]:
    """Open a manager, and cancel a tool that is a Ray task."""
    import ray
    from test_ray_tools import linger, start

    from turnwise.actors.inference.echo import EchoEngine
    from turnwise.actors.inference.tools.tool import tool

    over = asyncio.Event()
    ticking = asyncio.create_task(count_ticks(over))
    manager = AsyncSessionManager(f"sqlite:///{folder}/chats.db", engine=EchoEngine())
    was_started = ray.is_initialized()
    sessions = await asyncio.gather(*(manager.open(name) for name in ("one", "two", "one")))
    over.set()
    begun, ended = folder / "begun", folder / "ended"
    calling = start(tool(ray.remote(num_cpus=0)(linger)), begun=str(begun), ended=str(ended))
    await until(begun.exists)
    calling.cancel()
    await asyncio.wait({calling})
    await until(ended.exists)
    await manager.close()
    return {
        "the constructor starts a Ray": was_started,
        "opened": [session.session_id for session in sessions],
        "ticks": await ticking,
    }


async def second_life(folder: Path) -> str:
    from turnwise.actors.inference.echo import EchoEngine

    async with AsyncSessionManager(f"sqlite:///{folder}/chats.db", engine=EchoEngine()) as manager:
        session = await manager.open("one")
        return str((await (await session.run("hello"))).text)


def tell(turn: Any) -> str:
    """Say which process this is, and whether it imported what sessions need before it was given one."""
    return json.dumps([os.getpid(), "turnwise.preload" in sys.modules])


async def with_ready_processes(folder: Path) -> list[list[bool]]:
    """Open sessions one after another, each when Ray has a process ready.

    Return of each whether it got such a process, and what that said.
    """
    import psutil  # type: ignore[import-untyped]

    from turnwise.actors.inference.function_engine import FunctionEngine

    def ready() -> set[int]:
        return {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "ray::IDLE"}

    answers = []
    async with AsyncSessionManager(f"sqlite:///{folder}/told.db", engine=FunctionEngine(tell)) as manager:
        for number in range(6):  # more than Ray prepares by itself, which are as many as there are CPUs
            await until(ready)
            before = ready()
            run = await (await manager.open(f"told-{number}")).run("hello")
            pid, is_preloaded = json.loads((await run).text)
            answers.append([pid in before, is_preloaded])
    return answers


def program(folder: Path) -> None:
    import ray

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    report = asyncio.run(first_life(folder))
    # The threads of that event loop have ended, and Linux ends what a thread started together with it.
    report["answer"] = asyncio.run(second_life(folder))
    report["ignores SIGINT"] = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ray.shutdown()
    print(json.dumps(report))


@pytest.fixture(scope="module")
def own_ray(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report and the log of that program, which is started as by `&` in a script."""
    folder = tmp_path_factory.mktemp("own")
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    command = ["sh", "-c", 'trap \'\' INT; exec "$0" "$@"', sys.executable, __file__, str(folder)]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.timeout(300)
def test_an_async_manager_starts_its_ray_with_the_first_verb_and_blocks_no_event_loop(
    own_ray: tuple[dict[str, Any], str],
) -> None:
    report, _ = own_ray
    assert not report["the constructor starts a Ray"]
    assert report["opened"] == ["one", "two", "one"]
    assert report["ticks"] > 20  # while Ray started, which takes seconds
    assert report["answer"] == "hello"


@pytest.mark.timeout(300)
def test_a_tool_that_is_a_ray_task_is_cancelled_also_where_sigint_is_ignored(
    own_ray: tuple[dict[str, Any], str],
) -> None:
    report, _ = own_ray  # whose program has waited for the tool's KeyboardInterrupt
    assert report["ignores SIGINT"]


@pytest.mark.timeout(300)
def test_a_manager_says_once_that_it_started_a_ray_of_its_own(own_ray: tuple[dict[str, Any], str]) -> None:
    _, logged = own_ray
    lines = [line for line in logged.splitlines() if line.startswith("INFO turnwise.actors.cluster.ray_runtime")]
    assert len(lines) == 1 and "ends with this process" in lines[0] and "ray start --head" in lines[0]


@pytest.mark.timeout(300)
def test_sessions_get_processes_that_were_ready_before_and_each_is_replaced(tmp_path: Path) -> None:
    """In a program without tasks of Ray, which leave processes that are idle and serve no session."""
    command = [sys.executable, __file__, str(tmp_path), "ready"]
    env = {**os.environ, "RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[True, True]] * 6


def test_workers_that_ignore_sigint_are_warned_about_once(ray_session: Any) -> None:
    class Deaf:
        """Where tools are called on a Ray whose workers ignore SIGINT."""

        def call(self) -> list[str]:
            import ray
            from test_ray_tools import call, whereabouts

            from turnwise.actors.inference.tools.tool import tool

            messages: list[str] = []
            handler = logging.Handler()
            handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
            logging.getLogger("turnwise").addHandler(handler)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            task = tool(ray.remote(num_cpus=0)(whereabouts))
            assert not any(call(task, text="hi").result.is_error for _ in range(2))
            return messages

    (messages,) = ray_session.get(ray_session.remote(Deaf).options(num_cpus=0).remote().call.remote())
    assert "ignore SIGINT" in messages and "cannot be cancelled" in messages


async def test_arguments_of_an_async_manager_are_refused_by_its_constructor_and_its_cluster_by_the_first_verb(
    ray_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnwise.actors.inference.echo import EchoEngine

    with pytest.raises(ConfigError, match="engine"):
        AsyncSessionManager(engine=EchoEngine)  # type: ignore[arg-type]
    nodes = [{"Alive": True}, {"Alive": True}]

    manager = AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), namespace="test-first")
    with monkeypatch.context() as patch:
        patch.setattr("ray.nodes", lambda: nodes)
        for _ in range(2):
            with pytest.raises(ConfigError, match="one node"):
                await manager.count()
    assert await manager.count() == 0
    await manager.close()


def test_settings_of_the_environment_are_read_when_a_manager_is_made(
    ray_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnwise.actors.inference.echo import EchoEngine

    with monkeypatch.context() as patch:
        patch.setenv("TURNWISE_MEMORY_MAX_RESULTS", "many")
        process = subprocess.run([sys.executable, "-c", "import turnwise"], capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        for family in (SessionManager, AsyncSessionManager):
            with pytest.raises(ConfigError, match="TURNWISE_MEMORY_MAX_RESULTS='many'"):
                family(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine())


if __name__ == "__main__":
    if sys.argv[2:]:
        print(json.dumps(asyncio.run(with_ready_processes(Path(sys.argv[1])))))
    else:
        program(Path(sys.argv[1]))


@pytest.mark.parametrize("late", [1, 2])
def test_a_ray_that_does_not_start_in_time_is_started_once_more(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def init(**_: object) -> None:
        started.append(init)
        if len(started) <= late:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    if late == 1:
        connect()
    else:
        with pytest.raises(ConfigError, match="less busy, or run `ray start --head` before"):
            connect()
    assert len(started) == 2


def test_who_joins_a_ray_without_its_token_is_told_which_variables_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise ConnectionError("Failed to connect") from RuntimeError("Last error: ray.exceptions.AuthenticationError")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        SessionManager("memory://token", engine=EchoEngine())

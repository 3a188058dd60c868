"""How commands end: exit codes, pipes that close, interrupts, files that change, terminals that lack characters."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filled import HOSTILE, files, filled, on_terminal, rows, text_of, turnwise

from turnwise.cli.common import run, still
from turnwise.errors import StoreError
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.urls import open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(f"sqlite:///{tmp_path_factory.mktemp('cli')}/store.db")


def program(*words: str, **env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "turnwise", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env})


@pytest.mark.by_turns
def test_whoever_reads_the_output_may_leave_early(store: str) -> None:
    for words in (["ls", store], ["export", store, "chat", "--user", "ann"]):
        running = program(*words)
        assert running.stdout and running.stderr
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(60) == 0
        running.stderr.close()


def test_an_interrupt_exits_with_130_and_says_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never.jsonl")
    running = program("import", f"sqlite:///{tmp_path}/store.db", str(tmp_path / "never.jsonl"))
    with (tmp_path / "never.jsonl").open("w"):  # which waits until the command has opened it to read
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, b"", b"")


def test_an_interrupt_prints_nothing_and_a_failure_is_printed() -> None:
    program = """
import asyncio, os, signal
from turnwise.cli.common import run

async def fail():
    raise ValueError("a task failed")

async def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)

async def work():
    asyncio.create_task(fail())
    await asyncio.sleep(0.1)
    asyncio.create_task(interrupted())
    await asyncio.sleep(60)

try:
    run(work())
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")
    assert done.stderr.count("Traceback") == 1 and "ValueError: a task failed" in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


def test_an_interrupt_while_the_event_loop_is_made_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    loops, make = list[asyncio.AbstractEventLoop](), asyncio.new_event_loop

    def interrupted() -> asyncio.AbstractEventLoop:
        os.kill(os.getpid(), signal.SIGINT)
        loops.append(make())
        return loops[0]

    async def work() -> None:
        raise AssertionError("it began")

    monkeypatch.setattr(asyncio.events, "new_event_loop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(work())
    assert len(loops) == 1 and loops[0].is_closed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_that_is_interrupted_before_it_begins_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        raise AssertionError("it began")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio.Runner, "run", interrupted)
    command = work()
    with pytest.raises(KeyboardInterrupt):
        run(command)
    assert inspect.getcoroutinestate(command) == inspect.CORO_CLOSED


def test_a_terminal_that_knows_ascii_only_shows_what_it_can(store: str) -> None:
    shown = text_of(on_terminal("ls", store, columns=200, PYTHONIOENCODING="ascii"))
    assert "A week in Oslo" in shown and "\\u241b[31m" in shown and "Traceback" not in shown


def test_what_changed_while_it_was_read_is_not_believed(tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")

    async def change() -> None:
        writer = open_store(store)
        await writer.create(SessionRecord(session_id="new"))
        await writer.close()  # moves SQLite's log into its file

    def read_meanwhile() -> None:
        with still(store) as url:
            assert url.endswith("?immutable=1")
            asyncio.run(change())

    with pytest.raises(StoreError, match="it was changed while it was read: repeat the command"):
        read_meanwhile()
    assert "new" in {row["session"] for row in rows(turnwise("ls", store).stdout)}


def test_a_file_that_somebody_has_open_is_read_beside_them(tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")

    async def read_beside() -> None:
        writer = open_store(store)
        await writer.create(SessionRecord(session_id="new"))  # it is in SQLite's log only
        with still(store) as url:
            assert url == store
        shown = await asyncio.to_thread(turnwise, "ls", store)
        assert "new" in {row["session"] for row in rows(shown.stdout)}
        await writer.close()

    asyncio.run(read_beside())
    assert set(files(tmp_path)) == {"store.db"}


def test_long_work_shows_a_bar_on_a_terminal_and_no_other(store: str, tmp_path: Path) -> None:
    file = str(tmp_path / "chat.jsonl")
    assert turnwise("export", store, "chat", "--user", "ann", file).output == ""
    raw = bytearray()
    shown = text_of(on_terminal("import", f"sqlite:///{tmp_path}/new.db", file, "--as", "copy", raw=raw))
    assert shown == "copy", "the bar is gone at the end"
    assert re.search(b"import.* 100%", raw) and b"progress.percentage" not in raw, raw
    assert not re.search("[\x1b\u202e]", turnwise("show", store, "bad", "--user", HOSTILE[8:20]).stdout)
    assert (
        "\u241b" in turnwise("show", store, "bad", "--user", HOSTILE[8:20]).stdout
        and HOSTILE not in turnwise("show", store, "bad", "--user", HOSTILE[8:20]).stdout
    )


def test_a_sweep_counts_sessions_on_a_terminal(tmp_path: Path) -> None:
    store, raw = f"sqlite:///{tmp_path}/store.db", bytearray()

    async def make() -> None:
        opened = open_store(store)
        for n in range(3):
            await opened.create(SessionRecord(session_id=f"old-{n}", updated_at=1.0, ttl_s=1.0))
        await opened.close()

    asyncio.run(make())
    assert "deleted: 3" in text_of(on_terminal("sweep", store, raw=raw))
    assert re.search(rb"sweep\x1b?\S* 3 ", raw), raw


def described(*words: str) -> str:
    ran = turnwise(*words, "--help")
    assert ran.exit_code == 0
    return ran.stdout


@pytest.mark.by_turns
def test_all_commands_have_help_and_print_json() -> None:
    names = re.findall(r"^\u2502 ([a-z]+) ", described(), re.MULTILINE)
    assert {"ls", "show", "runs", "usage", "cancel", "approve", "reject", "end", "rm", "fork"} <= set(names)
    assert {"export", "import", "sweep", "memory", "serve", "console"} <= set(names)
    groups = {
        group: re.findall(r"^\u2502 ([a-z][a-z-]+) ", described(group), re.MULTILINE)
        for group in ("files", "memory", "quotas", "tenants", "webhooks")
    }
    commands = [[name] for name in names if name not in groups]
    commands += [[group, name] for group, members in groups.items() for name in members]
    lacks = {" ".join(words) for words in commands if "--json" not in described(*words)}
    assert lacks == {"export", "dataset", "files get", "console", "mcp"}, "what these write has its own form"
    assert turnwise("lss").exit_code == 2

"""`turnwise chat` with sessions on a Ray: they outlive the terminal, and several terminals share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from processes.chats import WORDS, is_at_prompt, piped, session_of
from processes.terminal import CTRL_D, Terminal
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.echo import EchoEngine
from turnwise.memory.stores.store_owner import naming
from turnwise.testing import LocalProvider

pytest_plugins = ["command_fixtures"]


@pytest.fixture
def environ(environ: Mapping[str, str | None], ray_address: str) -> Mapping[str, str | None]:
    return {**environ, "RAY_ADDRESS": ray_address, "RAY_TMPDIR": None}


def test_a_killed_chat_is_resumed_by_id_with_the_whole_answer(
    chat: Callable[..., Terminal], provider: LocalProvider
) -> None:
    began = time.monotonic()
    terminal = chat()
    started_s = time.monotonic() - began
    terminal.say("The first question")
    terminal.wait_for("You said: The first question (message 1 of our conversation)")
    provider.token_delay_s = max(0.3, 4 * started_s / 60)  # so that the answer outlasts the start of the next chat
    terminal.say(WORDS)
    terminal.wait_for("You said: word0 word1")
    terminal.kill()
    again = chat(session_of(terminal), shows="has not ended")
    text = again.wait_for(lambda text: text.count("word59") == 2 and is_at_prompt(text))
    assert "You said: The first question" in text
    provider.token_delay_s = 0.0
    again.say("A third")
    again.wait_for(lambda text: "You said: A third (message 5 of our conversation)" in text and is_at_prompt(text))
    again.press(CTRL_D)
    assert again.wait() == 0


def test_a_second_terminal_is_told_that_the_session_is_busy(
    chat: Callable[..., Terminal], provider: LocalProvider
) -> None:
    first = chat("shared", "--create")
    second = chat("shared")
    provider.token_delay_s = 0.3
    first.say(WORDS)
    first.wait_for("You said: word0 word1")
    second.say("Me too")
    second.wait_for("error: session 'shared' is busy with run")
    second.say("/cancel")
    second.wait_for("stopped")
    first.wait_for("stopped: cancelled in a chat")
    provider.token_delay_s = 0.0
    second.say("And now?")
    second.wait_for("You said: And now?")
    assert first.text.count("Traceback") == second.text.count("Traceback") == 0


def test_a_chat_uses_the_hosts_that_have_the_session(
    chat: Callable[..., Terminal],
    environ: Mapping[str, str | None],
    store: str,
    ray_session: ModuleType,
    tmp_path: Path,
) -> None:
    with SessionManager(store, engine=EchoEngine(), placement=Packed(hosts=2)) as manager:
        session = manager.open("packed")
        session.run("Hello").wait()
        epoch = session.info().session.epoch
        terminal = chat("packed")
        terminal.say("Hello again")
        terminal.wait_for("You said: Hello again (message 3 of our conversation)")
        assert session.info().session.epoch == epoch
        assert [host.is_packed for host in manager.hosts()] == [True, True]
        done = piped(
            {**environ, "RAY_ADDRESS": None, "RAY_TMPDIR": str(tmp_path)}, store, "From another Ray\n", "packed"
        )
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
        assert f"set {naming(str(environ['RAY_ADDRESS']))}, or end process" in done.stderr

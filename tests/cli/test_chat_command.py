"""`turnwise chat` without a Ray, on a terminal and with a pipe: streaming, Ctrl+C, commands, approvals, crashes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from processes.chats import WORDS, is_at_prompt, piped, session_of
from processes.terminal import CTRL_C, CTRL_D, Terminal, turnwise
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.cli.chat.answers import Answers
from turnwise.cli.chat.conversation import UNANSWERED, Conversation
from turnwise.cli.chat.line_editor import LineEditor
from turnwise.cli.output import console
from turnwise.errors import SessionEndedError
from turnwise.memory.conversation.blocks import User
from turnwise.testing import LocalProvider, tool_script

pytest_plugins = ["command_fixtures"]


def read_only(store: str) -> SessionManager:
    return SessionManager(store, engine=EchoEngine(), placement=InProcess(), read_only=True)


def has_answered(commands: int, text: str) -> bool:
    return text.count("> /memory") == commands and is_at_prompt(text)


def test_ctrl_c_stops_only_the_answer_of_a_demo(environ: Mapping[str, str | None], tmp_path: Path) -> None:
    environ = {**environ, "OPENAI_API_KEY": None, "OPENAI_BASE_URL": None}
    with Terminal(*turnwise("chat", f"sqlite:///{tmp_path}/chats.db", "--demo"), env=environ) as terminal:
        terminal.wait_for("/help lists")
        terminal.wait_for(is_at_prompt)  # else the terminal shows what is typed, and then the prompt does
        terminal.say(" ".join(f"word{n}" for n in range(200)))  # which it takes four seconds or more to repeat
        terminal.wait_for("You said: word0 word1")
        terminal.press(CTRL_C)
        terminal.wait_for("stopped: Ctrl+C")
        terminal.say("And now?")
        text = terminal.wait_for("You said: And now? (message 3 of our conversation)")
        terminal.wait_for(is_at_prompt)
        terminal.press(CTRL_C)
        terminal.wait_for("Ctrl+C again leaves")
        terminal.press(CTRL_C)
        assert terminal.wait() == 130
    assert "go on with: turnwise chat" in terminal.text
    assert "Traceback" not in terminal.text and "WARNING" not in terminal.text
    assert text.replace("\n", "").count("word199") == 1, "the answer went on after Ctrl+C"


def test_what_was_said_before_ctrl_c_is_kept(
    chat: Callable[..., Terminal], provider: LocalProvider, store: str
) -> None:
    provider.token_delay_s = 0.3
    terminal = chat()
    terminal.say(WORDS)
    terminal.wait_for("You said: word0 word1")
    terminal.press(CTRL_C)
    terminal.wait_for("stopped: Ctrl+C")
    provider.token_delay_s = 0.0
    terminal.say("/retry")
    terminal.wait_for(lambda text: text.count("word59") == 2)
    terminal.wait_for(is_at_prompt)
    terminal.say("/quit")
    assert terminal.wait() == 0
    with read_only(store) as manager:
        session = manager.get(session_of(terminal))
        first, second = session.turns()
        assert first.status == "cancelled" and first.text.startswith("You said: word0") and "word59" not in first.text
        assert second.status == "completed" and "word59" in second.text
        assert session.info().session.title == WORDS[:80]
    assert "word5" not in str(provider.requests[-1].body["messages"][:-1]), "the stopped answer was sent again"


def test_ctrl_c_twice_in_an_answer_stops_it_and_leaves(
    chat: Callable[..., Terminal], provider: LocalProvider, store: str
) -> None:
    provider.token_delay_s = 0.3
    terminal = chat()
    terminal.say(WORDS)
    terminal.wait_for("You said: word0")
    terminal.press(CTRL_C)
    terminal.wait_for(lambda text: "stopping" in text or "stopped" in text)  # two signals at once would be one
    terminal.press(CTRL_C)
    assert terminal.wait() == 130 and "Traceback" not in terminal.text
    with read_only(store) as manager:
        (turn,) = manager.get(session_of(terminal)).turns()
        assert turn.status == "cancelled" and turn.text.startswith("You said: word0")


def test_a_killed_chat_is_resumed_by_id_and_asks_again(chat: Callable[..., Terminal], provider: LocalProvider) -> None:
    terminal = chat()
    terminal.say("The first question")
    terminal.wait_for("You said: The first question (message 1 of our conversation)")
    provider.token_delay_s = 0.3
    terminal.say(WORDS)
    terminal.wait_for("You said: word0 word1")
    terminal.kill()
    provider.token_delay_s = 0.0
    again = chat(session_of(terminal))
    text = again.wait_for("the run was interrupted: ")
    assert "You said: The first question" in text
    again.say("/retry")
    again.wait_for(lambda text: "word59 (message" in text.replace("\n", " ") and is_at_prompt(text))
    again.press(CTRL_D)
    assert again.wait() == 0


def test_a_second_process_is_refused_the_file_and_told_who_has_it(
    chat: Callable[..., Terminal], environ: Mapping[str, str | None], store: str
) -> None:
    first = chat("mine", "--create")
    second = piped(environ, store, "hello\n")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"process {first.pid} on " in second.stderr and "use that program, or end it first" in second.stderr
    first.say("/quit")
    assert first.wait() == 0
    third = piped(environ, store, "hello\n", "--json")
    assert json.loads(third.stdout)["text"] == "You said: hello (message 1 of our conversation)"


def test_a_fork_leaves_the_original_as_it_is(chat: Callable[..., Terminal]) -> None:
    terminal = chat("trip", "--create")
    terminal.say("To Lisbon")
    terminal.wait_for("You said: To Lisbon")
    terminal.say("/fork other")
    terminal.wait_for("this is session other now; trip stays as it is")
    terminal.say("To Porto")
    terminal.wait_for("You said: To Porto (message 3 of our conversation)")
    terminal.say("/frok")
    terminal.wait_for("do you mean /fork?")
    terminal.say("/quit")
    assert terminal.wait() == 0
    original = chat("trip")
    original.say("By train")
    original.wait_for("You said: By train (message 3 of our conversation)")
    assert "Porto" not in original.text


def test_calls_of_tools_are_shown_and_asked_about(chat: Callable[..., Terminal], provider: LocalProvider) -> None:
    provider.reply = tool_script([[("pay", {"amount": 5})], "That is done."])
    terminal = chat("--tool", "tools.chat_tools:pay")
    terminal.say("Pay five")
    terminal.wait_for("do it? [y/n]")
    assert "→ pay(amount=5)" in terminal.text
    terminal.say("perhaps")
    terminal.wait_for(lambda text: text.count("do it? [y/n]") == 2)
    terminal.say("y")
    terminal.wait_for(lambda text: "That is done." in text and is_at_prompt(text))
    assert "← paid 5" in terminal.text
    terminal.say("Again")
    terminal.wait_for(lambda text: text.count("do it? [y/n]") == 3)
    terminal.say("n")
    terminal.wait_for("why not?")
    terminal.say("too much")
    terminal.wait_for(lambda text: text.count("That is done.") == 2 and is_at_prompt(text))
    assert "too much" in json.dumps(provider.requests[-1].body)
    terminal.say("Once more")
    terminal.wait_for(lambda text: text.count("do it? [y/n]") == 4)
    terminal.press(CTRL_C)
    terminal.wait_for(lambda text: "stopped: Ctrl+C" in text and is_at_prompt(text))
    terminal.say("The last one")
    terminal.wait_for(lambda text: text.count("do it? [y/n]") == 5)
    terminal.press(CTRL_D)
    terminal.wait_for("the call still waits")
    assert terminal.wait() == 0, terminal.text[-3000:]
    again = chat("--tool", "tools.chat_tools:pay", session_of(terminal), shows="do it? [y/n]")
    again.say("y")
    again.wait_for(lambda text: "← paid 5" in text and is_at_prompt(text))


def test_texts_of_models_steer_no_terminal(chat: Callable[..., Terminal], provider: LocalProvider) -> None:
    provider.reply = "\x1b]0;owned\x07\x1b[2J\x1b[31m[red]red[/red]\r\nnext\x9b1mline :smile:"
    terminal = chat()
    terminal.say("Hello \\")
    terminal.say("again")
    text = terminal.wait_for("next⟨U+009B⟩1mline :smile:")
    assert terminal.screen.title == "" and "/help lists" in text
    assert "␛]0;owned␇␛[2J␛[31m[red]red[/red]" in text
    assert provider.requests[-1].body["messages"][-1]["content"] == "Hello \nagain"


def test_a_chat_remembers_over_sessions(chat: Callable[..., Terminal], tmp_path: Path) -> None:
    memory = ("--memory", f"sqlite:///{tmp_path}/memory.db")
    terminal = chat(*memory)
    terminal.say("I live in Lisbon")
    terminal.wait_for("You said: I live in Lisbon")
    terminal.wait_for(is_at_prompt)
    for n in range(50):  # turns are saved soon after they end
        terminal.say("/memory Lisbon")
        terminal.wait_for(partial(has_answered, n + 1))
        if "nothing of that" not in terminal.text.rpartition("> /memory")[2]:
            break
    assert "live in Lisbon" in terminal.text.rpartition("> /memory")[2]
    count = terminal.text.count("> /memory")
    terminal.say("/memory")  # all of it
    terminal.wait_for(partial(has_answered, count + 1))
    assert "live in Lisbon" in terminal.text.rpartition("> /memory")[2]
    terminal.say("/quit")
    assert terminal.wait() == 0
    second_chat = chat(*memory)
    second_chat.say("Where do I live? In Lisbon?")
    second_chat.wait_for("recalled: ")


def test_the_lines_of_a_pipe_are_answered_and_nothing_else_is_printed(
    environ: Mapping[str, str | None], store: str
) -> None:
    done = piped(environ, store, "one\n\ntwo\n", "pipe", "--create")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "You said: one (message 1 of our conversation)\nYou said: two (message 3 of our conversation)\n"
    )
    done = piped(environ, store, "three", "pipe", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["text"] == "You said: three (message 5 of our conversation)"
    assert (answer["session_id"], answer["state"], answer["turn"], answer["why"]) == ("pipe", "completed", 2, None)


def test_a_failure_ends_a_pipe(environ: Mapping[str, str | None], store: str, provider: LocalProvider) -> None:
    provider.reply = tool_script([[("pay", {"amount": 5})], "That is done."])
    done = piped(environ, store, "pay\nand again\n", "--tool", "tools.chat_tools:pay")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: call " in done.stderr and "nobody can be asked here" in done.stderr
    done = piped({**environ, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, store, "hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the run failed: " in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_mistyped_id_is_no_new_session(environ: Mapping[str, str | None], store: str) -> None:
    piped(environ, store, "one\n", "my-trip", "--create")
    done = piped(environ, store, "one\n", "my-tripp")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: there is no session 'my-tripp'; did you mean 'my-trip'?; --create makes it\n"


class Refusing:
    """A session with one answered turn, which notes what is done to it."""

    id = "trip"

    def __init__(self, active_run_id: str | None) -> None:
        self._active_run_id = active_run_id
        self.done: list[str] = []
        self.memory = SimpleNamespace(forget=lambda _: self.done.append("forget"))

    def latest(self) -> Any:
        return SimpleNamespace(index=0, status="completed", asked=(User(text="When does the train leave?"),))

    def info(self) -> Any:
        return SimpleNamespace(active_run_id=self._active_run_id)

    def append(self, *_: object) -> None:
        self.done.append("append")
        raise SessionEndedError(self.id)

    def run(self, *_: object) -> None:
        self.done.append("run")


@pytest.mark.parametrize(("active", "done"), [(None, ["append"]), ("r-1", [])])
def test_a_refused_retry_forgets_nothing(
    active: str | None, done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"/retry\n")))
    session: Any = Refusing(active)
    talk = Conversation(session, LineEditor(), Answers(console(), console(stderr=True)), as_json=False, is_new=False)
    assert (talk.talk(), session.done) == (UNANSWERED, done)
    assert "error: session 'trip'" in capsys.readouterr().err

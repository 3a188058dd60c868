"""Commands that use the sessions of a service: `--server`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from servers.threaded_service import served
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.cli import app
from turnwise.client import RemoteManager
from turnwise.engines import agent_tool
from turnwise.http import BearerTokens, Identity
from turnwise.testing.scripted_engine import ScriptedEngine

TOKEN, ANNS = "the-token-of-root1", "the-token-of-ann11"


@pytest.fixture
def turnwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs commands on a service with a session `chat` of Ann's, for an operator."""
    monkeypatch.setenv("TURNWISE_TOKEN", TOKEN)
    monkeypatch.delenv("TURNWISE_STORE", raising=False)
    auth = BearerTokens({TOKEN: Identity("root", is_operator=True), ANNS: Identity("ann")})
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess(), "files": f"{tmp_path}/files"}
    with served(f"sqlite:///{tmp_path}/chats.db", auth=auth, **settings) as service:

        def turnwise(*words: str, typed: str | None = None, code: int = 0) -> Any:
            done = CliRunner().invoke(app, [*words, "--server", service.url], input=typed)
            assert done.exit_code == code, (words, done.output, done.exception)
            return json.loads(done.stdout) if "--json" in words else done.output

        with RemoteManager(service.url, token=TOKEN, user="ann") as manager:
            chat = manager.open("chat")
            chat.run("hello").wait()
            chat.mark("chat#0:1", "thumb", "up")
            chat.schedule("later", after_s=1_000, key="news")
            yield turnwise


def test_commands_show_and_change_the_sessions_of_a_service(turnwise: Callable[..., Any]) -> None:
    (session,) = turnwise("ls", "--json")["items"]
    assert (session["id"], session["user_id"], session["state"]) == ("chat", "ann", "idle")
    assert turnwise("runs", "--json", "--user", "ann")["items"][0]["state"] == "completed"
    assert turnwise("schedules", "--json")["items"][0]["key"] == "news"
    assert "hello" in turnwise("show", "chat", "--user", "ann")
    assert "what the model was sent" in turnwise("show", "chat", "--user", "ann", "--as-sent")
    assert turnwise("search", "hello", "--user", "ann", "--json")["items"]
    assert "thumb" in turnwise("marks", "--user", "ann")
    assert "total" in turnwise("usage") and turnwise("tenants", "ls") and turnwise("quotas", "ls") is not None
    assert "has said it" in turnwise("say", "chat", "Good day", "--user", "ann")
    assert turnwise("unschedule", "chat", "news", "--user", "ann")
    assert "no active run" in turnwise("cancel", "chat", "--user", "ann", code=1)
    assert turnwise("end", "chat", "--user", "ann") and turnwise("rm", "chat", "--user", "ann", "--yes")
    assert turnwise("ls", "--json")["items"] == []


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """The URL of a service, and the id of an agent's session and of its run, which are Tom's."""
    monkeypatch.setenv("TURNWISE_TOKEN", TOKEN)
    monkeypatch.delenv("TURNWISE_STORE", raising=False)
    researcher = agent_tool("researcher", engine="research", description="Finds things out.")
    lead = ScriptedEngine([[("researcher", {"task": "boats"})], "done"], tools=[researcher])
    settings: dict[str, Any] = {"engine": {"lead": lead, "research": EchoEngine()}, "placement": InProcess()}
    auth = BearerTokens({TOKEN: Identity("root", is_operator=True)})
    with served(f"sqlite:///{tmp_path}/chats.db", auth=auth, **settings) as service:
        with RemoteManager(service.url, token=TOKEN, user="tom") as manager:
            run = manager.open("chat").run("go")
            run.wait()
            (child,) = run.children()
        yield service.url, child.run_id


COMMANDS = [["approve"], ["reject"], ["cancel"], ["end"], ["rm", "--yes"], ["fork"], ["say"]]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_says_that_an_id_is_of_another_user(words: list[str], agent: tuple[str, str]) -> None:
    service, agent_id = agent
    texts = ["hello"] if words == ["say"] else []
    for other in (agent_id, "chat"):
        done = CliRunner().invoke(app, [*words, other, *texts, "--server", service])
        assert (done.exit_code, done.stderr) == (1, f"error: session {other!r} is of another user: give --user tom\n")


@pytest.mark.parametrize("word", ["approve", "reject", "cancel"])
def test_a_command_says_that_a_run_is_of_another_user(word: str, turnwise: Callable[..., Any]) -> None:
    (run,) = turnwise("runs", "--json", "--user", "ann")["items"]
    assert f"run {run['id']!r} is of another user: give --user ann" in turnwise(word, run["id"], code=1)
    assert f"did you mean {run['id']!r}?" in turnwise(word, run["id"][:-2], "--user", "ann", code=1)


def test_a_chat_talks_with_a_service(turnwise: Callable[..., Any]) -> None:
    answers = turnwise("chat", "--create", "new", "--user", "ann", typed="one two\nthree\n")
    assert answers.split() == ["one", "two", "three"]
    assert "go on" in turnwise("chat", "new", "--user", "ann", typed="go on\n")
    assert "leave out" in turnwise("chat", "--model", "gpt-5", typed="", code=1)


def test_a_tail_follows_the_sessions_of_a_service(
    turnwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        raise KeyboardInterrupt

    monkeypatch.setattr("turnwise.cli.tail.write", write)
    turnwise("tail", "chat", "--user", "ann", "--after", "0", code=130)
    done = Event()

    def speak() -> None:
        while not done.wait(0.05):
            turnwise("say", "chat", "Good day", "--user", "ann")

    speaker = Thread(target=speak)
    speaker.start()
    try:
        turnwise("tail", "--user", "ann", "--kind", "run_completed", code=130)
    finally:
        done.set()
        speaker.join()
    assert "run_started" in lines[0] and "run_completed" in lines[1] and "Good day" in lines[1]


def test_an_operator_watches_the_sessions_of_a_service(turnwise: Callable[..., Any]) -> None:
    seen = turnwise("top", "--once", "--json")
    assert seen["sessions"] == {"active": 1, "ended": 0} and seen["namespace"] is None
    assert seen["runs"] == {"running": 0, "queued": 0, "awaiting_approval": 0} and seen["open_runs"] == []
    (host,) = seen["hosts"]
    assert host["is_packed"] and host["pid"] and seen["loaded"] == host["sessions"] == 1
    shown = turnwise("top", "--once")
    assert "1 active sessions in the store" in shown and "1 loaded" in shown and "in namespace" not in shown


def test_an_operator_sweeps_the_sessions_of_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", TOKEN)
    auth = BearerTokens({TOKEN: Identity("root", is_operator=True)})
    with served(f"sqlite:///{tmp_path}/swept.db", auth=auth, engine=EchoEngine(), placement=InProcess()) as service:
        with RemoteManager(service.url, token=TOKEN, user="ann") as manager:
            manager.open("old", ttl_s=0.0)
            manager.open("new")
        words = ["sweep", "--server", service.url]
        refused = CliRunner().invoke(app, [*words, "--archive", str(tmp_path)])
        assert refused.exit_code == 1 and "without an archive" in refused.output
        swept = CliRunner().invoke(app, [*words, "--json"])
        assert json.loads(swept.stdout)["deleted"] == [{"session_id": "old", "user_id": "ann"}]
        assert CliRunner().invoke(app, words).stdout.splitlines()[0] == "deleted: 0"


def test_a_drain_by_a_service_names_a_node_and_needs_a_cluster(turnwise: Callable[..., Any]) -> None:
    assert "name one" in turnwise("drain", code=1)
    assert "no nodes without Ray" in turnwise("drain", "--node", "a-node", code=1)
    assert "leave --address out" in " ".join(turnwise("drain", "--address", "head:6379", code=2).split())


@pytest.mark.parametrize("words", [["top", "--once"], ["sweep"], ["drain", "--node", "a-node"]])
def test_who_is_no_operator_is_refused(words: list[str], turnwise: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", ANNS)
    assert "operator" in turnwise(*words, code=1)


def test_a_command_says_which_service_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.cli.common._AWAY_S", 0.0)
    for server, message in (("chat.example.com", "URL of a service"), ("http://127.0.0.1:1", "see whether it runs")):
        done = CliRunner().invoke(app, ["ls", "--server", server])
        assert done.exit_code in (1, 2) and message in " ".join(done.output.replace("│", " ").split()), done.output


@pytest.fixture
def usage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs commands that are wrong; returns what is printed."""
    monkeypatch.delenv("TURNWISE_STORE", raising=False)

    def usage(*words: str) -> str:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == 2, (words, done.output, done.exception)
        return " ".join(done.output.replace("│", " ").split())

    return usage


SERVER = ("--server", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [
        ("rm", "chat", "--yes", "--namespace", "other"),
        ("say", "chat", "Good day", "--history", "sqlite:///events.db"),
        ("ls", "--history", "sqlite:///events.db"),
        ("chat", "chat", "--namespace", "other"),
        ("files", "ls", "chat", "--files", "/srv/files"),
        ("quotas", "rm", "q", "--namespace", "other"),
    ],
)
def test_options_of_a_store_are_refused_beside_a_service(usage: Callable[..., str], words: tuple[str, ...]) -> None:
    assert f"leave {words[-2]} out" in usage(*words, *SERVER)


def test_a_store_is_refused_beside_a_service(usage: Callable[..., str], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("chat")
    for words in (("rm", store, "chat", "--yes"), ("ls", store), ("chat", store, "chat")):
        assert "not both" in usage(*words, *SERVER)
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        assert manager.count() == 1, "nothing was deleted in the store"


def test_a_service_in_the_place_of_a_store_is_refused(
    usage: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("ls", "http://service"), ("rm", "https://service", "chat", "--yes"), ("chat", "http://service")):
        assert "by --server URL" in usage(*words)
    assert "secret" not in usage("ls", "--server", "me:secret@host")
    monkeypatch.setenv("TURNWISE_STORE", "http://service")
    for command in ("ls", "rm chat --yes", "chat chat", "tail"):
        assert "TURNWISE_STORE must name a store" in usage(*command.split())


def test_a_search_without_a_user_is_of_the_user_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", "the-token-of-sarah")
    auth = BearerTokens({"the-token-of-sarah": "sarah"})
    with served(f"sqlite:///{tmp_path}/chats.db", auth=auth, engine=EchoEngine(), placement=InProcess()) as service:
        with RemoteManager(service.url, token="the-token-of-sarah") as manager:
            chat = manager.open("chat")
            chat.run("hello").wait()
            chat.mark("chat#0:1", "thumb", "up")
            assert manager.count_marks(None) == {"thumb": 1}
        for words in (("search", "hello"), ("marks",)):
            done = CliRunner().invoke(app, [*words, "--json", "--server", service.url])
            assert done.exit_code == 0 and json.loads(done.stdout)["items"], done.output

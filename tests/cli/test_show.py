"""`turnwise show`: transcripts, turns, and what the model was sent."""

import asyncio
import json
from pathlib import Path

import pytest
from filled import HOSTILE, files, filled, on_terminal, text_of, turnwise

from turnwise import EchoEngine, SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.urls import open_store
from turnwise.testing.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(f"sqlite:///{tmp_path_factory.mktemp('cli')}/store.db")


def test_a_session_is_shown_as_a_transcript(store: str) -> None:
    ran = turnwise("show", store, "chat", "--user", "ann")
    assert ran.exit_code == 0, ran.output
    lines = [line for line in ran.stdout.splitlines() if line and not line.startswith("[")]
    assert lines[0].startswith("session chat  A week in Oslo  user ann  agent travel  idle  2 turns")
    assert lines[1:] == [
        "turn 0  just now",
        *("user", "  Will it rain?", "thoughts", "  Hm."),
        'calls weather {"city": "Oslo"}  (call_0_1)',
        *("result", "  rain in Oslo", "assistant", "  Take an umbrella."),
        "turn 1  just now",
        *("user", "  And tomorrow?", "assistant", "  So it seems."),
    ]
    assert "[completed, run r-1," in ran.stdout
    newest = turnwise("show", store, "chat", "--user", "ann", "-n", "1").stdout
    assert "And tomorrow?" in newest and "Will it rain?" not in newest


def test_a_turn_is_found_by_index_and_by_run(store: str) -> None:
    by_index = turnwise("show", store, "chat", "--user", "ann", "0").stdout
    assert by_index == turnwise("show", store, "chat", "--user", "ann", "r-1").stdout
    assert "Take an umbrella." in by_index and "And tomorrow?" not in by_index
    assert (
        json.loads(turnwise("show", store, "chat", "--user", "ann", "0", "--json").stdout)["text"]
        == "Take an umbrella."
    )


def test_a_turn_names_its_version_and_the_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        chat = manager.open("chat")
        for prompt in ("one", "two"):
            chat.run(prompt).wait()
        chat.rerun("other").wait()
    whole = turnwise("show", url, "chat").stdout
    assert "turn 0  just now" in whole and "turn 2  version 2 of 2, besides turn 1  just now" in whole
    assert "other" in whole and "two" not in whole
    earlier = turnwise("show", url, "chat", "1").stdout
    assert earlier.startswith("turn 1  version 1 of 2, besides turn 2  completed") and "two" in earlier


def test_as_sent_is_what_the_model_had(store: str) -> None:
    last = turnwise("show", store, "chat", "--user", "ann", "--as-sent").stdout
    assert last.startswith("what the model was sent: run r-2, turn 1")
    assert "Take an umbrella." in last and "And tomorrow?" in last and "So it seems." not in last
    first = json.loads(turnwise("show", store, "chat", "--user", "ann", "r-1", "--as-sent", "--json").stdout)
    assert first["run"]["id"] == "r-1" and [block["text"] for block in first["blocks"]] == ["Will it rain?"]


def test_as_sent_says_that_what_memory_added_is_not_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    asyncio.run(_remembering(url))
    shown = turnwise("show", url, "chat", "r-1", "--as-sent").stdout
    assert shown.splitlines()[-1] == (
        "(if memory added a profile, notes or recalled items to this, they are not shown: that text is not stored)"
    )
    assert "not stored" not in turnwise("show", url, "chat", "r-2", "--as-sent").stdout
    assert "not stored" not in turnwise("show", url, "chat", "--user", "ann").stdout
    runs = [
        json.loads(turnwise("show", url, "chat", run_id, "--as-sent", "--json").stdout) for run_id in ("r-1", "r-2")
    ]
    assert [run["run"]["memory"] for run in runs] == ["on", "off"]


_USES: dict[str, MemoryUse] = {"r-1": "on", "r-2": "off"}


async def _remembering(url: str) -> None:
    """Make a session with a run that recalls, and one without memory."""
    store = open_store(url)
    try:
        await store.create(SessionRecord(session_id="chat"))
        core = SessionCore(SessionKey("chat"), store, ScriptedEngine(["Here.", "There."]))
        for run_id, use in _USES.items():
            await core.admission.start(["Where?"], run_id=run_id, memory=use)
            while (await core.reads.run(run_id)).is_open:
                await asyncio.sleep(0.005)
    finally:
        await store.close()


def test_a_call_that_waits_is_shown_with_its_ids(store: str) -> None:
    shown = turnwise("show", store, "money", "--user", "bob").stdout
    assert "pay asks for approval" in shown and '"euros": 7' in shown and "run r-4, call call_0_0" in shown
    (call,) = json.loads(turnwise("show", store, "money", "--user", "bob", "--json").stdout)["pending"]
    assert (call["name"], call["wants"]) == ("pay", "approval")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["chat", "--user", "ann", "r-9"], "did you mean 'r-"),
        (["chat", "--user", "ann", "99"], "session 'chat' has no turn 99"),
        (["empty", "--as-sent"], "has no run"),
        (["chta"], "did you mean 'chat'?"),
    ],
)
def test_what_is_not_there_is_said(words: list[str], reason: str, store: str) -> None:
    ran = turnwise("show", store, *words)
    assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (1, "", 1) and reason in ran.stderr


def test_json_is_in_the_form_of_the_http_api(store: str) -> None:
    shown = json.loads(turnwise("show", store, "chat", "--user", "ann", "--json").stdout)
    assert shown["session"]["id"] == "chat" and shown["session"]["active_run_id"] is None
    assert [message["role"] for message in shown["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert [run["id"] for run in shown["runs"]] == ["r-1", "r-2"]


def test_a_terminal_shows_it_with_styles_and_no_steering(store: str) -> None:
    screen = on_terminal("show", store, "bad", "--user", HOSTILE[8:20])
    shown = text_of(screen)
    assert shown.count("\u241b[2J") == 3 and "[bold red]danger[/bold red]" in shown
    lines = shown.splitlines()
    assert screen.buffer[lines.index("user")][0].fg == "cyan"


def test_it_reads_where_nobody_has_the_file_open_and_leaves_no_trace(store: str) -> None:
    folder = Path(store.removeprefix("sqlite:///")).parent
    before = files(folder)
    turnwise("show", store, "chat", "--user", "ann", "--as-sent")
    assert files(folder) == before


@pytest.mark.parametrize("where", ["database", "redis_url"])
def test_servers_are_read_too(where: str, request: pytest.FixtureRequest) -> None:
    url = filled(request.getfixturevalue(where))
    assert "Take an umbrella." in turnwise("show", url, "chat", "--user", "ann").stdout
    assert len(turnwise("ls", url).stdout.splitlines()) == 7
    assert len(turnwise("runs", url).stdout.splitlines()) == 7
    assert json.loads(turnwise("usage", url, "--json").stdout)["total"]["calls"] == 6
    assert "did you mean 'chat'?" in turnwise("show", url, "chatt").stderr

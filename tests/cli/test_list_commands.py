"""`turnwise ls`, `runs` and `usage`, and what all commands share: stores, errors, ids, output."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filled import HOSTILE, files, filled, on_terminal, rows, text_of, turnwise

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.cli.common import reading
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.webhooks import call_prefix
from turnwise.memory.stores.urls import open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(f"sqlite:///{tmp_path_factory.mktemp('cli')}/store.db")


def test_ls_lists_sessions_with_what_they_do(store: str) -> None:
    ran = turnwise("ls", store)
    assert ran.exit_code == 0, ran.output
    rows_by_session = {row["session"]: row for row in rows(ran.stdout)}
    assert {name: row["state"] for name, row in rows_by_session.items()} == {
        "chat": "idle",
        "bad": "idle",
        "money": "awaiting_approval",
        "mine": "idle",
        "long": "running",
        "empty": "ended",
    }
    chat = rows_by_session["chat"]
    assert (chat["title"], chat["user"], chat["agent"], chat["turns"]) == ("A week in Oslo", "ann", "travel", "2")
    assert int(chat["tokens"]) > 0 and chat["changed"] == "just now"


def test_failed_calls_of_a_webhook_are_counted_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("chat")
        webhook_id = manager.webhook("https://example.org/hook", events=["run.failed"]).id

    async def give_up(count: int) -> None:
        store = open_store(url)
        for number in range(count):
            name = f"{call_prefix(webhook_id)}{number}"
            given_up = Delivery(delivery_id=name, session_id="chat", key=name, kind="call", occurs_at=1.0, due_at=None)
            await store.add_delivery(given_up)
        await store.close()

    asyncio.run(give_up(2))
    for most, count in ((3, "2"), (2, "2+")):
        monkeypatch.setattr("turnwise.cli.webhooks._MOST", most)
        (webhook,) = rows(turnwise("webhooks", "ls", url).stdout)
        assert webhook["failed"] == count


def test_ls_filters_and_pages(store: str) -> None:
    assert {row["session"] for row in rows(turnwise("ls", store, "--user", "ann").stdout)} == {"chat", "mine"}
    assert [row["session"] for row in rows(turnwise("ls", store, "--status", "ended").stdout)] == ["empty"]
    assert [row["session"] for row in rows(turnwise("ls", store, "--title", "OSLO").stdout)] == ["chat"]
    assert rows(turnwise("ls", store, "--agent", "nobody").stdout) == []
    first = turnwise("ls", store, "-n", "4", "--json")
    page = json.loads(first.stdout)
    rest = json.loads(turnwise("ls", store, "--cursor", page["cursor"], "--json").stdout)
    assert len({item["id"] for item in [*page["items"], *rest["items"]]}) == 6 and rest["cursor"] is None
    assert f"--cursor '{page['cursor']}'" in turnwise("ls", store, "-n", "4").stderr


def test_search_finds_what_was_said(store: str) -> None:
    found = rows(turnwise("search", store, "umbr", "--user", "ann").stdout)
    assert [(row["session"], row["turn"], row["role"]) for row in found] == [("chat", "0", "assistant")]
    assert found[0]["text"] == "Take an umbrella."
    page = json.loads(turnwise("search", store, "rain", "--user", "ann", "--role", "user", "--json").stdout)
    assert [(hit["id"], hit["ranges"]) for hit in page["items"]] == [("chat#0:0", [[8, 12]])] and not page["cursor"]
    assert rows(turnwise("search", store, "umbrella").stdout) == []
    assert turnwise("search", store, "?!").exit_code == 1


def test_marks_are_listed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/marked.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        chat = manager.open("chat", user_id="ann")
        chat.run("hello").wait()
        chat.mark("chat#0:1", "thumb", "up", by="Rita")
        chat.mark("chat#0:0", "note", {"stars": 4})
    listed = rows(turnwise("marks", url, "--user", "ann").stdout)
    assert [(row["message"], row["mark"], row["value"]) for row in listed] == [
        ("chat#0:0", "note", '{"stars":4}'),
        ("chat#0:1", "thumb", "up"),
    ]
    page = json.loads(turnwise("marks", url, "--user", "ann", "--name", "thumb", "--json").stdout)
    assert [(item["id"], item["mark"]["by"]) for item in page["items"]] == [("chat#0:1", "Rita")]


def test_runs_lists_the_newest_first(store: str) -> None:
    listed = rows(turnwise("runs", store).stdout)
    assert [row["run"] for row in listed] == ["r-6", "r-5", "r-4", "r-3", "r-2", "r-1"]
    assert {row["state"] for row in listed} == {"running", "completed", "awaiting_approval"}
    assert [row["run"] for row in rows(turnwise("runs", store, "chat", "--user", "ann").stdout)] == ["r-2", "r-1"]
    assert [row["run"] for row in rows(turnwise("runs", store, "chat", "--user", "ann", "-n", "1").stdout)] == ["r-2"]
    assert [row["run"] for row in rows(turnwise("runs", store, "--state", "running").stdout)] == ["r-6"]
    assert [row["run"] for row in rows(turnwise("runs", store, "mine", "--user", "ann").stdout)] == ["r-5"]
    assert rows(turnwise("runs", store, "chat", "--user", "ann", "--state", "failed").stdout) == []
    items = json.loads(turnwise("runs", store, "chat", "--user", "ann", "--json").stdout)["items"]
    assert [(item["id"], item["session_id"], item["state"]) for item in items] == [
        ("r-2", "chat", "completed"),
        ("r-1", "chat", "completed"),
    ]


def test_runs_of_several_users_say_whose_each_is(store: str) -> None:
    users = {row["run"]: row["user"] for row in rows(turnwise("runs", store).stdout)}
    assert (users["r-5"], users["r-4"], users["r-6"]) == ("ann", "bob", "default")
    items = json.loads(turnwise("runs", store, "--json").stdout)["items"]
    assert {item["id"]: item["user_id"] for item in items}["r-5"] == "ann"


def test_usage_is_shown_as_a_whole_and_in_parts(store: str) -> None:
    total = json.loads(turnwise("usage", store, "--json").stdout)["total"]
    assert total["calls"] == 6 and total["tool_calls"] == 1
    for by, names in (
        ("user", {"ann", "bob", HOSTILE[8:20]}),
        ("agent", {"", "travel"}),
        ("kind", {"run"}),
        ("engine", {""}),
    ):
        parts = json.loads(turnwise("usage", store, "--by", by, "--json").stdout)["rows"]
        assert {part[by] for part in parts} >= names
        assert sum(part["output_tokens"] for part in parts) == total["output_tokens"]
    today = datetime.now(UTC).date().isoformat()
    *days, last = rows(turnwise("usage", store, "--by", "day, model", "--since", today).stdout)
    assert {day["day"] for day in days} <= {today} and last["day"] == "total"
    *_, last = rows(turnwise("usage", store, "--by", "user", "--user", "ann").stdout)
    assert last["user"] == "total" and last["model calls"] == "4"


def test_usage_is_printed_as_csv(store: str) -> None:
    head, *lines = turnwise("usage", store, "--by", "user,tool", "--csv").stdout.splitlines()
    assert head.startswith("user,tool,runs,calls,") and any(line.startswith("ann,,") for line in lines)


def test_usage_by_something_else_is_refused(store: str) -> None:
    for words, reason in (
        (("--by", "week"), "day, user, agent, session, kind, model, tool, tenant, engine"),
        (("--since", "yesterday"), "2026-11-29"),
        (("--since", "2026-11-30", "--until", "2026-11-29"), "must not be after until"),
    ):
        refused = turnwise("usage", store, *words)
        assert refused.exit_code == 1 and reason in refused.stderr.replace("\n", " ")


def test_the_store_may_be_named_by_the_environment(store: str) -> None:
    env = {"TURNWISE_STORE": store}
    assert len(rows(turnwise("ls", env=env).stdout)) == 6
    assert len(rows(turnwise("runs", "chat", "--user", "ann", env=env).stdout)) == 2
    assert (
        len(rows(turnwise("runs", store, "chat", "--user", "ann", env={"TURNWISE_STORE": "sqlite:////none"}).stdout))
        == 2
    )
    none = turnwise("runs", "chat", "--user", "ann", env={"TURNWISE_STORE": None})
    assert none.exit_code == 2 and "TURNWISE_STORE" in none.stderr


def test_an_unknown_turn_is_refused_with_the_command_that_lists_turns(store: str) -> None:
    refused = turnwise("show", store, "chat", "--user", "ann", "7")
    message = "error: session 'chat' has no turn 7: `turnwise show STORE SESSION` lists those it has"
    assert refused.exit_code == 1 and refused.stderr.startswith(message)


def test_the_path_of_a_file_is_told_as_a_url() -> None:
    refused = turnwise("ls", "c.db", env={"TURNWISE_STORE": None})
    assert refused.exit_code == 2 and "sqlite:///c.db" in refused.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["runs", "{store}", "chta"], "there is no session 'chta'; did you mean 'chat'?"),
        (["runs", "{store}", "zzzzzz"], "there is no session 'zzzzzz'"),
        (["runs", "{store}", "mine"], "session 'mine' is of another user: give --user ann"),
        (["export", "{store}", "mony"], "there is no session 'mony'; did you mean 'money'?"),
        (["export", "{store}", "mine"], "give --user ann"),
        (["ls", "{missing}"], "there is no file"),
        (["ls", "nonsense://x"], "its scheme is not known"),
        (["ls", "postgresql://u:p@127.0.0.1:9/x"], "error: store postgresql://u:***@127.0.0.1:9/x: connection failed"),
        (
            ["ls", "postgresql://u@127.0.0.1:9/x?options=-c%20a%3Db"],
            "127.0.0.1:9/x?options=-c%20a%3Db: connection failed",
        ),
        (["ls", "{broken}"], "/br ok.db: file is not a database"),
        (["ls", "memory://x"], "a store in memory ends with its process"),
        (["ls", "{store}", "--cursor", "x"], "pass the cursor of the page before"),
        (["runs", "{store}", "a\x1b[2Jb"], "session id 'a"),
    ],
)
def test_an_error_is_one_line(words: list[str], reason: str, store: str, tmp_path: Path) -> None:
    (broken := tmp_path / "br ok.db").write_text("This is no database, as its first bytes say.")
    urls = {"store": store, "missing": f"sqlite:///{tmp_path}/none.db", "broken": f"sqlite:///{broken}"}
    ran = turnwise(*(word.format(**urls) for word in words))
    assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert ran.stderr.startswith("error: ") and reason in ran.stderr and "\x1b" not in ran.stderr
    assert list(tmp_path.iterdir()) == [broken], "nothing that reads creates a file"


def test_reading_leaves_the_store_as_it_is(store: str) -> None:
    folder = Path(store.removeprefix("sqlite:///")).parent
    before = files(folder)
    for words in (
        ["ls", store],
        ["runs", store],
        ["usage", store, "--by", "day"],
        ["export", store, "chat", "--user", "ann"],
    ):
        assert turnwise(*words).exit_code == 0
    assert turnwise("top", store, "--once").exit_code == 0
    for words in (["cancel", store, "chta"], ["approve", store, "chta"], ["tail", store, "chta"]):
        assert "did you mean 'chat'" in turnwise(*words).stderr
    assert files(folder) == before


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "words", [["tail", "chat", "--user", "ann", "--after", "0"], ["top", "--json", "--every", "0.2"]]
)
def test_looking_again_and_again_leaves_the_store_as_it_is(store: str, words: list[str]) -> None:
    folder = Path(store.removeprefix("sqlite:///")).parent
    before = files(folder)
    program = [sys.executable, "-m", "turnwise", words[0], store, *words[1:]]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ | {"RAY_ADDRESS": ""}) as looking:
        assert looking.stdout
        assert looking.stdout.readline()
        looking.send_signal(signal.SIGINT)
        assert looking.wait(60) == 130
    assert files(folder) == before


def test_who_looks_removes_no_file_of_those_who_write(tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")

    async def look() -> None:
        async with reading(store, live=True) as manager:
            await manager.list()
            writer = open_store(store)
            await writer.create(SessionRecord(session_id="new"))  # it is in SQLite's log only
        assert {"store.db-shm", "store.db-wal"} <= set(files(tmp_path))
        await writer.create(SessionRecord(session_id="newer"))
        await writer.close()

    asyncio.run(look())
    assert set(files(tmp_path)) == {"store.db"}
    assert {"new", "newer"} <= {row["session"] for row in rows(turnwise("ls", store).stdout)}


def test_a_table_in_a_terminal_is_coloured_and_shows_control_characters_escaped(store: str) -> None:
    plain = turnwise("ls", store).stdout
    assert "\x1b" not in plain and "\u202e" not in plain and "[bold red]danger[/bold red]" in plain
    screen = on_terminal("ls", store, columns=160)
    shown = text_of(screen)
    assert "[bold red]danger[/bold red]" in shown and "\u241b[2J" in shown
    lines = shown.splitlines()
    assert len(lines) > 6, "it did not clear the screen"
    assert lines[0].split() == ["session", "title", "user", "agent", "state", "turns", "tokens", "changed"]
    place = next(index for index, line in enumerate(lines) if line.startswith("long"))
    assert screen.buffer[place][lines[place].index("running")].fg == "brown"  # yellow, as pyte calls it
    assert json.loads(turnwise("ls", store, "--title", "danger", "--json").stdout)["items"][0]["title"] == HOSTILE


def test_a_narrow_terminal_cuts_titles_but_no_ids(store: str) -> None:
    dull = on_terminal("ls", store, columns=70, NO_COLOR="1")
    shown = text_of(dull)
    assert "A week in Oslo" not in shown and all(name in shown for name in ("chat", "money", "mine"))
    assert {char.fg for line in dull.buffer.values() for char in line.values()} == {"default"}


def test_a_shell_completes_ids_of_sessions(store: str) -> None:
    def completed(words: str, **env: str) -> list[str]:
        settings = {"_TURNWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, **env}
        settings["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        ran = turnwise(env=settings, prog_name="turnwise")
        assert (ran.exit_code, ran.stderr) == (0, "")
        return ran.stdout.split()

    assert completed("turnwise show m", TURNWISE_STORE=store) == ["mine", "money"]
    assert completed(f"turnwise show {store} ch") == ["chat"]
    assert completed("turnwise show ch", TURNWISE_STORE="sqlite:////no/such/file.db") == []
    assert "show" in completed("turnwise s")

"""Commands where no Ray runs: each does what it says in its own process, and imports nothing of Ray."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from filled import filled, rows, turnwise

from patience import until
from servers.served import served
from servers.webhook_receiver import Receiver
from tools.agent_team import team
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine

pytest_plugins = ["command_fixtures"]

COMMANDS = """
import json, sys

class NoRay:
    def find_spec(self, name, *_):
        if name.startswith("ray."):  # whether there is a package "ray" may be asked
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, NoRay())
from typer.testing import CliRunner
from turnwise.cli import app

for line in sys.stdin:
    ran = CliRunner().invoke(app, json.loads(line))
    print(json.dumps([ran.exit_code, ran.stdout, ran.stderr]), flush=True)
    assert "ray" not in sys.modules, line
"""


class Commands:
    """Carries out commands in one process, to which Ray is refused."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMMANDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code, and what was printed to standard output and standard error."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{json.dumps(words)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{words} ended the process"
        code, output, errors = json.loads(line)
        return code, output, errors

    def end(self) -> int:
        """End the process; return its exit code."""
        self._process.communicate()
        return self._process.returncode


@pytest.fixture
def commands(ray_free: Mapping[str, str]) -> Iterator[Commands]:
    commands = Commands(ray_free)
    try:
        yield commands
    finally:
        commands.end()


def test_each_command_works_and_imports_nothing_of_ray(commands: Commands, tmp_path: Path) -> None:
    store, file = filled(f"sqlite:///{tmp_path}/store.db"), str(tmp_path / "chat.jsonl")
    of_ann = ("--user", "ann")
    for words, shown in (
        (["ls", store], "A week in Oslo"),
        (["runs", store], "r-1"),
        (["usage", store], "total"),
        (["show", store, "chat", *of_ann], "Take an umbrella."),
        (["top", store, "--once"], "active sessions"),
        (["doctor", store], "no Ray and no other process has the file open"),
        (["export", store, "chat", file, *of_ann], ""),
        (["import", store, file, "--as", "copy"], "copy\n"),
        (["cancel", store, "long"], "run r-6 is interrupted\n"),
        (["say", store, "chat", "Your tea has drawn.", "--key", "tea", *of_ann], "session chat has said it\n"),
        (["say", store, "chat", "Your tea has drawn.", "--key", "tea", *of_ann, "--json"], '"state": "completed"'),
        (["show", store, "chat", *of_ann], "Your tea has drawn."),
        (["end", store, "money", "--user", "bob"], "session money has ended\n"),
        (["fork", store, "chat", *of_ann, "--at", "0", "--as", "other"], "other\n"),
        (
            ["share", store, "chat", "tom", *of_ann, "--role", "reader"],
            "session chat is open to ann (owner), tom (reader)\n",
        ),
        (["share", store, "chat", "tom", *of_ann, "--remove"], "session chat is open to ann (owner)\n"),
        (["rm", store, "mine", *of_ann, "--yes"], "session mine is deleted\n"),
        (["sweep", store], "deleted: 0"),
        (["chat", store, "--demo"], ""),
    ):
        code, output, errors = commands.run(*words)
        assert (code, errors) == (0, "") and shown in output, (words, output, errors)
    assert commands.run("show", store, "chat", *of_ann)[1].count("Your tea has drawn.") == 1
    assert "And tomorrow?" not in commands.run("show", store, "other", *of_ann)[1]
    assert commands.run("show", store, "mine", *of_ann)[0] == 1
    assert commands.end() == 0, "nothing of Ray was imported"


def test_schedules_are_added_listed_and_cancelled(commands: Commands, tmp_path: Path) -> None:
    store, of_ann = filled(f"sqlite:///{tmp_path}/store.db"), ("--user", "ann")

    def run(*words: str) -> str:
        code, output, errors = commands.run(*words)
        assert (code, errors) == (0, ""), (words, output, errors)
        return output

    line = ("--cron", "0 9 * * MON-FRI", "--timezone", "Europe/Lisbon")
    assert run("schedule", store, "chat", "What is\nnew?", *line, "--key", "news", *of_ann) == "news\n"
    at = ("--at", "2090-05-01T09:00:00+02:00", "--missed", "skip", "--if-busy", "drop")
    added = json.loads(run("schedule", store, "mine", "Hello", *at, *of_ann, "--json"))
    assert (added["occurs_at"], added["missed"], added["if_busy"]) == (3_797_305_200.0, "skip", "drop")
    listed = {row["schedule"]: row for row in rows(run("schedules", store))}
    assert listed["news"]["recurs"] == "0 9 * * MON-FRI Europe/Lisbon" and listed["news"]["prompt"] == "What is new?"
    assert listed["news"]["user"] == "ann" and listed["news"]["attempts"] == listed["news"]["why"] == ""
    assert listed[added["key"]]["next"] == "2090-05-01 07:00:00 UTC"
    assert [row["schedule"] for row in rows(run("schedules", store, "chat", *of_ann))] == ["news"]
    assert rows(run("schedules", store, "--user", "bob")) == []
    assert json.loads(run("schedules", store, "mine", *of_ann, "--json")) == {"items": [added], "cursor": None}
    assert run("unschedule", store, "chat", "news", *of_ann) == "schedule news of session chat is cancelled\n"
    assert [row["schedule"] for row in rows(run("schedules", store))] == [added["key"]]

    for words, reason in (
        (["unschedule", store, "mine", added["key"][:-1], *of_ann], f"did you mean '{added['key']}'?"),
        (["unschedule", store, "mine", added["key"]], "give --user ann"),
        (["schedule", store, "chat", "x", *of_ann], "pass at, after_s, every_s or cron"),
        (["schedule", store, "chat", "x", "--at", "tomorrow", *of_ann], "2030-05-01T09:00:00+02:00"),
        (["schedule", store, "chat", "x", "--cron", "0 9 * *", *of_ann], "five fields"),
        (["schedule", store, "empty", "x", "--after", "5"], "has ended"),
        (["schedule", store, "long", "x", "--after", "5"], "here is no engine to go on with them"),
        (["schedules", store, "nothing"], "there is no session"),
    ):
        code, _, errors = commands.run(*words)
        assert code == 1 and errors.startswith("error: ") and reason in errors, (words, errors)
    assert commands.end() == 0, "nothing of Ray was imported"


def test_quotas_are_set_listed_and_removed(commands: Commands, tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")

    def run(*words: str) -> str:
        code, output, errors = commands.run("quotas", *words)
        assert (code, errors) == (0, ""), (words, output, errors)
        return output

    each = run("set", store, "--user", "*", "--runs", "5", "--per", "month").strip()
    assert run("set", store, "--user", "*", "--runs", "6", "--per", "month").strip() == each
    cost = json.loads(run("set", store, "--cost", "2.5", "--then", "queue", "--json"))["id"]
    listed = {row["quota"]: row for row in rows(run("ls", store))}
    assert (listed[each]["for"], listed[each]["limit"], listed[each]["used"]) == ("each user", "6", "")
    assert (listed[cost]["limits"], listed[cost]["limit"], listed[cost]["then"]) == ("cost", "2.5", "queue")
    of_ann = {quota["id"]: quota for quota in json.loads(run("ls", store, "--user", "ann", "--json"))["items"]}
    assert (of_ann[each]["used"], of_ann[each]["left"]) == (0, 6)
    assert run("rm", store, each) == f"quota {each} is removed\n"
    assert [row["quota"] for row in rows(run("ls", store))] == [cost]
    for wrong, reason in (
        (["set", store], "exactly one of runs, tokens and cost"),
        (["set", store, "--runs", "1", "--per", "hour"], "minute, day, month"),
        (["rm", store, "none"], "no quota"),
    ):
        code, _, errors = commands.run("quotas", *wrong)
        assert code == 1 and reason in errors, (wrong, errors)


def test_tenants_are_set_listed_and_removed_and_filter_lists(commands: Commands, tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")

    def run(*words: str) -> str:
        code, output, errors = commands.run(*words)
        assert (code, errors) == (0, ""), (words, output, errors)
        return output

    users = {session["user_id"] for session in json.loads(run("ls", store, "--json"))["items"]}
    user = min(users)
    assert run("tenants", "set", store, user, "acme") == f"user {user} has the tenant acme\n"
    assert json.loads(run("tenants", "set", store, "new", "acme", "--json")) == {"user": "new", "tenant": "acme"}
    assert rows(run("tenants", "ls", store)) == [{"tenant": "acme", "users": "2"}]
    assert json.loads(run("tenants", "users", store, "acme", "--json"))["items"] == sorted([user, "new"])
    assert json.loads(run("tenants", "ls", store, "--json"))["items"] == [{"tenant": "acme", "users": 2}]
    own = json.loads(run("ls", store, "--tenant", "acme", "--json"))["items"]
    assert own and {session["user_id"] for session in own} == {user}
    quota = run("quotas", "set", store, "--tenant", "*", "--runs", "5").strip()
    (shown,) = json.loads(run("quotas", "ls", store, "--tenant", "acme", "--json"))["items"]
    assert (shown["id"], shown["tenant"], shown["used"]) == (quota, "*", 0)
    assert json.loads(run("usage", store, "--tenant", "acme", "--by", "tenant", "--json"))["rows"] == []
    assert run("tenants", "rm", store, user) == f"user {user} has no tenant\n"
    assert json.loads(run("ls", store, "--tenant", "acme", "--json"))["items"] == []
    code, _, errors = commands.run("tenants", "set", store, user, "*")
    assert code == 1 and "stands for each tenant" in errors


def test_webhooks_are_added_listed_changed_and_removed(commands: Commands, tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")

    def run(*words: str) -> str:
        code, output, errors = commands.run("webhooks", *words)
        assert (code, errors) == (0, ""), (words, output, errors)
        return output

    words = (
        "add",
        store,
        "https://example.org/hook",
        "--event",
        "run.completed",
        "--event",
        "run.failed",
        "--key",
        "k",
    )
    webhook_id, secret = run(*words).splitlines()
    assert secret.startswith("whsec_") and run(*words).splitlines() == [webhook_id, secret]
    added = json.loads(run("add", store, "https://example.com", "--event", "session.ended", "--user", "ann", "--json"))
    assert added["secret"] and added["user_id"] == "ann" and added["events"] == ["session.ended"]
    listed = {row["webhook"]: row for row in rows(run("ls", store))}
    assert listed.keys() == {webhook_id, added["id"]} and secret not in str(listed)
    row = listed[webhook_id]
    assert (row["url"], row["events"]) == ("https://example.org/hook", "run.completed, run.failed")
    assert (row["user"], row["state"], row["failed"]) == ("all", "enabled", "")
    assert [row["webhook"] for row in rows(run("ls", store, "--user", "ann"))] == [added["id"]]
    changed = run("change", store, webhook_id, "--disable", "--url", "https://example.org/b", "--event", "run.failed")
    assert changed == f"webhook {webhook_id} is disabled, and tells https://example.org/b of run.failed\n"
    assert json.loads(run("change", store, webhook_id, "--enable", "--json"))["is_enabled"] is True
    fresh = run("rotate-secret", store, webhook_id).strip()
    assert fresh.startswith("whsec_") and fresh != secret
    assert json.loads(run("rotate-secret", store, webhook_id, "--secret", secret, "--json"))["secret"] == secret
    assert rows(run("failed", store, webhook_id)) == []
    assert run("send-again", store, webhook_id) == "calls that are sent again: 0\n"
    assert run("rm", store, webhook_id, "--yes") == f"webhook {webhook_id} is deleted\n"
    assert [hook["id"] for hook in json.loads(run("ls", store, "--json"))["items"]] == [added["id"]]

    refused: list[tuple[tuple[str, ...], str]] = [
        (("rm", store, added["id"][:-1], "-y"), f"did you mean '{added['id']}'?"),
        (("failed", store, "nothing"), "there is no webhook 'nothing'"),
        (("add", store, "http://example.org", "--event", "run.failed"), "use https://"),
        (("add", store, "https://example.org"), "events"),
        (("add", store, "https://example.org", "--event", "run.started"), "run.started"),
        (("add", store, "https://example.org", "--event", "run.failed", "--secret", "short"), "whsec_"),
        (("ls", "sqlite:////nowhere/store.db"), "there is no file"),
    ]
    for wrong, reason in refused:
        code, _, errors = commands.run("webhooks", *wrong)
        assert code == 1 and errors.startswith("error: ") and reason in errors, (wrong, errors)
        assert "short" not in errors, "a secret is not shown"
    assert commands.end() == 0, "nothing of Ray was imported"


def test_the_url_of_a_webhook_is_taken_for_no_store(ray_free: Mapping[str, str], tmp_path: Path) -> None:
    commands = Commands({**ray_free, "TURNWISE_STORE": filled(f"sqlite:///{tmp_path}/store.db")})
    code, output, errors = commands.run("webhooks", "add", "https://example.org", "--event", "run.failed")
    assert (code, errors) == (0, "")
    assert output.split()[0] in commands.run("webhooks", "ls")[1]
    assert commands.end() == 0


def test_what_failed_is_listed_and_the_next_program_sends_it_again(
    commands: Commands, receiver: Receiver, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}
    receiver.status = 410
    with SessionManager(store, **settings) as manager:
        webhook = manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
        manager.open("chat").run("hello").wait()
        until(lambda: bool(webhook.failed().items), limit_s=30.0)
        code, _, errors = commands.run("webhooks", "send-again", store, webhook.id)
        assert code == 1 and "no other may change it" in errors, errors
        assert webhook.id in commands.run("webhooks", "ls", store)[1], "it reads beside the program"
    (call,) = rows(commands.run("webhooks", "failed", store, webhook.id)[1])
    assert (call["session"], call["event"], call["attempts"], call["text"]) == ("chat", "run.completed", "1", "hello")
    assert "410" in call["why"]
    assert rows(commands.run("webhooks", "ls", store)[1])[0]["failed"] == "1"
    receiver.status, before = 200, len(receiver.requests)
    assert commands.run("webhooks", "change", store, webhook.id, "--enable")[0] == 0
    again = commands.run("webhooks", "send-again", store, webhook.id, call["call"])
    assert again == (0, "calls that are sent again: 1\n", "")
    assert len(receiver.requests) == before, "the command sends nothing itself"
    with SessionManager(store, **settings):
        until(lambda: len(receiver.requests) > before, limit_s=30.0)
    assert {headers["webhook-id"] for _, headers, _ in receiver.requests} == {f"msg_{call['call'].rpartition('~')[2]}"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_a_tree_of_agents_is_shown_with_their_states(commands: Commands, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with SessionManager(store, engine=team(), placement=InProcess()) as manager:
        run = manager.open("chat", user_id="ann").run("go")
        run.wait()
        children = [child.session_id for child in run.children()]
    code, output, errors = commands.run("show", store, "chat", "--user", "ann", "--tree")
    top, *lines = output.splitlines()
    assert (code, errors, top) == (0, "", f"run {run.run_id}  completed")
    assert lines[0] == f"  researcher  completed  session {children[0]}" and len(lines) == 4
    assert lines[1].startswith("    assistant  completed  session agent-")
    by_turn = json.loads(commands.run("show", store, "chat", "0", "--user", "ann", "--tree", "--json")[1])
    assert by_turn["run"]["id"] == run.run_id and not by_turn["children"]["is_cut"]
    assert [(item["agent"], item["depth"]) for item in by_turn["children"]["items"]] == [
        ("researcher", 1),
        ("assistant", 2),
    ] * 2
    assert [row["session"] for row in rows(commands.run("ls", store)[1])] == ["chat"]
    assert len(rows(commands.run("ls", store, "--agents")[1])) == 5
    header = commands.run("show", store, "chat", "--user", "ann")[1].splitlines()[0]
    assert re.search(r"  \d+ tokens \(\d+ by agents\)  ", header), header
    for words in (["--tree", "--as-sent"], ["--tree", "-n", "1"]):
        assert commands.run("show", store, "chat", "--user", "ann", *words)[0] == 2
    assert commands.end() == 0, "nothing of Ray was imported"


def test_decisions_need_a_program_with_the_engine(commands: Commands, tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")
    for words in (["approve", "money", "--user", "bob"], ["fork", "long"], ["rm", "-y", "long"]):
        code, _, errors = commands.run(words[0], store, *words[1:])
        assert code == 1 and "here is no engine to go on with them" in errors, errors
    assert commands.run("reject", store, "chat", "--user", "ann")[2] == (
        "error: session 'chat' has no call that waits for a decision\n"
    )


def test_a_file_that_a_program_has_open_is_read_and_not_changed(
    commands: Commands, ray_free: Mapping[str, str], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    script = """
import sys
from turnwise import EchoEngine, InProcess, SessionManager
with SessionManager(sys.argv[1], engine=EchoEngine(), placement=InProcess()) as manager:
    manager.open("talk").run("hello").wait()
    print("open", flush=True)
    sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, store], env=ray_free, text=True, **pipes) as program:  # type: ignore[call-overload]
        assert program.stdout.readline() == "open\n"
        assert "talk" in commands.run("ls", store)[1] and "hello" in commands.run("show", store, "talk")[1]
        for words in (
            ["cancel", "talk"],
            ["end", "talk"],
            ["rm", "-y", "talk"],
            ["fork", "talk"],
            ["schedule", "talk", "x", "--after", "9"],
            ["unschedule", "talk", "x"],
        ):
            code, _, errors = commands.run(words[0], store, *words[1:])
            assert code == 1 and f"process {program.pid} on " in errors and "use that program" in errors, errors
        code, _, errors = commands.run("chat", store, "--demo")
        assert code == 1 and f"process {program.pid} on " in errors
        _, output, _ = commands.run("doctor", store, "--json")
        (owner,) = [finding for finding in json.loads(output) if finding["check"] == "store owner"]
        assert owner["state"] == "warn" and f"process {program.pid} on " in owner["message"]
    assert commands.run("end", store, "talk")[1] == "session talk has ended\n"


def test_a_database_that_a_program_has_open_is_read_and_not_changed(commands: Commands, database: str) -> None:
    with SessionManager(database, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("talk").run("hello").wait()
        assert "talk" in commands.run("ls", database)[1]
        code, _, errors = commands.run("end", database, "talk")
        assert code == 1 and f"process-{os.getpid()}-on-" in errors and "or end that process" in errors, errors
    assert commands.run("end", database, "talk")[1] == "session talk has ended\n"


def test_a_service_in_one_process_serves_all_and_goes_on_when_it_starts_again(tmp_path: Path) -> None:
    words = (f"sqlite:///{tmp_path}/chats.db", "--demo", "--port", "0", "--placement", "in_process", "--console")
    for n in (1, 3):
        with (
            served(*words, RAY_TMPDIR=str(tmp_path)) as service,
            httpx.Client(base_url=service.url, timeout=60) as client,
        ):
            client.post("/v1/sessions", json={"id": "talk"}).raise_for_status()
            answer = client.post("/v1/sessions/talk/runs?wait_s=60", json={"prompt": "Hi"}).raise_for_status().json()
            assert answer["text"] == f"You said: Hi (message {n} of our conversation)"
            assert client.get("/health/ready").json()["status"] == "ok"
            assert client.get("/console/", follow_redirects=True).status_code == 200
            assert "/ray/" not in Path(f"/proc/{service.process.pid}/maps").read_text(encoding="utf-8")
            assert service.stop() == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--workers", "2"], "workers=2: sessions in the service's own process need one worker"),
        (["--packed", "2"], "remove this, or set placement to 'packed'"),
        pytest.param(
            ["--ray-serve"],
            "replicas are several processes",
            marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray Serve's own
        ),
    ],
)
def test_what_needs_several_processes_is_refused_to_a_service_in_one(words: list[str], reason: str) -> None:
    ran = turnwise("serve", "--demo", "--placement", "in_process", *words)
    assert ran.exit_code == 1 and reason in ran.stderr, ran.stderr


def test_a_store_of_this_process_is_read_beside_its_manager(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("talk").run("hello").wait()
        assert "talk" in turnwise("ls", store).stdout

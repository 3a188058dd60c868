"""`turnwise replay`: what it prints and writes, and how it fails."""

import json
from pathlib import Path

import pytest
from typer import testing

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.cli import app

ENGINES = """
from turnwise import EchoEngine
from turnwise.engines import FunctionEngine
from turnwise.memories import StaticMemory
from turnwise.replay import FunctionGrader, RecordedTools

echo = EchoEngine()
new = FunctionEngine(lambda turn: "something quite different")
size = FunctionGrader("how long", lambda turn, answer: len(answer.text))
refuses = lambda answer: "quite different" in answer.text
simulated = lambda call, output: "a result"
tools = RecordedTools(otherwise="error")
vectors = lambda texts: [[1.0, float(len(text))] for text in texts]
memory = StaticMemory([{"text": "Ann lives in Bern."}])
"""


def turnwise(*words: str) -> testing.Result:
    """Carry out a command in this process, without a terminal."""
    return testing.CliRunner().invoke(app, words)


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        for name in ("one", "two"):
            chat = manager.open(name, user_id="ann", agent="help")
            for prompt in ("Hello.", "And now?"):
                chat.run(prompt, labels={"channel": "mail"}).wait()
    return url


def test_the_command_replays_prints_and_writes(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_engines.py").write_text(ENGINES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--engine", "my_engines:new", "--floor", "my_engines:echo", "--grader", "my_engines:size"]
    done = turnwise(
        "replay", store, *options, "--out", str(tmp_path / "report"), "--user", "ann", "--label", "channel=mail"
    )
    assert done.exit_code == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    (different,) = [row for row in rows if row[0] == "different answers"]
    assert different[2:4] == ["0.0%", "100.0%"]
    assert any(row[0] == "how long" for row in rows)
    assert "4 turns of 2 conversations" in done.stdout
    assert (tmp_path / "report/report.html").exists()
    assert turnwise("replay", store, "--check").stdout == "turns\trequest\n4\texact\n"
    failed = turnwise("replay", store, "--engine", "my_engines:new", "--fail-if", "different > 20%", "--json")
    assert failed.exit_code == 3
    assert json.loads(failed.stdout)["failed"] == ["different > 20%: it is 100.0%, of 4 turns"]
    assert "different > 20%" in failed.stderr
    for words, said in (
        (["--engine", "my_engines:none"], "PYTHONPATH"),
        (["--engine", "my_engines:new", "--session", "three"], "three"),
        (["--engine", "my_engines:new", "--since", "monday"], "2026-11-29"),
        ([], "--engine"),
        (["--engine", "my_engines:new", "--label", "mail"], "NAME=VALUE"),
    ):
        refused = turnwise("replay", store, *words)
        assert refused.exit_code in (1, 2)
        assert said in refused.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--refusal", "my_engines:refuses"], ("refusals", "100.0%")),
        (["--normalise", "builtins:len"], ("different texts", "100.0%")),
        (["--embedding", "my_engines:vectors"], ("different texts", "100.0%")),
        (["--memory", "my_engines:memory", "--forward", "--keep", "1"], ("different answers", "100.0%")),
        (["--tools", "my_engines:simulated", "--versions", "all"], ("different answers", "100.0%")),
        (["--tools", "my_engines:tools", "--status", "completed"], ("different answers", "100.0%")),
    ],
)
def test_each_argument_of_a_replay_has_an_option(
    words: list[str], expected: tuple[str, str], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_engines.py").write_text(ENGINES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    done = turnwise("replay", store, "--engine", "my_engines:new", *words)
    assert done.exit_code == 0, done.stderr
    rows = {row[0]: row[3] for row in (line.split("\t") for line in done.stdout.splitlines()) if len(row) > 3}
    assert rows[expected[0]] == expected[1]
    assert "4 turns of 2 conversations" in done.stdout


def test_a_command_that_names_no_memory_or_no_rule_of_tools_is_refused(store: str) -> None:
    for words, said in ((["--tools", "guess"], "otherwise"), (["--status", "open"], "statuses")):
        refused = turnwise("replay", store, "--model", "none", *words)
        assert refused.exit_code == 1 and said in refused.stderr

"""`turnwise replay --at-scale`: what it prints, and that it goes on."""

import json
from pathlib import Path

import pytest
from typer import testing

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.cli import app


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        for name in ("one", "two"):
            chat = manager.open(name)
            for prompt in ("Hello.", "And now?"):
                chat.run(prompt).wait()
    return url


def test_the_command_stops_at_a_budget_and_goes_on(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo_engines.py").write_text("from turnwise import EchoEngine\necho = EchoEngine()\n")
    monkeypatch.syspath_prepend(tmp_path)
    command = ["replay", store, "--engine", "echo_engines:echo", "--out", str(tmp_path / "report"), "--at-once", "1"]
    first = testing.CliRunner().invoke(app, [*command, "--max-tokens", "1"])
    assert first.exit_code == 0, first.stderr
    assert "1 turn of 1 conversation" in first.stdout
    assert "2 conversations have turns that were not asked: the budget is used up" in first.stdout
    whole = testing.CliRunner().invoke(app, [*command, "--at-scale", "--requests-per-minute", "6000", "--json"])
    assert whole.exit_code == 0, whole.stderr
    result = json.loads(whole.stdout)
    assert (result["summary"]["all"]["turns"], result["left"], result["unreadable"]) == (4, 0, [])
    changed = testing.CliRunner().invoke(app, [*command, "--at-scale", "--forward"])
    assert changed.exit_code != 0
    assert "forward" in changed.stderr

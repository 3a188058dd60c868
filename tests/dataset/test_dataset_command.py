"""`turnwise dataset`: conversations as examples, of sessions that consent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filled import turnwise

from turnwise import EchoEngine, SessionManager
from turnwise.actors.hosting.placement import InProcess


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("yes", user_id="ann", metadata={"training": True}).run("Hi, I am Ann.").wait()
        manager.open("no", user_id="tom").run("Hi, I am Tom.").wait()
    return url


def test_examples_are_printed_or_written(store: str, tmp_path: Path) -> None:
    ran = turnwise("dataset", store, "--consent", "training=true")
    said = [{"role": role, "content": "Hi, I am Ann."} for role in ("user", "assistant")]
    assert ran.exit_code == 0 and json.loads(ran.stdout) == {"messages": said}
    assert ran.stderr.splitlines() == ["examples: 1", "left out: 1 conversations without consent"]
    ran = turnwise("dataset", store, "--without-consent", "--out", str(tmp_path / "all.jsonl"), "--user", "tom")
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert "Tom" in (tmp_path / "all.jsonl").read_text(encoding="utf-8")


def test_texts_go_through_a_function(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hiding.py").write_text("def names(text):\n    return text.replace('Ann', '***')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = turnwise("dataset", store, "--consent", "training=true", "--redact", "hiding:names")
    assert ran.exit_code == 0 and "Ann" not in ran.stdout and "***" in ran.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "say who has consented"),
        ("--consent training=yes --without-consent", "say who has consented"),
        ("--consent training", "is no NAME=VALUE"),
        ("--without-consent --redact json:none", "names no function"),
        ("--without-consent --out a.csv", "must end with .jsonl or .parquet"),
    ],
)
def test_wrong_usage_says_what_to_do(words: str, reason: str, store: str) -> None:
    ran = turnwise("dataset", store, *words.split())
    assert ran.exit_code != 0 and reason in " ".join(ran.stderr.replace("│", " ").split())

"""What `/retry` does where the session refuses to ask again: the answer that is there stays."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.cli.answers import Answers
from turnwise.cli.conversation import UNANSWERED, Conversation
from turnwise.cli.line_editor import LineEditor
from turnwise.cli.output import console
from turnwise.errors import SessionEndedError
from turnwise.memory.conversation.blocks import User


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

"""Checkpoints and writes of `TurnwiseSaver` whose answer was lost are there once if they are stored again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from turnwise.adapters import TurnwiseSaver
from turnwise.adapters.langgraph.checkpoints import open_checkpoints
from turnwise.errors import CheckpointFencedError, StoreError


class Faulty:
    """A store of checkpoints that loses the next commit before it is stored (`call`), or its answer (`answer`)."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fault: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, *args: Any) -> Any:
        fault, self.fault = self.fault, None
        if fault == "call":
            raise StoreError("the store is away")
        done = self._store.commit(*args)
        if fault == "answer":
            raise StoreError("the connection broke")
        return done


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Faulty:
    return Faulty(open_checkpoints("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/threads.db"))


@pytest.fixture
def saver(store: Faulty, monkeypatch: pytest.MonkeyPatch) -> Iterator[TurnwiseSaver]:
    monkeypatch.setattr("turnwise.adapters.langgraph.saver.open_checkpoints", lambda _: store)
    with TurnwiseSaver("memory://") as saver:
        yield saver


@pytest.mark.parametrize("fault", ["call", "answer"])
@pytest.mark.parametrize("reads", [False, True], ids=["configs of puts", "configs of reads"])
def test_what_is_stored_again_is_there_once(saver: Any, store: Faulty, fault: str, reads: bool) -> None:
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    config = place
    for step in range(3):
        version = saver.get_next_version(None, None)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": [f"m{index}" for index in range(step + 1)]}
        checkpoint["channel_versions"] = {"messages": version}
        put = (config, checkpoint, {"source": "loop", "step": step}, {"messages": version})
        store.fault = fault
        with pytest.raises(StoreError):
            saver.put(*put)
        config = saver.put(*put)
        written = ([("messages", [f"w{step}"])], "task")
        store.fault = fault
        with pytest.raises(StoreError):
            saver.put_writes(config, *written)
        saver.put_writes(config, *written)
        config = saver.get_tuple(place).config if reads else config
    stored = [
        (checkpoint.metadata["step"], checkpoint.checkpoint["channel_values"], checkpoint.pending_writes)
        for checkpoint in saver.list(place)
    ]
    assert stored == [
        (step, {"messages": [f"m{index}" for index in range(step + 1)]}, [("task", "messages", [f"w{step}"])])
        for step in (2, 1, 0)
    ]


def test_another_first_checkpoint_is_still_refused(saver: Any) -> None:
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for is_first in (True, False):
        checkpoint, version = empty_checkpoint(), saver.get_next_version(None, None)
        checkpoint["channel_versions"] = {"messages": version}
        put = (place, checkpoint, {"source": "loop", "step": 0}, {"messages": version})
        if is_first:
            saver.put(*put)
        else:
            with pytest.raises(CheckpointFencedError):
                saver.put(*put)

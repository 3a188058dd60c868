"""What a server refuses is learnt by some sessions while threads make the requests of others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.memory.providers.endpoints import Profile, profile_of


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_a_request_is_made_while_other_sessions_learn(hasty_threads: None) -> None:
    learnt: set[str] = set()
    engine = OpenAIEngine("local", api_key="none")
    settings = RequestSettings(engine, (), profile_of(None, "host"), lambda model: learnt, "local")
    is_over = threading.Event()

    def learn() -> None:
        while not is_over.is_set():
            learnt.update(f"field {number}" for number in range(200))
            learnt.clear()

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        for _ in range(3000):
            assert isinstance(settings.profile, Profile)
    finally:
        is_over.set()
        learner.join()

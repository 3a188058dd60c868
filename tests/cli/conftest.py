"""Fixtures of the tests of `turnwise chat`."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from chats import is_at_prompt

from processes.terminal import Terminal, turnwise
from turnwise.testing import LocalProvider


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chats.db"


@pytest.fixture
def environ(provider: LocalProvider, tmp_path: Path) -> Mapping[str, str | None]:
    """Variables of programs that find no Ray, and ask the provider."""
    return {
        "RAY_ADDRESS": None,
        "RAY_TMPDIR": str(tmp_path),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": provider.base_url,
        "NO_PROXY": "127.0.0.1",
        "TURNWISE_STORE": None,
    }


@pytest.fixture
def chat(environ: Mapping[str, str | None], store: str) -> Iterator[Callable[..., Terminal]]:
    """Starts chats, each on a terminal of its own, and waits until they read."""
    terminals: list[Terminal] = []

    def start(*words: str, shows: str = "") -> Terminal:
        terminals.append(Terminal(*turnwise("chat", store, *words), env=environ))
        terminals[-1].wait_for(shows or is_at_prompt)
        return terminals[-1]

    try:
        yield start
    finally:
        for terminal in terminals:
            terminal.__exit__()

"""Fixtures of commands where no Ray is found, and of `turnwise chat`."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from processes.chats import is_at_prompt
from processes.terminal import Terminal, turnwise
from turnwise.testing import LocalProvider


@pytest.fixture
def ray_free(tmp_path: Path) -> Mapping[str, str]:
    """The environment of programs that find no Ray, and have no key of a model."""
    hidden = ("RAY_ADDRESS", "TURNWISE_STORE")
    here = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("OPENAI_")}
    return {**here, "RAY_TMPDIR": str(tmp_path)}


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

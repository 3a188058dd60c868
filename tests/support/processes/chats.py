"""What the tests of `turnwise chat` share: what a chat shows, and chats with a pipe."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from processes.terminal import Terminal, turnwise

WORDS = " ".join(f"word{n}" for n in range(60))


def is_at_prompt(text: str) -> bool:
    return text.endswith("\n>")


def session_of(terminal: Terminal) -> str:
    match = re.search(r"session (\S+) with", terminal.text)
    assert match, terminal.text
    return match[1]


def piped(environ: Mapping[str, str | None], store: str, lines: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in {**os.environ, **environ}.items() if value}
    command = turnwise("chat", store, *words)
    return subprocess.run(
        command, input=lines, capture_output=True, text=True, env=environment, timeout=120, check=False
    )

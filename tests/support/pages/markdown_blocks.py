"""The fenced blocks of a page of documentation."""

import re
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """What its fence says, the line it begins at, counted from 1, and its text."""

    kind: str
    line: int
    text: str

    @property
    def at_its_lines(self) -> str:
        """The text so that a traceback and a type checker name the lines of the page."""
        return "\n" * (self.line - 1) + self.text


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1].strip(), text.count("\n", 0, m.start(2)) + 1, m[2]) for m in fences]

"""`LineEditor`: reads prompts from a person at a terminal, or line by line from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.cli.output import harmless

CONTINUED = "\\"
"""Ends a line that goes on in the next one."""


class LineEditor:
    """Reads what is typed, with a history and completion where the system has readline; or the lines of a pipe.

    The history has the lines typed here and those given to `remember`. It is in no file.

    Args:
        commands: the words that the tabulator completes at the beginning of a line.
    """

    def __init__(self, commands: Sequence[str] = ()) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty()
        """Whether a person can be asked."""
        self._readline = _readline(commands) if self.is_terminal else None
        if not self.is_terminal and sys.stdin is not None:
            sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]

    def remember(self, prompts: Iterable[str]) -> None:
        """Add prompts to the history, oldest first."""
        if self._readline:
            for prompt in prompts:
                self._readline.add_history(harmless(prompt))

    def read(self, prompt: str) -> str:
        r"""Return the next prompt, of several lines if they end in `\`.

        Raises:
            EOFError: there is no more.
            KeyboardInterrupt: Ctrl+C was pressed.
        """
        lines = [self.ask(prompt)]
        while lines[-1].endswith(CONTINUED):
            lines[-1] = lines[-1].removesuffix(CONTINUED)
            try:
                lines.append(self.ask("." * len(prompt.rstrip()) + " "))
            except EOFError:
                break
        return "\n".join(lines)

    def ask(self, question: str) -> str:
        """Return one line. Raises what `read` raises."""
        if not self.is_terminal:
            line = sys.stdin.readline() if sys.stdin is not None else ""
            if not line:
                raise EOFError
            return line.rstrip("\r\n")
        if not sys.stdout.isatty():  # then input() would write the question into the answers
            sys.stderr.write(question)
            sys.stderr.flush()
            question = ""
        return input(question).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _readline(commands: Sequence[str]) -> Any:
    """Return the module, ready for use; None if the system has none."""
    try:
        import readline
    except ImportError:
        return None

    def complete(text: str, state: int) -> str | None:
        matches = [command for command in commands if text and command.startswith(text)]
        return matches[state] if state < len(matches) else None

    readline.set_completer(complete)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")
    return readline

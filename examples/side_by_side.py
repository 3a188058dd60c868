"""Shows conversations side by side in a terminal, and as plain lines elsewhere."""

import contextlib
from collections.abc import Iterator

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text


class SideBySide:
    """Shows conversations while they run: each in a panel if the console is a terminal, else line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._talks: dict[str, list[tuple[str, list[str]]]] = {}
        """The paragraphs of each conversation: style and pieces. An answer has no style."""

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Draw the panels until the context is left; the last state stays on the screen."""
        with Live(self, console=self._console, refresh_per_second=15) if self._is_live else contextlib.nullcontext():
            yield

    def ask(self, talk: str, prompt: str) -> None:
        """Show a prompt."""
        self._add(talk, "bold cyan", f"> {prompt}")

    def note(self, talk: str, note: str) -> None:
        """Show what happened."""
        self._add(talk, "yellow", f"* {note}")

    def say(self, talk: str, piece: str) -> None:
        """Show the next piece of an answer. Plain lines are printed when they are complete."""
        if self._talks[talk][-1][0]:
            self._talks[talk].append(("", []))
        self._talks[talk][-1][1].append(piece)

    def tell(self, text: str) -> None:
        """Show lines outside of conversations; long lines keep their indentation."""
        for line in text.splitlines():
            indent = len(line) - len(line.lstrip())
            style = {">": "cyan", "[": "yellow"}.get(line.strip()[:1], "" if indent else "bold")
            if self._is_live:
                self._console.print(Padding.indent(Text(line.strip() or " ", style), indent))
            else:
                print(line, flush=True)

    def __rich__(self) -> Columns:
        width, height = self._console.width // 2 - 1, max(self._console.height // 2 - 2, 6)
        panels = []
        for talk, paragraphs in self._talks.items():
            text = Text("\n").join(Text("".join(pieces), style) for style, pieces in paragraphs)
            newest = text.wrap(self._console, width - 4)[2 - height :]
            panels.append(Panel(Text("\n").join(newest), title=f"[bold]{talk}", width=width, height=height))
        return Columns(panels)

    def _add(self, talk: str, style: str, text: str) -> None:
        paragraphs = self._talks.setdefault(talk, [])
        if not self._is_live:
            if paragraphs and not paragraphs[-1][0]:
                pieces = paragraphs[-1][1]
                print(f"[{talk}] {''.join(pieces).strip()} (streamed in {len(pieces)} pieces)")
            print(f"[{talk}] {text}", flush=True)
        paragraphs.append((style, [text]))

"""`Answers`: shows an answer while it is made: its text, thoughts, tool calls, and what else happens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from turnwise.cli.output import harmless, one_line
from turnwise.memory.conversation import events
from turnwise.memory.conversation.blocks import AnyBlock, Text as TextBlock, ToolResult, ToolUse, User, answer_text
from turnwise.memory.conversation.events import AnyEvent

MOST = 200
"""How many characters of a call's arguments, and of its result, are shown."""

NOTE, THOUGHT, CALL, WRONG = "dim", "dim italic", "cyan", "red"


class Answers:
    """Prints events. Texts of models, tools and users are shown as they are, but for what would steer the terminal.

    Args:
        out: gets the answers.
        notes: gets all else: tool calls, thoughts, errors. They have one screen if a person looks at both.
    """

    def __init__(self, out: Console, notes: Console) -> None:
        self._out = out
        self._notes = notes
        self._is_shared = out.is_terminal and notes.is_terminal
        self._in_text = self._in_thought = False
        """What the cursor stands behind, on a line that has not ended."""
        self._has_text = False
        """Whether text of the present model call is on the screen."""
        self._held_back = ""
        """A carriage return at the end of a piece, which may belong to the next line feed."""
        self._calls: dict[str, ToolUse] = {}
        self._decided: set[str] = set()
        """The calls that were shown when the person was asked, who knows what came of it."""
        self._status: Any = None

    def wait(self, label: str = "") -> None:
        """Show that something goes on, until something is shown."""
        if self._notes.is_terminal and self._status is None:
            self._status = self._notes.status(Text(label, NOTE), spinner="dots", spinner_style=NOTE)
            self._status.start()

    def note(self, text: str, style: str = NOTE) -> None:
        """Print a line of our own."""
        self.end_line()
        self._notes.print(Text(harmless(text), style), soft_wrap=True)

    def error(self, error: object) -> None:
        """Print an error as one line."""
        self.note(f"error: {' '.join(str(error).split())}", WRONG)

    def show_event(self, event: AnyEvent) -> None:  # noqa: PLR0912 - one for each kind
        """Print what an event says."""
        match event:
            case events.RunQueued():
                self.note("another run of this session is active: the prompt waits behind it")
            case events.ModelCallStarted():
                if self._has_text:
                    self.note("the model is asked again: what it has just said is void")
                self._has_text = False
                self.wait()
            case events.ThinkingDelta():
                self._thought(event.text)
            case events.TextDelta():
                self._text(event.text)
            case events.ModelCallEnded():
                self._end_call(event.blocks)
            case events.PromptJoined():
                prompt = " ".join(block.text for block in event.blocks if isinstance(block, User))
                self.note(f"the prompt of another run joins: {one_line(prompt)}")
            case events.ToolStarted():
                use = self._calls.get(event.call_id)
                if event.call_id not in self._decided:
                    self._call(event.name, use.input if use else {})
                self.wait()
            case events.ToolEnded():
                self._result(event)
            case events.ApprovalRequested():
                self._calls.setdefault(event.call_id, ToolUse(call_id=event.call_id, name=event.name))
            case events.CallDecided() if event.call_id not in self._decided:
                use = self._calls.get(event.call_id)
                self.note(f"{use.name if use else 'the call'}: {event.verdict}")
            case events.MemoryRecalled():
                self._recalled(event.sent, event.profile)
            case events.MemoryFailed() | events.MemoryDegraded() | events.MemoryBehind() | events.TurnNotSaved():
                self.note(f"memory {event.memory}: {event.why}")
            case events.HookFailed():
                self.note(f"hook {event.hook} failed: {event.why}")
            case events.CompactionFailed():
                self.note(f"the conversation could not be shortened: {event.why}")
            case events.WindowCompacted():
                self.note(
                    f"older turns were shortened, from {event.tokens_before:,} to {event.tokens_after:,} tokens"
                    f" ({event.strategy})"
                )
            case events.StepStarted():
                self.note(f"step {event.name}")
            case events.PlannerNote():
                self.note(event.text)
            case events.RunResumed() if not self._decided:
                self.note(f"it goes on: {event.why}")
            case events.RunEnded():
                self._end_call(event.blocks)
                self._end_run(event)

    def ask(self, call_id: str, name: str, arguments: Mapping[str, Any], reason: str | None) -> None:
        """Show a call about which the person is asked."""
        self._decided.add(call_id)
        self._call(name, arguments)
        if reason:
            self.note(reason)

    def show(self, blocks: Sequence[AnyBlock]) -> None:
        """Print blocks of an answer that was given before."""
        for block in blocks:
            match block:
                case TextBlock():
                    self._text(block.text)
                    self.end_line()
                case ToolUse():
                    self._calls[block.call_id] = block
                    self._call(block.name, block.input)
                case ToolResult():
                    self._outcome(block, "")
        self._has_text = False

    def end_line(self) -> None:
        """Begin a new line if the cursor stands behind text; stop what shows that something goes on."""
        self._stop_waiting()
        if self._in_text or self._in_thought:
            (self._notes if self._in_thought and not self._in_text else self._out).print()
        self._in_text = self._in_thought = False
        self._held_back = ""

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _thought(self, text: str) -> None:
        if not text:
            return
        self._stop_waiting()
        if self._in_text:
            self.end_line()
        self._in_thought = True
        self._write(self._notes, text, THOUGHT)

    def _text(self, text: str) -> None:
        if not text:
            return
        self._stop_waiting()
        if self._in_thought:
            self.end_line()
        self._in_text = self._has_text = True
        self._write(self._out, text)

    def _write(self, console: Console, text: str, style: str = "") -> None:
        text = self._held_back + text
        self._held_back = "\r" if text.endswith("\r") else ""
        console.print(
            Text(harmless(text.removesuffix("\r") if self._held_back else text), style), end="", soft_wrap=True
        )

    def _end_call(self, blocks: Sequence[AnyBlock]) -> None:
        """Note the calls that the model asks for; print its text if no delta of it was seen."""
        if not self._has_text:
            self._text(answer_text(blocks))
        self._calls |= {block.call_id: block for block in blocks if isinstance(block, ToolUse)}
        self.end_line()
        self._has_text = False

    def _end_run(self, event: events.RunEnded) -> None:
        match event:
            case events.RunCancelled():
                self.note(f"stopped: {event.why}")
            case events.RunFailed() | events.RunInterrupted():
                self.error(f"the run {'failed' if event.kind == 'run_failed' else 'was interrupted'}: {event.why}")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.note(f"→ {name}({_arguments(arguments)})", CALL)

    def _result(self, event: events.ToolEnded) -> None:
        tries = f", {event.tries} tries" if event.tries > 1 else ""
        for block in event.blocks:
            if isinstance(block, ToolResult):
                self._outcome(block, f" ({event.seconds:.1f} s{tries})")

    def _outcome(self, result: ToolResult, took: str) -> None:
        text = _short(" ".join(result.plain.split()))
        self.note(f"← {'failed: ' if result.is_error else ''}{text}{took}", WRONG if result.is_error else CALL)

    def _recalled(self, sent: Mapping[str, int], profile: Mapping[str, int]) -> None:
        counts = {name: sent.get(name, 0) + profile.get(name, 0) for name in (*sent, *profile)}
        if counts_text := [f"{count} of {name}" for name, count in counts.items() if count]:
            self.note(f"recalled: {', '.join(counts_text)}")


def _arguments(arguments: Mapping[str, Any]) -> str:
    """Return a call's arguments, shortened."""
    return _short(", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()))


def _short(text: str) -> str:
    """Return at most `MOST` characters of a text."""
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"

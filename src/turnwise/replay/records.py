"""`TurnReplay`: a turn as it was answered then and as it is answered now, in plain values that become JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from turnwise.memory.conversation.blocks import Block, Text, ToolResult, ToolUse, User, answer_text
from turnwise.memory.conversation.calls.call_pairs import pairs_of
from turnwise.memory.conversation.output_type import is_sent_back
from turnwise.memory.conversation.runs import CUT_SHORT
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.named_tuples import Reduced, by_name

EARLIER_CHARS = 500
"""How much a record has of a message before its prompt."""

AnswerStatus = Literal["completed", "failed", "cancelled", "interrupted", "stopped"]
"""`stopped`: the turn made a tool call that the record does not answer, and the replay of the turn ended there."""

REFUSED_CODES = ("refused", "output_refused")
"""The codes of runs that a provider or a model refused."""

REFUSED_REASONS = ("content_filter", "refusal", "safety")
"""The stop reasons of answers that a provider or a model refused."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of an answer, with its result."""

    name: str
    arguments: Mapping[str, Any]
    result: str = ""
    """The result as text; empty if none came."""
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an engine answered in a turn, and what it took."""

    status: AnswerStatus
    text: str = ""
    """The text after the last tool result."""
    calls: tuple[Call, ...] = ()
    """The tool calls, in order."""
    why: str | None = None
    """Why the answer is not complete."""
    code: str | None = None
    """A word for `why`, as `RunRecord.code` has it."""
    stop_reason: str | None = None
    model: str | None = None
    """The model, as far as it is known."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The model's parameters: temperature, seed, and what else the run was given."""
    usage: Usage = field(default_factory=Usage)
    first_token_s: float | None = None
    """Seconds until the first part of the answer came. No store has that of a recorded answer."""
    is_refusal: bool = False
    """Whether the model refused, by a code, a stop reason, or the words of the answer; or as `refusal=` says."""
    similarity: float | None = None
    """How similar its text is to the recorded one, if the text itself was not kept: see `ShadowRecords`."""
    unknown: tuple[str, ...] = ()
    """The measures that nobody knows of it: `cost` without a price, and what `ShadowRecords` do not have."""

    @property
    def is_complete(self) -> bool:
        """Whether it was answered to the end: only then its cost, tokens and seconds can be compared."""
        return self.status == "completed"

    @property
    def came(self) -> bool:
        """Whether there is an answer, or a refusal: nobody knows what a stopped or failed one would have been."""
        return self.status != "stopped" and not self.is_error

    @property
    def is_cut(self) -> bool:
        """Whether the answer reached its maximum length."""
        return self.stop_reason in CUT_SHORT or self.code == "output_cut"

    @property
    def is_error(self) -> bool:
        """Whether there is no answer because something failed."""
        return self.status == "failed" and not self.is_refusal


class Message(NamedTuple):
    """A message of a conversation, as people read it."""

    role: Literal["user", "assistant"]
    text: str

    def __reduce__(self) -> Reduced:
        return by_name(self)


@dataclass(frozen=True, kw_only=True)
class TurnReplay:
    """A turn of a conversation: what it was given, its recorded answer, and the answers of the replay."""

    session_id: str
    user_id: str
    agent: str | None
    engine: str | None = None
    """The name of the engine that the recorded run had; None without named engines."""
    turn_index: int
    run_id: str | None
    """The recorded run; None if the turn was imported."""
    labels: Mapping[str, str]
    """The labels of the recorded run."""
    created_at: float
    position: int
    """How many turns of the conversation come before this one."""
    window_blocks: int
    """How many blocks the request had before the turn's prompt."""
    prompt: str
    earlier: tuple[Message, ...] = ()
    """The last two messages before the prompt, for people, cut after `EARLIER_CHARS` characters."""
    inexact: tuple[str, ...] = ()
    """How the request may differ from the recorded one; empty if it is the same."""
    recorded: Answer
    answer: Answer
    """What the new engine answered."""
    floor: Answer | None = None
    """What the recorded engine answered when it was asked again; None if it was not asked."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """How `answer` differs from `recorded`: see `Comparing`."""
    floor_change: Mapping[str, Any] | None = None
    """How `floor` differs from `recorded`."""
    grades: Mapping[str, float] = field(default_factory=dict)
    """What graders gave the new answer, by the name of the grader."""
    floor_grades: Mapping[str, float] = field(default_factory=dict)
    """What graders gave the answer of the recorded engine."""
    grader_errors: Mapping[str, str] = field(default_factory=dict)
    """Why graders failed, and `refusal=`, by the name of the grader."""

    @property
    def conversation(self) -> tuple[str, str]:
        """The user and the session. The turns of one conversation are not independent of each other."""
        return self.user_id, self.session_id


def answer_of(output: Sequence[Block], **fields: Any) -> Answer:
    """Return an answer, made of the blocks that a run has added."""
    return Answer(text=answer_text(output), calls=tuple(calls_of(output)), **fields)


def calls_of(output: Sequence[Block]) -> Iterator[Call]:
    """Yield the tool calls of an answer, in order, without those by which a wrong answer was sent back."""
    for use, result in calls_with_results(output):
        if is_sent_back(use):
            continue
        arguments = json.loads(json.dumps(use.input))  # with plain lists and dicts
        if result is None:
            yield Call(name=use.name, arguments=arguments)
        else:
            yield Call(name=use.name, arguments=arguments, result=result.plain, is_error=result.is_error)


def calls_with_results(output: Sequence[Block]) -> list[tuple[ToolUse, ToolResult | None]]:
    """Return the tool calls among blocks, in order, each with its result; None if it has none."""
    results: dict[int, ToolResult] = {}
    for call, place in pairs_of(output):
        result = output[place]
        if isinstance(result, ToolResult):
            results[call] = result
    return [(block, results.get(number)) for number, block in enumerate(output) if isinstance(block, ToolUse)]


def prompt_text(blocks: Iterable[Block]) -> str:
    """Return the text of a turn's prompts, for people."""
    return "\n".join(block.text for block in blocks if isinstance(block, User))


def last_messages(blocks: Sequence[Block], count: int = 2) -> tuple[Message, ...]:
    """Return the last messages with a text, for people, the oldest first."""
    messages: list[Message] = []
    for block in reversed(blocks):
        if len(messages) == count:
            break
        if isinstance(block, User | Text) and block.text.strip():
            text = block.text if len(block.text) <= EARLIER_CHARS else f"{block.text[:EARLIER_CHARS]} …"
            messages.append(Message("user" if isinstance(block, User) else "assistant", text))
    return tuple(reversed(messages))

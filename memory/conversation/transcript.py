"""Transcripts: the blocks of a conversation, in the order that providers accept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any, Literal, cast

from turnwise.errors import TranscriptError
from turnwise.memory.conversation.blocks import (
    Block,
    Recalled,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.calls.call_arguments import refusal
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.events import (
    AddsOutput,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunEnded,
    RunResumed,
    TextDelta,
    ThinkingDelta,
)
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.growing_text import whole


@dataclass(frozen=True)
class Message:
    """Consecutive blocks of one side of the conversation. Tool results come first on the user's side."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]


def system_of(blocks: Iterable[Block]) -> str | None:
    """Return the text of the last `System` block; None if there is none."""
    texts = [block.text for block in blocks if isinstance(block, System)]
    return texts[-1] if texts else None


def messages_of(blocks: Iterable[Block]) -> list[Message]:
    """Return the conversation as messages of two sides that alternate; `System` blocks are left out.

    Cache checkpoints and blocks of unknown kinds belong to neither side: they stay with the block before them.

    The order within an assistant message is: thoughts, text with its citations, calls. The order within a user message
    is: results in the order in which their calls were declared, then the rest. Nothing is added, dropped or repaired:
    see `repair` and `memory/providers/validation`. O(blocks).
    """
    messages: list[Message] = []
    declared: dict[str, int] = {}
    for is_assistant, neighbours in _by_side(blocks):
        if is_assistant:
            neighbours.sort(key=_rank)
            calls = [block.call_id for block in neighbours if isinstance(block, ToolUse)]
            declared = {call_id: index for index, call_id in enumerate(calls)}
            messages.append(Message("assistant", tuple(neighbours)))
        else:
            places = declared
            neighbours.sort(key=lambda block: _place(block, places))
            messages.append(Message("user", tuple(neighbours)))
    return messages


def prompts_apart(blocks: Iterable[Block]) -> list[list[Block]]:
    """Return blocks of the user as the messages that they were: each has one text of the user, and what belongs to it.

    Pictures, files and summaries belong to the text before them; those before the first text, to that one. Recalled
    texts belong to the text behind them. A text in place of a file is a message of its own.
    """
    prompts: list[list[Block]] = []
    for block in blocks:
        if not prompts or begins_prompt(block, prompts[-1]):
            prompts.append([])
        prompts[-1].append(block)
    return prompts


def begins_prompt(block: Block, before: Iterable[Block]) -> bool:
    """Return whether a block begins a message of the user, behind these blocks of the message before: see above."""
    return isinstance(block, User | Recalled) and any(isinstance(earlier, User) for earlier in before)


_OF_NEITHER = frozenset({"cache_checkpoint", "unknown"})
"""The kinds of blocks that belong to neither side."""


def _by_side(blocks: Iterable[Block]) -> Iterator[tuple[bool, list[Block]]]:
    """Yield neighbours of one side, with whether they are the assistant's.

    Blocks of neither side stay with the block before them; those at the very beginning, with the block behind them.
    """
    is_assistant: bool | None = None
    neighbours: list[Block] = []
    for block in blocks:
        kind = block.kind
        if kind == "system":
            continue
        if kind not in _OF_NEITHER:
            is_other = (block.role == "assistant") is not is_assistant
            if is_other and is_assistant is not None:
                yield is_assistant, neighbours
                neighbours = []
            is_assistant = block.role == "assistant"
        neighbours.append(block)
    if neighbours:
        yield bool(is_assistant), neighbours


def _rank(block: Block) -> int:
    return 0 if isinstance(block, Thinking) else 2 if isinstance(block, ToolUse) else 1


def _place(block: Block, declared: Mapping[str, int]) -> int:
    if not isinstance(block, ToolResult):
        return len(declared) + 1
    return declared.get(block.call_id, len(declared))


@dataclass(slots=True)
class _Group:
    """The model's blocks between two rounds of tool results, and the results; or prompts between them."""

    blocks: list[Block] = field(default_factory=list)
    definitive: int = 0
    """How many of `blocks` are definitive. The others were streamed and may still be replaced."""
    results: dict[str, ToolResult | None] = field(default_factory=dict)
    """By call id, in the order of declaration."""
    is_prompt: bool = False
    """Whether `blocks` are blocks of the user, which joined the run after the results before them."""
    open_text: int | None = None
    """The place in `blocks` of the text that streamed pieces continue."""
    open_thoughts: dict[int | None, int] = field(default_factory=dict)
    """The places in `blocks` of the thoughts that streamed pieces continue, by the index that the pieces have."""
    pieces: dict[int, list[str]] = field(default_factory=dict)
    """By place in `blocks`, what was streamed of a text or a thought and is not in its block yet."""

    @property
    def is_answered(self) -> bool:
        return any(self.results.values())

    def add(self, block: Block, part: int | None = None) -> None:
        """Add a block. A text that is whole closes the one before it, and so does anything but a thought.

        Args:
            part: the index of the thought that the block begins.
        """
        place = len(self.blocks)
        self.blocks.append(block)
        if isinstance(block, Thinking):
            self.open_thoughts.pop(part, None)
            if _is_open(block):
                self.open_thoughts[part] = place
        else:
            self.open_text = place if isinstance(block, Text) and not block.interrupted else None

    def settle(self) -> None:
        """Put the streamed pieces into their blocks. O(the blocks that grew)."""
        for index, pieces in self.pieces.items():
            block = self.blocks[index]
            text = whole("".join((getattr(block, "text", ""), *pieces)))
            self.blocks[index] = block.model_copy(update={"text": text})
        self.pieces = {}

    def keep(self) -> None:
        """Make all blocks definitive."""
        self.settle()
        self.definitive = len(self.blocks)
        self.open_text = None
        self.open_thoughts = {}

    def drop(self) -> list[Block]:
        """Remove and return the blocks that are not definitive."""
        self.settle()
        dropped = self.blocks[self.definitive :]
        del self.blocks[self.definitive :]
        self.open_text = None
        self.open_thoughts = {}
        return dropped


class Ledger:
    """A run's output as it grows. A live stream and the run's log give the same output, for every prefix.

    The order is what providers expect: thoughts, text, calls, even when thoughts arrive late; then the results, in the
    order in which their calls were declared, in whatever order they arrived. Pieces of text are joined, and so are
    pieces of one thought. Streamed blocks are tentative until `flush_assistant` closes the message; it may replace them
    by definitive blocks. Not thread-safe; adding is O(1).
    """

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        """Begin with definitive blocks, as for a resumed run."""
        self._groups = [_Group()]
        self._pairs: CallPairs[_Group] = CallPairs()
        for block in blocks:
            self.append(block)
        self.flush_assistant()

    # Growing

    def append_text(self, text: str) -> None:
        """Continue the text of the open message."""
        if not text:
            return
        group = self._next_group()
        if group.open_text is None:
            group.add(Text(text=""))
        group.pieces.setdefault(cast(int, group.open_text), []).append(text)

    def append_thinking(
        self,
        text: str = "",
        signature: str | None = None,
        redacted: str | None = None,
        *,
        index: int | None = None,
        final: bool = False,
    ) -> None:
        """Continue a thought of the open message; begin one if none is open. A signature ends the thought.

        Args:
            index: which thought the piece continues, if the provider numbers them. Pieces of several may alternate.
            final: whether the thought ends with this piece: the next one begins another.
        """
        has_content = bool(text or signature or redacted)
        group = self._next_group() if has_content else self._groups[-1]
        if has_content:
            if redacted or index not in group.open_thoughts:
                place = len(group.blocks)
                group.add(Thinking(signature=signature, redacted=redacted), index)
            else:
                place = group.open_thoughts[index]
                if signature:
                    group.blocks[place] = group.blocks[place].model_copy(update={"signature": signature})
            group.pieces.setdefault(place, []).append(text)
        if signature or final:
            group.open_thoughts.pop(index, None)

    def declare_tool_use(
        self, call_id: str, name: str, input: Mapping[str, Any] | None = None, signature: str | None = None
    ) -> None:
        """Add a call to the open message. A call without an id or a name is ignored: no provider accepts it back."""
        arguments = FrozenDict(freeze(input or {}))
        self.append(ToolUse(call_id=call_id, name=name, input=arguments, signature=signature))

    def append(self, block: Block) -> None:
        """Add a block of any kind unchanged. A result that no call waits for is ignored."""
        if isinstance(block, ToolResult):
            if group := self._pairs.answer(block.call_id):
                group.results[block.call_id] = block
            return
        if isinstance(block, ToolUse) and not (block.call_id and block.name):
            return
        if isinstance(block, User):
            prompt = self._next_group(is_prompt=True)
            prompt.add(block)
            prompt.keep()
            return
        group = self._next_group()
        # An id that the group has already needs a group of its own: one message cannot hold it twice.
        if isinstance(block, ToolUse) and block.call_id in group.results:
            group = self._new_group()
        group.add(block)
        if isinstance(block, ToolUse):
            group.results[block.call_id] = None
            self._pairs.call(block.call_id, group)

    def flush_assistant(self, blocks: Iterable[Block] | None = None) -> None:
        """Close the open message. `blocks`, if given, are its definitive blocks and replace the streamed ones."""
        if blocks is not None:
            self.void()
            for block in blocks:
                self.append(block)
        for group in self._open_groups():
            group.keep()

    def void(self) -> None:
        """Drop the streamed, tentative blocks of the open message."""
        has_calls = False
        for group in self._open_groups():
            for block in group.drop():
                if isinstance(block, ToolUse):
                    del group.results[block.call_id]
                    has_calls = True
        while len(self._groups) > 1 and not self._groups[-1].blocks:
            self._groups.pop()
        if has_calls:
            self._pairs = CallPairs()
            for group in self._groups:
                for call_id, result in group.results.items():
                    self._pairs.call(call_id, group)
                    if result:
                        self._pairs.answer(call_id)

    def append_tool_results(self, *results: ToolResult) -> None:
        """Add results of calls that were declared and have no result yet.

        Raises:
            TranscriptError: a call of this id was not declared, or has its result; nothing was added.
        """
        call_ids: set[str] = set()
        for result in results:
            flaw = self._pairs.flaw_of_result(result)
            if flaw == "answered" or result.call_id in call_ids:
                raise TranscriptError(f"call {result.call_id!r} has its result already")
            if flaw:
                raise TranscriptError(f"no call {result.call_id!r} was declared: declare_tool_use() comes first")
            call_ids.add(result.call_id)
        for result in results:
            self.append(result)

    def record(self, blocks: Iterable[Block]) -> None:
        """Add definitive blocks: the assistant's replace the streamed ones, and each result goes to its call."""
        blocks = list(blocks)
        if assistant_blocks := [block for block in blocks if not isinstance(block, ToolResult)]:
            self.flush_assistant(assistant_blocks)
        for block in blocks:
            if isinstance(block, ToolResult):
                self.append(block)

    def replace_use(self, use: ToolUse) -> None:
        """Replace the call that has the same id by an edited call."""
        blocks = self._pairs.latest(use.call_id).blocks
        place = next(
            index for index, block in enumerate(blocks) if isinstance(block, ToolUse) and block.call_id == use.call_id
        )
        blocks[place] = use

    def apply(self, event: Event) -> None:
        """Apply the next event of the run to the output. Events that do not change the transcript are ignored."""
        if isinstance(event, ModelCallStarted | RunResumed):
            self.void()
        elif isinstance(event, TextDelta):
            self.append_text(event.text)
        elif isinstance(event, ThinkingDelta):
            self.append_thinking(event.text)
        elif isinstance(event, ModelCallEnded | RunEnded):
            self.flush_assistant(event.blocks)
        elif isinstance(event, AddsOutput):
            for block in event.blocks:
                if isinstance(block, ToolUse):
                    self.replace_use(block)
                else:
                    self.append(block)

    @classmethod
    def replay(cls, events: Iterable[Event]) -> Ledger:
        """Return the ledger built from a run's events, from its first to any later one."""
        ledger = cls()
        for event in events:
            ledger.apply(event)
        return ledger

    # Reading

    def blocks(self) -> list[Block]:
        """Return the output so far, in order. O(its blocks)."""
        self._settle()
        return [block for group in self._groups for block in _in_order(group)]

    def messages(self) -> list[Message]:
        """Return the output so far as messages."""
        return messages_of(self.blocks())

    def uses_without_result(self) -> list[ToolUse]:
        """Return the calls that wait for a result, in order of declaration."""
        return [
            block
            for group in self._groups
            for block in group.blocks
            if isinstance(block, ToolUse) and group.results[block.call_id] is None
        ]

    def repaired(self, why: str, *, interrupted: bool) -> list[Block]:
        """Return the output repaired, so that a request with it is valid; see `repair`. Does not change the ledger."""
        self._settle()
        blocks: list[Block] = []
        for group in self._groups:
            blocks += sorted(group.blocks, key=_rank)
            flawed = {block.call_id: refusal(block) for block in group.blocks if isinstance(block, ToolUse)}
            for call_id, result in group.results.items():
                cancelled = ToolResult(call_id=call_id, text=f"cancelled: {why}", is_error=True)
                blocks.append(result or flawed.get(call_id) or cancelled)
        blocks = _without_idle_thoughts(blocks)
        last = next((index for index in reversed(range(len(blocks))) if not isinstance(blocks[index], Thinking)), None)
        if interrupted and last is not None and isinstance(text := blocks[last], Text) and not text.interrupted:
            blocks[last] = text.model_copy(update={"interrupted": True})
        return blocks

    def _next_group(self, *, is_prompt: bool = False) -> _Group:
        """Return the group to which the next block of the model, or of the user, is added."""
        group = self._groups[-1]
        if group.is_answered or (group.blocks and group.is_prompt != is_prompt):
            group = self._new_group()
        group.is_prompt = is_prompt
        return group

    def _open_groups(self) -> list[_Group]:
        """Return the groups with tentative blocks, the last first. They are the open message."""
        return list(takewhile(lambda group: group.definitive < len(group.blocks), reversed(self._groups)))

    def _new_group(self) -> _Group:
        self._groups.append(_Group())
        return self._groups[-1]

    def _settle(self) -> None:
        for group in self._groups:
            group.settle()


def repair(output: Sequence[Block], *, why: str, interrupted: bool) -> list[Block]:
    """Return a run's output, complete or cut short, repaired so that a request which contains it is valid. Idempotent.

    Each tool call gets its result: results follow the message that made the calls, in the order of declaration, and a
    call without a result gets the error result "cancelled: <why>", or one that says what its flaw is. The model's text
    and calls stay, ordered within a message as `Ledger` orders them. Dropped are: thoughts that no text and no call
    follows (an output of thoughts alone becomes empty); results without a call before them; a second result of a call;
    calls without an id or a name, which no provider accepts back.

    Args:
        output: the blocks of one run, oldest first; may be empty.
        why: the reason that the model reads in the result of a call that had none.
        interrupted: whether to mark the last text as cut short, if nothing follows it.
    """
    return Ledger(output).repaired(why, interrupted=interrupted)


def _in_order(group: _Group) -> list[Block]:
    return [*sorted(group.blocks, key=_rank), *(result for result in group.results.values() if result)]


def _is_open(block: Block) -> bool:
    return isinstance(block, Thinking) and not block.signature and not block.redacted


def _without_idle_thoughts(blocks: list[Block]) -> list[Block]:
    """Drop the thoughts of a message in which the model says nothing and calls nothing."""
    remaining: list[Block] = []
    for is_result, neighbours in groupby(blocks, key=lambda block: isinstance(block, ToolResult)):
        group = list(neighbours)
        spoken = is_result or any(map(is_spoken, group))
        remaining += group if spoken else [block for block in group if not isinstance(block, Thinking)]
    return remaining


def is_spoken(block: Block) -> bool:
    """Return whether the model says or calls something with the block, so that thoughts may be before it."""
    return isinstance(block, ToolUse) or (isinstance(block, Text) and bool(block.text.strip()))

"""The rules of each provider as data, and the check whether it would accept a conversation."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal, NoReturn

from turnwise.errors import InvalidRequestError, UnsupportedBlockError
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    left_out,
)
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.transcript import Message

Form = Literal["text", "data", "url"]
"""The form of a picture or a file: plain text, base64 data with a media type, or a URL."""

Kind = Literal[
    "empty",
    "misplaced",
    "unsupported",
    "thinking_only",
    "thinking_late",
    "thinking_missing",
    "empty_id",
    "empty_name",
    "duplicate_id",
    "missing",
    "partial",
    "orphan",
    "late",
    "first",
    "last",
]
"""The possible errors of a conversation: see `check`."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a provider. Everything that needs no code is here and nowhere else."""

    name: str
    kinds: frozenset[str]
    """The kinds of blocks that are sent to it. Encoders leave out the others."""
    takes_blank_texts: bool = True
    """Whether a text may be white space only. If not, such a text is left out."""
    image_forms: tuple[Form, ...] = ("url", "data")
    """The accepted forms, the preferred one first."""
    image_types: frozenset[str] = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
    """Accepted media types of data; empty for any."""
    document_forms: tuple[Form, ...] = ("text", "data", "url")
    document_types: frozenset[str] = frozenset()
    url_prefixes: tuple[str, ...] = ("",)
    """Accepted beginnings of a URL."""
    name_limit: int = 64
    """The most characters of a tool's name, which are letters, digits, _ and -."""
    id_limit: int = 64
    """The most characters of a call's id."""
    has_plain_ids: bool = False
    """Whether ids may have only the characters of names."""
    unique_ids: Literal["message", "conversation"] = "conversation"
    """The scope within which a call's id must be unique."""
    results: Literal["later", "next", "one_message"] = "next"
    """Where tool results must be: anywhere after the calls ("later"); before any other block of the user ("next"); or
    in addition all at the start of the next message ("one_message")."""
    thinking_leads: bool = False
    """Whether the thoughts of a message that calls tools must come first."""
    user_begins: bool = False
    user_ends: bool = False
    names_authors: bool = False
    """Whether messages of the user have the name of their author. If not, a line of their text has it."""

    def sends(self, block: Block) -> bool:
        """Return whether the block is sent to this provider."""
        if isinstance(block, _SAID):
            return bool(block.text if self.takes_blank_texts else block.text.strip())
        return block.kind in self.kinds

    def form(self, block: Image | Document) -> Form | None:
        """Return the form in which the block is sent; None if the provider accepts none of its forms."""
        if block.flaw:
            return None
        forms, types = self._accepted(block)
        has_form = {
            "text": isinstance(block, Document) and block.plain,
            "data": block.data and (not types or block.media_type in types),
            "url": block.url and block.url.startswith(self.url_prefixes) and _is_of(block.url, types),
        }
        return next((form for form in forms if has_form[form]), None)

    def why_not(self, block: Image | Document) -> str:
        """Return what is wrong with a block that has no `form`."""
        if block.flaw:
            return block.flaw
        forms, types = self._accepted(block)
        ways = {
            "text": "as text",
            "data": f"as data of {', '.join(sorted(types)) or 'any type'}",
            "url": f"by a url {' or '.join(self.url_prefixes)}".rstrip(),
        }
        described = f"data of {block.media_type}" if block.data else block.url or "text"
        return (
            f"it takes {block.kind}s {', '.join(ways[form] for form in forms) or 'never'}; this one is {described[:99]}"
        )

    def refuses(self, block: Block) -> str | None:
        """Return why the provider refuses a picture or a file, and what it accepts; None if it accepts the block."""
        if not isinstance(block, Image | Document) or self.form(block):
            return None
        return f"{self.name}: {self.why_not(block)}"

    def spare(self, blocks: Sequence[Block], keep: Container[Block] = ()) -> tuple[Block, ...]:
        """Return the blocks with a text in place of each picture and file that the provider refuses.

        Those in tool results are always replaced, so that the model learns that it cannot see them.

        Args:
            keep: blocks that are not replaced, such as those in the run's own prompt.
        """
        return tuple(self._spared(block, keep) if block.kind in _FORMED else block for block in blocks)

    def _spared(self, block: Block, keep: Container[Block]) -> Block:
        if isinstance(block, ToolResult):
            return block.replacing(self.refuses)
        if isinstance(block, Image | Document) and (reason := self.refuses(block)) and block not in keep:
            return User(text=left_out(block, reason))
        return block

    def _accepted(self, block: Image | Document) -> tuple[tuple[Form, ...], frozenset[str]]:
        if isinstance(block, Image):
            return self.image_forms, self.image_types
        return self.document_forms, self.document_types

    def fit_name(self, name: str) -> str:
        """Return a tool's name in a form that this provider accepts. A model may have made up an invalid name."""
        return _INVALID.sub("_", name)[: self.name_limit]


def _is_of(url: str, types: frozenset[str]) -> bool:
    """Return whether a URL that has its data in it is of one of these media types; true of any other URL."""
    return not types or not url.startswith("data:") or url[len("data:") :].partition(";")[0] in types


_INVALID = re.compile(r"[^a-zA-Z0-9_-]")
_SAID = (User, Text, Summary, Recalled)
"""Blocks that are texts. A union in the place of the tuple would be made anew at each use."""
_FORMED = frozenset({"image", "document", "tool_result"})
"""The kinds of blocks that may be in a form which a provider does not take: see `_check_form`."""
_FITTED = _FORMED | {"tool_use"}
"""The kinds of blocks that `fit` changes or refuses."""
_KINDS = frozenset({"user", "summary", "image", "document", "text", "tool_use", "tool_result"})

CHAT = Rules(
    name="OpenAI Chat Completions",
    kinds=_KINDS,
    document_types=frozenset({"application/pdf"}),
    id_limit=40,
    unique_ids="message",
)
"""Does not fetch documents: the model gets the URL of a document as text."""

RESPONSES = Rules(name="OpenAI Responses", kinds=_KINDS | {"thinking"}, results="later")
"""Thoughts are sent back only if this API signed them: see `openai_responses.pack_reasoning`."""

ANTHROPIC = Rules(
    name="Anthropic Messages",
    kinds=_KINDS | {"thinking"},
    takes_blank_texts=False,
    document_types=frozenset({"application/pdf"}),
    url_prefixes=("https://",),
    name_limit=128,
    has_plain_ids=True,
    results="one_message",
    thinking_leads=True,
    user_begins=True,
    user_ends=True,
)
"""Thoughts are sent back unchanged if they are signed or redacted."""

BEDROCK = replace(
    ANTHROPIC,
    name="Anthropic on Amazon Bedrock",
    image_forms=("data",),
    document_forms=("text", "data"),
    name_limit=64,
)
"""Takes the messages of `ANTHROPIC`, but fetches nothing by URL."""


def fit(messages: Iterable[Message], rules: Rules) -> list[Message]:
    """Return the messages with the names and call ids that the provider takes; those it takes stay as they are.

    An id that comes again where ids are unique gets a number, and so does its result. The name of a call depends only
    on the messages before it, so a longer conversation begins with the same messages. O(blocks).

    Raises:
        UnsupportedBlockError: an image or document, in a tool result too, in no form that the provider takes.
    """
    uses: dict[str, int] = {}
    wire: dict[str, str] = {}
    fitted: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == "assistant" and rules.unique_ids == "message":
            uses.clear()
        if _FITTED.isdisjoint([block.kind for block in message.blocks]):
            fitted.append(message)
            continue
        ids_of_message: dict[str, str] = {}
        blocks: list[Block] = []
        for place, block in enumerate(message.blocks):
            if isinstance(block, ToolUse):
                if block.call_id not in ids_of_message:
                    ids_of_message[block.call_id] = wire[block.call_id] = _free_id(block.call_id, uses, rules)
                fields = {"call_id": ids_of_message[block.call_id], "name": rules.fit_name(block.name)}
                blocks.append(_changed(block, fields))
            elif isinstance(block, ToolResult):
                _check_form(_PlacedBlock(index, place, block), rules)
                blocks.append(_changed(block, {"call_id": wire.get(block.call_id, block.call_id)}))
            else:
                _check_form(_PlacedBlock(index, place, block), rules)
                blocks.append(block)
        fitted.append(Message(message.role, tuple(blocks)))
    return fitted


def _free_id(id: str, uses: dict[str, int], rules: Rules) -> str:
    """Return the id in a form that the provider accepts, numbered if it is used already; `uses` counts them."""
    base = (_INVALID.sub("_", id) if rules.has_plain_ids else id)[: rules.id_limit]
    number, free = uses.get(base, 0), base
    while base and free in uses:
        number += 1
        tail = f"_{number}"
        free = base[: rules.id_limit - len(tail)] + tail
    uses[base] = max(number, 1)
    uses.setdefault(free, 1)
    return free


def _changed(block: Block, fields: Mapping[str, str]) -> Block:
    if all(getattr(block, name) == value for name, value in fields.items()):
        return block
    return block.model_copy(update=fields)


# Checking


@dataclass(frozen=True, slots=True, eq=False)
class _PlacedBlock:
    """A block and its position."""

    index: int
    block_at: int
    block: Block


def check(messages: Sequence[Message], rules: Rules, *, thinking: bool = False) -> None:
    """Raise if the provider would refuse these messages. The system prompt is not among them. O(blocks).

    Adjacent messages of one role count as one group. Blocks that are not sent to the provider are ignored. Names and
    ids must not be empty, and may be in any form: see `fit`. The `kind` of the error is one of these:

    - empty: nothing would be sent, or a message has no blocks;
    - misplaced: a block in a message of the other role, or a system prompt;
    - unsupported: the provider accepts an image or document in none of its forms, in a tool result too;
    - thinking_only: thoughts without a text or call after them;
    - thinking_late: the thoughts of a message that calls tools are not at its start;
    - thinking_missing: `thinking` is set, and a message that calls tools has no thoughts;
    - empty_id, empty_name: a call or a result has no id, or a call has no name;
    - duplicate_id: two calls have one id in a group, or while the first has no result; or a call has two results;
    - missing: a call has no result, and neither has any other call of its group;
    - partial: a call has no result, but another call of its group has one;
    - orphan: a result without a call before it;
    - late: a result at a place where the provider does not accept it;
    - first, last: the conversation begins or ends with the wrong role.

    Args:
        thinking: whether the request enables thinking; matters where thoughts lead (`Rules.thinking_leads`).

    Raises:
        InvalidRequestError: names the message, the block in it, and the call's id if there is one.
        UnsupportedBlockError: the same for an image or document.
    """
    places = list(_sent_blocks(messages, rules))
    if not places:
        raise InvalidRequestError(rules.name, 0, 0, "empty", "there is nothing to send: add a prompt")
    if rules.user_begins and _is_assistant(places[0]):
        _refuse(rules, places[0], "first", "the conversation must begin with the user")
    calls: CallPairs[_PlacedBlock] = CallPairs()
    for is_assistant, neighbours in groupby(places, key=_is_assistant):
        group = list(neighbours)
        if is_assistant:
            _check_thoughts(group, rules, thinking=thinking)
            _declare(group, calls, rules)
        else:
            _answer(group, calls, rules)
            if rules.results != "later":
                _check_answered(places, calls, rules)
                calls.answered.clear()
    _check_answered(places, calls, rules)
    if rules.user_ends and _is_assistant(places[-1]):
        _refuse(rules, places[-1], "last", "the conversation must end with the user: add a prompt")


def _refuse(rules: Rules, place: _PlacedBlock, kind: Kind, reason: str) -> NoReturn:
    raise InvalidRequestError(rules.name, place.index, place.block_at, kind, reason)


def _is_assistant(place: _PlacedBlock) -> bool:
    return place.block.role == "assistant"


def _sent_blocks(messages: Sequence[Message], rules: Rules) -> Iterator[_PlacedBlock]:
    """Yield the blocks that are sent, in order."""
    for index, message in enumerate(messages):
        if not message.blocks:
            raise InvalidRequestError(rules.name, index, 0, "empty", "the message has no blocks: leave it out")
        is_assistants = message.role == "assistant"
        for block_at, block in enumerate(message.blocks):
            place = _PlacedBlock(index, block_at, block)
            if isinstance(block, System):
                _refuse(rules, place, "misplaced", "a system prompt is not part of the messages")
            if not rules.sends(block):
                continue
            if (block.role == "assistant") != is_assistants:
                _refuse(rules, place, "misplaced", f"a {block.kind} is in a message of the {message.role}")
            if block.kind in _FORMED:
                _check_form(place, rules)
            yield place


def _check_form(place: _PlacedBlock, rules: Rules) -> None:
    blocks = place.block.attachments if isinstance(place.block, ToolResult) else [place.block]
    for block in blocks:
        if isinstance(block, Image | Document) and rules.form(block) is None:
            raise UnsupportedBlockError(rules.name, place.index, place.block_at, "unsupported", rules.why_not(block))


def _check_thoughts(group: Sequence[_PlacedBlock], rules: Rules, *, thinking: bool) -> None:
    thoughts = [place for place in group if isinstance(place.block, Thinking)]
    if len(thoughts) == len(group):
        _refuse(rules, thoughts[0], "thinking_only", "no text and no call follows the thoughts: leave them out")
    if not rules.thinking_leads or not any(isinstance(place.block, ToolUse) for place in group):
        return
    if not thoughts:
        if thinking:
            kinds = ", ".join(place.block.kind for place in group)
            reason = f"with thinking on, a message that calls tools must begin with a thinking block; it has: {kinds}"
            _refuse(rules, group[0], "thinking_missing", reason)
        return
    if thoughts[0] is not group[0]:
        _refuse(rules, thoughts[0], "thinking_late", "a message that calls tools must begin with its thoughts")
    for before, place in pairwise(group):
        is_late = place.index == before.index and not isinstance(before.block, Thinking)
        if is_late and isinstance(place.block, Thinking):
            _refuse(rules, place, "thinking_late", "thoughts must come before the other blocks of their message")


def _declare(group: Sequence[_PlacedBlock], calls: CallPairs[_PlacedBlock], rules: Rules) -> None:
    """Add the calls of the group."""
    for place in group:
        if not isinstance(use := place.block, ToolUse):
            continue
        match calls.flaw_of_call(use):
            case "empty_id":
                _refuse(rules, place, "empty_id", f"the call of {use.name!r} has no id")
            case "empty_name":
                _refuse(rules, place, "empty_name", f"call {use.call_id!r} has no name of a tool")
            case "repeated":
                _refuse(rules, place, "duplicate_id", f"another call has the id {use.call_id!r}")
        calls.call(use.call_id, place)


def _answer(group: Sequence[_PlacedBlock], calls: CallPairs[_PlacedBlock], rules: Rules) -> None:
    """Remove the calls that the group's results answer."""
    is_lead = True
    for place in group:
        if not isinstance(result := place.block, ToolResult):
            is_lead = False
            continue
        call_id = result.call_id
        match calls.flaw_of_result(result):
            case "empty_id":
                _refuse(rules, place, "empty_id", "the result has no call id")
            case "answered":
                _refuse(rules, place, "duplicate_id", f"call {call_id!r} has a result already")
            case "orphan":
                _refuse(rules, place, "orphan", f"no call {call_id!r} precedes this result")
        if rules.results != "later" and not is_lead:
            _refuse(rules, place, "late", f"the result of call {call_id!r} must come before any other block")
        if rules.results == "one_message" and place.index != group[0].index:
            _refuse(rules, place, "late", f"the result of call {call_id!r} must be in the message right after the call")
        calls.answer(call_id)


def _check_answered(places: Sequence[_PlacedBlock], calls: CallPairs[_PlacedBlock], rules: Rules) -> None:
    """Raise if a call is open; `places` has all blocks that are sent."""
    for call_id, place in calls.open.items():
        groups = (set(neighbours) for _, neighbours in groupby(places, key=_is_assistant))
        if not next(group for group in groups if place in group).isdisjoint(calls.answered.values()):
            _refuse(rules, place, "partial", f"call {call_id!r} has no result, but other calls of its message have one")
        _refuse(rules, place, "missing", f"call {call_id!r} has no result")

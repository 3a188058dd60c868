"""Prompts: what a caller may add to a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwise.errors import EmptyTurnError, InvalidPromptError, shown
from turnwise.memory.conversation.blocks import (
    KINDS,
    Block,
    Document,
    Image,
    Recalled,
    Summary,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    described,
    encode,
    is_too_deep,
)
from turnwise.memory.conversation.calls.call_pairs import CallPairs, Flaw
from turnwise.memory.values.frozen_json import MAX_DEPTH
from turnwise.memory.values.limits import (
    MAX_BLOCKS,
    MAX_PROMPTS_BYTES,
    MAX_VALUES,
    check_count,
    count_values,
)

Prompt = str | Block
"""A string is a `User` block."""

_REMEDY = (
    ": pass strings and blocks of turnwise.blocks, each as an argument of its own;"
    " messages of a provider's API are for session.import_messages"
)

_BLOCKS = {Unknown, *KINDS.values()}


def plain_prompts(session_id: str, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts as plain strings and turnwise's own block classes, so that another process can unpickle them.

    Raises:
        TooManyError: there are too many, or there is too much in them; none of them was looked at.
        InvalidPromptError: a prompt is neither a string nor a block, or is nested too deeply for pickle.
    """
    check_count("prompts", len(prompts), "MAX_BLOCKS", MAX_BLOCKS)
    parts = (part for prompt in prompts if isinstance(prompt, Block) for part in vars(prompt).values())
    nested = [part for part in parts if isinstance(part, dict | tuple) and part]
    check_count("prompts", count_values(nested, MAX_VALUES), "MAX_VALUES", MAX_VALUES)
    for prompt in prompts:
        if not isinstance(prompt, str) and type(prompt) not in _BLOCKS:
            raise InvalidPromptError(session_id, f"{type(prompt).__name__} is not a string or a block{_REMEDY}")
        if not isinstance(prompt, str) and is_too_deep(prompt):
            raise InvalidPromptError(
                session_id, f"a block of kind {prompt.kind} is nested more than {MAX_DEPTH} levels deep"
            )
    return tuple(str.__str__(prompt) if isinstance(prompt, str) else prompt for prompt in prompts)


Refuses = Callable[[Image | Document], str | None]
"""Returns why an engine refuses a block; None if it accepts the block."""


def takes_all(_block: Image | Document) -> None:
    """Refuse nothing. Used for engines that do not declare which blocks they accept."""


def accept(
    session_id: str, prompts: Sequence[Prompt], max_bytes: int, refuses: Refuses = takes_all
) -> tuple[list[Block], list[str]]:
    """Return the prompts as blocks, and encoded.

    Args:
        refuses: the check of the session's engine for pictures and files.

    Raises:
        TooManyError: see `plain_prompts`; or they take more than `MAX_PROMPTS_BYTES` together.
        EmptyTurnError: a prompt is blank.
        InvalidPromptError: a prompt is not valid text, takes more than `max_bytes` when encoded, is a picture or a file
            that no provider accepts or that the engine refuses, or is of a kind that only a run may add: a summary or
            recalled memory. Tool calls and their results are checked by `check_calls`.
    """
    blocks: list[Block] = []
    encoded: list[str] = []
    total = 0
    for index, prompt in enumerate(plain_prompts(session_id, prompts)):
        if isinstance(prompt, Summary | Recalled):
            raise InvalidPromptError(session_id, f"a {prompt.kind} block comes from a run, not from a caller")
        try:
            block = User(text=prompt) if isinstance(prompt, str) else prompt
            body = encode(block)
        except ValueError as error:
            raise InvalidPromptError(session_id, f"it is not valid text ({error})") from error
        if isinstance(block, User) and not block.text.strip():
            raise EmptyTurnError(session_id)
        if (size := len(body.encode())) > max_bytes:
            reason = (
                f"{size} bytes are over max_prompt_bytes={max_bytes}; shorten it or raise the limit in SessionConfig"
            )
            raise InvalidPromptError(session_id, reason)
        total += size
        check_count("the bytes of prompts", total, "MAX_PROMPTS_BYTES", MAX_PROMPTS_BYTES)
        if isinstance(block, Image | Document) and (flaw := block.flaw or refuses(block)):
            raise InvalidPromptError(session_id, f"prompts[{index}], the {described(block)}: {flaw}")
        blocks.append(block)
        encoded.append(body)
    return blocks, encoded


def check_calls(session_id: str, prompts: Sequence[Block], *, is_whole: bool) -> None:
    """Check that each tool result among a run's prompts follows its call; if they are whole, that each call has one.

    Raises:
        InvalidPromptError: names the call.
    """
    pairs: CallPairs[bool] = CallPairs()
    for block in prompts:
        kind = block.kind
        if kind == "tool_use" and isinstance(block, ToolUse):
            flaw = pairs.flaw_of_call(block)
            pairs.call(block.call_id, True)
        elif kind == "tool_result" and isinstance(block, ToolResult):
            flaw = pairs.flaw_of_result(block)
            pairs.answer(block.call_id)
        else:
            continue
        if flaw:
            raise InvalidPromptError(session_id, f"the tool call {shown(block.call_id)} {_CALL_FLAWS[flaw]}")
    if is_whole and pairs.open:
        reason = f"the tool call {shown(next(iter(pairs.open)))} has no result: append a ToolResult before the run"
        raise InvalidPromptError(session_id, reason)


_CALL_FLAWS: dict[Flaw, str] = {
    "empty_id": "needs an id and a name",
    "empty_name": "needs an id and a name",
    "repeated": "comes twice",
    "orphan": "does not come before its result",
    "answered": "has its result already",
}

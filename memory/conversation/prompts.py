"""Prompts: what a caller may add to a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwise.errors import EmptyTurnError, InvalidPromptError
from turnwise.memory.conversation.blocks import (
    KINDS,
    Block,
    Document,
    Image,
    Recalled,
    Summary,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    described,
    encode,
    is_too_deep,
)
from turnwise.memory.conversation.frozen_json import MAX_DEPTH

Prompt = str | Block
"""A string is a `User` block."""

_BLOCKS = {Unknown, *KINDS.values()}


def plain_prompts(session_id: str, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts as another process can take them: of no class that this turnwise does not have.

    Raises:
        InvalidPromptError: one is no text and no block, or is too deep for a pickle.
    """
    for prompt in prompts:
        if not isinstance(prompt, str) and type(prompt) not in _BLOCKS:
            raise InvalidPromptError(session_id, f"{type(prompt).__name__} is not a string or a block")
        if not isinstance(prompt, str) and is_too_deep(prompt):
            raise InvalidPromptError(
                session_id, f"a block of kind {prompt.kind} is nested more than {MAX_DEPTH} levels deep"
            )
    return tuple(str.__str__(prompt) if isinstance(prompt, str) else prompt for prompt in prompts)


Refuses = Callable[[Block], str | None]
"""Returns why an engine does not take a block; None if it does."""


def takes_all(_block: Block) -> None:
    """Refuse nothing: of an engine nobody knows what it takes."""


def accept(
    session_id: str, prompts: Sequence[Prompt], max_bytes: int, refuses: Refuses = takes_all
) -> tuple[list[Block], list[str]]:
    """Return the prompts as blocks, and encoded.

    Args:
        refuses: what the session's engine says of its pictures and files.

    Raises:
        EmptyTurnError: one is blank.
        InvalidPromptError: one is no text, is larger than `max_bytes` when encoded, is a picture or a file that nobody
            could take or the engine refuses, or is of a kind that only a run may add, since it would leave a tool call
            without its result or a result without its call, or, as a summary or a recall, stand for what is not the
            caller's.
    """
    blocks: list[Block] = []
    encoded: list[str] = []
    for at, prompt in enumerate(plain_prompts(session_id, prompts)):
        if isinstance(prompt, Summary | Recalled | Thinking | ToolUse | ToolResult):
            raise InvalidPromptError(session_id, f"a {prompt.kind} block comes from a run, not from a caller")
        try:
            block = User(text=prompt) if isinstance(prompt, str) else prompt
            body = encode(block)
        except ValueError as error:
            raise InvalidPromptError(session_id, f"it is not valid text ({error})") from error
        if isinstance(block, User) and not block.text.strip():
            raise EmptyTurnError(session_id)
        if (size := len(body.encode())) > max_bytes:
            why = f"{size} bytes are over max_prompt_bytes={max_bytes}; shorten it or raise the limit in SessionConfig"
            raise InvalidPromptError(session_id, why)
        if isinstance(block, Image | Document) and (flaw := block.flaw or refuses(block)):
            raise InvalidPromptError(session_id, f"prompts[{at}], the {described(block)}: {flaw}")
        blocks.append(block)
        encoded.append(body)
    return blocks, encoded

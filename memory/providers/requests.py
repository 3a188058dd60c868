"""Conversations as requests of the providers: `validate` and `encode`, for callers who send them themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.transcript import Message
from turnwise.memory.providers import anthropic, openai_chat, openai_responses
from turnwise.memory.providers.arrangement import arranged
from turnwise.memory.providers.validation import ANTHROPIC, BEDROCK, CHAT, RESPONSES, Rules, check

Provider = Literal["chat", "responses", "anthropic", "bedrock"]
"""The API that gets a conversation: OpenAI's Chat Completions, as most servers have it; OpenAI's Responses; Anthropic's
Messages, at Anthropic or on Amazon Bedrock."""

_RULES: dict[str, Rules] = {"chat": CHAT, "responses": RESPONSES, "anthropic": ANTHROPIC, "bedrock": BEDROCK}


def validate(messages: Iterable[Message] | Iterable[Block], *, provider: Provider, thinking: bool = False) -> None:
    """Raise if the provider would refuse the conversation. Changes and sends nothing. O(blocks).

    The rules are those that turnwise's engines apply before each request. Names of tools and ids of calls may be in any
    form, since `encode` fits them to the provider.

    Args:
        messages: `Message` objects, whose order is checked as it is; or blocks, such as those of a turn, in the order
            in which they are sent.
        thinking: whether the request enables thinking. Then Anthropic and Bedrock refuse a message that calls tools and
            does not begin with a thinking block. The other providers have no such rule.

    Raises:
        InvalidRequestError: names the message by its index, the block in it, and what is wrong: see its `kind`.
        UnsupportedBlockError: the same for an image or document in a form that the provider does not take.
        InvalidInputError: there is no such provider, or something is neither a message nor a block.
    """
    rules, sequence = _rules(provider), list[Any](messages)
    for index, entry in enumerate(sequence):
        if not isinstance(entry, Message if isinstance(sequence[0], Message) else Block):
            reason = "pass either Message objects or blocks, such as turn.blocks"
            raise InvalidInputError(f"messages[{index}]", shown(entry), reason)
    check(
        sequence if sequence and isinstance(sequence[0], Message) else arranged(sequence, rules),
        rules,
        thinking=thinking,
    )


def encode(blocks: Iterable[Block], *, provider: Provider, thinking: bool = False) -> dict[str, Any]:
    """Return the conversation as the fields of a request, for the provider's own client; validates it first.

    The fields are `messages` (chat), `instructions` and `input` (responses), `system` and `messages` (anthropic,
    bedrock). The order of the blocks is kept, as the provider requires it: thoughts, text, calls, then the results.

    Args:
        thinking: see `validate`.

    Raises:
        InvalidRequestError, UnsupportedBlockError, InvalidInputError: see `validate`.
    """
    blocks = list(blocks)
    validate(blocks, provider=provider, thinking=thinking)
    if provider == "chat":
        return {"messages": openai_chat.encode(blocks)}
    if provider == "responses":
        instructions, items = openai_responses.encode(blocks)
        return ({"instructions": instructions} if instructions else {}) | {"input": items}
    system, messages = anthropic.encode(blocks, _rules(provider))
    return ({"system": system} if system else {}) | {"messages": messages}


def _rules(provider: str) -> Rules:
    if rules := _RULES.get(provider) if isinstance(provider, str) else None:
        return rules
    raise InvalidInputError("provider", shown(provider), f"must be one of {', '.join(get_args(Provider))}")

"""Conversations in the message formats of other libraries: which there are, and blocks as their messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple, cast, get_args

from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.transcript import system_of

MessageFormat = Literal["openai_chat", "openai_responses", "anthropic", "langchain", "pydantic_ai"]
"""The messages of OpenAI's Chat Completions, as most servers have them; the items of OpenAI's Responses; the messages
of Anthropic's Messages API; LangChain's message objects; Pydantic AI's."""


class _Functions(NamedTuple):
    """Where the functions of a format are. They are imported at first use, since some need another package."""

    module: str
    write: str
    """Makes messages of blocks."""
    read: str
    """Makes blocks of messages: see `providers.message_reading`."""


_PROVIDERS = "turnwise.memory.providers"

FORMATS: Mapping[str, _Functions] = {
    "openai_chat": _Functions(f"{_PROVIDERS}.chat_messages", "to_messages", "read"),
    "openai_responses": _Functions(f"{_PROVIDERS}.response_items", "to_items", "read"),
    "anthropic": _Functions(f"{_PROVIDERS}.anthropic_messages", "to_messages", "read"),
    "langchain": _Functions("turnwise.adapters.langgraph.messages", "to_langchain", "from_langchain"),
    "pydantic_ai": _Functions("turnwise.adapters.pydantic_ai.messages", "to_pydantic_ai", "from_pydantic_ai"),
}


class Messages(list[Any]):
    """Messages in the format of another library, oldest first, and what they do not say."""

    def __init__(
        self, messages: Iterable[Any], *, format: str, system: str | None = None, left_out: Mapping[str, int] = {}
    ) -> None:
        super().__init__(messages)
        self.format = format
        self.system = system
        """The system prompt, where the format has it beside the messages; None if it is among them, or if there is
        none."""
        self.left_out = dict(left_out)
        """How many blocks of each kind the messages do not have, since the format has no place for them."""


def functions_of(format: str, function_name: Literal["write", "read"]) -> Callable[[Sequence[Any]], Any]:
    """Return a format's function, imported at first use.

    Raises:
        InvalidInputError: there is no such format.
        ConfigError: it needs a package that is not installed, or an adapter that this version does not have.
    """
    message_format = FORMATS.get(format) if isinstance(format, str) else None
    if message_format is None:
        raise InvalidInputError("format", shown(format), f"must be one of {', '.join(get_args(MessageFormat))}")
    try:
        module = import_module(message_format.module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("turnwise."):
            raise
        raise ConfigError(
            "format", format, "this turnwise has no adapter for it: convert the messages first"
        ) from error
    return cast(Callable[[Sequence[Any]], Any], getattr(module, getattr(message_format, function_name)))


def to_messages(blocks: Iterable[Block], format: MessageFormat) -> Messages:
    """Return a conversation as messages of another library. O(blocks).

    A list of messages that `from_messages` reads as the same conversation, as far as the format can say it; `left_out`
    of the result counts the blocks that it cannot: thoughts without a signature of that provider, citations, kinds that
    this version does not know. No format keeps the borders between consecutive texts of one side, and summaries come as
    texts of the user. OpenAI's chat has the pictures of tool results in a message of the user after them.

    Args:
        blocks: such as those of a turn.
        format: see `MessageFormat`.

    Raises:
        InvalidInputError: there is no such format.
        UnsupportedBlockError: a picture or a file in a form that the format does not have.
        ConfigError: the format needs a package that is not installed.
    """
    blocks = list(blocks)
    write = functions_of(format, "write")
    is_left_out = getattr(import_module(FORMATS[format].module), "is_left_out", None)
    left_out = Counter(block.kind for block in blocks if is_left_out and is_left_out(block))
    system = system_of(blocks) if format == "anthropic" else None
    return Messages(write(blocks), format=format, system=system or None, left_out=left_out)

"""Tells which messages of a graph's channel are what its run answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.adapters.version_checks import framework
from turnwise.memory.conversation.blocks import AnyBlock

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage


@dataclass(slots=True)
class Unrecorded:
    """The blocks that a message adds to the transcript, until they are recorded.

    The graph may still change the message.
    """

    message_id: str
    blocks: list[AnyBlock]
    is_gone: bool = False
    """Whether the graph has removed the message."""


def is_speech(message: BaseMessage) -> bool:
    """Return whether a message is the assistant's: a model's, or one of the user's that has the name of an agent."""
    return isinstance(message, AIMessage) or (isinstance(message, HumanMessage) and bool(message.name))


def behind(
    messages: Sequence[BaseMessage], is_known: Callable[[BaseMessage], bool], *, had_messages: bool
) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return the new messages that follow what the channel had, and those that stand for all that it had.

    A graph may put a summary in the place of what was said before: such a message comes before what is left, or nothing
    is left. The latter may be an answer, too, as of a channel that keeps the newest messages only. A call without a
    result is new in any place.

    Args:
        is_known: whether a message was in the channel before.
        had_messages: whether any message was.
    """
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    last_known = max((index for index, message in enumerate(messages) if is_known(message)), default=None)
    new: list[BaseMessage] = []
    in_place: list[BaseMessage] = []
    for index, message in enumerate(messages):
        is_open = isinstance(message, AIMessage) and any(call["id"] not in answered for call in message.tool_calls)
        if is_known(message):
            continue
        if is_open or (last_known is not None and index > last_known) or (last_known is None and not had_messages):
            new.append(message)
        elif last_known is None:
            in_place.append(message)
    return new, in_place

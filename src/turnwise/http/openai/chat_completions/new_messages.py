"""What is new in a request that names a session: how its messages continue what the session has.

The client may send the whole conversation, as clients of stateless servers do, or only what is new: one message of the
user, or the results of tools. Of a whole conversation, the user's messages must be those of the session, in order; what
comes after them is new. An answer of the assistant may be whole, cut short or missing, as a client may have lost it,
but it may not be another one. Calls that the service has made itself are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from turnwise.http.openai.chat_completions.messages import Chat
from turnwise.http.openai.errors import OpenAIError
from turnwise.http.same_prompt import is_same_prompt
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse
from turnwise.memory.conversation.views.chat_messages import ChatMessage


@dataclass(slots=True)
class New:
    """What is new in a request."""

    prompts: list[AnyBlock] = field(default_factory=list)
    """Prompts for the next run."""
    results: list[ToolResult] = field(default_factory=list)
    """Results for the run that waits."""
    repeats: bool = False
    """Whether nothing is new, so that the request repeats the last one."""
    after: frozenset[str] = frozenset()
    """The calls whose results were the last thing that was said, if the request repeats that."""


@dataclass(slots=True)
class _Group:
    """A block of the user, with all that was answered to it. The first of a conversation may have no block."""

    block: AnyBlock | None
    number: int
    """The number of the block's message in the request, or of its turn in the session."""
    is_whole: bool = True
    """Whether its turn has completed, or may still do so."""
    answer: list[AnyBlock] = field(default_factory=list)
    answer_numbers: list[int] = field(default_factory=list)
    """The numbers of the messages in the request that have the blocks of `answer`."""

    def text(self) -> str:
        return "".join("".join(block.text.split()) for block in self.answer if isinstance(block, Text))

    def results(self) -> dict[str, ToolResult]:
        return {block.call_id: block for block in self.answer if isinstance(block, ToolResult)}

    def calls(self) -> set[str]:
        return {block.call_id for block in self.answer if isinstance(block, ToolUse)}


def is_alone(chat: Chat) -> bool:
    """Return whether a request has only what is new: one message of the user, or results of tools."""
    only_results = all(isinstance(block, ToolResult) for block in chat.blocks)
    return only_results or (chat.messages == 1 and chat.last.role == "user")


def news(chat: Chat, stored: Iterable[ChatMessage]) -> New:
    """Return what is new in a request.

    Args:
        stored: the messages of the session, oldest first; none are needed if the request `is_alone`.

    Raises:
        OpenAIError: the request does not continue the session; the error says what differs.
    """
    if is_alone(chat):
        results = [block for block in chat.blocks if isinstance(block, ToolResult)]
        return New(results=results) if results else New(prompts=list(chat.blocks))
    had, sent = _stored_groups(stored), _sent_groups(chat)
    last = _matched(had, sent)
    if last < 0:
        return New(prompts=list(chat.blocks))
    rest = [block for group in sent[last + 1 :] for block in (group.block, *group.answer) if block]
    results = list(_new_results(had[-1], sent[last]))
    if results and rest:
        reason = "the results of tools continue a run, so nothing may come after them: send them alone"
        raise OpenAIError(400, reason, param="messages", code="unsupported_value")
    if not results and not rest:
        in_order = [block for block in sent[last].answer if isinstance(block, ToolResult)]
        ends_in_results = isinstance(chat.last, ToolResult)
        after = frozenset(block.call_id for block in _last_results(sent[last].answer)) if in_order else frozenset[str]()
        return New(repeats=True, after=after if ends_in_results else frozenset())
    return New(prompts=rest, results=results)


def _last_results(answer: Sequence[AnyBlock]) -> list[ToolResult]:
    """Return the results at the end."""
    results: list[ToolResult] = []
    for block in reversed(answer):
        if not isinstance(block, ToolResult):
            break
        results.append(block)
    return results


def _stored_groups(stored: Iterable[ChatMessage]) -> list[_Group]:
    """Return what the session has. A turn that has not completed is left out if the next one repeats its prompts."""
    turns: list[list[_Group]] = []
    number = None
    for message in stored:
        whole = message.turn_status not in ("failed", "cancelled", "interrupted")
        if number != message.turn_index:
            number = message.turn_index
            turns.append([])
        for block in message.blocks:
            if block.role == "user":
                turns[-1].append(_Group(block, message.turn_index, whole))
            elif block.role != "system":
                if not turns[-1]:
                    turns[-1].append(_Group(None, message.turn_index, whole))
                turns[-1][-1].answer.append(block)
    groups: list[_Group] = []
    for turn, then in zip_longest(turns, turns[1:], fillvalue=list[_Group]()):
        messages, next_said = [[message.block for message in part] for part in (turn, then)]
        if not (turn and not turn[0].is_whole and messages == next_said):
            groups += turn
    return groups


def _sent_groups(chat: Chat) -> list[_Group]:
    groups: list[_Group] = []
    for block, number in zip(chat.blocks, chat.message_numbers, strict=True):
        if block.role == "user":
            groups.append(_Group(block, number))
        else:
            if not groups:
                groups.append(_Group(None, number))
            groups[-1].answer.append(block)
            groups[-1].answer_numbers.append(number)
    return groups


def _matched(had: Sequence[_Group], sent: Sequence[_Group]) -> int:
    """Return the number of the last of `sent` that the session has; -1 if it has nothing.

    Raises:
        OpenAIError: they differ.
    """
    index = -1
    for number, group in enumerate(had):
        here = sent[index + 1] if index + 1 < len(sent) else None
        if here is None or not _is_same(group.block, here.block):
            if not group.is_whole and not group.answer:
                continue  # the client may leave out prompts that were not answered
            raise _differs(group, here)
        index += 1
        _check_answer(group, here, is_last=number == len(had) - 1)
    return index


def _is_same(had: AnyBlock | None, sent: AnyBlock | None) -> bool:
    return had is sent if had is None or sent is None else is_same_prompt(had, sent)


def _check_answer(had: _Group, sent: _Group, *, is_last: bool) -> None:
    """Raise OpenAIError if a request has other answers than the session."""
    number = sent.answer_numbers[0] if sent.answer_numbers else sent.number
    if not had.text().startswith(sent.text()):
        raise _conflict(number, "it is not what the assistant has said there")
    if unknown := sent.calls() - had.calls():
        raise _conflict(number, f"the assistant has not made the call {min(unknown)!r} there")
    results = had.results()
    for call_id, result in sent.results().items():
        if call_id in results:
            if results[call_id].text != result.text:
                raise _conflict(number, f"the call {call_id!r} has another result there")
        elif not is_last:
            raise _conflict(number, f"the call {call_id!r} has no result there")


def _new_results(had: _Group, sent: _Group) -> Iterable[ToolResult]:
    stored_results = had.results()
    return (result for call_id, result in sent.results().items() if call_id not in stored_results)


def _differs(had: _Group, sent: _Group | None) -> OpenAIError:
    if sent is None:
        return _conflict(None, f"the session has gone on with turn {had.number}, which the request does not have")
    return _conflict(sent.number, f"turn {had.number} of the session has another message there")


def _conflict(number: int | None, reason: str) -> OpenAIError:
    param = "messages" if number is None else f"messages[{number}]"
    remedy = "send the conversation as it is, only your new message, or another X-Session-Id"
    return OpenAIError(422, f"{param} does not continue the session: {reason}; {remedy}", param=param, code="conflict")

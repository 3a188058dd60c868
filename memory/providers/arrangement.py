"""Arranges a stored conversation so that a provider takes it, whatever a caller has added and in whichever order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from turnwise.memory.conversation.blocks import Block, System, User
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.transcript import Message, messages_of
from turnwise.memory.providers.validation import ANTHROPIC, Rules, check, fit

_FROM = re.compile(r"^([ \t]*)(\[from )", re.IGNORECASE | re.MULTILINE)
"""What looks like the line that names an author, at the beginning of a line of a prompt."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names that OpenAI accepts of the users in a conversation."""

_HASHED_NAME = re.compile(r".*-[0-9a-f]{8}", re.DOTALL)

_BELONGING = frozenset({"thinking", "citations"})
"""The kinds of blocks that belong to a text or a call of their message."""

BEGIN = "[the conversation begins]"
"""The user's text before a conversation that begins with the assistant, such as with a greeting."""

CONTINUE = "[continue]"
"""The user's text after a conversation that ends with the assistant, or of which nothing is sent."""


def name_of(author: str) -> str:
    """Return the name by which a model knows the author of a prompt: letters, digits, _ and -, at most 64 of them.

    Different authors have different names: an id that is no such name, or that looks like one with a digest, gets one.
    """
    if _PLAIN_NAME.fullmatch(author) and not _HASHED_NAME.fullmatch(author):
        return author
    digest = hashlib.blake2b(author.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_-]', '_', author)[:55]}-{digest}"


def author_line(author: str) -> str:
    """Return the line before a prompt that names its author, for providers whose messages have no name."""
    return f"[from {name_of(author)}]\n"


def with_author_lines(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks with a line before each prompt that names its author; without authors they do not change.

    A line of a prompt that looks like such a line begins with a backslash then, so that nobody speaks for others.
    """
    return [
        User(text=author_line(block.author) + _FROM.sub(r"\1\\\2", block.text))
        if isinstance(block, User) and block.author is not None
        else block
        for block in blocks
    ]


def arranged(blocks: Iterable[Block], rules: Rules) -> list[Message]:
    """Return the conversation as messages that the provider takes. O(blocks).

    - Where messages have no name, a line before each prompt of a shared session names its author.

    - Where the user must begin or end, and the assistant does, a text of the user is added. So a conversation may begin
      with the assistant's greeting.
    - A tool result belongs in the message after its call; one that came later is moved there.
    - Thoughts and citations to which neither a text nor a call belongs are left out.

    A conversation that needs none of this does not change. A call without a result gets none: see `validation.check`.
    """
    messages = messages_of(blocks if rules.names_authors else with_author_lines(blocks))
    if late := _late_results(messages):
        messages = messages_of(_with_results_moved(messages, late))
    only_thoughts = [_has_only_thoughts(message, rules) for message in messages]
    if any(only_thoughts):
        pairs = zip(messages, only_thoughts, strict=True)
        messages = messages_of(
            block
            for message, is_left_out in pairs
            for block in message.blocks
            if not (is_left_out and _is_thought_or_citation(block))
        )
    if rules.user_begins and _role_of_first(messages, rules) == "assistant":
        messages.insert(0, _user_message(BEGIN))
    if rules.user_ends and _role_of_first(reversed(messages), rules) == "assistant":
        messages.append(_user_message(CONTINUE))
    return messages


def ready(blocks: Iterable[Block], rules: Rules, *, checks: bool = False) -> list[Message]:
    """Return the conversation as messages with the names and ids that the provider takes. O(blocks).

    See `arranged` and `validation.fit`.

    Args:
        checks: whether to raise if the provider would refuse the messages; see `validation.check`.

    Raises:
        InvalidRequestError: the provider would refuse the messages, if `checks` is set.
        UnsupportedBlockError: the API accepts an image or document in none of its forms.
    """
    messages = arranged(blocks, rules)
    if checks:
        check(messages, rules)
    return fit(messages, rules)


def prompted(blocks: Sequence[Block], rules: Rules) -> Sequence[Block]:
    """Return the blocks, with a text of the user behind them if they make no message, as only a system prompt does."""
    is_sent = any(rules.sends(block) and not _is_thought_or_citation(block) for block in blocks)
    return blocks if is_sent else [*blocks, User(text=CONTINUE)]


def between_prompts(blocks: Sequence[Block], *, is_answered: bool = False) -> list[Block]:
    """Return the blocks with a text of the user before and behind them, where the assistant begins or ends. O(blocks).

    For agents of other packages, whose models may be of any provider: each takes such a conversation. A line before
    each prompt of a shared session names its author.

    Args:
        is_answered: whether the blocks end with the beginning of an answer that goes on: then nothing follows them.
    """
    blocks = with_author_lines(blocks)
    first = [User(text=BEGIN)] if _are_assistants(blocks)[:1] == [True] else []
    return [*first, *(blocks if is_answered else before_answer(blocks))]


def before_answer(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with a text of the user behind them, where the assistant ends or nothing is sent. O(blocks).

    For runs without prompts: some servers refuse a conversation that ends with the assistant, and others go on with its
    last text instead of answering.
    """
    is_needed = _are_assistants(blocks)[-1:] in ([], [True])
    return [*blocks, User(text=CONTINUE)] if is_needed else list(blocks)


def _are_assistants(blocks: Sequence[Block]) -> list[bool]:
    """Return which blocks are of the assistant, of those that are sent by the rules of Anthropic.

    These rules are the strictest about the user's place.
    """
    return [block.role == "assistant" for block in blocks if not isinstance(block, System) and ANTHROPIC.sends(block)]


def _role_of_first(messages: Iterable[Message], rules: Rules) -> str | None:
    """Return the role of the first message of which something is sent."""
    return next((message.role for message in messages if any(map(rules.sends, message.blocks))), None)


def _user_message(text: str) -> Message:
    return Message("user", (User(text=text),))


def _is_thought_or_citation(block: Block) -> bool:
    return block.kind in _BELONGING


def _has_only_thoughts(message: Message, rules: Rules) -> bool:
    """Return whether it is the assistant's, with thoughts or citations, and nothing else of it is sent."""
    if message.role != "assistant" or not any(map(_is_thought_or_citation, message.blocks)):
        return False
    return not any(rules.sends(block) and not _is_thought_or_citation(block) for block in message.blocks)


def _late_results(messages: Sequence[Message]) -> dict[int, int]:
    """Return the results that are not in the message after their call.

    They are given by `id()` of the block, with the index of the message in which they belong.
    """
    pairs: CallPairs[int] = CallPairs()
    late: dict[int, int] = {}
    for index, message in enumerate(messages):
        for block in message.blocks:
            call_index = pairs.read(block, index)  # where the call is, if the block is a result
            if call_index is not None and call_index < index - 1:
                late[id(block)] = call_index + 1
    return late


def _with_results_moved(messages: Sequence[Message], late: Mapping[int, int]) -> list[Block]:
    moved: dict[int, list[Block]] = {}
    for message in messages:
        for block in message.blocks:
            if id(block) in late:
                moved.setdefault(late[id(block)], []).append(block)
    blocks: list[Block] = []
    for index, message in enumerate(messages):
        blocks += [*moved.get(index, ()), *(block for block in message.blocks if id(block) not in late)]
    return blocks

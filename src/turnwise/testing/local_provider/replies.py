"""The replies of the simulated provider for both APIs, with conversations and answers in the format of chat."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Answer: TypeAlias = str | Message | list[Message]
"""A text; an assistant message, which may have `reasoning_content`, `content` and `tool_calls`; or the deltas of one,
which are streamed unchanged."""
Reply: TypeAlias = Answer | Callable[[list[Message]], Answer]
"""An answer, or a function that makes one from the request's messages."""
Step: TypeAlias = str | Sequence[tuple[str, Mapping[str, Any] | str]]
"""A text, or tool calls: a tool's name with its arguments, which are sent unchanged if they are text."""

CUT_AFTER = 3
"""The number of tokens before a fault in the middle of an answer."""

BREAKS = ("stall", "cut", "unfinished", "malformed", "error")
"""The faults in the middle of an answer."""


def default_reply(messages: Sequence[Message]) -> str:
    """Answer with the last message and the number of messages."""
    conversation = [message for message in messages if message["role"] not in ("system", "developer")]
    last = conversation[-1] if conversation else {"role": "user", "content": ""}
    source = "The tool says" if last["role"] == "tool" else "You said"
    return f"{source}: {text_of(last)} (message {len(conversation)} of our conversation)"


def tool_script(steps: Sequence[Step], *, reasoning: str | None = None) -> Callable[[list[Message]], Message]:
    """Return a reply that makes the steps in order, and restarts after each prompt of the user.

    The step depends only on the conversation: on the number of the assistant's messages since the last prompt. A
    message of the user that only shows pictures and files of tool results is no prompt. The last step is repeated, so a
    script that ends in calls never ends. Call ids are unique.

    Args:
        steps: at least one.
        reasoning: the reasoning before each step.
    """

    def reply(messages: list[Message]) -> Message:
        roles = [message["role"] for index, message in enumerate(messages) if not _shows_results(messages, index)]
        since = roles[::-1].index("user") if "user" in roles else len(roles)
        step = steps[min(roles[len(roles) - since :].count("assistant"), len(steps) - 1)]
        answer: Message = (
            {"content": step} if isinstance(step, str) else {"tool_calls": [_call(*call) for call in step]}
        )
        return {"reasoning_content": reasoning, **answer} if reasoning else answer

    return reply


def _shows_results(messages: Sequence[Message], index: int) -> bool:
    """Return whether the message at this position has only pictures and files of the tool results before it."""
    if [message["role"] for message in messages[max(index - 1, 0) : index + 1]] != ["tool", "user"]:
        return False
    content = messages[index]["content"]
    return isinstance(content, list) and content[-1].get("type") != "text"


def attentive_reply(messages: Sequence[Message]) -> str:
    """Answer with sentences of the messages, word by word; summarize them on request.

    Questions about the user are answered from the user's messages, including summaries; others from the instructions.
    """
    texts = [text for message in messages if message["role"] == "user" for text in texts_of(message)]
    if not texts:
        return "You have asked nothing."
    if texts[-1].rpartition("\n")[2].startswith(SUMMARY_WANTED):
        return summary_of("\n".join(texts))
    if not texts[-1].rstrip().endswith("?"):
        return "Thank you, I have noted that."
    question = sentences(texts[-1])[-1]
    if _OF_THE_USER.search(question):
        statements = [sentence.removeprefix("user: ") for sentence in matching(question, texts)]
        return f"You told me: {statements[0]}" if statements else "You have not told me, as far as I can see."
    instructions = [text_of(message) for message in messages if message["role"] in ("system", "developer")]
    rules = matching(question, instructions)
    return f"The handbook says: {' '.join(rules[:2])}" if rules else "The handbook does not say."


def summary_of(request: str, most_words: int = 120) -> str:
    """Return the summary that `SummaryTask.request` requests: the last summary, then the user's facts.

    Sentences are unchanged and unique. They have at most `most_words`, or as many as the request allows.
    """
    material, _, limit = request.rpartition(SUMMARY_WANTED)
    allowed = re.search(r"no more than (\d+) words", limit)
    words_left = min(most_words, int(allowed[1])) if allowed else most_words
    sentences_seen: dict[str, None] = {}
    for line in material.splitlines():
        fact = json.loads(line) if line.startswith("{") else {}
        before = fact.get("summary of what came before", "").removeprefix(_SUMMED_UP)
        own = [sentence for sentence in sentences(fact.get("user", "")) if _OF_ONESELF.match(sentence)]
        sentences_seen |= dict.fromkeys([*sentences(before), *own])
    summary = [_SUMMED_UP.strip()]
    words_left -= len(tokens_of(_SUMMED_UP))
    for sentence in sentences_seen:
        words_left -= len(tokens_of(sentence))
        if words_left < 0:
            break
        summary.append(sentence)
    return " ".join(summary)


SUMMARY_WANTED = "Write the summary now."
"""The beginning of the last line of a request for a summary."""

_SUMMED_UP = "The user said: "

_OF_ONESELF = re.compile(r"(I|My|We|Our)\b(?!.*\?$)")
"""The beginning of a statement about the user."""

_OF_THE_USER = re.compile(r"\bI (say|said|tell|told)\b")

_COMMON = {"about", "does", "from", "have", "many", "much", "said", "tell", "that", "told", "what", "when", "which"}


def matching(question: str, texts: Sequence[str]) -> list[str]:
    """Return the statements that share at least two words with the question, those with most such words first."""
    question_words = keywords(question)
    shared = {
        sentence: len(question_words & keywords(sentence))
        for text in texts
        for sentence in sentences(text)
        if not sentence.endswith("?")
    }
    statements = [sentence for sentence, count in shared.items() if count >= max(1, min(2, len(question_words)))]
    return sorted(statements, key=lambda sentence: -shared[sentence])


def keywords(text: str) -> set[str]:
    """Return the text's longer words, without those that are in every question."""
    return {word.removesuffix("s") for word in re.findall(r"\w{4,}", text.lower())} - _COMMON


def _call(name: str, arguments: Mapping[str, Any] | str) -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": {"name": name, "arguments": text}}


@dataclass(frozen=True)
class Completion:
    """An answer as deltas, up to a limit or a fault."""

    tokens: list[Message]
    is_cut: bool
    prompt_tokens: int

    @classmethod
    def of(cls, answer: Answer, messages: Sequence[Message], fault: str, limit: int | None) -> Completion:
        message: Message | list[Message] = {"content": answer} if isinstance(answer, str) else answer
        tokens = [] if fault == "empty" else message if isinstance(message, list) else list(_deltas(message))
        breaks = fault in (*BREAKS, "length")
        limit = CUT_AFTER if breaks else limit
        is_cut = breaks or (limit is not None and limit < len(tokens))
        return cls(tokens[:limit], is_cut, sum(len(tokens_of(text_of(sent))) for sent in messages))

    @property
    def thoughts(self) -> int:
        """The number of reasoning tokens."""
        return sum("reasoning_content" in token or "reasoning" in token for token in self.tokens)

    @property
    def calls(self) -> bool:
        return any("tool_calls" in token for token in self.tokens)


def _deltas(message: Message) -> Iterator[Message]:
    for key in ("reasoning_content", "content"):
        for token in tokens_of(message.get(key) or ""):
            yield {key: token}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]}
        for piece in re.findall(r".{1,8}", call["function"]["arguments"], re.DOTALL):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def text_of(message: Message) -> str:
    """Return the text of a message; a part without text is shown as its type."""
    return " ".join(texts_of(message))


_RECALLED = re.compile(r"(?:^|(?<=\n\n))The sections below hold what memory has.*</\w+>(?=\n\n)", re.DOTALL)
"""Recalled text before a prompt."""


def texts_of(message: Message) -> list[str]:
    """Return the text of each part of a message. Recalled text, which is sent with the prompt, is a part of its own."""
    content = message.get("content") or ""
    if isinstance(content, str):
        if match := _RECALLED.search(content):
            parts = [content[: match.start()].strip(), match[0], content[match.end() :].strip()]
            return [part for part in parts if part]
        return [content]
    return [part.get("text") or f"[{part['type']}]" for part in content]


def sentences(text: str) -> list[str]:
    """Return the text's sentences; the end of a line also ends a sentence."""
    lines = [line.strip("- ") for line in text.splitlines()]
    return [sentence for line in lines for sentence in re.split(r"(?<=[.!?])\s+", line) if sentence]


def tokens_of(text: str) -> list[str]:
    """Return the text's tokens: words, each with the space after it."""
    return re.findall(r"\S+\s*|\s+", text)

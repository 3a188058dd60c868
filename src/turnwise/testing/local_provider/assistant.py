"""`assistant_reply`: answers from what memories recalled, and extracts and checks facts for them on request."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from turnwise.testing.local_provider.replies import Message, keywords, matching, sentences, texts_of

FACTS_WANTED = "Answer with the facts now, as JSON."
"""The last line of a request for facts."""

CHECK_WANTED = "Answer which claims are stated, as JSON."
"""The last line of a request to check them."""


class Memory(NamedTuple):
    """One item in a section of recalled memories."""

    when: str
    topic: str
    text: str


def assistant_reply(messages: Sequence[Message]) -> str:
    """Answer the last question, or extract the facts from the user's statements, or check such facts.

    Facts about the user come from this conversation and the recalled facts, earlier topics from recalled conversations,
    and rules from the section for everyone. It knows nothing that is not in the messages.

    It extracts sentences that begin with "I" and a verb, or with "My ... is", "are", "begins" or "ends", and confirms
    a fact that is its quotation. A later fact replaces an earlier one of the same "My ...", and of "I live", "I work"
    and "I prefer"; other verbs are true of several things.

    It answers a question by what shares a word with it that is not a common one. To all else it answers "Thank you, I
    have noted that.", or "I do not know that.".
    """
    *before, prompt = [text for message in messages if message["role"] == "user" for text in texts_of(message)]
    if prompt.endswith(FACTS_WANTED):
        return json.dumps({"facts": list(facts_in(prompt))})
    if prompt.endswith(CHECK_WANTED):
        return json.dumps(stated_claims(prompt))
    questions = [sentence for sentence in sentences(prompt) if sentence.endswith("?")]
    if not questions:
        return "Thank you, I have noted that."
    question = questions[-1]
    memories = sections_of(messages)
    answer = []
    if _OF_THE_TALK.search(question):
        quoted = nearest(question, memories.get("vector", []))[:1]
        answer += [f"On {item.when[:10]}: {' / '.join(item.text.splitlines())}" for item in quoted]
    else:
        if _OF_THE_USER.search(question):
            facts = [item.text for name in ("profile", "semantic") for item in memories.get(name, [])]
            facts_told = matching(question, [*facts, *(text for text in before if not _PREAMBLE.search(text))])
            answer += [f"You told me: {facts_told[0]}"] if facts_told else []
            # Found by a name that its text need not have, so no word is looked for.
            answer += [f"I know: {item.text}" for item in memories.get("procedural", [])[:1]]
        rules = matching(question, [item.text for item in memories.get("static", [])])
        answer += [f"The handbook says: {rules[0]}"] if rules else []
    return " ".join(answer) or "I do not know that."


def sections_of(messages: Sequence[Message]) -> dict[str, list[Memory]]:
    """Return the recalled items in a request by the name of their section."""
    sections: dict[str, list[Memory]] = {}
    prompts = [texts_of(message) for message in messages if message["role"] == "user"]
    for text in (text for texts in prompts for text in texts):
        if _FRONT.search(text) or (_PREAMBLE.search(text) and text in prompts[-1]):
            for name, lines in _SECTION.findall(text):
                sections.setdefault(name, []).extend(
                    Memory(when, json.loads(topic) if topic else "", json.loads(line))
                    for when, topic, line in _LINE.findall(lines)
                )
    return sections


def nearest(question: str, memories: Collection[Memory]) -> list[Memory]:
    """Return the items that share a word with the question, those with most such words first."""
    words_asked = keywords(question)
    matches = [item for item in memories if words_asked & keywords(item.text)]
    return sorted(matches, key=lambda item: -len(words_asked & keywords(item.text)))


def facts_in(request: str) -> Iterator[dict[str, str | list[str]]]:
    """Yield facts about the users, in the format of `ExtractiveMemory`.

    A statement that begins with "I" or "My" is a fact. What is "my", or the verb, is its topic. A known fact with the
    same topic is replaced: for "I", if the verb is one of `_OF_ONE`.
    """
    rows = rows_of(request)
    known = [row for row in rows if row.get("topic")]
    rows_by_topic = {row["topic"]: row for row in known}
    rows_by_text = {row["text"]: row for row in known}
    for row in rows:
        for line in sentences(row.get("user", "")):
            if statement := _TOLD.match(line):
                topic = (statement["mine"] or statement["verb"]).lower()
                same = rows_by_text.get(line)
                is_of_one = statement["mine"] or topic in _OF_ONE
                old = same or (rows_by_topic.get(topic) if is_of_one else None)
                action = "ignore" if same else "supersede" if old else "add"
                kind = "preferences" if statement["verb"] == "prefer" else "facts"
                fact = {"text": line, "type": kind, "topic": topic, "evidence": line}
                yield {**fact, "action": action, "of": [old["known"]] if old else []}


def stated_claims(request: str) -> dict[str, bool]:
    """Return for each claim in a request to check them, by its short name, whether its quotation says the same."""
    return {row["claim"]: row["text"] == row["quote"] for row in rows_of(request) if "claim" in row}


def rows_of(request: str) -> list[dict[str, str]]:
    """Return the data in a request of a memory: its lines of JSON."""
    return [json.loads(line) for line in request.splitlines() if line.startswith("{")]


_PREAMBLE = re.compile(r"^The sections below hold what memory has", re.MULTILINE)

_FRONT = re.compile(r"^The sections below hold what memory has about the user;", re.MULTILINE)
"""The beginning of what stands before the conversation."""

_SECTION = re.compile(r"^<(\w+)_memory>\n(.*?)\n</\1_memory>$", re.MULTILINE | re.DOTALL)

_LINE = re.compile(r'^- \[([^]]+)] \(\w+(?:, ("(?:[^"\\]|\\.)*"))?\) (".*")$', re.MULTILINE)

_TOLD = re.compile(r"(?:My (?P<mine>[\w ]+?) (?:is|are|begins|ends)|I (?P<verb>\w+))\b[^?]*$")

_OF_ONE = frozenset({"live", "work", "prefer"})
"""Verbs that are true of one thing at a time."""

_OF_THE_USER = re.compile(r"\b(I|my|me)\b")

_OF_THE_TALK = re.compile(r"\bdid we (say|talk|discuss)\b")

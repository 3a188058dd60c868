"""Realistic messages, made from questions, for measuring long-term memory.

Each question is asked plainly, between greetings, within a story, as a follow-up, with a typo, as a telegram, without
capitals and punctuation, and after a question about something else. Other messages need no memory. Their words are in
`messages.json`. One half of the ways of writing, and of the other messages, is for development; the other half is held
out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, get_args

from turnwise.memory.longterm.base import MemoryItem, Source
from turnwise.memory.longterm.memory_types import MemoryType

Half = Literal["dev", "held out"]
Kind = Literal["bare", "short", "long", "typo", "follow-up", "telegram", "lower", "changed subject", "nothing"]

KINDS: tuple[Kind, ...] = get_args(Kind)
ROLES = {"user", "assistant"}

WORDS: Any = json.loads((Path(__file__).parent / "messages.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Message:
    """A user's message, and what should be recalled for it."""

    user: str
    kind: Kind
    prompts: tuple[str, ...]
    """The user's prompts, the newest last; at most one before it."""
    evidence: frozenset[str] = frozenset()
    """The ids of the items that answer it; empty if it needs no memory."""
    group: str = ""
    """Its group among the messages of its kind."""


class Question(NamedTuple):
    text: str
    evidence: frozenset[str]
    """The ids of the items that answer it."""
    category: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    user: str
    items: list[MemoryItem]
    questions: list[Question]
    """Those that have evidence."""
    spoken_by: list[str] = field(default_factory=list)
    """The speaker of each item."""

    @property
    def speakers(self) -> list[str]:
        """The names of the speakers, as questions write them."""
        return [name[:1].upper() + name[1:] for name in dict.fromkeys(self.spoken_by)]

    @property
    def is_of_people(self) -> bool:
        """Whether people with names speak, and not a user and an assistant."""
        return not ROLES.issuperset(self.spoken_by)


def load(file: Path) -> list[Conversation]:
    """Return the conversations of a file, whose format `recall.py` describes."""
    return [_conversation(entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


def load_all(place: Path) -> dict[str, list[Conversation]]:
    """Return the conversations of a file, or of each file `*.json` of a folder, by the file's name without `.json`."""
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    return {file.stem: load(file) for file in files}


def _conversation(data: dict[str, Any]) -> Conversation:
    spoken_by = [turn["speaker"] for session in data["sessions"] for turn in session["turns"]]
    items: list[MemoryItem] = []
    for session in data["sessions"]:
        time = datetime.strptime(session["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
        for turn in session["turns"]:
            shares = f" [shares {turn['image_caption']}]" if turn.get("image_caption") else ""
            source = Source(session_id=f"session-{session['session']}", turn_index=len(items))
            text = turn["text"] if ROLES.issuperset(spoken_by) else f"{turn['speaker']}: {turn['text']}{shares}"
            items.append(
                MemoryItem(id=turn["id"], text=text, type=MemoryType.INTERACTION, source=source, created_at=time)
            )
    ids = {item.id for item in items}
    questions = [
        Question(" ".join(entry["question"].split()), evidence, str(entry["category"]))
        for entry in data["questions"]
        if (evidence := frozenset(_TURN.findall(" ".join(entry["evidence"]))) & ids)
    ]
    return Conversation(data["sample_id"], items, questions, spoken_by)


_TURN = re.compile(r"D\d+:\d+")


def messages_of(
    conversations: Sequence[Conversation], kind: Kind, half: Half = "dev", *, sample: int | None = None, seed: int = 0
) -> list[Message]:
    """Return messages of a kind: one for each question, or all that need no memory, each of one user.

    The same arguments give the same messages.

    Args:
        half: which half of the ways of writing, and of the messages that need no memory, is used.
        sample: the maximum number, drawn by the seed; all if omitted.
        seed: decides also how each question is written.
    """
    random = Random(f"{seed} {kind} {half}")
    if kind == "nothing":
        messages = _needless(conversations, half, random)
    else:
        messages = [
            Message(conversation.user, kind, prompts, evidence, group)
            for conversation in conversations
            for question, evidence, _ in conversation.questions
            for prompts, group in [_WAYS[kind](question, conversation, half, random)]
        ]
    if sample is None or sample >= len(messages):
        return messages
    return Random(f"{seed} {half}").sample(messages, sample)  # of the same questions, whichever kind


def half_of(values: Sequence[Any], half: Half) -> list[Any]:
    """Return every second of the values: those for development, or the others."""
    return [*values[half == "held out" :: 2]]


def _needless(conversations: Sequence[Conversation], half: Half, random: Random) -> list[Message]:
    """Return the messages that need no memory; every second one follows a question."""
    messages = []
    for group, texts in WORDS["no_need"].items():
        for index, text in enumerate(half_of(texts, half)):
            conversation = random.choice(conversations)
            before = (random.choice(conversation.questions).text,) if index % 2 else ()
            messages.append(
                Message(
                    conversation.user, "nothing", (*before, text), group=f"{group}{' after a question' * (index % 2)}"
                )
            )
    return messages


# Ways of writing

_Way = tuple[tuple[str, ...], str]


def _bare(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    return (question,), ""


def _short(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    return (_filled(random.choice(half_of(WORDS["short"], half)), "{q}", question),), ""


def _long(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    return (_filled(" ".join(random.choice(half_of(WORDS["long"], half))), "{q}", question),), ""


def _typo(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    words = [word for word in re.finditer(r"[A-Za-z]{4,}", question) if word[0].casefold() not in _FUNCTION_WORDS]
    if not words:
        return (question,), "none"
    word = random.choice(words)
    spelt, group = misspelt(word[0], random)
    return (question[: word.start()] + spelt + question[word.end() :],), group


def _follow_up(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    """Return a follow-up: the prompt before names the subject that the newest leaves out, or only the person."""
    match = _ASKED.match(question)
    named_speakers = [name for name in conversation.speakers if re.search(rf"\b{name}\b", question)]
    if match and not any(name in match["wh"] for name in named_speakers) and random.choice((True, not named_speakers)):
        before, newest = random.choice(half_of(WORDS["follow_up_same_matter"], half))
        verb, rest = match["verb"], match["rest"]
        is_being = verb in ("is", "are", "was", "were")
        statement = f"I was thinking of {rest}." if is_being else f"{verb.capitalize()} {rest}?"
        return (before.format(said=statement), _filled(newest, "{wh}", match["wh"].lower())), "matter"
    if named_speakers:
        before, newest = random.choice(half_of(WORDS["follow_up_same_person"], half))
        for name in named_speakers:
            question = _without(question, name)
        return (before.format(who=" and ".join(named_speakers)), _filled(newest, "{q}", question)), "person"
    return (question, random.choice(half_of(_MORE, half))), "more"


def _telegram(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    content_words = [word for word in question.rstrip("?! ").split() if word.casefold() not in _FUNCTION_WORDS]
    text = random.choice(half_of(WORDS["telegram"], half)).format(q=" ".join(content_words))
    return (re.sub("[?]{3,}", "?", text),), ""


def _lower(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    plain = re.sub(r"[^\w\s]", "", question.replace("-", " ")).casefold()
    return (random.choice(half_of(WORDS["lower"], half)).format(q=" ".join(plain.split())),), ""


def _changed(question: str, conversation: Conversation, half: Half, random: Random) -> _Way:
    """Return a question after a prompt about something else."""
    return (random.choice(conversation.questions).text, question), ""


_WAYS: Mapping[Kind, Callable[[str, Conversation, Half, Random], _Way]] = {
    "bare": _bare,
    "short": _short,
    "long": _long,
    "typo": _typo,
    "follow-up": _follow_up,
    "telegram": _telegram,
    "lower": _lower,
    "changed subject": _changed,
}


def _filled(template: str, slot: str, text: str) -> str:
    """Return the template with the text in its slot, capitalized at the beginning of a sentence."""
    before = template.partition(slot)[0].rstrip()
    if not before or before[-1] in ".!?":
        text = text[0].upper() + text[1:]
    elif before[-1] != ":":
        text = text[0].lower() + text[1:]
    return template.replace(slot, text)


def _without(question: str, name: str) -> str:
    """Return the question with a pronoun instead of the name."""
    he = _PRONOUNS.get(name, ("they", "their", "them"))
    question = re.sub(rf"\b{name}'s\b", he[1], question)
    question = re.sub(rf"^{name}\b", he[0].capitalize(), question)
    after = rf"\b(to|of|with|from|for|about|and|make|makes|give|made|motivates|to) {name}\b"
    question = re.sub(after, rf"\1 {he[2]}", question)
    return re.sub(rf"\b{name}\b", he[0], question)


def misspelt(word: str, random: Random) -> tuple[str, str]:
    """Return the word with one typo, and the kind of typo; rarely in its first letter."""
    while True:
        index = random.randrange(len(word)) if random.random() < 0.1 else random.randrange(1, len(word))
        slip = random.choice(("swapped", "dropped", "doubled", "replaced", "inserted"))
        match slip:
            case "swapped":
                spelt = word[: index - 1] + word[index] + word[index - 1] + word[index + 1 :] if index else word
            case "dropped":
                spelt = word[:index] + word[index + 1 :]
            case "doubled":
                spelt = word[:index] + word[index] + word[index:]
            case "replaced":
                spelt = word[:index] + random.choice(_BESIDE[word[index].lower()]) + word[index + 1 :]
            case _:
                spelt = word[:index] + random.choice(_BESIDE[word[index].lower()]) + word[index:]
        if spelt.lower() != word.lower():
            return spelt, slip


_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {
    letter: row[max(0, index - 1) : index] + row[index + 1 : index + 2]
    for row in _ROWS
    for index, letter in enumerate(row)
}
"""The neighbours of each key on a keyboard."""

_PRONOUNS = {
    **dict.fromkeys(("Caroline", "Melanie", "Gina"), ("she", "her", "her")),
    **dict.fromkeys(("Jon",), ("he", "his", "him")),
}

_ASKED = re.compile(
    r"(?P<wh>(?:When|Where|Why|Who|How|What|Which|In what)\b.*?) "
    r"(?P<verb>did|does|do|is|are|was|were|has|have|had|would|can|could|will) (?P<rest>[^?]+)\?",
)

_MORE = (
    "Do you know any more about that?",
    "Is there anything else you can tell me about it?",
    "Please look once more.",
    "And what do you make of it?",
    "Sorry, could you tell me that again?",
    "Are you certain of that?",
    "How do you know?",
    "And since when?",
    "Could you say that in a few more words?",
    "Is that all?",
    "Go on, what else?",
    "Hm, and what was the reason?",
)

_FUNCTION_WORDS = frozenset(WORDS["function words"])
"""Words that telegrams leave out, and that get no typos."""

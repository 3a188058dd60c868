"""An HR assistant with memories: two conversations days apart, another employee, and a user who is forgotten.

    pip install turnwise
    python examples/hr_policy_chat.py                       with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/hr_policy_chat.py    with a real model, set by OPENAI_BASE_URL and OPENAI_MODEL
    python examples/hr_policy_chat.py --days 40             sets the days between the two conversations
    python examples/hr_policy_chat.py --keep folder         keeps the stored files and the requests there

Static memory has the handbook, for everyone; extractive memory has facts about employees; vector memory has earlier
conversations; working memory has open tasks. The example first sets the clock of all its processes back, so that the
first conversation has the right dates.

Each printed claim was checked in the requests and in the bytes of the files. Exits with 0 only if all are true.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}  # Ray reads it when it is imported: send no statistics

import ray

from turnwise import (
    ExtractiveMemory,
    MemoryConfig,
    OpenAIEngine,
    Session,
    SessionConfig,
    SessionManager,
    StaticMemory,
    Trim,
    Turn,
    VectorMemory,
    WorkingMemory,
    blocks,
)
from turnwise.engines import InferenceRunner, StepContext
from turnwise.memories import Forgotten, LongTermMemory, MemoryType
from turnwise.memory.providers.openai_chat import encode
from turnwise.strategies import ByteCounter
from turnwise.testing import LocalProvider, Message
from turnwise.testing.local_provider.assistant import Memory, assistant_reply, sections_of
from turnwise.testing.local_provider.replies import texts_of

POLICIES = [
    "Annual leave is 28 days a year, and 30 from the sixth year on.",
    "Sick leave needs a doctor's note from the third day on.",
    "Sick leave is paid in full for six weeks, then at seventy percent.",
    "Parental leave takes up to fourteen months, in at most three parts.",
    "Parental leave is paid by the state; the company adds up to eighty percent.",
    "Parental leave is announced seven weeks before it begins.",
    "Remote work is fine on three days a week; the team agrees on which.",
    "Remote work from abroad is limited to 30 days a year, within the EU.",
    "For remote work the company pays 300 euros once, for desk and chair.",
    "Training is five days and 2,000 euros a year for everybody.",
    "Overtime is made up for by time off within three months, and never paid.",
    "To the pension plan the company adds one euro for each that is paid in.",
]

TRAVEL = [
    ("how much may a hotel cost on travel", "On travel a hotel may cost 140 euros a night, 190 in a capital."),
    ("which class of train may travel be booked in", "Travel goes by train, first class from three hours on."),
    ("when may travel go by plane", "Travel goes by plane only where the train takes more than six hours."),
    ("what is the daily allowance on travel", "The daily allowance on travel is 36 euros, less what meals were free."),
    ("by when must expenses be handed in", "Expenses are handed in within 60 days, with a photo of each receipt."),
    ("who approves of expenses", "Expenses over 500 euros need the manager's approval, over 5,000 the controller's."),
    ("how soon are expenses paid back", "Expenses are paid back with the next salary, or within ten days if urgent."),
    ("how often is the laptop replaced", "The laptop is replaced every four years; a broken one on the same day."),
    ("what if equipment is stolen", "Stolen equipment is reported within a day, to the police and to the help desk."),
    ("may equipment be used in private", "Equipment may be used in private, but not by others and not for a business."),
]
"""Questions about travel, expenses and equipment, and the rules that answer them."""

HANDBOOK = [*POLICIES, *(rule for _, rule in TRAVEL)]

SYSTEM = "You help the employees of Northwind. Answer in two sentences, from the handbook and what you remember."

ABOUT_HER = [
    "Hello! My name is Sarah Okonkwo. I work in the Ghent office.",
    "My parental leave is booked from 2 March to 29 May.",
    "I prefer answers in one sentence.",
]
LISBON = "May I do remote work from abroad for two weeks, say from Lisbon?"
LEAVE = "When is my parental leave, and how is parental leave paid?"
HAIKU = "Write a haiku."
SAID = "What did we say about remote work from abroad?"
MOVED = "My parental leave is booked from 16 March to 12 June now."
TYPO = "What did we say about remte work from abraod?"
WRAPPED = (
    f"Good morning, I hope you are well! Quick one before I forget it again. {SAID} Thanks, a brief answer is fine."
)
PORTAL = "Mr Vandamme checks all that goes through the travel portal, before noon."
PORTAL_NAME, PORTAL_ALIAS = "Voyager", "the Beast"
BEAST = "Who approves what I enter into the Beast?"
OFFICE = "In which office do I work?"
FORM = "LV-2291"
TRACES = ["Okonkwo", "Ghent", "2 March", "29 May", "16 March", "12 June", "Lisbon", FORM, "Beast", "Vandamme"]
"""Words that occur only in what Sarah says, or in what is said about her."""

# A byte is a token here: some four times too much for English, but it needs no vocabulary from the network.
CONFIG = SessionConfig(
    max_context_tokens=3_300,
    reserve_output_tokens=300,
    token_counter=ByteCounter(),
    memory=MemoryConfig(max_results=3, max_tokens=1500, profile_tokens=600, timeout_s=20.0),
)

tell = partial(print, flush=True)


def set_clock(file: Path) -> None:
    """Make `time.time` of this process return a time that is earlier by the number of days in the file."""
    now = time.time
    time.time = lambda: now() - 86_400 * float(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Recorder:
    """A middleware that writes each request to a file."""

    file: Path

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[blocks.AnyBlock]:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(encode(turn.blocks)) + "\n")
        return await runner.run(turn, context)


class Story:
    """Asks questions, reads the requests that were sent, and checks claims about them."""

    def __init__(self, sent_requests: Callable[[], list[list[Message]]]) -> None:
        self._sent_requests = sent_requests
        self.messages: list[Message] = []
        """The request for the last answer."""
        self.recalled: dict[str, list[Memory]] = {}
        """The recalled items in it, by section."""
        self.answer = ""

    def ask(self, chat: Session, prompt: str, **options: Any) -> None:
        """Ask, print question and answer, and read the request that was sent."""
        self.answer = chat.run(prompt, **options).wait(120).text
        requests = [messages for messages in self._sent_requests() if texts_of(messages[-1])[-1:] == [prompt]]
        self.messages = requests[-1]
        self.recalled = sections_of(self.messages)
        tell(f"> {prompt}")
        tell(textwrap.indent(textwrap.fill(self.answer, 110), "  "))

    def show(self, *sections: str) -> None:
        """Print these sections of the last request."""
        for name in sections:
            for item in self.recalled.get(name, []):
                tell(f"    <{name}_memory> [{item.when}] {textwrap.shorten(item.text, 90, placeholder=' ...')}")

    def has(self, section: str, text: str) -> bool:
        """Return whether the last request has the text in this section."""
        return any(text in item.text for item in self.recalled.get(section, []))

    @property
    def conversation(self) -> str:
        """The conversation in the last request, without recalled text and without the question."""
        *before, _ = self.messages
        texts = [text for message in before for text in texts_of(message) if message["role"] != "system"]
        return "\n".join(text for text in texts if "_memory>\n" not in text)

    @property
    def request(self) -> str:
        """All texts of the last request."""
        return json.dumps(self.messages, ensure_ascii=False)

    def claim(self, is_so: bool, sentence: str) -> None:
        """Print a claim; end the program if it is false."""
        if not is_so:
            tell(json.dumps(self.messages, indent=2, ensure_ascii=False))
            sys.exit(f"This is not so: {sentence}")
        tell(f"  * {sentence}")


def first_conversation(manager: SessionManager, story: Story) -> None:
    """Sarah introduces herself, and asks so much that it no longer fits the window."""
    chat = manager.open("sarah-1", user_id="sarah")
    for prompt in ABOUT_HER:
        story.ask(chat, prompt)
    story.ask(chat, LISBON)
    story.claim(story.has("static", "limited to 30 days"), "the rule was in the request, from static memory")
    chat.memory.replace_notes(f"To do: send her form {FORM}.")
    for question, _ in TRAVEL:
        chat.run(f"One more thing: {question}?").wait(120)
    tell("  ... and ten questions more, about travel, expenses and equipment")
    chat.memory.wait(120)
    story.ask(chat, LEAVE)
    story.show("profile")
    story.claim("2 March" not in story.conversation, "the window has dropped what she said of her leave")
    story.claim(story.has("profile", "2 March to 29 May"), "extractive memory has put it into the request")
    story.claim("2 March" in story.answer, "so the answer is right")
    chat.memory.wait(120)
    story.ask(chat, HAIKU)
    story.show("profile")
    texts = ("Sarah Okonkwo", "Ghent", "one sentence")
    story.claim(
        all(story.has("profile", text) for text in texts), "who she is stands in each request, whatever it asks"
    )


def second_conversation(manager: SessionManager, story: Story, day: str) -> None:
    """Days later she continues in a new session, which does not have the first conversation."""
    chat = manager.open("sarah-2", user_id="sarah")
    story.ask(chat, LEAVE)
    story.show("profile", "static")
    story.claim(not story.conversation, "it is a new conversation: the request has no message but the question")
    dated = [item for item in story.recalled["profile"] if "2 March to 29 May" in item.text]
    story.claim(bool(dated), "extractive memory knows when the leave is")
    story.claim(dated[0].when.startswith(day), f"and that she said so on {day}")
    story.claim(story.has("static", "Parental leave is paid by the state"), "static memory knows how it is paid")
    story.claim("2 March" in story.answer, "so the answer is right")
    story.claim(FORM in story.request, "working memory knows what is to be done")
    story.ask(chat, SAID, memory="read")
    story.show("vector")
    quotes = [item for item in story.recalled["vector"] if "Lisbon" in item.text]
    story.claim(bool(quotes), "vector memory has what was talked about")
    story.claim(quotes[0].when.startswith(day), f"and that it was on {day}")

    tell("\nSarah, as people write")
    chat.memory.save(PORTAL, type=MemoryType.WORKFLOW, name=PORTAL_NAME, aliases=[PORTAL_ALIAS])
    story.ask(chat, BEAST)
    story.show("procedural")
    story.claim(
        story.has("procedural", PORTAL), f"an item that is named {PORTAL_NAME} is found by its alias, {PORTAL_ALIAS}"
    )
    story.ask(chat, TYPO, memory="read")
    story.show("vector")
    story.claim(story.has("vector", "Lisbon"), "two misspelt words hide nothing")
    story.ask(chat, WRAPPED, memory="read")
    story.show("vector")
    story.claim(story.has("vector", "Lisbon"), "nor do greetings, thanks and small talk around a question")

    tell("\nSarah's leave has moved")
    story.ask(chat, MOVED)
    chat.memory.wait(120)
    chat = manager.open("sarah-3", user_id="sarah")
    story.ask(chat, LEAVE, memory=False)
    story.claim(not story.recalled and FORM not in story.request, "with memory=False a run has nothing from memory")
    story.ask(chat, LEAVE)
    story.show("profile")
    story.claim(story.has("profile", "16 March"), "what has changed is known to her next conversation")
    story.claim(not story.has("profile", "2 March to 29 May"), "and what it was before is no fact any more")
    story.claim("16 March" in story.answer, "so the answer is right")


def another_user(manager: SessionManager, story: Story) -> Session:
    """Another user, Sam, asks the same."""
    chat = manager.open("sam-1", user_id="sam")
    for prompt in (LEAVE, SAID):
        story.ask(chat, prompt)
        words = [word for word in TRACES if word in story.request + story.answer]
        story.claim(not words, "nothing that is Sarah's is in the request, nor in the answer")
    story.claim(story.has("static", "limited to 30 days"), "the handbook is")
    story.ask(chat, "I work in the Porto office.")
    chat.memory.wait(120)
    return chat


def forget(manager: SessionManager, sam: Session, story: Story, data: Path) -> None:
    """Sarah's data is deleted; Sam's is not."""
    story.claim(traces(data, TRACES) == TRACES, f"the files say {', '.join(TRACES)}")
    report = manager.forget("sarah")
    show_report(report)
    story.claim(report.sessions == 3 and report.notes == 1, "all of her sessions are gone, and the notes about her")
    story.claim(all(report.items.values()), "each memory had something of hers")
    story.claim(report.verified, "each memory has searched what it deleted from, and found nothing")
    traces_left = traces(data, TRACES)
    story.claim(
        not traces_left, f"neither is there in any file here{', but for ' * bool(traces_left)}{', '.join(traces_left)}"
    )

    chat = manager.open("sarah-4", user_id="sarah")
    story.ask(chat, LEAVE)
    traces_left = [word for word in TRACES if word in story.request + story.answer]
    story.claim(
        story.recalled.keys() == {"static"} and not traces_left, "she is a stranger now, and has the handbook only"
    )
    story.ask(sam, OFFICE)
    story.show("profile")
    story.claim(story.has("profile", "Porto"), "what Sam has said is still there")


def show_report(report: Forgotten) -> None:
    tell(f"  forgotten: {report.sessions} sessions, {report.notes} note")
    for name, erasure in report.erased.items():
        tell(f"    {name}: {erasure.items} items; {erasure.files} files searched, found in {len(erasure.found)}")


def traces(folder: Path, texts: Sequence[str]) -> list[str]:
    """Return the texts that occur in the bytes of a file."""
    stored_bytes = b"\n".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())
    return [text for text in texts if text.encode() in stored_bytes]


def play(data: Path, engine: OpenAIEngine, story: Story, set_days: Callable[[float], None], days: float) -> None:
    """Run all conversations, with memories in this folder."""
    memories: list[LongTermMemory] = [
        StaticMemory(HANDBOOK),
        ExtractiveMemory(engine, data / "facts.db"),
        VectorMemory(data / "said.db", embedding=None),  # by words alone, so that nothing is downloaded
    ]
    notes = WorkingMemory(data / "notes.db", per="user")
    store = f"sqlite:///{data}/chats.db"
    with SessionManager(
        store, engine=engine, memory=memories, working_memory=notes, overflow=Trim(), config=CONFIG
    ) as manager:
        day = f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%d}"
        tell(f"\nSarah, on {day}")
        first_conversation(manager, story)
        set_days(0)
        tell(f"\nSarah, {days:g} days later")
        second_conversation(manager, story, day)
        tell("\nSam")
        sam = another_user(manager, story)
        tell("\nSarah asks to be forgotten")
        forget(manager, sam, story, data)


def main() -> None:
    parser = argparse.ArgumentParser(description="An HR assistant that remembers, and forgets.")
    parser.add_argument("--days", type=float, default=5.0, help="how many pass between the two conversations")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for what is stored and sent")
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"there is something at {options.keep} already")
    if options.days < 1:
        parser.error("with less than a day between them both may be on the same day")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        home = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-")))
        home = home.resolve()
        data, requests, clock = home / "data", home / "requests.jsonl", home / "days-ago"
        data.mkdir(parents=True)

        key, base_url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        model, provider = os.environ.get("OPENAI_MODEL", "gpt-5-mini"), None
        if not key:
            provider = stack.enter_context(LocalProvider(reply=assistant_reply))
            key, base_url, model = "no-key", provider.base_url, "stand-in"
            os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
        tell(f"An HR assistant, with {model} at {base_url or 'OpenAI'}")

        def sent_requests() -> list[list[Message]]:
            if provider:
                return [record.body["messages"] for record in provider.requests]
            return list(map(json.loads, requests.read_text(encoding="utf-8").splitlines()))

        def set_days(days: float) -> None:
            clock.write_text(str(days), encoding="utf-8")

        def set_back() -> None:
            set_clock(clock)

        set_days(options.days)
        stack.callback(ray.shutdown)
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"worker_process_setup_hook": set_back},
        )
        engine = OpenAIEngine(
            model, base_url=base_url, api_key=key, system=SYSTEM, middleware=[] if provider else [Recorder(requests)]
        )
        play(data, engine, Story(sent_requests), set_days, options.days)
        if provider and options.keep:
            requests.write_text("\n".join(map(json.dumps, sent_requests())), encoding="utf-8")
    tell(f"\nAll of this has happened, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

"""One long conversation, held four times at once: in each, another strategy keeps it within the model's window.

    python examples/long_conversation.py                       with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/long_conversation.py    with a model, set by OPENAI_BASE_URL and OPENAI_MODEL
    python examples/long_conversation.py --turns 80            a shorter one
    python examples/long_conversation.py --keep folder         keeps the conversations, the notebook and the simulated
                                                               model's requests there

An employee introduces herself, asks about the handbook for hundreds of turns, and at last about herself. Exits with 0
only if everything that it prints was checked.
"""
# ruff: noqa: S101, S608 - here an assertion is what is shown, and the SQL is put together from nothing but constants

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import sqlite3
import tempfile
import textwrap
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}  # Ray reads it when it is imported: send no statistics

import ray

from hr_policies import ASKED, FACTS, LEAVE, SYSTEM, conversation
from turnwise import (
    AsyncSession,
    AsyncSessionManager,
    DeleteOldest,
    FlushToMemory,
    MemoryItem,
    OpenAIEngine,
    SessionConfig,
    Summarize,
    Trim,
    Turn,
    blocks,
    events,
)
from turnwise.memories import Scope
from turnwise.memory.longterm.base import Source
from turnwise.memory.providers.openai_chat import decode
from turnwise.strategies import ByteCounter, OverflowStrategy
from turnwise.testing import LocalProvider
from turnwise.testing.local_provider.replies import attentive_reply

# tiktoken's vocabulary may not be on this machine, and nothing here needs the network: so a byte is a token. That is
# some four times too much for English, and the window as large as one of 4,000 tokens.
COUNTER = ByteCounter()
WINDOW, ANSWER = 16_000, 2_000
BUDGET = WINDOW - ANSWER
USER = "mara"


class Notebook:
    """A long-term memory in an SQLite file. It pickles as the file's path, so all processes read the same notes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        rows = [{**_whose(scope), "id": item.id, "turn": item.source.turn_index, "text": item.text} for item in items]
        await self._do("INSERT OR IGNORE INTO notes VALUES (:id, :user, :session, :turn, :text)", *rows)
        return [item.id for item in items]

    async def recall(self, scope: Scope, query: str, *, limit: int = 10, **filters: Any) -> Sequence[MemoryItem]:
        """Return the notes that share most words with the query; the oldest first if equal."""
        select = f"SELECT id, session_id, turn_index, text FROM notes WHERE {_THEIRS} ORDER BY rowid"
        notes = [
            MemoryItem(id=note, text=text, source=Source(session_id=session, turn_index=turn))
            for note, session, turn, text in await self._do(select, _whose(scope))
        ]
        wanted = _words(query)
        return sorted(notes, key=lambda note: -len(wanted & _words(note.text)))[:limit]

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        change = f"UPDATE notes SET text = :text WHERE {_THEIRS} AND id = :id RETURNING id"
        return bool(await self._do(change, {**_whose(scope), "id": id, "text": text}))

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **_: Any) -> int:
        delete = f"DELETE FROM notes WHERE {_THEIRS} AND id = ifnull(:id, id) RETURNING id"
        which = [None] if ids is None else list(ids)
        return len(await self._do(delete, *({**_whose(scope), "id": one} for one in which)))

    async def close(self) -> None:
        """Do nothing: no file is kept open."""

    async def _do(self, statement: str, *rows: Mapping[str, Any]) -> list[Any]:
        def do() -> list[Any]:
            with contextlib.closing(sqlite3.connect(self._path)) as file, file:
                columns = "id TEXT PRIMARY KEY, user_id TEXT, session_id TEXT, turn_index INT, text TEXT"
                file.execute(f"CREATE TABLE IF NOT EXISTS notes ({columns})")
                return [found for row in rows for found in file.execute(statement, row)]

        return await asyncio.to_thread(do)


_THEIRS = "user_id = :user AND session_id = ifnull(:session, session_id)"


def _whose(scope: Scope) -> dict[str, str | None]:
    return {"user": scope.user_id, "session": scope.session_id}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


@dataclass(frozen=True)
class Outcome:
    """The result of one of the conversations."""

    name: str
    seen: tuple[blocks.Block, ...]
    """The model's input with the last question."""
    answer: str
    compacted: list[events.WindowCompacted]
    failed: int
    readable: str
    """The number of turns that are unchanged in the history."""
    expanded: Sequence[blocks.Block]
    """The blocks that the summary replaces, if there is one."""
    notes: Sequence[MemoryItem]
    """The notes that the notebook recalls, the best first."""
    reminded: str
    """The answer if the best note is sent with the question."""

    @property
    def summary(self) -> str:
        return next((block.text for block in self.seen if isinstance(block, blocks.Summary)), "")

    @property
    def known(self) -> str:
        """Where the model's input says when the leave is."""
        texts = [block.text for block in self.seen if isinstance(block, blocks.User | blocks.Text)]
        return "in the summary" if says_when(self.summary) else "as she said it" if says_when(*texts) else "no"


def says_when(*texts: str) -> bool:
    """Return whether the text says when the leave ends."""
    return any("29 May" in text for text in texts)


async def converse(manager: AsyncSessionManager, name: str, prompts: Sequence[str], notebook: Notebook) -> Outcome:
    """Hold the conversation, ask at its end about its beginning, and return the result."""
    chat = await manager.open(name, user_id=USER)
    await chat.append(blocks.System(text=SYSTEM))
    for number, prompt in enumerate(prompts, 1):
        await (await chat.run(prompt))
        if number % 100 == 0:
            tell(f"  {name}: {number} turns")
    last = await (await chat.run(ASKED))

    scope = Scope(user_id=USER, session_id=chat.id)
    notes = await notebook.recall(scope, ASKED, limit=3)
    reminded = f"You have noted this:\n{notes[0].text}\n\n{ASKED}" if notes else ""
    answer = (await (await chat.run(reminded))).text if notes else ""

    happened = await every_event(chat)
    turns = await every_turn(chat)
    asked = [*prompts, ASKED, *filter(None, [reminded])]
    seen = last.blocks[: len(last.blocks) - len(last.output)]
    summary = next((block for block in seen if isinstance(block, blocks.Summary)), None)
    expanded = await chat.expand(summary) if summary else ()
    spoken = [block for turn in turns for block in turn.new_blocks if not isinstance(block, blocks.System)]
    assert list(expanded) == spoken[: len(expanded)]
    return Outcome(
        name=name,
        seen=seen,
        answer=last.text,
        compacted=[event for event in happened if isinstance(event, events.WindowCompacted)],
        failed=sum(isinstance(event, events.CompactionFailed) for event in happened),
        readable=f"{sum(map(is_whole, turns, asked))} of {len(asked)}",
        expanded=expanded,
        notes=notes,
        reminded=answer,
    )


def is_whole(turn: Turn, prompt: str) -> bool:
    """Return whether the turn still has its prompt and an answer."""
    return said(turn.new_blocks) == [prompt] and bool(turn.text)


async def every_turn(chat: AsyncSession) -> list[Turn]:
    """Return all turns, page by page."""
    turns: list[Turn] = []
    while page := await chat.turns(turns[-1].index if turns else -1):
        turns += page
    return turns


async def every_event(chat: AsyncSession) -> list[events.Event]:
    """Return all stored events, page by page."""
    found: list[events.Event] = []
    while page := await chat.events(found[-1].seq if found else 0):
        found += page
    return found


def said(some: Iterable[blocks.Block]) -> list[str]:
    """Return the texts of the user's blocks."""
    return [block.text for block in some if isinstance(block, blocks.User)]


async def side_by_side(store: str, engine: OpenAIEngine, notebook: Notebook, prompts: list[str]) -> list[Outcome]:
    """Hold the conversation once with each strategy, concurrently."""
    strategies: dict[str, OverflowStrategy] = {
        "Trim": Trim(),
        "DeleteOldest": DeleteOldest(20),
        "Summarize": Summarize(engine, trigger_ratio=0.7, max_summary_tokens=3_000),
        "FlushToMemory": FlushToMemory([notebook]),
    }
    config = SessionConfig(max_context_tokens=WINDOW, reserve_output_tokens=ANSWER, token_counter=COUNTER)
    async with contextlib.AsyncExitStack() as stack:
        talks = []
        for name, strategy in strategies.items():
            manager = AsyncSessionManager(store, engine=engine, overflow=strategy, config=config)
            talks.append(converse(await stack.enter_async_context(manager), name, prompts, notebook))
        return await asyncio.gather(*talks)


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the results of the conversations side by side, and then what each model saw."""
    rows: list[tuple[str, list[object]]] = [
        ("compactions", [len(one.compacted) for one in outcomes]),
        ("  tokens before, mean", [mean(event.tokens_before for event in one.compacted) for one in outcomes]),
        ("  tokens after, mean", [mean(event.tokens_after for event in one.compacted) for one in outcomes]),
        ("blocks seen at the end", [len(one.seen) for one in outcomes]),
        ("  of tokens", [f"{sum(map(COUNTER.count, one.seen)):,}" for one in outcomes]),
        ("the model knows it", [one.known for one in outcomes]),
        ("notebook recalls it", [recalled(one) for one in outcomes]),
        ("turns still readable", [one.readable for one in outcomes]),
    ]
    tell(f"\n{'':<23}" + "".join(f"{one.name:>16}" for one in outcomes))
    for title, cells in rows:
        tell(f"{title:<23}" + "".join(f"{cell:>16}" for cell in cells))
    for one in outcomes:
        tell(f"\n[{one.name}] > {ASKED}")
        tell(shortened(one.answer, 110))
        tell("  What the model saw:")
        for block in one.seen[:4]:
            tell(f"    {block.kind:<8} {shortened(getattr(block, 'text', ''), 400 if block.kind == 'summary' else 90)}")
        tell(f"    ... and {len(one.seen) - 4} blocks more")
        if one.expanded:
            prompts = said(one.expanded)
            tell(f"  The summary stands for {len(one.expanded)} blocks, which session.expand gives back:")
            tell(f"    > {prompts[0]}")
            tell(f"    > {prompts[1]}")
            tell(f"    ... and {len(prompts) - 2} prompts more, with their answers, each as it was")
        if one.notes:
            tell(f"  The notebook has it from turn {one.notes[0].source.turn_index}; asked again with that note:")
            tell(f"    {shortened(one.reminded, 110)}")


def recalled(one: Outcome) -> str:
    found = [note.source.turn_index for note in one.notes if says_when(note.text)]
    return f"from turn {found[0]}" if found else "no" if one.notes else "-"


def mean(numbers: Iterable[int]) -> str:
    every = list(numbers)
    return f"{sum(every) / len(every):,.0f}" if every else "-"


def shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


def check(outcomes: Sequence[Outcome], prompts: Sequence[str]) -> None:
    """Raise if a result is not as expected."""
    by_name = {one.name: one for one in outcomes}
    for one in outcomes:
        assert len(one.compacted) > 1
        assert not one.failed
        count, of = one.readable.split(" of ")
        assert count == of
        assert [block.text for block in one.seen if isinstance(block, blocks.System)] == [SYSTEM]
        assert sum(map(COUNTER.count, one.seen)) <= BUDGET
    assert [one.known for one in outcomes] == ["no", "no", "in the summary", "no"]
    assert not says_when(by_name["Trim"].answer, by_name["DeleteOldest"].answer, by_name["FlushToMemory"].answer)
    summarized, flushed = by_name["Summarize"], by_name["FlushToMemory"]
    assert says_when(summarized.answer)
    assert said(summarized.expanded)[: len(FACTS)] == FACTS
    assert recalled(flushed) == f"from turn {prompts.index(LEAVE)}"
    assert says_when(flushed.reminded)


def check_requests(provider: LocalProvider) -> int:
    """Return the size of the largest request. Raise if it is too large, or if a request was not answered completely."""
    assert all(record.finished for record in provider.requests)
    conversations = [decode(record.body["messages"]) for record in provider.requests]
    largest = max(sum(map(COUNTER.count, sent)) + COUNTER.overhead(None, ()) for sent in conversations)
    assert largest <= BUDGET
    return largest


tell = partial(print, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A conversation that outgrows its window, with each of the strategies."
    )
    parser.add_argument(
        "--turns", type=int, default=300, help="how many there are before the last question; 80 or more"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for all that is stored")
    options = parser.parse_args()
    if options.turns < 80:
        parser.error("with fewer than 80 turns not every strategy has to make room twice")
    if options.keep and options.keep.exists():
        parser.error(f"there is something at {options.keep} already")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        home = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-")))
        if options.keep:
            home.mkdir()
        key, base_url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        model = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
        provider = None
        if not key:
            provider = stack.enter_context(LocalProvider(reply=attentive_reply))
            key, base_url, model = "no-key", provider.base_url, "stand-in"
            os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
        prompts = conversation(options.turns)
        tell(f"A conversation of {len(prompts)} turns in a window of {BUDGET:,} tokens, four times at once")
        tell(f"  with {model} at {base_url or 'OpenAI'}")
        tell(f"  it begins: {' '.join(FACTS[:3])}")

        stack.callback(ray.shutdown)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        engine = OpenAIEngine(model, base_url=base_url, api_key=key)
        notebook = Notebook(home.resolve() / "notebook.db")
        store = f"sqlite:///{home.resolve()}/chats.db"
        outcomes = asyncio.run(side_by_side(store, engine, notebook, prompts))
        show(outcomes)
        check(outcomes, prompts)
        if provider:
            largest = check_requests(provider)
            tell(f"\nOf {len(provider.requests)} requests the largest took {largest:,} of {BUDGET:,} tokens")
            if options.keep:
                sent = [json.dumps(record.body) for record in provider.requests]
                (home / "requests.jsonl").write_text("\n".join(sent), encoding="utf-8")
    tell(f"All of this has happened, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

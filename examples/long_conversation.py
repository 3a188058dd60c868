"""One long conversation, held with four strategies at once: what the model still knows when the window is full.

    pip install turnwise
    python examples/long_conversation.py                       with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/long_conversation.py    with a model, set by OPENAI_BASE_URL and OPENAI_MODEL
    python examples/long_conversation.py --turns 80            a shorter one

An employee introduces herself, asks about the handbook for hundreds of turns, and at last about herself. Exits with 0
only if the table is as it has to be. Whatever a strategy removes from requests stays in the history.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import argparse
import asyncio
import logging
import os
import tempfile
import textwrap
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}  # Ray reads it when it is imported: send no statistics

import ray

from turnwise import (
    AnyEvent,
    AsyncSession,
    AsyncSessionManager,
    DeleteOldest,
    FlushToMemory,
    LexicalMemory,
    MemoryConfig,
    OpenAIEngine,
    SessionConfig,
    Summarize,
    Trim,
    Turn,
    blocks,
)
from turnwise.strategies import ByteCounter, OverflowStrategy
from turnwise.testing import LocalProvider, attentive_reply

RULES = [
    ("how many days of annual leave are there", "Annual leave is 28 days a year, and 30 from the sixth year on."),
    ("when does sick leave need a doctor's note", "Sick leave needs a doctor's note from the third day on."),
    ("how long is the notice period", "The notice period is four weeks in the first two years, then three months."),
    ("how much may a hotel cost on travel", "On travel a hotel may cost 140 euros a night, 190 in a capital."),
    ("by when must expenses be handed in", "Expenses are handed in within 60 days, with a photo of each receipt."),
    ("how many days of remote work are fine", "Remote work is fine on three days a week; the team agrees on which."),
    ("how is overtime made up for", "Overtime is made up for by time off within three months, and never paid."),
]
SYSTEM = "You help the employees of Northwind. Answer from the handbook, in two sentences.\n\nHandbook"
SYSTEM += "".join(f"\n- {rule}" for _, rule in RULES)
FACTS = [
    "Hello! I am Mara Lindqvist. I work in the Ghent office.",
    "My parental leave is booked from 2 March to 29 May.",
]
ASKED = "What did I tell you about my parental leave?"
CITIES = ["Lyon", "Porto", "Turin", "Gdansk", "Leipzig", "Bergen", "Tartu"]

# A byte is a token here, so that no vocabulary is needed from the network: some four times too much for English.
COUNTER = ByteCounter()
WINDOW, ANSWER = 6_000, 1_000
BUDGET = WINDOW - ANSWER
CONFIG = SessionConfig(
    max_context_tokens=WINDOW,
    reserve_output_tokens=ANSWER,
    token_counter=COUNTER,
    memory=MemoryConfig(max_results=5, max_tokens=1_000),
)


def conversation(turns: int) -> list[str]:
    """Return her prompts: the facts about her, then questions about the handbook."""
    questions = (
        f"A colleague in {CITIES[number % 7]} would like to know: {RULES[number * 3 % 7][0]}?"
        for number in range(turns)
    )
    return [*FACTS, *questions][:turns]


@dataclass(frozen=True)
class Outcome:
    """What came of the conversation with one of the strategies."""

    strategy: str
    compactions: int
    request: tuple[blocks.AnyBlock, ...]
    """What the model got with the last question, without what memory recalled."""
    recalled: int
    """How many items memory added to that."""
    answer: str
    readable: int
    """How many turns can still be read, each with its prompt and its answer."""
    expanded: tuple[blocks.AnyBlock, ...]
    """The blocks that the summary stands for."""

    @property
    def tokens(self) -> int:
        return sum(map(COUNTER.count, self.request))

    @property
    def source(self) -> str:
        """Where the model knows it from."""
        if "29 May" not in self.answer:
            return "-"
        return "memory" if self.recalled else next(block.kind for block in self.request if "29 May" in str(block))


async def converse(manager: AsyncSessionManager, strategy: str, prompts: list[str]) -> Outcome:
    """Hold the conversation, and ask at its end about its beginning."""
    chat = await manager.open(strategy, user_id="mara")
    await chat.append(blocks.System(text=SYSTEM))
    for number, prompt in enumerate(prompts, 1):
        await (await chat.run(prompt))
        if number % 50 == 0:
            print(f"  {strategy}: {number} turns", flush=True)
    run = await chat.run(ASKED)
    recalled = [sum(event.sent.values()) async for event in run.events() if event.kind == "memory_recalled"]
    last, request_blocks = await run, (await run.input()).blocks
    summary = next((block for block in request_blocks if block.kind == "summary"), None)
    return Outcome(
        strategy=strategy,
        compactions=len([event for event in await every_event(chat) if event.kind == "window_compacted"]),
        request=request_blocks,
        recalled=recalled[-1] if recalled else 0,
        answer=last.text,
        readable=len([turn for turn in await every_turn(chat) if turn.asked and turn.text]),
        expanded=await chat.expand(summary) if summary else (),
    )


async def every_turn(chat: AsyncSession) -> list[Turn]:
    """Return all turns, page by page."""
    turns: list[Turn] = []
    while page := await chat.turns(turns[-1].index if turns else -1):
        turns += page
    return turns


async def every_event(chat: AsyncSession) -> list[AnyEvent]:
    """Return all stored events, page by page."""
    all_events: list[AnyEvent] = []
    while page := await chat.events(all_events[-1].seq if all_events else 0):
        all_events += page
    return all_events


async def side_by_side(folder: str, engine: OpenAIEngine, prompts: list[str]) -> list[Outcome]:
    """Hold the conversation once with each strategy, concurrently."""
    strategies: dict[str, OverflowStrategy] = {
        "Trim": Trim(),  # the oldest exchanges go until the request fits
        "DeleteOldest": DeleteOldest(20),  # twenty at once, so that the provider's cache of the beginning lasts longer
        "Summarize": Summarize(engine, max_summary_tokens=1_500),  # the engine sums up what is old, in the background
        "FlushToMemory": FlushToMemory(),  # what is old goes to long-term memory, which finds it again
    }
    async with AsyncExitStack() as stack:
        talks = []
        for name, strategy in strategies.items():
            manager = AsyncSessionManager(
                f"sqlite:///{folder}/chats.db",
                engine=engine,
                memory=[LexicalMemory(f"{folder}/memory.db")] if name == "FlushToMemory" else [],
                overflow=strategy,
                config=CONFIG,
            )
            talks.append(converse(await stack.enter_async_context(manager), name, prompts))
        return await asyncio.gather(*talks)


def show(outcomes: list[Outcome]) -> None:
    rows: dict[str, list[object]] = {
        "": [outcome.strategy for outcome in outcomes],
        "compactions": [outcome.compactions for outcome in outcomes],
        "blocks in the last request": [len(outcome.request) for outcome in outcomes],
        "  of tokens": [f"{outcome.tokens:,}" for outcome in outcomes],
        "the model knows it from": [outcome.source for outcome in outcomes],
        "turns still readable": [outcome.readable for outcome in outcomes],
    }
    print()
    for title, cells in rows.items():
        print(f"{title:<28}" + "".join(f"{cell!s:>16}" for cell in cells))
    for outcome in outcomes:
        print(f"\n[{outcome.strategy}] > {ASKED}\n  {textwrap.shorten(outcome.answer, 110, placeholder=' ...')}")
        if outcome.expanded:
            first = next(block.text for block in outcome.expanded if block.kind == "user")
            print(f"  The summary stands for {len(outcome.expanded)} blocks; session.expand returns them: {first}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A conversation that outgrows its window, with each strategy.")
    parser.add_argument("--turns", type=int, default=200, help="how many there are before the last question")
    options = parser.parse_args()
    began = time.monotonic()
    with ExitStack() as stack:
        key, base_url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        model = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
        if not key:
            provider = stack.enter_context(LocalProvider(reply=attentive_reply))
            key, base_url, model = "no-key", provider.base_url, "stand-in"
            os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
        prompts = conversation(options.turns)
        print(f"A conversation of {len(prompts)} turns in a window of {BUDGET:,} tokens, four times at once")
        print(f"  with {model} at {base_url or 'OpenAI'}\n  it begins: {' '.join(FACTS)}", flush=True)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-"))
        stack.callback(ray.shutdown)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        engine = OpenAIEngine(model, base_url=base_url, api_key=key)
        outcomes = asyncio.run(side_by_side(folder, engine, prompts))
    show(outcomes)
    assert [outcome.source for outcome in outcomes] == ["-", "-", "summary", "memory"]
    assert all(outcome.compactions > 1 and outcome.tokens <= BUDGET for outcome in outcomes)
    assert all(outcome.readable == len(prompts) + 1 for outcome in outcomes)
    print(f"\nAll of this has happened, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

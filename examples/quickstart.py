"""turnwise in a few seconds: four conversations at once that stream, stop, survive a kill and come back.

    pip install turnwise
    python examples/quickstart.py                       with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/quickstart.py    with a real model, set by OPENAI_BASE_URL and OPENAI_MODEL
    python examples/quickstart.py --db chats.db         keeps the conversations, and continues them the next time

Exits with 0 only if everything that it prints was checked.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import argparse
import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext

# Ray reads these when it is imported: send no statistics, and do not report the process that is killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

import ray
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from turnwise import AsyncExecutionHandle, AsyncSessionManager, OpenAIEngine, RunCancelledError, SessionConfig, events
from turnwise.testing import LocalProvider

RIVERS, WHALES = "Why do rivers meander? Answer in 40 words.", "How do whales sleep? Answer in 40 words."
GLASS, SKY = "What is glass? Answer in 40 words.", "Why is the sky blue? Answer in 40 words."
FIRST = "What was the first thing I asked you?"


async def ask_twice(manager: AsyncSessionManager, screen: "Screen") -> None:
    """Ada asks, reads the streamed answer, and asks about her first question: the session has the history."""
    chat = await manager.open("ada/rivers", user_id="ada")
    for prompt in (RIVERS, FIRST):
        screen.tell(chat.session_id, f"> {prompt}")
        run = await chat.run(prompt)
        _, text = await follow(run, screen)
        turn = await run
        assert turn.text == text
        screen.tell(chat.session_id, f"* turn {turn.index} is in the store")


async def cancel_midway(manager: AsyncSessionManager, screen: "Screen") -> None:
    """Grace cancels in the middle of an answer. The part that she has seen is kept."""
    chat = await manager.open("grace/whales", user_id="grace")
    screen.tell(chat.session_id, f"> {WHALES}")
    run = await chat.run(WHALES)
    _, text = await follow(run, screen, pieces=15)
    await run.cancel(reason="Grace has heard enough")
    try:
        await run
        raise AssertionError("the run was not cancelled")
    except RunCancelledError as error:
        screen.tell(chat.session_id, f"* RunCancelledError: {error.why}")
        partial = error.turn
    assert partial
    assert partial.text.startswith(text)
    screen.tell(chat.session_id, f"* kept in the history: the {len(partial.text.split())} words above")


async def kill_midway(manager: AsyncSessionManager, screen: "Screen") -> None:
    """The process of Alan's session is killed in the middle of an answer. Another one takes over and goes on."""
    chat = await manager.open("alan/glass", user_id="alan")
    screen.tell(chat.session_id, f"> {GLASS}")
    run = await chat.run(GLASS)
    seq, _ = await follow(run, screen, pieces=8)
    pid = (await chat.info()).pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    screen.tell(chat.session_id, f"* process {pid} was killed")
    _, text = await follow(run, screen, after=seq)
    assert (await run).text == text
    screen.tell(chat.session_id, f"* process {(await chat.info()).pid} has answered, and the stream went on")


async def reattach(manager: AsyncSessionManager, screen: "Screen", second_manager: AsyncSessionManager) -> None:
    """Ada's client disconnects in the middle of an answer. Another continues from there; it needs the run's id."""
    chat = await manager.open("ada/sky", user_id="ada")
    screen.tell(chat.session_id, f"> {SKY}")
    run = await chat.run(SKY)
    seq, first_half = await follow(run, screen, pieces=15)
    again = await second_manager.execution(run.run_id, user_id="ada")
    screen.tell(chat.session_id, f"* re-attached to run {run.run_id} after event {seq}")
    _, second_half = await follow(again, screen, after=seq)
    assert second_half
    assert (await again).text == first_half + second_half
    screen.tell(chat.session_id, "* the two halves are the whole answer: nothing is missing, nothing came twice")


async def follow(
    run: AsyncExecutionHandle, screen: "Screen", *, after: int = 0, pieces: int | None = None
) -> tuple[int, str]:
    """Show a streamed answer, all of it or some pieces; return the number of the last event, and the text."""
    pieces_shown: list[str] = []
    async for event in run.events(after):
        after = event.seq
        if isinstance(event, events.RunResumed):
            pieces_shown.clear()
            screen.tell(run.session_id, f"* resumed: {event.why}")
        if isinstance(event, events.TextDelta):
            pieces_shown.append(event.text)
            screen.say(run.session_id, event.text)
            if len(pieces_shown) == pieces:
                break
    screen.show_answer(run.session_id, pieces_shown)
    return after, "".join(pieces_shown)


class Screen:
    """Shows each conversation in a panel of its own if it is a terminal, and line by line elsewhere."""

    def __init__(self) -> None:
        self.console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
        self.is_live = self.console.is_terminal and not self.console.is_dumb_terminal
        self._talks: dict[str, Text] = {}

    def tell(self, talk: str, line: str) -> None:
        self._talks.setdefault(talk, Text()).append(f"\n{line}\n", "bold cyan" if line[0] == ">" else "yellow")
        if not self.is_live:
            print(f"[{talk}] {line}", flush=True)

    def say(self, talk: str, piece: str) -> None:
        self._talks[talk].append(piece)

    def show_answer(self, talk: str, pieces: list[str]) -> None:
        if not self.is_live:
            print(f"[{talk}] {''.join(pieces).strip()} (streamed in {len(pieces)} pieces)", flush=True)

    def __rich__(self) -> Columns:
        width, height = self.console.width // 2 - 1, max(self.console.height // 2 - 2, 6)
        newest = {talk: text.wrap(self.console, width - 4)[2 - height :] for talk, text in self._talks.items()}
        panels = [(talk, Text("\n").join(lines)) for talk, lines in newest.items()]
        return Columns([Panel(text, title=f"[bold]{talk}", width=width, height=height) for talk, text in panels])


async def converse(store: str, engine: OpenAIEngine, screen: Screen) -> None:
    """Hold all four conversations concurrently."""
    config = SessionConfig(on_lost="resume")
    async with (
        asyncio.timeout(90),
        AsyncSessionManager(store, engine=engine, config=config) as manager,
        AsyncSessionManager(store, engine=engine, config=config) as second_manager,
    ):
        with Live(screen, console=screen.console, refresh_per_second=15) if screen.is_live else nullcontext():
            talks = ask_twice, cancel_midway, kill_midway
            await asyncio.gather(*(talk(manager, screen) for talk in talks), reattach(manager, screen, second_manager))
        print("\nIn the store")
        for session in await manager.list():
            print(f"  {session.session_id} of user {session.user_id}: {session.usage.output_tokens} tokens of answers")


def stand_in(messages: list[dict[str, str]]) -> str:
    """Simulate a model: answer known questions, and otherwise repeat the first prompt of the conversation."""
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    recall = f'The first thing was: "{prompts[0]}" And this is message {len(messages)} of our conversation.'
    return LEARNT.get(prompts[-1], recall)


LEARNT = {
    RIVERS: "Where a river bends a little, it runs faster along the outside and carries the bank away, and on the "
    "slow inside it drops what it carried. So bends grow, until a flood cuts through one and leaves a lake behind.",
    WHALES: "With one half of the brain at a time. The other half keeps them swimming, minds the calf and remembers "
    "to come up for air, as a whale breathes only when it decides to. Sperm whales sleep upright, like columns.",
    GLASS: "Sand, soda and lime, melted and then cooled so fast that no crystal had time to form. Its atoms have the "
    "disorder of a liquid and the stiffness of a solid. It does not flow, whatever is said of church windows.",
    SKY: "Sunlight holds all colours, and air scatters the short waves most. So the blue comes to us from everywhere, "
    "while the rest goes straight on. In the evening the way through the air is long, and what arrives is red.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Four conversations at once.")
    parser.add_argument("--db", help="the file where to keep the conversations; by default, they are not kept")
    options = parser.parse_args()
    began = time.monotonic()
    with ExitStack() as stack:
        key, base_url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        model = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
        if not key:
            provider = stack.enter_context(LocalProvider(token_delay_s=0.04, reply=stand_in))
            key, base_url, model = "no-key", provider.base_url, "stand-in"
            os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
        db = options.db or f"{stack.enter_context(tempfile.TemporaryDirectory(prefix='turnwise-'))}/chats.db"
        print(f"Four conversations at once\n  with {model} at {base_url or 'OpenAI'}\n  kept in {db}\n", flush=True)
        stack.callback(ray.shutdown)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        asyncio.run(converse(f"sqlite:///{db}", OpenAIEngine(model, base_url=base_url, api_key=key), Screen()))
    print(f"\nAll of this has happened, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

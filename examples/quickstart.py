"""turnwise in a few seconds: four conversations at once that stream, stop, crash and come back.

    python examples/quickstart.py                       with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/quickstart.py    with a real model, set by OPENAI_BASE_URL and OPENAI_MODEL
    python examples/quickstart.py --db chats.db         keeps the conversations, and continues them the next time

Exits with 0 only if everything that it prints was checked.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Ray reads these when it is imported: send no statistics, and do not report the process that is killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

import ray
from rich.console import Console

from side_by_side import SideBySide
from turnwise import (
    AsyncExecutionHandle,
    AsyncSessionManager,
    OpenAIEngine,
    RunCancelledError,
    RunInterruptedError,
    Turn,
    blocks,
    events,
)
from turnwise.stores import SQLStore
from turnwise.testing import LocalProvider, Message

RIVERS, WHALES = "Why do rivers meander? Answer in 40 words.", "How do whales sleep? Answer in 40 words."
BREAD, GLASS = "Why does bread rise? Answer in 40 words.", "What is glass? Answer in 40 words."
SKY, FIRST = "Why is the sky blue? Answer in 40 words.", "What was the first thing I asked you?"


async def ask_twice(manager: AsyncSessionManager, screen: SideBySide) -> list[Turn]:
    """Ada asks, reads the streamed answer, and asks about her first question."""
    chat = await manager.open("ada/rivers", user_id="ada")
    turns = []
    for prompt in (RIVERS, FIRST):
        screen.ask(chat.id, prompt)
        run = await chat.run(prompt)
        await follow(run, screen)
        turns.append(await run)
        screen.note(chat.id, f"turn {turns[-1].index} is complete and in the store")
    return turns


async def cancel_midway(manager: AsyncSessionManager, screen: SideBySide) -> list[Turn]:
    """Grace cancels in the middle of an answer. The part that she has seen is kept."""
    chat = await manager.open("grace/whales", user_id="grace")
    screen.ask(chat.id, WHALES)
    run = await chat.run(WHALES)
    _, seen = await follow(run, screen, pieces=15)
    await run.cancel(reason="Grace has heard enough")
    try:
        await run
        raise AssertionError("the run was not cancelled")
    except RunCancelledError as error:
        screen.note(chat.id, f"RunCancelledError: {error.why}")
        kept = error.turn
    assert kept
    assert kept.text.startswith(seen)
    assert kept == await chat.latest()
    screen.note(chat.id, f"kept in the history: the {len(kept.text.split())} words above")
    return [kept]


async def kill_and_return(manager: AsyncSessionManager, screen: SideBySide) -> list[Turn]:
    """The process of Alan's session is killed in the middle of a run. The session comes back by itself."""
    chat = await manager.open("alan/bread", user_id="alan")
    screen.ask(chat.id, BREAD)
    run = await chat.run(BREAD)
    await follow(run, screen)
    before, pid = await run, (await chat.info()).pid

    screen.ask(chat.id, GLASS)
    run = await chat.run(GLASS)
    await follow(run, screen, pieces=8)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    screen.note(chat.id, f"process {pid} was killed")
    try:
        await run
        raise AssertionError("the run was not interrupted")
    except RunInterruptedError as error:
        screen.note(chat.id, f"RunInterruptedError: {error.why}")

    screen.ask(chat.id, FIRST)
    run = await chat.run(FIRST)
    await follow(run, screen)
    after, new_pid = await run, (await chat.info()).pid
    assert new_pid != pid
    assert after.blocks[: len(before.blocks)] == before.blocks
    screen.note(chat.id, f"came back as process {new_pid} with the same history")
    return [before, after]


async def reattach(manager: AsyncSessionManager, screen: SideBySide, other_manager: AsyncSessionManager) -> list[Turn]:
    """Ada's client disconnects in the middle of an answer. Another continues from there; it needs only the run's id."""
    chat = await manager.open("ada/sky", user_id="ada")
    screen.ask(chat.id, SKY)
    run = await chat.run(SKY)
    seq, first_half = await follow(run, screen, pieces=15)

    again = await other_manager.execution(run.run_id)
    screen.note(chat.id, f"re-attached to run {run.run_id} after event {seq}")
    _, second_half = await follow(again, screen, after=seq)
    turn = await again
    assert second_half
    assert turn.text == first_half + second_half
    screen.note(chat.id, "the two halves are the whole answer: nothing is missing, nothing came twice")
    return [turn]


async def follow(
    run: AsyncExecutionHandle, screen: SideBySide, *, after: int = 0, pieces: int | None = None
) -> tuple[int, str]:
    """Show a streamed answer, all of it or some pieces; return the number of the last event, and the text."""
    seen: list[str] = []
    async for event in run.events(after):
        after = event.seq
        if isinstance(event, events.TextDelta):
            screen.say(run.session_id, event.text)
            seen.append(event.text)
            if len(seen) == pieces:
                break
    return after, "".join(seen)


async def converse(store: str, engine: OpenAIEngine, screen: SideBySide) -> list[Turn]:
    """Hold all four conversations concurrently; return turns that are now in the store."""
    async with (
        asyncio.timeout(90),
        AsyncSessionManager(store, engine=engine) as manager,
        AsyncSessionManager(store, engine=engine) as other_manager,
    ):
        with screen.live():
            turns = await asyncio.gather(
                ask_twice(manager, screen),
                cancel_midway(manager, screen),
                kill_and_return(manager, screen),
                reattach(manager, screen, other_manager),
            )
    return [turn for some in turns for turn in some]


async def show(db: Path) -> None:
    """Print the conversations from their file, without a session, an engine or Ray."""
    store = SQLStore(f"sqlite:///{db}")
    for session in reversed((await store.query()).items):
        print(f"{session.session_id} of user {session.user_id}")
        for turn in await store.turns(session.session_id):
            for block in map(blocks.decode, await store.blocks([*turn.prompt, *turn.output])):
                if isinstance(block, blocks.User | blocks.Text):
                    print("  >" if isinstance(block, blocks.User) else "   ", block.text)
            if turn.status != "completed":
                print(f"    [{turn.status}]")
        print()
    await store.close()
    assert not ray.is_initialized()


def stand_in(messages: list[Message]) -> str:
    """Simulate a model: answer known questions, and otherwise repeat the first prompt of the conversation."""
    contents = [message["content"] for message in messages if message["role"] == "user"]
    prompts = [content if isinstance(content, str) else content[-1]["text"] for content in contents]
    recall = f'The first thing was: "{prompts[0]}" And this is message {len(messages)} of our conversation.'
    return LEARNT.get(prompts[-1], recall)


LEARNT = {
    RIVERS: "Where a river bends a little, it runs faster along the outside and carries the bank away, and on the "
    "slow inside it drops what it carried. So bends grow, until a flood cuts through one and leaves a lake behind.",
    WHALES: "With one half of the brain at a time. The other half keeps them swimming, minds the calf and remembers "
    "to come up for air, as a whale breathes only when it decides to. Sperm whales sleep upright, like columns.",
    BREAD: "Yeast eats the sugar in the dough and breathes out carbon dioxide. Kneading has made the gluten elastic, "
    "so the gas is caught in thousands of bubbles. In the oven they grow, and then the starch sets around them.",
    GLASS: "Sand, soda and lime, melted and then cooled so fast that no crystal had time to form. Its atoms have the "
    "disorder of a liquid and the stiffness of a solid. It does not flow, whatever is said of church windows.",
    SKY: "Sunlight holds all colours, and air scatters the short waves most. So the blue comes to us from everywhere, "
    "while the rest goes straight on. In the evening the way through the air is long, and what arrives is red.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Four conversations at once that stream, stop, crash and come back.")
    parser.add_argument("--db", type=Path, help="where to keep the conversations; by default, nowhere")
    parser.add_argument("--show", type=Path, metavar="DB", help="only print the conversations that are kept there")
    options = parser.parse_args()
    if options.show:
        if not options.show.is_file():
            parser.error(f"there is no file {options.show}")
        asyncio.run(show(options.show))
        return

    began = time.monotonic()
    screen = SideBySide(Console(force_terminal=sys.stdout.isatty(), highlight=False))
    with contextlib.ExitStack() as stack:
        key, base_url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        model = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
        if not key:
            provider = stack.enter_context(LocalProvider(token_delay_s=0.04, reply=stand_in))
            key, base_url, model = "no-key", provider.base_url, "stand-in"
            os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
        db = options.db or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-")), "chats.db")
        screen.tell(f"Four conversations at once\n  with {model} at {base_url or 'OpenAI'}\n  kept in {db}\n")

        stack.callback(ray.shutdown)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        engine = OpenAIEngine(model, base_url=base_url, api_key=key)
        turns = asyncio.run(converse(f"sqlite:///{db}", engine, screen))

        screen.tell("\nA second process reads them from the store, without Ray\n")
        command = [sys.executable, __file__, "--show", str(db)]
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 - this file
        screen.tell(shown)
        assert all(" ".join(turn.text.split()) in " ".join(shown.split()) for turn in turns)
    screen.tell(f"All of this has happened, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

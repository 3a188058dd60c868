"""A batch of 200 conversations with a progress bar; started again after a kill, it goes on where it was.

    pip install turnwise
    python examples/batch.py                        all in the file batch.db here
    python examples/batch.py --count 1000 --store postgresql://user@host/name

Two processes share the sessions. Without an OPENAI_API_KEY, a simulated model answers.
"""

import argparse
import asyncio
import logging
import os
from contextlib import ExitStack

import ray
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from turnwise import AsyncSessionManager, OpenAIEngine, Packed, RunFailedError, RunInterruptedError, SessionConfig
from turnwise.testing import LocalProvider

AT_ONCE = 20
"""How many conversations go on at the same time: no more than the provider takes."""

PROMPTS = ("Review {number}: the train was {what}. What is it about?", "And is it a complaint? Answer in one word.")
WHATS = ("late", "full", "quiet", "on time", "cold")


async def converse(manager: AsyncSessionManager, number: int) -> None:
    """Hold one conversation, or the rest of it. A key names one run, whoever started it: this program, or a killed one.

    A run that was lost is resumed. One that failed keeps its key, so the prompt is asked again under the next.
    """
    chat = await manager.open(f"review-{number:04}")
    failed = [run.run_id for run in await chat.runs() if run.state in ("failed", "interrupted")]
    for index, prompt in enumerate(PROMPTS):
        for attempt in range(len(failed) + 1):
            words = prompt.format(number=number, what=WHATS[number % len(WHATS)])
            run = await chat.run(words, idempotency_key=f"prompt-{index}-{attempt}")
            if run.run_id not in failed:
                await run
                break
    await chat.end()  # it can still be read


async def ended(manager: AsyncSessionManager) -> set[str]:
    """Return the ids of the conversations that are done, page by page."""
    session_ids: set[str] = set()
    page = await manager.list(status="ended", limit=1000)
    session_ids |= {session.session_id for session in page}
    while page.cursor:
        page = await manager.list(status="ended", limit=1000, cursor=page.cursor)
        session_ids |= {session.session_id for session in page}
    return session_ids


async def work(store: str, engine: OpenAIEngine, count: int) -> None:
    console = Console()
    config = SessionConfig(on_lost="resume")
    async with AsyncSessionManager(store, engine=engine, placement=Packed(hosts=2), config=config) as manager:
        done = await ended(manager)
        print(f"{len(done)} of {count} conversations were done before", flush=True)
        places = asyncio.Semaphore(AT_ONCE)
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("conversations", total=count, completed=len(done))

            async def converse_once(number: int) -> None:
                async with places:
                    try:
                        await converse(manager, number)
                    except (RunFailedError, RunInterruptedError) as error:
                        return print(f"{error}; start this again to repeat it", flush=True)
                progress.advance(bar)
                if not console.is_terminal and progress.tasks[bar].completed % 20 == 0:
                    print(f"{progress.tasks[bar].completed:.0f} of {count}", flush=True)
                return None

            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    if f"review-{number:04}" not in done:
                        group.create_task(converse_once(number))
        used = (await manager.usage()).total
        turns = [await (await manager.get(name)).latest() for name in sorted(await ended(manager))[:3]]
        print(
            f"{count} conversations are done: {used.calls} calls of the model, {used.output_tokens} tokens of answers"
        )
        print("\n".join(f"  {turn.session_id}: {turn.text}" for turn in turns if turn))


def main() -> None:
    parser = argparse.ArgumentParser(description="A batch of conversations.")
    parser.add_argument("--store", default="sqlite:///batch.db", help="where they are kept")
    parser.add_argument("--count", type=int, default=200, help="how many there are")
    options = parser.parse_args()
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    with ExitStack() as stack:
        engine = OpenAIEngine(os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
        if not os.environ.get("OPENAI_API_KEY"):
            provider = stack.enter_context(LocalProvider(token_delay_s=0.02))
            engine = OpenAIEngine("stand-in", base_url=provider.base_url)
        asyncio.run(work(options.store, engine, options.count))


if __name__ == "__main__":
    main()

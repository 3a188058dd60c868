"""Reminders that survive a kill: a bot schedules them, is killed, and the next one brings each of them once.

    pip install turnwise
    python examples/reminders.py                        with a simulated model: no key, no network
    OPENAI_API_KEY=... python examples/reminders.py     with a real model, set by OPENAI_BASE_URL and OPENAI_MODEL

It needs no Ray. Exits with 0 only if everything that it prints was checked.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time

from turnwise import AsyncSession, AsyncSessionManager, InProcess, OpenAIEngine, Turn, events
from turnwise.engines import FunctionEngine

TEA, STRETCH = "Remind me of the tea, please: it has drawn.", "Tell me to stretch."
NEWS = "What is new? It is nine o'clock."


def model() -> OpenAIEngine | FunctionEngine:
    """Return the engine: a model with a key, or a function that says what it was asked."""
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIEngine(os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
    return FunctionEngine(lambda turn: f"As you wished: {prompt_of(turn)}")


def prompt_of(turn: Turn) -> str:
    return next(block.text for block in turn.asked if block.kind == "user")


def bot(store: str) -> AsyncSessionManager:
    return AsyncSessionManager(store, engine=model(), placement=InProcess())


async def schedule_all(store: str) -> None:
    """The first program: it schedules, brings the first reminder, and is killed before the others are due."""
    async with bot(store) as manager:
        chat = await manager.open("chat", user_id="sarah")
        await chat.schedule(STRETCH, after_s=0.2, every_s=3.0, key="stretch")
        await chat.schedule(TEA, after_s=2.0, key="tea")
        await chat.schedule(NEWS, cron="0 9 * * MON-FRI", timezone="Europe/Lisbon", key="news")
        promise = await chat.say("I shall tell you when it is time.", key="promise")  # without asking a model
        turn = await promise.wait()
        print(f"  it says by itself: {turn.text}", flush=True)
        turn = await next_answer(chat, turn.index)
        print(f"  it says by itself: {turn.text}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def next_answer(chat: AsyncSession, after: int = -1) -> Turn:
    """Wait until the session has answered a turn above an index, whoever started its run."""
    seen = 0
    while True:
        page = await chat.events(seen, wait_s=30.0)
        for event in page:
            index = event.turn_index
            if isinstance(event, events.RunCompleted) and index is not None and index > after:
                return await chat.turn(index)
        seen = page[-1].seq if page else seen


async def go_on(store: str) -> None:
    """The second program: it opens the store, which is all that what is due waits for."""
    async with bot(store) as manager:
        chat = await manager.get("chat", user_id="sarah")
        await chat.say("I shall tell you when it is time.", key="promise")  # it was said, and is not said again
        index = 1
        while "tea" in [schedule.key for schedule in await chat.schedules()] or index < 3:
            turn = await next_answer(chat, index)
            index = turn.index
            print(f"  it says by itself: {turn.text}")
        promise, *reminders = await chat.turns()
        assert promise.asked == ()
        assert all(turn.asked for turn in reminders)
        prompts = [prompt_of(turn) for turn in reminders]
        assert prompts.count(TEA) == 1, "the reminder came once, though a program was killed"
        assert prompts.count(STRETCH) >= 2

        moved = await chat.change_schedule("news", cron="30 8 * * *", timezone="Europe/Lisbon")
        print(f"The news come earlier, next {time.ctime(moved.occurs_at)}.")
        assert await chat.cancel_schedule("stretch")
        page = await manager.schedules(user_id="sarah")
        assert [schedule.key for schedule in page] == ["news"]
        print("Still scheduled for sarah:", *(schedule.key for schedule in page))


def main() -> None:
    if len(sys.argv) > 1:
        return asyncio.run(schedule_all(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/reminders.db"
        print("A program schedules three things:")
        killed = subprocess.run([sys.executable, __file__, store], check=False)  # noqa: S603 - it is this file
        assert killed.returncode == -signal.SIGKILL
        print("It was killed. Another one begins after the tea has drawn:")
        time.sleep(2.5)
        asyncio.run(go_on(store))
    return None


if __name__ == "__main__":
    main()

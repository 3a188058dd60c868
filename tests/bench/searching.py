"""Measures search: at 100,000 messages, in SQLite and PostgreSQL; and what it adds to a turn, and to a deletion."""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from harness import Samples, Table
from servers.postgres_server import PostgresServer
from turnwise import AsyncSessionManager, EchoEngine, InProcess
from turnwise.actors.session.state.searched_texts import SearchedTexts
from turnwise.memory.conversation.blocks import Text, User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.search.records import turn_texts
from turnwise.memory.stores.sql.store import SQLStore

GOAL_S, GOAL_RATIO = 0.02, 1.1
"""The most that the median search takes, and a turn, compared with one whose texts are not searched."""

BUSY = "busy"
"""The user who has said a fifth of everything."""

SESSION_TURNS = 50

_WORDS = [f"{first}{second}{third}" for first in "bdfklmnprst" for second in "aeiou" for third in "bdfklmnprstvz"]
_VOCABULARY = [f"{first}{second}" for first in _WORDS for second in ("", *_WORDS[:40])]
_WEIGHTS = [1 / (rank + 3) for rank in range(len(_VOCABULARY))]


def _said(dice: random.Random) -> str:
    """Return some 360 characters, with words that are as unequally frequent as those of people."""
    return " ".join(dice.choices(_VOCABULARY, _WEIGHTS, k=60))


async def _fill(store: SQLStore, messages: int, dice: random.Random) -> None:
    """Store turns of a prompt and an answer, of one busy user and of many others."""
    for number in range(messages // (2 * SESSION_TURNS)):
        user_id = BUSY if number % 5 == 0 else f"user-{number % 97}"
        session = await store.create(SessionRecord(session_id=f"s{number}", user_id=user_id))
        session = (await store.activate(session.key)).session
        blocks, turns, texts = [], [], []
        for index in range(SESSION_TURNS):
            prompt, answer = User(text=_said(dice)), Text(text=_said(dice))
            start = 2 * index
            turn = TurnRecord(
                index=index,
                status="completed",
                created_at=time.time(),
                prompt=(Span(session.log, start, start + 1),),
                output=(Span(session.log, start + 1, start + 2),),
            )
            blocks += [encode(prompt), encode(answer)]
            turns.append(turn)
            texts += turn_texts(session.session_id, turn, None, [prompt], [answer])
        session = replace(session.committed(), log_size=len(blocks), next_index=SESSION_TURNS)
        await store.commit(session.key, session.epoch, Commit(session=session, blocks=blocks, turns=turns, texts=texts))


def _queries(count: int, dice: random.Random) -> Iterator[tuple[str, str]]:
    """Yield users, and what they search for: words that are frequent or not, phrases, beginnings of words."""
    for number in range(count):
        user_id = BUSY if number % 2 else f"user-{dice.randrange(97)}"
        frequent, some = dice.choice(_VOCABULARY[:50]), dice.choices(_VOCABULARY, _WEIGHTS, k=2)
        queries = (frequent, " ".join(some), f'"{some[0]} {frequent}"', some[0][:3], dice.choice(_VOCABULARY))
        yield user_id, queries[number % len(queries)]


async def _searches(table: Table, url: str, name: str, messages: int, rounds: int) -> None:
    dice = random.Random(7)
    store = SQLStore(url)
    await _fill(store, messages, dice)
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        samples = Samples()
        for user_id, text in _queries(rounds, dice):
            with samples.timed():
                await manager.search(user_id, text)
        title = f"search in {messages:,} messages, {name}"
        table.judge(title, samples.median * 1000, GOAL_S * 1000, " ms", samples)
    deletions = Samples()
    for number in range(min(10, messages // 200)):
        with deletions.timed():
            await store.delete(SessionKey(f"s{5 * number}", BUSY))
    table.line("  deletion of a session of 50 turns there", deletions)
    await store.close()


async def _turns(table: Table, urls: tuple[str, str], name: str, rounds: int) -> None:
    """Measure turns in two sessions in turn, of which one is not searched."""
    dice = random.Random(3)
    searched, plain = Samples(), Samples()
    async with (
        AsyncSessionManager(urls[0], engine=EchoEngine(), placement=InProcess(), namespace="searched") as first,
        AsyncSessionManager(urls[1], engine=EchoEngine(), placement=InProcess(), namespace="plain") as second,
    ):
        chat = await first.open("searched")
        await (await chat.run("hello")).wait()
        with _not_searched():
            other = await second.open("plain")
            await (await other.run("hello")).wait()
        for _ in range(rounds):
            for session, samples in dice.sample(((chat, searched), (other, plain)), 2):
                text = _said(dice)
                with samples.timed():
                    await (await session.run(text)).wait()
    table.line(f"turn in process that is not searched, {name}", plain)
    ratio = statistics.median(searched) / statistics.median(plain)
    table.judge("  that is searched, to that", ratio, GOAL_RATIO, "x", searched)


@contextmanager
def _not_searched() -> Iterator[None]:
    """Let sessions that are loaded meanwhile give no texts to their store."""
    make = SearchedTexts.__init__

    def without(self: SearchedTexts, *args: object) -> None:
        make(self, *args)  # type: ignore[arg-type]
        self.is_on = False

    with mock.patch.object(SearchedTexts, "__init__", without):
        yield


def measure(table: Table, *, messages: int, rounds: int) -> None:
    """Measure and print all of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-stores-")))
        folder.chmod(0o755)  # the server of PostgreSQL may run under a user of its own
        postgres = PostgresServer(folder)
        stack.callback(postgres.stop, "immediate")
        for name in ("SQLite", "PostgreSQL"):

            def url(of: str, name: str = name) -> str:
                return f"sqlite:///{folder}/{of}.db" if name == "SQLite" else postgres.url()

            asyncio.run(_searches(table, url("found"), name, messages, rounds))
            asyncio.run(_turns(table, (url("searched"), url("unsearched")), name, rounds))

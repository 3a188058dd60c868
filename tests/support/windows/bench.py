"""A provider that answers and summarizes, and checks of the sent requests, for tests of the window on Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from test_agents_on_ray import is_alive, obey

from patience import until
from stored.audit import check_session, store_of, turns_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window.summary_expansion import originals
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Summary,
    System,
    Text,
    User,
    decode as decode_block,
)
from turnwise.memory.conversation.events import WindowCompacted
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.providers.openai_chat import PARAGRAPH, SUMMARY, decode, encode
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.summary_task import PROMPT
from turnwise.testing import LocalProvider, Message
from turnwise.testing.local_provider.message_rules import check_chat
from turnwise.testing.local_provider.replies import text_of
from windows.models import Gate

WAIT_S = 120.0


LIMIT = 700


COUNTER = ByteCounter()


MODEL, SMALL = "talker", "summarizer"


CALL, RAMBLE = "Call a tool.", "Be long."


Fact = tuple[str, str]


def ask(number: int) -> str:
    return f"p{number:02} {'x' * 30}"


def answer(number: int) -> str:
    return f"as to p{number:02} {'y' * 30}"


def exchanges(start: int, stop: int) -> list[Fact]:
    return [fact for number in range(start, stop) for fact in (("user", ask(number)), ("assistant", answer(number)))]


def shown_parts(messages: Sequence[Message]) -> tuple[str | None, list[Fact]]:
    """Return the earlier summary that a summarizer got, if there was one, and the messages after it."""
    lines = text_of(messages[-1]).partition("\n\n")[0].splitlines()
    records = [next(iter(json.loads(line).items())) for line in lines]
    earlier = [text for role, text in records if role.startswith("summary")]
    assert len(earlier) <= 1 and all(role.startswith("summary") for role, _ in records[: len(earlier)]), (
        "it comes first"
    )
    return next(iter(earlier), None), records[len(earlier) :]


def respond(messages: list[Message]) -> str | Message:
    """Sum up, if that is asked for; do as a prompt of `agent_tools.prompt` says; else answer."""
    prompt = text_of(messages[0])
    if prompt.startswith(PROMPT[:40]):
        if CALL in prompt:
            return {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "dig", "arguments": "{}"}}]}
        if RAMBLE in prompt:
            return "so " * 100
        earlier, facts = shown_parts(messages)
        names = [text.split()[0][:3] for role, text in facts if role == "user"]
        return f"Talked of {earlier.split()[2] if earlier else names[0]} to {names[-1]}"
    content = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    question = (content if isinstance(content, str) else content[-1]["text"]).split(PARAGRAPH)[-1]
    return obey(messages) if question.startswith("{") else f"as to {question.split()[0]} {'y' * 30}"


class Bench:
    """Managers of one test, and what the provider was sent."""

    def __init__(self, make_manager: Callable[..., SessionManager], provider: LocalProvider) -> None:
        self.provider = provider
        self._make_manager = make_manager

    def engine(self, model: str = MODEL, **settings: Any) -> OpenAIEngine:
        return OpenAIEngine(model, **{"base_url": self.provider.base_url, "max_retries": 0, **settings})

    def summarize(self, gate: Gate | None = None, **settings: Any) -> Summarize:
        model = self.engine(SMALL, middleware=[gate] if gate else [])
        return Summarize(model, **{"max_summary_tokens": 150, **settings})

    def manager(self, overflow: Any, config: Mapping[str, Any] | None = None, **settings: Any) -> SessionManager:
        settings.setdefault("engine", self.engine())
        return self._make_manager(overflow=overflow, config=configured(**(config or {})), **settings)

    def sent_requests(self, model: str = MODEL) -> list[Message]:
        """Return the bodies of the requests to the model, in order."""
        return [record.body for record in self.provider.requests if record.body["model"] == model]

    def last(self) -> list[Message]:
        """Return the last conversation that was sent."""
        messages: list[Message] = self.sent_requests()[-1]["messages"]
        return messages

    def summed_up(self) -> list[tuple[str | None, list[Fact]]]:
        """Return the earlier summary and the messages of each request for a summary."""
        return [shown_parts(body["messages"]) for body in self.sent_requests(SMALL)]

    def check(self, limit: int = LIMIT) -> None:
        """Check that each request fits, is valid, and has one system prompt at most."""
        for body in self.sent_requests():
            check_chat(body["messages"])
            assert tokens_taken(body) <= limit
            assert [message["role"] for message in body["messages"]].count("system") <= 1


def configured(**settings: Any) -> SessionConfig:
    window = {"max_context_tokens": LIMIT, "token_counter": COUNTER, "reserve_output_tokens": 0}
    return SessionConfig(**{**window, **settings})


def tokens_taken(body: Message) -> int:
    """Return how many tokens a request takes, counted from its body."""
    blocks = [part for block in decode(body["messages"]) for part in parted(block)]
    return sum(map(COUNTER.count, blocks)) + COUNTER.overhead(None, body.get("tools") or ())


def parted(block: Block) -> list[Block]:
    """Return the texts of the user that were sent as one."""
    return [User(text=text) for text in block.text.split(PARAGRAPH)] if isinstance(block, User) else [block]


def facts(messages: Sequence[Message]) -> list[Fact]:
    """Return the messages of a request without the system prompt; the role of a summary is `summary`."""
    texts: list[Fact] = []
    for block in decode(messages):
        for part in parted(block):
            if isinstance(part, User) and part.text.startswith(SUMMARY):
                texts.append(("summary", part.text.removeprefix(SUMMARY)))
            elif isinstance(part, User | Text):
                texts.append(("user" if isinstance(part, User) else "assistant", part.text))
    return texts


def facts_of(blocks: Iterable[Block]) -> list[Fact]:
    return facts(encode([block for block in blocks if not isinstance(block, System)]))


def talk(chat: Session, start: int, stop: int) -> None:
    for number in range(start, stop):
        assert chat.run(ask(number)).wait(WAIT_S).text == answer(number)


def talk_until_due(chat: Session, start: int = 0) -> int:
    """Talk until something is to go, and return the number of the next prompt; it may be under way, or done."""
    number, before = start, len(events_of(chat, WindowCompacted))
    while number == start or (chat.compact(explain=True) is None and len(events_of(chat, WindowCompacted)) == before):
        talk(chat, number, number + 1)
        number += 1
        assert number < start + 20
    return number


def events_of(chat: Session, kind: type[Any]) -> list[Any]:
    return [event for event in chat.events() if isinstance(event, kind)]


def compacted(chat: Session, count: int) -> list[WindowCompacted]:
    """Wait until the window has been compacted `count` times."""
    until(lambda: len(events_of(chat, WindowCompacted)) >= count)
    compactions = events_of(chat, WindowCompacted)
    assert len(compactions) == count
    return compactions


def noted(gate: Gate, *notes: str) -> None:
    """Wait until this is what the gate has noted."""
    until(lambda: gate.notes() == list(notes))


def gone_from(pid: int) -> None:
    """Wait until the process has left."""
    until(lambda: not is_alive(pid))


def summary_of(turn: Turn | None) -> Summary:
    assert turn
    (summary,) = (block for block in turn.blocks if isinstance(block, Summary))
    return summary


class _Runs:
    """A store without turns: what `check_session` looks at is then what holds across compactions, too."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def turns(self, key: SessionKey, **page: Any) -> list[TurnRecord]:
        return []


def audit(manager: SessionManager, session_id: str, *, user_id: str = DEFAULT_USER, drops: bool = False) -> list[Turn]:
    """Check what is in the store, without the session; return its turns.

    Events and runs are as ever. Each turn could be sent to a provider. With its summaries expanded it holds all earlier
    messages, once and in order, then the new ones; with `drops`, some of the earlier ones.
    """

    async def check() -> list[Turn]:
        store = store_of(manager)

        async def read(spans: Spans) -> tuple[AnyBlock, ...]:
            return tuple(map(decode_block, await store.blocks(spans)))

        await check_session(_Runs(store), session_id, user_id=user_id)
        turns = await turns_of(store, SessionKey(session_id, user_id))
        before: list[Block] = []
        for turn in turns:
            check_chat(encode([*turn.blocks, User(text="next")]))
            blocks: list[Block] = []
            for block in turn.blocks:
                if isinstance(block, Summary):
                    blocks += await read(await originals(block, read))
                elif not isinstance(block, System):
                    blocks.append(block)
            new = [block for block in turn.new_blocks if not isinstance(block, System)]
            assert blocks[len(blocks) - len(new) :] == new, f"{turn} has lost what is its own"
            remaining = iter(before)
            if drops:
                assert all(block in remaining for block in blocks[: len(blocks) - len(new)]), (
                    f"{turn} holds something twice"
                )
            else:
                assert blocks == [*before, *new], f"{turn} does not stand for all that was said"
            before += new
        await store.close()
        return turns

    return asyncio.run(check())

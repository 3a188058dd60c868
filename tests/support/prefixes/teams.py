"""Replicas of a model that record their requests, and what they read of those of sessions that call agents."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from prefixes.cache import PrefixCache, parts_of
from turnwise import AsyncSessionManager, InProcess, LexicalMemory, OpenAIEngine
from turnwise.engines import Replicas, agent_tool
from turnwise.memory.values.ids import new_id
from turnwise.stores import InMemoryItems
from turnwise.testing import LocalProvider, Message, tool_script
from turnwise.testing.local_provider.replies import Answer

_TASKS = [{"task": f"Timetable of {vehicles}"} for vehicles in ("trains", "buses")]

_CALLS = tool_script([[("search", task) for task in _TASKS], "Take the train."])


@contextmanager
def served(count: int = 3, **settings: Any) -> Iterator[list[LocalProvider]]:
    """Serve so many replicas, with these settings of `LocalProvider`."""
    with ExitStack() as stack:
        yield [stack.enter_context(LocalProvider(**settings)) for _ in range(count)]


def caches_of(providers: Sequence[LocalProvider]) -> list[PrefixCache]:
    """Return the caches of replicas after all of their requests."""
    caches = [PrefixCache() for _ in providers]
    for cache, provider in zip(caches, providers, strict=True):
        for request in provider.requests:
            cache.read([token for part in parts_of(request.body) for token in part])
    return caches


async def prefilled_by_teams(shares_prefix: bool, users: int = 6) -> int:
    """Return how many tokens three replicas read for users of whom much is known, each of whose chats calls two agents.

    Args:
        shares_prefix: whether agents have their caller's engine, so that they go where it is; if not, they have an
            equal one of another name, so that they have keys of their own.
    """
    engine_name = "main" if shares_prefix else "equal"
    search = agent_tool("search", engine=engine_name, description="Searches.", memory="read")
    settings: dict[str, Any] = {"memory": [LexicalMemory(InMemoryItems())], "placement": InProcess()}
    with served(reply=_searching) as providers:
        router = Replicas([provider.base_url for provider in providers])
        engine = OpenAIEngine("local", router=router, system="Be brief. " * 30, tools=[search])
        engines = {"main": engine, "equal": engine}
        async with AsyncSessionManager(f"memory://{new_id()}", engine=engines, **settings) as manager:
            for number in range(users):
                chat = await manager.open("chat", user_id=new_id())
                await chat.memory.pin(await chat.memory.save(f"I am number {number}. {f'I like {number}. ' * 40}"))
                await (await chat.run("How do I get to Paris?")).wait()
        return sum(cache.prefilled for cache in caches_of(providers))


def _searching(messages: list[Message]) -> Answer:
    """Call two agents, or answer as one of them."""
    return "There is one at nine." if "Timetable of" in str(messages[-1]["content"]) else _CALLS(messages)

"""The conformance kit: laws as tests of pytest and as a table, on what other packages might have, right and wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

import httpx2
import openai
import pytest

from processes.forks import Fork
from turnwise import Dedicated, EchoEngine, OpenAIEngine, Packed, Trim
from turnwise.adapters import AgentsSDKEngine, AnthropicEngine, LangGraphEngine, PydanticAIEngine
from turnwise.conformance import check_engine, laws_of, placements, plugin, report, reports
from turnwise.conformance.__main__ import main as command_line
from turnwise.conformance.reports import Kind
from turnwise.errors import InvalidInputError, SessionNotFoundError
from turnwise.memories import LexicalMemory
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.static import StaticMemory
from turnwise.stores import InMemoryHistory, InMemoryItems, InMemoryStore
from turnwise.testing import LocalProvider

THEIRS = """
from turnwise import EchoEngine, Trim
from turnwise.memories import LexicalMemory
from turnwise.stores import InMemoryItems, InMemoryHistory, InMemoryStore

_made = {}


def shared(cls):
    return lambda law: _made.setdefault((cls, law), cls())


store, events, items = shared(InMemoryStore), shared(InMemoryHistory), shared(InMemoryItems)


class Forgetful(InMemoryStore):
    async def runs(self, session_id, **page):
        return []


forgetful = shared(Forgetful)


def engine(law):
    return EchoEngine(token_delay_s=0.02 if law == "a_cancel_ends_the_run" else 0.0)
"""


def per_law(make: Callable[[], Any]) -> Callable[[str], Any]:
    made: dict[str, Any] = {}
    return lambda law: made.setdefault(law, make())


def pytest_with_laws(folder: Path, *args: str) -> tuple[int, str]:
    """Return the exit code of a pytest in another process, and what it says."""
    (folder / "their_package.py").write_text(THEIRS)

    def check() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.exit(pytest.main(["-p", "turnwise.conformance.plugin", "-p", "no:cacheprovider", *args]))

    with Fork(check) as process:
        said = process.out.read()
        return process.wait(), said


def test_pytest_checks_each_law_of_another_packages_objects_and_prints_and_writes_a_table(tmp_path: Path) -> None:
    made = ["--turnwise-event-store=their_package:events", "--turnwise-engine=their_package:engine"]
    code, said = pytest_with_laws(tmp_path, "-v", *made, "--turnwise-report=laws.json")
    assert code == 0, said
    found = {each["kind"]: each for each in map(json.loads, (tmp_path / "laws.json").read_text().splitlines())}
    assert found["event-store"]["passed"] == len(laws_of("event-store")) and found["event-store"]["failed"] == 0
    assert [law["law"] for law in found["engine"]["laws"]] == laws_of("engine") and found["engine"]["skipped"] == 2
    assert "a_cancel_ends_the_run" in said
    assert "its model did not fail: return an engine whose model fails for this law" in said
    assert f"{len(laws_of('engine'))} laws: {len(laws_of('engine')) - 2} passed, 0 failed, 2 skipped" in said


def test_pytest_names_the_laws_that_a_wrong_store_breaks(tmp_path: Path) -> None:
    code, said = pytest_with_laws(
        tmp_path, "-k", "runs", "--turnwise-store=their_package:forgetful", "--turnwise-report=r"
    )
    (found,) = map(json.loads, (tmp_path / "r").read_text().splitlines())
    broken = [law["law"] for law in found["laws"] if law["verdict"] == "failed"]
    assert code == 1 and "runs_come_in_pages" in broken and "runs_come_in_pages: " in said


def test_what_cannot_be_imported_or_called_is_refused_before_any_law() -> None:
    for name in ("no_such_package:make", "turnwise:nothing", "turnwise.stores", "turnwise:__version__"):
        with pytest.raises(pytest.UsageError, match="pass module:function"):
            plugin.loaded(name)


def test_the_command_line_checks_single_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package_of_another.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for args, code in ((["an_id_is_taken_once"], 0), (["--json", "runs_come_in_pages"], 1)):
        monkeypatch.setattr(sys, "argv", ["laws", "store", "package_of_another:forgetful", *args])
        assert command_line() == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 1


# One planted fault for each group of laws


class TakesIdsTwice(InMemoryStore):
    async def create(
        self, session: Any, turn: Any = None, also: Any = (), deliveries: Any = (), texts: Any = ()
    ) -> Any:
        try:
            return await super().create(session, turn, also, deliveries, texts)
        except Exception:  # noqa: BLE001 - the fault
            return await self.get(session.session_id)


class ListsAllUsers(InMemoryStore):
    async def count(self, **filters: Any) -> int:
        return await super().count()


class TakesStaleCommits(InMemoryStore):
    async def commit(self, key: SessionKey, epoch: int, commit: Any) -> None:
        now = await self.get(key)
        session = replace(commit.session, epoch=now.epoch)
        await super().commit(key, now.epoch, replace(commit, session=session))


class LosesEvents(InMemoryStore):
    async def events(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> Any:
        return [event for event in await super().events(key, after=after, limit=limit) if event.turn_index is None]


class LosesForks(InMemoryStore):
    async def create(
        self, session: Any, turn: Any = None, also: Any = (), deliveries: Any = (), texts: Any = ()
    ) -> Any:
        turn = None if turn is None else replace(turn, input=(), output=())
        return await super().create(session, turn, (), deliveries, texts)


class TakesStaleChanges(InMemoryStore):
    async def change_delivery(self, change: Any) -> None:
        stored = await self.delivery(change.before.session_key, change.before.key)
        await super().change_delivery(replace(change, before=stored))


class DeletesNothing(InMemoryHistory):
    async def delete(self, key: SessionKey, **which: Any) -> None:
        return None


class SeesAllAgents(InMemoryItems):
    async def query(self, scope: Scope, *args: Any, **options: Any) -> Any:
        return await super().query(Scope(user_id=scope.user_id), *args, **options)


class RemembersForAll(LexicalMemory):
    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Any:
        return await super().remember(Scope(user_id="all"), items)

    async def recall(self, scope: Scope, query: str, **options: Any) -> Any:
        return await super().recall(Scope(user_id="all"), query, **options)


class NeverDecides:
    def decide(self, window: Any, budget: Any) -> None:
        return None

    def due(self, window: Any, budget: Any) -> bool:
        return False


class Careless(EchoEngine):
    """An engine that answers with thoughts alone."""

    def build(self, session: Any) -> Any:
        class Runner:
            async def run(self, turn: Any, context: Any) -> Sequence[AnyBlock]:
                context.emit("this is never said ")
                return [Thinking(text="hm"), Text(text=" ")]

        return Runner()


class Deaf(EchoEngine):
    """An engine that a cancel does not stop, and whose failures are answers."""

    def build(self, session: Any) -> Any:
        class Runner:
            async def run(self, turn: Any, context: Any) -> Sequence[AnyBlock]:
                context.emit("on and on ")
                while True:
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        continue

        return Runner()


FAULTS: list[tuple[Kind, Any, str]] = [
    ("store", per_law(TakesIdsTwice), "an_id_is_taken_once"),
    ("store", per_law(ListsAllUsers), "filters_are_literal"),
    ("store", per_law(TakesStaleCommits), "a_stale_owner_is_refused"),
    ("store", per_law(LosesEvents), "every_event_comes_back"),
    ("store", per_law(LosesForks), "a_fork_starts_with_its_turn"),
    ("store", per_law(TakesStaleChanges), "a_change_of_a_delivery_is_compared_first"),
    ("event-store", per_law(DeletesNothing), "events_of_turns_are_deleted"),
    ("item-store", per_law(SeesAllAgents), "a_scope_sees_items_of_its_agent_and_of_all_agents"),
    ("memory", per_law(lambda: RemembersForAll(InMemoryItems())), "users_are_separate"),
    ("read-only-memory", lambda items: StaticMemory(items[1:]), reports.READ_ONLY),
    ("strategy", lambda case: NeverDecides(), "budget_met"),
    ("engine", lambda law: Careless(), "an_answer_is_blocks_that_each_provider_takes"),
    ("engine", lambda law: Careless(), "what_is_streamed_is_what_is_answered"),
    ("engine", lambda law: Deaf(), "a_cancel_ends_the_run"),
]


@pytest.mark.parametrize(("kind", "make", "law"), FAULTS)
def test_a_planted_fault_breaks_the_law_that_forbids_it(
    kind: Kind, make: Any, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "SEEDS", 20)
    monkeypatch.setattr("turnwise.conformance.engines.GRACE_S", 0.2)
    found = report(kind, make, [law])
    assert [(each.law, each.verdict) for each in found.outcomes if each.verdict != "passed"] == [(law, "failed")]
    assert not found.ok and law in str(found) and found.outcomes[0].why


async def test_a_law_of_placements_cleans_up_also_what_a_repeated_delete_has_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone:
        session_id = "s"

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def list(self) -> list[Gone]:
            return [self]

        async def get(self, session_id: str) -> Gone:
            return self

        async def delete(self) -> None:
            raise SessionNotFoundError("s")

    monkeypatch.setattr(placements, "AsyncSessionManager", Gone)
    async with placements.managers(Packed(hosts=1)):
        pass


def test_an_unknown_law_or_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="must be one of"):
        report("store", per_law(InMemoryStore), ["nothing"])
    with pytest.raises(InvalidInputError, match="event-store"):
        laws_of("shop")  # type: ignore[arg-type]


def test_strategies_of_our_own_keep_all_laws_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "SEEDS", 20)
    found = report("strategy", lambda case: Trim(), subject="Trim")
    assert found.ok and found.count("passed") == len(laws_of("strategy")) and "order_kept" in str(found)


# Our own engines


def slow_for_a_cancel(law: str) -> Any:
    return EchoEngine(token_delay_s=0.02 if law == "a_cancel_ends_the_run" else 0.0)


async def test_the_echo_engine_keeps_the_laws_of_engines() -> None:
    await check_engine(slow_for_a_cancel)


def openai_engine(url: str, api: Any = "chat") -> Any:
    return OpenAIEngine("local", api=api, base_url=url, api_key="none", max_retries=0)


def anthropic_engine(url: str) -> Any:
    return AnthropicEngine("claude", base_url=url.removesuffix("/v1"), max_retries=0)


def client_of(url: str) -> openai.AsyncOpenAI:
    """Return a client that leaves no connection open, as nobody closes it."""
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http)


def agents_sdk_agent(url: str) -> Any:
    from agents import Agent, OpenAIChatCompletionsModel, set_tracing_disabled

    set_tracing_disabled(True)
    return Agent(name="guide", model=OpenAIChatCompletionsModel("local", client_of(url)))


def agents_sdk_engine(url: str) -> Any:
    return AgentsSDKEngine(partial(agents_sdk_agent, url))


def langgraph_graph(url: str) -> Any:
    from frameworks.langgraph_models import OpenAIChat, agent

    return agent(OpenAIChat(base_url=url))


def langgraph_engine(url: str) -> Any:
    return LangGraphEngine(partial(langgraph_graph, url))


def pydantic_ai_agent(url: str) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel("local", provider=OpenAIProvider(openai_client=client_of(url))))


def pydantic_ai_engine(url: str) -> Any:
    return PydanticAIEngine(partial(pydantic_ai_agent, url), name="guide")


@pytest.mark.parametrize(
    ("engine", "skipped"),
    [
        (openai_engine, []),
        (partial(openai_engine, api="responses"), []),
        (anthropic_engine, []),
        (agents_sdk_engine, []),
        (langgraph_engine, ["what_it_refuses_is_not_stored"]),  # its model may take any picture or file
        (pydantic_ai_engine, ["what_it_refuses_is_not_stored"]),
    ],
    ids=["openai-chat", "openai-responses", "anthropic", "agents-sdk", "langgraph", "pydantic-ai"],
)
def test_an_engine_of_ours_keeps_the_laws_of_engines(
    engine: Callable[[str], Any], skipped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")

    def make(law: str) -> Any:
        if law == "a_failure_ends_only_its_run":
            return engine("http://127.0.0.1:9/v1")
        return engine((slow if law == "a_cancel_ends_the_run" else provider).base_url)

    with LocalProvider() as provider, LocalProvider(token_delay_s=0.3) as slow:
        found = report("engine", make)
    assert found.ok and len(found.outcomes) == len(laws_of("engine")), str(found)
    assert [outcome.law for outcome in found.outcomes if outcome.verdict == "skipped"] == skipped, str(found)


def test_the_guide_counts_the_laws_of_each_kind() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/conformance.md").read_text(encoding="utf-8")
    counted = dict(re.findall(r"^\| `([a-z-]+)`.*? \| (\d+) \|", guide, re.MULTILINE))
    assert counted == {kind: str(len(laws_of(kind))) for kind in get_args(Kind)}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_placement_without_room_breaks_the_law_that_sessions_run_beside_one_another() -> None:
    law = "sessions_run_beside_one_another"
    found = report("placement", lambda law: Dedicated(max_live=1), [law])
    assert found.count("failed") == 1 and "max_live" in found.outcomes[0].why, str(found)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_packed_hosts_keep_the_laws_of_placements() -> None:
    found = report("placement", lambda law: Packed(hosts=1), subject="Packed(hosts=1)")
    assert found.ok and found.count("passed") == 4, str(found)

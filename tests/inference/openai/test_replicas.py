"""Sessions keep to the replica that has their prefix, move when it is gone or busy, and spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from prefixes.cache import PrefixCache, parts_of
from prefixes.teams import caches_of, prefilled_by_teams, served
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.replicas import Replicas, ranked
from turnwise.errors import ConfigError, RunFailedError
from turnwise.memory.values.ids import new_id
from turnwise.testing import LocalProvider

URLS = [f"http://replica-{number}/v1" for number in range(5)]


def first(key: str, urls: Sequence[str] = URLS, **more: Any) -> str:
    return ranked(urls, key, **{"loads": dict.fromkeys(urls, 0), "away": (), "bound": 1.25, "busy_from": 1, **more})[0]


def test_keys_spread_and_only_those_of_a_lost_server_move() -> None:
    before = {key: first(key) for key in map(str, range(2000))}
    counts = Counter(before.values())
    assert len(counts) == 5 and max(counts.values()) < 1.15 * 400 and min(counts.values()) > 0.85 * 400
    for key, url in before.items():
        after = first(key, URLS[1:])
        assert after == url or url == URLS[0], "the others stay"
        assert (first(key, away=[URLS[0]]) == after) or url == URLS[0]


@pytest.mark.parametrize("busy_from", [1, 8])
@pytest.mark.parametrize("seed", range(5))
def test_no_server_has_more_than_its_bounded_share(seed: int, busy_from: int) -> None:
    dice, loads = Random(seed), Counter[str]()
    open_requests: list[str] = []
    for _ in range(3000):
        if open_requests and dice.random() < 0.45:
            loads[open_requests.pop(dice.randrange(len(open_requests)))] -= 1
        key = "hot" if dice.random() < 0.7 else str(dice.randrange(50))
        away = [url for url in URLS if dice.random() < 0.1]
        order = ranked(URLS, key, loads=loads, away=away, bound=1.25, busy_from=busy_from)
        assert sorted(order) == sorted(URLS), "each is tried at last"
        if len(away) < 5:
            assert order[0] not in away
        if not away:
            mean = (len(open_requests) + 1) / 5
            assert loads[order[0]] + 1 <= max(1.25 * mean + 1, busy_from)
        open_requests.append(order[0])
        loads[order[0]] += 1


def test_a_server_with_few_requests_is_not_busy() -> None:
    home = first("chat")
    for count in range(10):
        loads = {url: count * (url == home) for url in URLS}
        assert (first("chat", loads=loads, busy_from=8) == home) == (count < 8)


def test_a_busy_server_is_passed_over_for_the_same_one_each_time() -> None:
    home = first("chat")
    elsewhere = {first("chat", loads={url: 9 * (url == home) for url in URLS}) for _ in range(5)}
    assert len(elsewhere) == 1 and home not in elsewhere
    assert first("", loads={url: number for number, url in enumerate(URLS)}) == URLS[0], "without a key, by load"


def managed(engine: OpenAIEngine) -> AsyncSessionManager:
    return AsyncSessionManager(f"memory://{new_id()}", engine=engine, placement=InProcess())


async def test_a_session_and_its_forks_keep_to_one_replica_which_reuses_their_prefix() -> None:
    with served() as providers:
        router = Replicas([provider.base_url for provider in providers])
        async with managed(OpenAIEngine("local", router=router, system="Be brief. " * 30)) as manager:
            for number in range(6):
                chat = await manager.open(f"chat {number}")
                for turn in range(4):
                    await (await chat.run(f"{number}, turn {turn}: {'more words ' * 20}")).wait()
                await (await (await chat.fork()).run("and a fork")).wait()
        homes = [{request.body["messages"][1]["content"] for request in each.requests} for each in providers]
        assert sum(map(len, homes)) == 6, "each conversation is at one place"
        caches = caches_of(providers)
        prefilled = sum(cache.prefilled for cache in caches)
        everything = sum(cache.prefilled + cache.reused for cache in caches)
        in_turn = [PrefixCache() for _ in providers]
        requests = sorted((request for each in providers for request in each.requests), key=lambda one: one.started_at)
        for number, request in enumerate(requests):
            in_turn[number % 3].read([token for part in parts_of(request.body) for token in part])
        assert prefilled * 2 < sum(cache.prefilled for cache in in_turn) < everything


@pytest.mark.by_turns
async def test_agents_like_their_caller_reuse_its_prefix_and_its_users_profile() -> None:
    by_their_callers, by_keys_of_their_own = [await prefilled_by_teams(shares) for shares in (True, False)]
    assert by_their_callers < by_keys_of_their_own


async def test_a_session_moves_when_its_replica_is_gone_and_goes_back_when_that_is_back() -> None:
    with served() as providers:
        by_url = {provider.base_url: provider for provider in providers}
        router = Replicas(list(by_url), away_s=0.0)
        async with managed(OpenAIEngine("local", router=router)) as manager:
            chat = await manager.open("chat")
            await (await chat.run("one")).wait()
            (home,) = [provider for provider in providers if provider.requests]
            home.close()
            assert "two" in (await (await chat.run("two")).wait()).text
            with LocalProvider(port=home.port) as back:
                await (await chat.run("three")).wait()
                assert len(back.requests) == 1


async def test_a_replica_that_is_busy_is_passed_over_for_this_request() -> None:
    with served(2) as providers:
        router = Replicas([provider.base_url for provider in providers])
        engine = OpenAIEngine("503-once", router=router, max_retries=1)  # each refuses its first
        async with managed(engine) as manager:
            turn = await (await (await manager.open("chat")).run("one")).wait()
        counts = sorted(len(provider.requests) for provider in providers)
        assert "one" in turn.text and counts == [1, 2], "only the last one is asked again"


@pytest.mark.parametrize(
    ("fault", "max_retries", "request_count"),
    [
        ("503", 0, 3),  # busy ones have not begun
        ("429", 0, 3),
        ("500", 0, 1),  # others may have worked on it
        ("500", 1, 2),
        ("cut", 0, 1),  # it has read the request
        ("cut", 1, 2),
        ("408", 5, 1),  # it may be at work
        ("504", 5, 1),
    ],
)
async def test_no_other_replica_is_asked_more_often_than_retries_allow(
    fault: str, max_retries: int, request_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[str] = []
    monkeypatch.setattr(Replicas, "gone", lambda _, url: gone.append(url))
    with served() as providers:
        router = Replicas([provider.base_url for provider in providers])
        engine = OpenAIEngine(fault, router=router, max_retries=max_retries, stream=False)
        async with managed(engine) as manager:
            with pytest.raises(RunFailedError):
                await (await (await manager.open()).run("one")).wait()
        assert sum(len(provider.requests) for provider in providers) == request_count
    assert not gone, "each can be reached"


async def test_where_no_replica_can_be_reached_the_run_says_so() -> None:
    router = Replicas(["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"])
    async with managed(OpenAIEngine("local", router=router, max_retries=0)) as manager:
        with pytest.raises(RunFailedError, match="cannot be reached"):
            await (await (await manager.open()).run("one")).wait()


@pytest.mark.parametrize(
    "settings",
    [
        {"urls": []},
        {"urls": ["a", "a"]},
        {"urls": "http://a"},
        {"urls": URLS, "bound": 1},
        {"urls": URLS, "away_s": -1},
        {"urls": URLS, "busy_from": 0},
    ],
    ids=repr,
)
def test_wrong_replicas_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Replicas"):
        Replicas(**settings)


def test_a_router_takes_the_place_of_a_url() -> None:
    wrong: list[dict[str, Any]] = [{"router": Replicas(URLS), "base_url": URLS[0]}, {"router": Replicas(["ftp://a"])}]
    for settings in wrong:
        with pytest.raises(ConfigError, match="router"):
            OpenAIEngine("local", **settings)

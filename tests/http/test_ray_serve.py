"""The service on Ray Serve: two replicas, of which one is killed, and which are replaced, while they stream."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from servers.served import Follower, served, start
from turnwise.errors import ConfigError
from turnwise.http.config import load
from turnwise.testing.local_provider.server import LocalProvider

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve's own
    from ray import serve
    from ray.serve import Application

    from turnwise.http.ray_serve import APP, Replica, _Replica, deployment, serve_on_ray

EXAMPLE = Path(__file__).parents[2] / "examples/serve_config.yaml"
TEXT = " ".join(f"word{n}" for n in range(60))


def replicas(ray: Any) -> set[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in actors if actor["name"].startswith("SERVE_REPLICA::")}


@pytest.mark.soak
def test_clients_resume_at_another_replica_when_theirs_is_killed_or_replaced(
    ray_session: Any, ray_address: str, tmp_path: Path
) -> None:
    with LocalProvider(token_delay_s=0.3, reply=lambda _: TEXT) as provider:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        store, model = f"sqlite:///{tmp_path}/chats.db", {"model": "m", "base_url": provider.base_url}
        words = [store, "--model", model["model"], "--base-url", model["base_url"]]
        words += ["--port", str(port), "--packed", "1", "--workers", "2", "--ray-serve"]
        with served(*words, RAY_ADDRESS=ray_address) as service:
            assert len(before := replicas(ray_session)) == 2  # noqa: RUF018
            with followed(service.url, "killed") as cuts:
                ray_session.kill(ray_session.get_actor(min(before), namespace="serve"))
            assert cuts
            before = replicas(ray_session)
            with followed(service.url, "replaced"):
                update = {"store": store, "engines": {"main": model}, "packed": {"hosts": 1}, "anonymous": True}
                serve.run(deployment(update), name=APP)
            wait_until(lambda: not replicas(ray_session) & before)
            assert len(provider.requests) == 2
            assert service.stop() == 0
        assert not replicas(ray_session)


@contextmanager
def followed(url: str, session: str) -> Iterator[list[int]]:
    """Have six clients follow a run while something happens; each has each event once. Yields where they were cut."""
    run = start(url, session, "Tell me a long story.")
    followers = [Follower(run) for _ in range(6)]
    cuts: list[int] = []
    threads = [threading.Thread(target=follow, args=(follower, url, cuts)) for follower in followers]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(follower.events) > 3 for follower in followers))
    yield cuts
    for thread in threads:
        thread.join(120)
    for follower in followers:
        follower.check(TEXT)


def follow(follower: Follower, url: str, cuts: list[int]) -> None:
    while not follower.is_done():
        with suppress(AssertionError):  # 503 while Serve finds out
            for _ in follower.read(url):
                pass
        if not follower.is_done():
            cuts.append(len(follower.events))
            time.sleep(0.2)


def wait_until(holds: Any) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come true within a minute")


def test_the_example_of_a_deployment_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-tests")
    monkeypatch.setenv("TURNWISE_HTTP_TOKENS", '{"a-very-secret-token": "ann"}')
    (app,) = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["applications"]
    assert app["import_path"] == f"{deployment.__module__}:{deployment.__name__}"
    assert [entry["name"] for entry in app["deployments"]] == [Replica.name]
    assert isinstance(deployment(app["args"]), Application)


def test_a_deployment_without_users_must_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("[engines.main]\nobject = 'serve_objects:engine'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="anonymous=False: every client that reaches Serve could do everything"):
        deployment({"config": str(file)})
    assert isinstance(deployment({"config": str(file), "anonymous": "true"}), Application)
    with pytest.raises(ConfigError, match="run `turnwise console` beside"):
        deployment({"config": str(file), "anonymous": "true", "console": "true"})


def test_a_serve_that_runs_already_is_not_given_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.http.ray_serve.connect", lambda **_: None)
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(proxies={"node": "HEALTHY"}))
    settings: dict[str, Any] = {
        "store": "memory://beside",
        "engines": {"own": {"object": "serve_objects:engine"}},
        "port": 0,
    }
    with pytest.raises(ConfigError, match="Serve runs on this Ray, and keeps its address: use `serve deploy`"):
        serve_on_ray(*load(**settings), ready=lambda *_: None)


async def test_a_replica_that_ends_ends_its_streams_before_its_manager() -> None:
    done: list[str] = []

    async def close() -> None:
        done.append("manager")

    assembly: Any = SimpleNamespace(
        service=SimpleNamespace(stop=lambda: done.append("streams")), manager=SimpleNamespace(close=close)
    )
    await _Replica.__del__(SimpleNamespace(_assembly=assembly))  # type: ignore[arg-type]
    assert done == ["streams", "manager"]

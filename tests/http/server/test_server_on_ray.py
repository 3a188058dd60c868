"""Real services: what they print, how they stop, and what their clients get when one of their processes is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from servers.served import Follower, command_of, half_open, served, start
from turnwise.testing.local_provider.server import LocalProvider

pytestmark = pytest.mark.ray

TEXT = " ".join(f"word{n}" for n in range(60))
PROMPT = "Tell me a long story."


def options(folder: Path, provider: LocalProvider) -> list[str]:
    base = ["--model", "m", "--base-url", provider.base_url, "--port", "0", "--packed", "1"]
    return [f"sqlite:///{folder}/chats.db", *base]


def test_sigterm_in_a_stream_hands_the_client_to_the_next_process(ray_address: str, tmp_path: Path) -> None:
    with LocalProvider(token_delay_s=0.1, reply=lambda _: TEXT) as provider:
        words = options(tmp_path, provider)
        with served(*words, RAY_ADDRESS=ray_address) as service:
            follower = Follower(start(service.url, "chat", PROMPT))
            for event in follower.read(service.url):
                if event["kind"] == "text_delta":
                    service.process.send_signal(signal.SIGTERM)
            assert not follower.is_done()
            assert service.process.wait(60) == 0
        with served(*words, RAY_ADDRESS=ray_address) as service:
            for _ in follower.read(service.url):
                pass
        follower.check(TEXT)
        assert len(provider.requests) == 1


def test_no_secret_is_in_what_it_prints_or_logs(ray_address: str, tmp_path: Path) -> None:
    tokens = json.dumps({"ann-has-a-secret-token": "ann"})
    right, wrong = ({"Authorization": f"Bearer {token}"} for token in ("ann-has-a-secret-token", "a-guessed-token"))
    with (
        LocalProvider(reply=lambda _: "fine") as provider,
        served(
            *options(tmp_path, provider),
            log=tmp_path / "log.txt",
            RAY_ADDRESS=ray_address,
            TURNWISE_HTTP_TOKENS=tokens,
            OPENAI_API_KEY="sk-of-the-model",
        ) as service,
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):
        assert client.post("/v1/sessions", json={"id": "chat"}, headers=right).is_success
        run = client.post("/v1/sessions/chat/runs", json={"prompt": "hello"}, headers=right).json()
        assert client.get(f"/v1/runs/{run['id']}/wait?timeout_s=60", headers=right).json()["state"] == "completed"
        assert client.get("/v1/sessions/chat", headers=wrong).status_code == 401
        assert client.get("/v1/sessions?token=ann-has-a-secret-token").status_code == 401
        assert client.get("/v1/nothing", headers=right).status_code == 404
        assert service.stop() == 0
    output = "".join(service.printed) + (tmp_path / "log.txt").read_text(encoding="utf-8")
    for secret in ("ann-has-a-secret-token", "a-guessed-token", "sk-of-the-model"):
        assert secret not in output


def test_half_open_connections_lock_no_user_out(ray_address: str, tmp_path: Path) -> None:
    log, tokens = tmp_path / "log.txt", json.dumps({"ann-has-a-secret-token": "ann"})
    settings: dict[str, Any] = {"RAY_ADDRESS": ray_address, "TURNWISE_HTTP_TOKENS": tokens}
    headers = {"Authorization": "Bearer ann-has-a-secret-token"}
    with (
        LocalProvider(reply=lambda _: "fine") as provider,
        served(*options(tmp_path, provider), log=log, files=256, **settings) as service,
        httpx.Client(base_url=service.url, timeout=60, headers=headers) as client,
    ):
        for number, _ in enumerate(half_open(urlsplit(service.url).port or 0, 3 * 256)):
            with httpx.Client(base_url=service.url, timeout=60, headers=headers) as second_client:
                assert second_client.post("/v1/sessions", json={"id": f"chat-{number}"}).is_success
                ran = second_client.post(f"/v1/sessions/chat-{number}/runs?wait_s=60", json={"prompt": "hello"})
                assert ran.json()["state"] == "completed"
        assert client.get("/v1/count").json() == {"sessions": 12}
        assert service.stop() == 0
    assert log.stat().st_size < 20_000, log.read_text(encoding="utf-8")[:4000]


def test_workers_share_the_ray_that_their_parent_starts(tmp_path: Path) -> None:
    with (
        LocalProvider(reply=lambda _: "fine") as provider,
        served(*options(tmp_path, provider), "--workers", "2") as service,
    ):
        assert len(service.workers) == 2
        run = start(service.url, "chat", PROMPT)
        for _ in range(10):  # each by a connection of its own, which either of them takes
            assert httpx.get(f"{service.url}/v1/runs/{run}/wait", timeout=60).json()["text"] == "fine"
        assert len(provider.requests) == 1
        assert service.stop() == 0


@pytest.mark.soak
def test_workers_killed_in_the_middle_of_a_stream_lose_no_event(ray_address: str, tmp_path: Path) -> None:
    with (
        LocalProvider(token_delay_s=0.2, reply=lambda _: TEXT) as provider,
        served(*options(tmp_path, provider), "--workers", "2", RAY_ADDRESS=ray_address) as service,
    ):
        first = service.workers
        assert len(first) == 2
        follower = Follower(start(service.url, "chat", PROMPT))
        killed: list[int] = []
        for event in follower.read(service.url):
            if event["kind"] == "text_delta" and not killed:
                killed = first
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
        assert killed == first and not follower.is_done()
        for _ in range(100):
            for _ in follower.read(service.url):
                pass
            if follower.is_done():
                break
        follower.check(TEXT)
        assert len(provider.requests) == 1
        assert len(service.workers) == 2 and not set(first) & set(service.workers)
        assert service.stop() == 0


def test_workers_end_when_their_parent_is_killed(ray_address: str, tmp_path: Path) -> None:
    words = ["--demo", "--port", "0", "--packed", "1", "--workers", "2"]
    with served(f"sqlite:///{tmp_path}/chats.db", *words, RAY_ADDRESS=ray_address) as service:
        workers = service.workers
        assert len(workers) == 2
        service.process.kill()
        assert service.process.wait(60) == -signal.SIGKILL
        for _ in range(600):
            if not any(map(command_of, workers)):
                return
            time.sleep(0.1)
        pytest.fail(f"{workers} still run")

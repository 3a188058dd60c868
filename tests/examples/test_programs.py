"""Examples of one file each, run without a key: short ones in one process after another, others as a user would."""

import ast
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from pages.snippets import SnippetRunner
from processes.example_program import EXAMPLES, play_example, started_example

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

WORDS = " ".join(f"word{number}" for number in range(40))


EXPECTED = {
    "adapters/anthropic_model.py": [
        "It is 55 m deep. (thinking, tool_use, tool_result, thinking, text; ",
        " tokens were cached)",
    ],
    "adapters/langgraph_store.py": ["refused: thread 'sarah'", "You said: Do whales", "You said: And dolphins?"],
    "adapters/pydantic_ai_agent.py": ["pay waits", "It is paid. (tool_use, tool_result, text)", "4 messages"],
    "adapters/front_ends.py": ['"type":"start"', '"delta":"Hi there!"', "[DONE]", "after a reconnect"],
    "custom_engine.py": ["12 tokens, stopped by length", "kept: True", "and the next turn: 'the "],
    "custom_memory.py": ["keeps the laws", "card ...1111", "card ...0004", "4111 1111 1111 1111"],
    "custom_store.py": ["keeps the laws", "create plans", "commit plans completed", "delete plans"],
    "custom_strategy.py": ["keeps the laws in 300 random", "Plan a week", "What about day 11?", "Is it done?"],
    "replay.py": [
        "15 turns, 0 calls of the tool",
        "100%, by chance 0%",
        "tokens out: ",
        "thanks: 100%, then 0%",
        "report",
    ],
    "adapters/mcp_tools.py": ["It comes tomorrow.", "model\norder\nmodel"],
    "adapters/agents_sdk_agent.py": ["waits for pay({'euros': 700})", "The hotel is paid."],
    "adapters/agents_sdk_session.py": ["You said: Do whales", "refused: session 'sarah' is busy", "'assistant'"],
    "adapters/langgraph_memory.py": ["sarah: I know: []", "sarah: I know: ['I eat no meat.']", "tom: I know: []"],
    "adapters/mcp_server.py": ["'recall'", "'text': 'Hello!'", "Sarah eats no meat.", "'turns': 1"],
    "adapters/message_lists.py": ["And tomorrow?", "'tool', 'assistant'", "tool_use', 'tool_result", "refused: "],
    "adapters/pydantic_ai_history.py": ["'It is in Paris.'", "6 messages, and 4 in the branch"],
    "adapters/langgraph_graph.py": ["waits for interrupt({'pay': 'the hotel', 'euros': 700})", "The hotel is paid."],
}
"""What examples print, in order."""


@pytest.mark.parametrize("program", EXPECTED)
def test_an_example_does_what_it_says(program: str, snippets: SnippetRunner, tmp_path: Path) -> None:
    text = (EXAMPLES / program).read_text(encoding="utf-8")
    printed = snippets.run(text, tmp_path, hidden=["OPENAI_", "ANTHROPIC_"])
    positions = [printed.find(words) for words in EXPECTED[program]]
    assert -1 not in positions and positions == sorted(positions), printed
    assert program != "custom_strategy.py" or "What about day 0?" not in printed, "it is neither first nor new"


@pytest.mark.by_turns
def test_a_person_approves_from_another_process(ray_address: str, tmp_path: Path) -> None:
    printed = play_example(ray_address, tmp_path, "approval_over_http.py")
    positions = [
        printed.find(words) for words in ("approved, for 700 euros", "call_decided", "completed: The hotel is paid.")
    ]
    assert -1 not in positions and positions == sorted(positions), printed


@pytest.mark.by_turns
def test_a_batch_goes_on_where_a_kill_left_it(ray_address: str, tmp_path: Path) -> None:
    with started_example(ray_address, tmp_path, "batch.py", "--count", "60") as process:
        assert process.stdout
        assert process.stdout.readline() == "0 of 60 conversations were done before\n"
        assert process.stdout.readline() == "20 of 60\n"
        process.kill()
    printed = play_example(ray_address, tmp_path, "batch.py", "--count", "60")
    first, *_ = printed.splitlines()
    assert 20 <= int(first.split()[0]) < 60
    assert "60 conversations are done: " in printed
    assert "review-0000: You said: And is it a complaint?" in printed


@pytest.mark.by_turns
def test_replicas_of_ray_serve_answer_for_each_others_sessions(ray_address: str, tmp_path: Path) -> None:
    printed = play_example(ray_address, tmp_path, "ray_serve_chat.py", timeout_s=250)
    assert printed.index("* a replica was killed") < printed.index("You said: And how long? (message 3 of")
    assert "sarah's session has 4 messages, the first: 'Do whales sleep?'" in printed
    assert "tom's session has 2 messages, the first: 'Do rivers sleep?'" in printed


@pytest.mark.by_turns
def test_a_stream_of_fastapi_goes_on_when_its_worker_is_killed_and_another_is_stopped(
    ray_address: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    args = "--port", str(port), "--workers", "2"
    with (
        started_example(ray_address, tmp_path, "fastapi_chat.py", *args) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        wait_until_up(client)
        assert "<form>" in client.get("/").text
        started = client.post("/chats/trip", params={"prompt": WORDS}).raise_for_status().json()
        assert client.post("/chats/trip", params={"prompt": "again"}).status_code == 409
        numbered = follow(client, started["run"], most=5)
        os.kill(started["worker"], signal.SIGKILL)
        wait_until_up(client)
        numbered += follow(client, started["run"], numbered[-1][0])
        numbers = [number for number, _ in numbered]
        assert numbers == sorted(set(numbers)) and numbered[-1][1]["kind"] == "run_completed"
        text = "".join(event["text"] for _, event in numbered if event["kind"] == "text_delta")
        assert WORDS in text

        run = client.post("/chats/other", params={"prompt": WORDS}).raise_for_status().json()["run"]
        follow(client, run, most=5)
        with httpx.Client(base_url=client.base_url, timeout=60) as second_client:
            assert second_client.post(f"/runs/{run}/stop").json() == {"state": "cancelled"}
        assert follow(client, run)[-1][1]["kind"] == "run_cancelled"
        assert client.get("/runs/none").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def wait_until_up(client: httpx.Client) -> None:
    for _ in range(600):
        try:
            client.get("/")
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError("it did not listen within two minutes")


def follow(client: httpx.Client, run: str, after: int = 0, most: int = 10_000) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbers and events of a run's stream, up to so many."""
    numbered: list[tuple[int, dict[str, Any]]] = []
    number = 0
    with client.stream("GET", f"/runs/{run}", headers={"Last-Event-ID": str(after)}) as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            if line.startswith("data: {") and line != "data: {}":
                numbered.append((number, json.loads(line[6:])))
            if len(numbered) == most:
                break
    return numbered


INSTALLED = {"turnwise", "ray", "rich", "numpy", "openai", "fastapi", "uvicorn", "httpx2", "mcp"}
"""What `pip install turnwise[http,mcp]` and `ray[serve]` bring, as far as examples import it."""

NAMES = sorted(file.relative_to(EXAMPLES).as_posix() for file in EXAMPLES.rglob("*.py"))

FRAMEWORKS = {"agents", "langchain_core", "langgraph", "pydantic_ai"}
"""What examples of adapters import, which say so."""


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("adapters/")])
def test_an_example_of_an_adapter_has_at_most_40_lines_and_is_run(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 40
    assert name in EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_first_what_it_shows_and_what_to_install(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    first = text.splitlines()[0]
    assert first.startswith('"""') and first.endswith(".") and len(first) > 40
    assert "    pip install " in text
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
    available = INSTALLED | FRAMEWORKS if name.startswith("adapters/") else INSTALLED
    available |= {beside.stem for beside in (EXAMPLES / name).parent.glob("*.py")}
    assert {name.partition(".")[0] for name in names} <= available | sys.stdlib_module_names
    assert f"`{name}`" in (EXAMPLES.parent / "docs/reference/examples.md").read_text(encoding="utf-8")

"""The official clients of front ends, from npm: what they make of our streams, and their requests to a service.

`make test-frontends` installs them into `.front-ends`, for which it needs node, npm and a network.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_agents_on_ray import obey
from test_front_ends import ENCODERS, encoded, random_run, read

from frameworks.front_end_readers import AgUiThread, UiMessage
from servers.http_service import ANN, TOKENS, manager_of, on_server
from tools.agent_tools import prompt
from turnwise.adapters import Frame
from turnwise.http import create_app
from turnwise.testing import LocalProvider

pytestmark = [pytest.mark.frontends, pytest.mark.timeout(300)]

INSTALLED = Path(__file__).parents[3] / ".front-ends"

CLIENTS = Path(__file__).with_name("clients.mjs")

SEEDS = range(200)


async def ask_clients(request: str, **options: Any) -> Any:
    """Return what the clients answer."""
    assert INSTALLED.is_dir(), f"there is no {INSTALLED}: run 'make test-frontends'"
    program = shutil.copy(CLIENTS, INSTALLED)  # node looks for packages beside it
    pipe = asyncio.subprocess.PIPE
    node = await asyncio.create_subprocess_exec("node", program, stdin=pipe, stdout=pipe, stderr=pipe)
    out, errors = await node.communicate(json.dumps({"request": request, **options}).encode())
    assert node.returncode == 0, errors.decode()
    return json.loads(out)


def body(frames: Sequence[Frame]) -> str:
    return b"".join(frame.encode() for frame in frames).decode()


FIELDS = ("type", "text", "state", "toolCallId", "input", "output", "errorText", "data", "approval", "url")


def parts_of(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of a message, without an empty step at the end and what nobody has said."""
    shown_parts = [{name: part[name] for name in FIELDS if part.get(name) is not None} for part in parts]
    while shown_parts and shown_parts[-1]["type"] == "step-start":
        shown_parts.pop()
    return shown_parts


async def test_the_official_clients_agree_with_the_readers_of_the_tests() -> None:
    runs = {name: [encoded(make(), random_run(seed).events) for seed in SEEDS] for name, make in ENCODERS.items()}
    replayed = await ask_clients(
        "replayed", vercel=list(map(body, runs["vercel"])), agUi=list(map(body, runs["ag_ui"]))
    )
    for chat, frames in zip(replayed["vercel"], runs["vercel"], strict=True):
        message: UiMessage = read("vercel", frames)
        assert parts_of(chat["messages"][-1]["parts"]) == parts_of(message.parts)
        assert (chat["messages"][-1]["id"], chat.get("error")) == (message.id, message.error)
    for agent, frames in zip(replayed["agUi"], runs["ag_ui"], strict=True):
        thread: AgUiThread = read("ag_ui", frames)
        void = [
            message_id
            for name, value in thread.customs
            if name == "turnwise.void"
            for message_id in value["messageIds"]
        ]
        messages = {message["id"]: message for message in agent["messages"] if message["id"] not in void}
        assert messages.keys() == thread.messages.keys()
        for name, expected in thread.messages.items():
            assert (messages[name]["role"], messages[name].get("content") or "") == (
                expected["role"],
                expected["content"],
            )
        assert agent["customs"] == thread.customs and "error" not in agent


@pytest.mark.ray
async def test_the_clients_ask_a_service(ray_session: None, tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(150))
    notes = {"notes": str(tmp_path / "notes")}
    with LocalProvider(reply=obey) as provider:
        async with (
            manager_of(tmp_path, provider.base_url) as manager,
            on_server(create_app(manager, auth=TOKENS)) as url,
        ):
            steps = prompt([("driver", {"question": "When?"})], [("pay", {"euros": 5})], "Paid.")
            chat = await ask_clients("chatted", url=url, headers=ANN, text=text, approval=steps, labels=notes)
            assert chat["cut"]["status"] == "error" and chat["cut"]["error"] == "network error"
            text_so_far = chat["cut"]["messages"][-1]["parts"][-1]["text"]
            assert text_so_far and text_so_far != text and text.startswith(text_so_far)
            for name in ("resumed", "regenerated"):
                (prompted, answer) = chat[name]["messages"]
                assert chat[name]["status"] == "ready" and prompted["parts"][0]["text"] == text
                assert parts_of(answer["parts"])[1:] == [{"type": "text", "text": text, "state": "done"}]
            path = "/v1/ui/chat"
            assert chat["asked"] == [
                f"POST {path}",
                f"GET {path}/slow/stream",
                f"GET {path}/slow/stream",
                f"POST {path}",
            ]
            slow = await manager.get("slow", user_id="ann")
            assert [run.state for run in await slow.runs()] == ["completed", "completed"]
            assert [message.text for message in await slow.messages()] == [text, text], "the first answer was replaced"
            parts = chat["approved"]["messages"][-1]["parts"]
            assert [part.get("output") for part in parts if "toolCallId" in part] == ["at noon", "paid 5"]
            assert parts[-1]["text"] == "Paid." and (tmp_path / "notes").read_text() == "paid 5\n"

            steps = prompt([("map", {"place": "Oslo"})], [("pay", {"euros": 7})], "Paid.")
            ran = await ask_clients("ran", url=url, headers=ANN, text=steps)
            assert ran["outcomes"] == ["success", "interrupt", "success"]
            assert [message["role"] for message in ran["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
            assert ran["messages"][-1]["content"] == "Paid."

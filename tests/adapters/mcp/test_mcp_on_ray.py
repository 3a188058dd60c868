"""An agent whose tools an MCP server has: real actors, real kills, and a simulated provider over HTTP."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from frameworks import city_mcp
from patience import until
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.loop import LOST
from turnwise.actors.session.config import SessionConfig
from turnwise.adapters import McpStdio, mcp_tools
from turnwise.memory.conversation.blocks import ToolResult
from turnwise.testing import LocalProvider, Message, tool_script

WAIT_S = 120.0

ROUGH = str(Path(city_mcp.__file__).with_name("rough_mcp.py"))

SCRIPTS = {
    "two": tool_script([[("echo", {"text": "a"}), ("echo", {"text": "b"})], "said"]),
    "ask": tool_script([[("variable", {"text": "HOME"})], "asked"]),
    "lose": tool_script([[("echo", {"text": "kept"})], [("freeze", {"text": "c"})], "lost"]),
}


def reply(messages: list[Message]) -> Message:
    prompt = [message["content"] for message in messages if message["role"] == "user"][-1]
    return SCRIPTS[prompt](messages)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.ray
def test_sessions_share_an_mcp_server_and_journal_its_calls(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    def lines() -> list[str]:
        return notes.read_text().splitlines() if notes.exists() else []

    def servers() -> list[int]:
        return [int(line.split()[1]) for line in lines() if line.startswith("start")]

    server = McpStdio(sys.executable, ["-I", "-S", ROUGH, "well", str(notes)])
    with LocalProvider(reply=reply) as provider:
        tools = mcp_tools(server, approve=["variable"])
        engine = OpenAIEngine("local", base_url=provider.base_url, tools=tools, max_retries=0)
        manager = make_ray_manager(engine=engine, placement=Packed(hosts=1), config=SessionConfig(on_lost="resume"))
        ann, bob = manager.open("ann", user_id="ann"), manager.open("bob", user_id="bob")

        runs = [ann.run("two"), bob.run("two")]
        for run in runs:
            turn = run.wait(WAIT_S)
            texts = [block.text for block in turn.output if isinstance(block, ToolResult)]
            assert (texts, turn.text) == (['{"text": "a"}', '{"text": "b"}'], "said")
        assert len(servers()) == 2, "one of this process, and one for all sessions of the host"

        run = ann.run("ask")
        until(lambda: run.status() == "awaiting_approval")
        (call,) = run.pending()
        assert lines().count("tools/call") == 4
        run.approve(call.call_id, input={"text": "NO_SUCH_VARIABLE"})
        turn = run.wait(WAIT_S)
        assert [block.text for block in turn.output if isinstance(block, ToolResult)] == ["none"]

        run = ann.run("lose")
        until(lambda: lines().count("tools/call") == 7)
        pid = ann.info().pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        turn = run.wait(WAIT_S)
        assert turn.text == "lost"
        assert [block.text for block in turn.output if isinstance(block, ToolResult)] == ['{"text": "kept"}', LOST]
        assert lines().count("tools/call") == 7, "neither the settled call nor the one that had begun was made again"
        until(lambda: not is_alive(servers()[1]))

        assert bob.run("two").wait(WAIT_S).text == "said"
        assert len(servers()) == 3

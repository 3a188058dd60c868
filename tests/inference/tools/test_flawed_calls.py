"""Calls whose arguments are no JSON object: no tool gets them, nobody is asked, and the model is told what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_output import PARIS, City, calls, play

from engine_calls import engine_at, engine_of
from quirks import QuirkServer
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import Tool, external_tool, tool
from turnwise.adapters import McpStdio, mcp_tools
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse
from turnwise.memory.conversation.events import ApprovalRequested, ModelCallEnded, ToolEnded, ToolStarted
from turnwise.memory.conversation.output_type import ANSWER_TOOL
from turnwise.memory.conversation.turns import Outcome
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.testing import LocalProvider, tool_script

FLAWED = [
    '{"path": "/a',
    '```json\n{"path": "/a"}\n```',
    '{"path": "/a"}{"path": "/a"}',
    '["/a"]',
    '"/a"',
    '{"path": NaN}',
    '{"path": "/a", "path": "/b"}',
    '{"path": "\\ud83d"}',
    '{"path":' * 120 + "1" + "}" * 120,
]

SERVER = '''
from mcp.server import MCPServer

server = MCPServer("files")

@server.tool()
def delete(path: str = "/everything") -> str:
    """Delete files."""
    return "deleted " + path

server.run()
'''

deleted: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    deleted.clear()


def flawed_tool(**options: Any) -> Tool:
    @tool(**options)
    def delete(path: str = "/everything") -> str:
        """Delete files."""
        deleted.append(path)
        return f"deleted {path}"

    return delete


def open_schema() -> Tool:
    """Return a tool that takes any arguments, as those of many MCP servers do."""

    async def delete(**arguments: Any) -> str:
        deleted.append(arguments.get("path", "/everything"))
        return "deleted"

    schema = FrozenDict({"type": "object", "properties": {"path": {"type": "string"}}})
    return Tool(name="delete", description="Delete files.", parameters=schema, function=delete)


TOOLS: dict[str, Callable[[], Tool]] = {
    "a function": flawed_tool,
    "one to approve": lambda: flawed_tool(approval=True),
    "an open schema": open_schema,
    "an external tool": lambda: external_tool("delete", "Delete files.", {"type": "object", "properties": {}}),
}


def engine_for(provider: LocalProvider, api: str, tools: list[Tool], **settings: Any) -> Any:
    if api == "anthropic":
        return AnthropicEngine("local", base_url=provider.base_url.removesuffix("/v1"), tools=tools, **settings)
    return engine_of(provider, api=api, tools=tools, **settings)


def first_call(outcome: Outcome) -> tuple[ToolUse, ToolResult]:
    assert outcome.turn and outcome.run.state == "completed"
    use, result = outcome.turn.output[:2]
    assert isinstance(use, ToolUse) and isinstance(result, ToolResult)
    assert outcome.turn.output[-1] == Text(text="Done.")
    return use, result


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("text", FLAWED)
@pytest.mark.parametrize("kind", TOOLS)
def test_arguments_that_are_no_json_object_reach_no_tool_and_no_person(kind: str, text: str, api: str) -> None:
    with LocalProvider(reply=tool_script([[("delete", text)], "Done."])) as provider:
        (outcome,), story = play(engine_for(provider, api, [TOOLS[kind]()]), "Tidy up.")
    use, result = first_call(outcome)
    assert deleted == []
    assert use.flaw and result.is_error and use.flaw in result.text
    kinds = [type(event) for event in story.events]
    assert ApprovalRequested not in kinds and ToolStarted not in kinds and kinds.count(ToolEnded) == 1
    sent = json.dumps(provider.requests[-1].body, ensure_ascii=False)
    assert json.dumps(use.flaw, ensure_ascii=False)[1:-1] in sent
    assert "unparsed" in sent and use.input["unparsed"] == text


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_cut_call_says_so_and_the_run_goes_on(api: str) -> None:
    replies = iter(
        [{"tool_calls": [{"id": "a", "function": {"name": "delete", "arguments": '{"path": "/a/b c"}'}}]}, "Done."]
    )

    def reply(_messages: Any) -> Any:
        return next(replies)

    with LocalProvider(reply=reply) as provider:
        (outcome,), _ = play(engine_of(provider, "length-once", api=api, tools=[flawed_tool()]), "Tidy up.")
    _, result = first_call(outcome)
    assert deleted == [] and "maximum length" in result.text


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_a_call_lacking_required_arguments_is_not_made(api: str) -> None:
    needed: list[str] = []

    @tool
    def save(path: str) -> str:
        """Save."""
        needed.append(path)
        return "saved"

    script = tool_script([[("delete", ""), ("save", "")], "Done."])
    with LocalProvider(reply=script) as provider:
        (outcome,), _ = play(engine_for(provider, api, [flawed_tool(), save]), "Go on.")
    assert outcome.turn
    results = [block for block in outcome.turn.output if isinstance(block, ToolResult)]
    assert deleted == ["/everything"] and needed == []
    assert [result.is_error for result in results] == [False, True] and "path" in results[1].text


@pytest.mark.parametrize("text", ['{"path": "/a', '["/a"]', '{"unparsed": "/a"}', '{"pth": "/a"}'])
def test_no_mcp_tool_runs_with_its_defaults_instead(text: str, tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text(SERVER)
    tools = mcp_tools(McpStdio(sys.executable, [str(tmp_path / "files.py")]))
    with LocalProvider(reply=tool_script([[("delete", text)], [("delete", '{"path": "/a"}')], "Done."])) as provider:
        (outcome,), _ = play(engine_of(provider, tools=tools), "Tidy up.")
    assert outcome.turn
    results = [block for block in outcome.turn.output if isinstance(block, ToolResult)]
    assert [result.is_error for result in results] == [True, False]
    assert results[1].text == "deleted /a"


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("text", [f"```json\n{PARIS}\n```", f"[{PARIS}]", PARIS + PARIS, PARIS[:-4], "null and void"])
def test_an_answer_by_tool_that_is_no_json_object_is_sent_back(text: str, api: str) -> None:
    with QuirkServer(calls(ANSWER_TOOL, text, api), calls(ANSWER_TOOL, PARIS, api)) as server:
        (outcome,), story = play(engine_at(server, api=api, provider="groq"), output=output_record(City, 2))
    assert outcome.turn and json.loads(outcome.turn.text) == json.loads(PARIS)
    assert sum(isinstance(event, ModelCallEnded) for event in story.events) == 1
    sent = json.dumps(server.requests[-1])
    assert "no JSON object" in sent and json.dumps(text)[1:5] in sent


def test_a_tool_that_has_a_parameter_of_that_name_is_called() -> None:
    received: list[str] = []

    @tool
    def read(unparsed: str) -> str:
        """Read."""
        received.append(unparsed)
        return "read"

    with LocalProvider(reply=tool_script([[("read", '{"unparsed": "{"}')], "Done."])) as provider:
        play(engine_of(provider, tools=[read]), "Read.")
    assert received == ["{"]

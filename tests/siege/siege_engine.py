"""The engine of the siege: does what the prompt says, and reports texts of other users.

Every text that a caller sends has a token, `tok.<user>.<number>`. So a request with another user's token is a leak,
whether from the history, a cache or a memory. The tasks that it gives to agents have `task.<user>.<number>.<part>`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from turnwise import Turn, tool
from turnwise.engines import RunContext, SessionView, ToolLoop, ToolRegistry, agent_tool
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse, User, encode

TOKEN = re.compile(r"tok\.(u\d+)\.(\d+)")

TASK = re.compile(r"task\.(u\d+)\.(\d+)\.(\d+)")

PARTS = 2
"""How many agents a run calls."""

helper = agent_tool("helper", description="Does a part of the work.")


@tool(approval=True)
async def pay(euros: int) -> str:
    """Pay, after approval."""
    return f"paid {euros}"


class SiegeEngine:
    """Answers `say`, streams slowly for `slow`, calls a tool that waits for approval for `ask`, and agents for `team`.

    Args:
        leaks: a file to which each foreign token is appended, as a line.
    """

    def __init__(self, leaks: str) -> None:
        self.leaks = leaks

    def build(self, session: SessionView) -> ToolLoop:
        """Return the tool loop around this engine."""
        return ToolLoop(_Model(self.leaks), ToolRegistry(pay, helper))


class _Model:
    def __init__(self, leaks: str) -> None:
        self._leaks = Path(leaks)

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        user = context.session.user_id
        for block in turn.blocks:
            for owner, number in [*TOKEN.findall(encode(block)), *(task[:2] for task in TASK.findall(encode(block)))]:
                if owner != user:
                    with self._leaks.open("a", encoding="utf-8") as leaks:
                        leaks.write(f"{user}'s session {context.session.session_id} was sent {owner}'s {number}\n")
        prompts = [block.text for block in turn.new_blocks if isinstance(block, User)]
        prompt = prompts[-1] if prompts else ""
        if " ask" in prompt and not any(isinstance(block, ToolResult) for block in turn.output):
            return [ToolUse(call_id="pay-1", name="pay", input={"euros": 5})]
        if " team" in prompt and not any(isinstance(block, ToolResult) for block in turn.output):
            return [
                ToolUse(call_id=f"helper-{part}", name="helper", input={"task": task})
                for part, task in enumerate(tasks_of(prompt))
            ]
        answer = answer_to(prompt)
        if " slow" in prompt:
            for start in range(0, len(answer), 2):
                context.emit(answer[start : start + 2])
                await asyncio.sleep(0.02)
        return [Text(text=answer)]


def answer_to(prompt: str) -> str:
    """Return the answer to a prompt, without the token, which stands in the prompt only."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def tasks_of(prompt: str) -> list[str]:
    """Return the tasks that a prompt for a team gives to agents."""
    owner, number = TOKEN.findall(prompt)[0]
    return [f"task.{owner}.{number}.{part} slow" for part in range(PARTS)]

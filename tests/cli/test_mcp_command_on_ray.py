"""`turnwise mcp` with sessions on Ray: a client sends prompts, and saves what answers then use."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from test_mcp_command import called, names, refused

from turnwise.testing import LocalProvider, Message

pytestmark = pytest.mark.ray


def test_a_client_sends_prompts_to_sessions_of_its_user_and_saves_memories(ray_address: str, tmp_path: Path) -> None:
    def reply(messages: list[Message]) -> str:
        return "You like tea." if "tea" in str(messages) else "I do not know."

    with LocalProvider(reply=reply) as provider:
        store, memory = f"sqlite:///{tmp_path}/chats.db", f"sqlite:///{tmp_path}/memory.db"
        variables = {
            **os.environ,
            "RAY_ADDRESS": ray_address,
            "OPENAI_BASE_URL": provider.base_url,
            "OPENAI_API_KEY": "none",
        }

        def of(user: str) -> StdioServerParameters:
            args = ["-m", "turnwise", "mcp", store, "--user", user, "--memory", memory]
            return StdioServerParameters(command=sys.executable, args=args, env=variables | {"NO_PROXY": "127.0.0.1"})

        async def main() -> None:
            async with Client(of("ann")) as ann, Client(of("bob")) as bob:
                of_schedules = {"list_schedules", "set_schedule", "cancel_schedule"}
                assert await names(ann) == of_schedules | {
                    *("list_sessions", "show_session", "show_agents", "send", "recall", "save")
                }
                for blank in ("", " "):
                    assert "nothing to run" in await refused(ann, "send", prompt=blank)
                assert await called(ann, "list_sessions") == {"sessions": [], "cursor": None}
                first = await called(ann, "send", prompt="What do I like?")
                assert (first["state"], first["text"]) == ("completed", "I do not know.")
                await called(ann, "save", text="Ann likes tea")
                again = await called(ann, "send", prompt="What does Ann like?", session_id=first["session_id"])
                assert again["text"] == "You like tea." and again["session_id"] == first["session_id"]
                shown = await called(ann, "show_session", session_id=first["session_id"])
                assert [message["role"] for message in shown["messages"]] == ["user", "assistant"] * 2

                for tool in ("show_session", "send"):
                    more = {"prompt": "What did she say?"} if tool == "send" else {}
                    refusal = await refused(bob, tool, session_id=first["session_id"], **more)
                    assert f"there is no session '{first['session_id']}'" in refusal
                assert await called(bob, "list_sessions") == {"sessions": [], "cursor": None}
                assert await called(bob, "recall", query="Who likes tea?") == []
                assert (await called(ann, "recall", query="Who likes tea?"))[0]["text"] == "Ann likes tea"

        asyncio.run(main())

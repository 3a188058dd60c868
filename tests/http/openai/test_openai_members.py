"""Shared sessions in OpenAI's dialect and MCP: `owner` names whose session it is, and the user's role holds."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from mcp import Client
from mcp.types import TextContent

from servers.threaded_service import Served, served
from turnwise import AsyncSessionManager, EchoEngine
from turnwise.actors.hosting.placement import InProcess
from turnwise.adapters import mcp_server
from turnwise.engines import OpenAIEngine
from turnwise.http import BearerTokens
from turnwise.testing import LocalProvider

NAMES = ("ann", "tom", "rita", "eve")
TOKENS = BearerTokens({f"{name}'s-secret-token": name for name in NAMES})
OF_ANN = {"owner": "ann"}
LARGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 70_000).decode()
ASKED: list[Sequence[dict[str, Any]]] = []


def note(messages: Sequence[dict[str, Any]]) -> str:
    ASKED.append(messages)
    return f"answer {len(ASKED)}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with LocalProvider(reply=note) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="k")
        store = f"sqlite:///{tmp_path_factory.mktemp('http')}/chats.db"
        with served(store, engine=engine, placement=InProcess(), auth=TOKENS, namespace="openai-members") as running:
            yield running


def client_of(service: Served, user: str, **options: Any) -> Any:
    client = service.openai_client(f"{user}'s-secret-token")
    return client.with_options(**options) if options else client


def share(service: Served, session_id: str, **roles: str) -> None:
    headers = {"Authorization": "Bearer ann's-secret-token"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        client.post("/v1/sessions", json={"id": session_id}).raise_for_status()
        for member, role in roles.items():
            client.put(f"/v1/sessions/{session_id}/members/{member}", json={"role": role}).raise_for_status()


def test_a_member_goes_on_with_a_conversation_of_another_user(service: Served) -> None:
    share(service, "trip", tom="member", rita="reader")
    ann, tom, rita, eve = (client_of(service, name, default_query=OF_ANN) for name in NAMES)
    first = ann.responses.create(input="From Ann.", conversation="conv_trip")
    then = tom.responses.create(input="From Tom.", conversation="conv_trip")
    sent = [message["content"] for message in ASKED[-1] if message["role"] == "user"]
    assert ["ann" in str(sent[0]), "tom" in str(sent[1])] == [True, True], sent
    assert rita.responses.retrieve(then.id).output_text == then.output_text
    assert len(rita.conversations.items.list("conv_trip").data) == 4
    assert [item.id for item in rita.responses.input_items.list(then.id)]
    assert tom.responses.cancel(then.id).status == "completed"
    refused_calls: list[Callable[[], Any]] = [
        lambda: rita.responses.create(input="May I?", conversation="conv_trip"),
        lambda: tom.conversations.delete("conv_trip"),
        lambda: tom.conversations.update("conv_trip", metadata={"mine": "yes"}),
        lambda: tom.responses.delete(first.id),
    ]
    for refused in refused_calls:
        with pytest.raises(openai.PermissionDeniedError):
            refused()
    own = client_of(service, "tom")
    absent_calls: list[Callable[[], Any]] = [
        lambda: eve.conversations.retrieve("conv_trip"),
        lambda: eve.responses.retrieve(then.id),
        lambda: own.conversations.retrieve("conv_trip"),
        lambda: own.responses.retrieve(then.id),
    ]
    for absent in absent_calls:
        with pytest.raises(openai.NotFoundError):
            absent()
    new_calls: list[Callable[[], Any]] = [
        lambda: tom.responses.create(input="Hello!"),
        tom.conversations.create,
        lambda: tom.chat.completions.create(model="local", messages=[{"role": "user", "content": "Hello!"}]),
    ]
    for new in new_calls:
        with pytest.raises(openai.BadRequestError, match="Nothing new can be made for user 'ann'"):
            new()


def test_a_chat_of_several_people_may_be_sent_whole_also_with_a_large_picture(service: Served) -> None:
    share(service, "chat", tom="member")
    session = {"X-Session-Id": "chat"}
    ann, tom = (client_of(service, name, default_query=OF_ANN, default_headers=session) for name in ("ann", "tom"))
    look = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": LARGE}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": look}]
    for client, prompt in ((tom, None), (ann, "And now?"), (tom, "Then?")):
        messages += [{"role": "user", "content": prompt}] if prompt else []
        answer = client.chat.completions.create(model="local", messages=messages).choices[0].message.content
        if prompt:
            repeated = client.chat.completions.create(model="local", messages=messages)
            assert repeated.choices[0].message.content == answer, "nothing is new, so it gets the same answer"
        messages.append({"role": "assistant", "content": answer})
    with pytest.raises(openai.UnprocessableEntityError, match="does not continue the session"):
        ann.chat.completions.create(
            model="local", messages=[{"role": "user", "content": "Look at"}, *messages[1:], messages[0]]
        )
    with pytest.raises(openai.NotFoundError):
        tom.chat.completions.create(model="local", messages=messages[:1], extra_headers={"X-Session-Id": "never-there"})


async def test_tools_of_an_mcp_server_reach_what_others_share_with_its_user(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as manager:
        plan = await manager.open("plan", user_id="ann", title="The plan")
        await (await plan.run("From Ann.")).wait()
        async with Client(mcp_server(manager, user_id="tom")) as tom:

            async def called(tool: str, **arguments: Any) -> Any:
                result = await tom.call_tool(tool, arguments)
                (content,) = result.content[:1] or [TextContent(type="text", text="")]
                assert isinstance(content, TextContent)
                return content.text if result.is_error else result.structured_content

            of_ann = {"session_id": "plan", "owner": "ann"}
            assert "there is no session 'plan'" in await called("show_session", **of_ann)
            await plan.add_member("tom")
            (line,) = (await called("list_sessions", shared=True))["sessions"]
            assert (line["session_id"], line["owner"], line["title"]) == ("plan", "ann", "The plan")
            assert (await called("list_sessions"))["sessions"] == []
            sent = await called("send", prompt="From Tom.", **of_ann)
            assert (sent["state"], sent["text"]) == ("completed", "From Tom.")
            assert (await called("show_agents", run_id=sent["run_id"], owner="ann"))["state"] == "completed"
            messages = (await called("show_session", **of_ann))["messages"]
            assert [message["author"] for message in messages if message["role"] == "user"] == [None, "tom"]
            assert "there is no session 'plan'" in await called("show_session", session_id="plan")
            assert "owner" in await called("send", prompt="A new one.", owner="ann")
            assert "only" in await called("set_schedule", prompt="Later.", after_s=60, **of_ann)
            await plan.add_member("tom", "reader")
            assert "only" in await called("send", prompt="May I?", **of_ann)
            await plan.remove_member("tom")
            for tool in ("show_session", "send"):
                more = {"prompt": "?"} if tool == "send" else {}
                assert "there is no session 'plan'" in await called(tool, **more, **of_ann)

"""Equal requests at once, and what a client sends beside its decisions, over a real server: nothing is dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_agents_on_ray import obey

from servers.http_service import ANN, TOKENS, manager_of, on_server
from tools.agent_tools import prompt
from turnwise.http import create_app
from turnwise.testing import LocalProvider

TIMES = 25


@pytest.fixture(scope="module")
def provider_url() -> Iterator[str]:
    with LocalProvider(reply=obey) as provider:
        yield provider.base_url


@asynccontextmanager
async def services(folder: Path, provider_url: str, count: int = 1) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Yield clients of services that share a store; each has a manager of its own."""
    async with AsyncExitStack() as stack:
        clients: list[httpx.AsyncClient] = []
        for _ in range(count):
            manager = await stack.enter_async_context(manager_of(folder, provider_url))
            url = await stack.enter_async_context(on_server(create_app(manager, auth=TOKENS)))
            limits = httpx.Limits(max_connections=None)
            client = httpx.AsyncClient(base_url=url, headers=ANN, timeout=120, limits=limits)
            clients.append(await stack.enter_async_context(client))
        yield clients


LONG = "word " * 60

Request = tuple[str, dict[str, Any], dict[str, str]]


def ui(text: str, *, again: bool = False) -> Request:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    more = {"trigger": "regenerate-message"} if again else {}
    return "/v1/ui/chat", {"id": "ui", "messages": [message], "engine": "slow", **more}, {"Idempotency-Key": "k"}


def regenerated(text: str) -> Request:
    path, body, _ = ui(text, again=True)
    return path, body, {"Idempotency-Key": "again"}


def ag_ui(text: str) -> Request:
    return "/v1/ag-ui/slow", asked_of("agui", {"id": "u1", "role": "user", "content": text}), {}


def chat(text: str, *, stream: bool = False) -> Request:
    body = {"model": "slow", "messages": [{"role": "user", "content": text}], "stream": stream}
    return "/openai/v1/chat/completions", body, {"X-Session-Id": f"chat-{stream}", "Idempotency-Key": "k"}


def chat_stream(text: str) -> Request:
    return chat(text, stream=True)


def response(text: str) -> Request:
    return "/openai/v1/responses", {"model": "slow", "input": text}, {"Idempotency-Key": "k"}


def native(text: str) -> Request:
    headers = {"Idempotency-Key": "k", "Prefer": "wait=60"}
    return "/v1/sessions/native/runs?wait_s=60", {"prompt": text}, headers


def asked_of(thread_id: str, *messages: Any, **more: Any) -> dict[str, Any]:
    fields = {"threadId": thread_id, "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {**fields, "messages": messages, **more}


ROUTES = [ui, regenerated, ag_ui, chat, chat_stream, response, native]
SESSIONS: dict[Callable[[str], Request], str] = {
    ag_ui: "agui",
    chat: "chat-False",
    chat_stream: "chat-True",
    native: "native",
}


@pytest.mark.by_turns
@pytest.mark.parametrize("route", ROUTES)
async def test_equal_requests_at_once_get_the_answer_of_the_first(
    tmp_path: Path, provider_url: str, route: Callable[[str], Request]
) -> None:
    async with services(tmp_path, provider_url, 2) as clients:
        if route is native:
            await clients[0].post("/v1/sessions", json={"id": "native", "engine": "slow"})
        if route is regenerated:
            path, body, headers = ui(LONG)
            assert (await clients[0].post(path, json=body, headers=headers)).status_code == 200
        path, body, headers = route(LONG)
        sending = [clients[index % 2].post(path, json=body, headers=headers) for index in range(TIMES)]
        answers = await asyncio.gather(*sending)
        assert {answer.status_code for answer in answers} <= {200, 202}, [answer.text for answer in answers]
        runs = {answer.headers.get("x-run-id") or answer.json()["id"] for answer in answers}
        assert len(runs) == 1
        assert all("word" in answer.text for answer in answers)
        path, body, headers = route("another text")
        response = await clients[1].post(path, json=body, headers=headers)
        if route is not regenerated:  # which takes the text of the message that it answers again
            assert response.status_code in (409, 422), response.text
            assert "conflict" in response.text, response.text
        if session := SESSIONS.get(route):
            turns = (await clients[0].get(f"/v1/sessions/{session}/turns")).json()["items"]
            assert len(turns) == 1, turns
        if route in (ui, regenerated):
            shown = (await clients[0].get("/v1/ui/chat/ui/messages")).json()["messages"]
            assert [message["role"] for message in shown] == ["user", "assistant"], "there is one answer"


async def ran(client: httpx.AsyncClient, body: Mapping[str, Any], *, status: int = 200) -> str:
    answer = await client.post("/v1/ag-ui/agent", json=body)
    assert answer.status_code == status, answer.text
    return answer.text


def data_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def said_in(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a stream, of either protocol."""
    return "".join(event["delta"] for event in events if event["type"] in ("TEXT_MESSAGE_CONTENT", "text-delta"))


async def asked_to_pay(client: httpx.AsyncClient, thread: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the messages of a thread that waits for an approval, and the interrupt."""
    question = {"id": "u1", "role": "user", "content": prompt([("pay", {"euros": 7})], "Paid.")}
    events = data_of(await ran(client, asked_of(thread, question)))
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    parent = next(event["parentMessageId"] for event in events if event["type"] == "TOOL_CALL_START")
    call = {"id": interrupt["toolCallId"], "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    return [question, {"id": parent, "role": "assistant", "toolCalls": [call]}], interrupt


def resolved(interrupt: Mapping[str, Any], *, approved: bool = True) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": approved}}


def of_tool(interrupt: Mapping[str, Any], text: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"t{number}", "role": "tool", "toolCallId": interrupt["toolCallId"], "content": text}


async def blocks_of(client: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    turns = (await client.get(f"/v1/sessions/{session}/turns")).json()["items"]
    last = (await client.get(f"/v1/sessions/{session}/turn")).json()
    return last["blocks"] if turns else []


async def test_a_tool_message_beside_a_decision_of_its_call_is_no_error(tmp_path: Path, provider_url: str) -> None:
    async with services(tmp_path, provider_url) as (client,):
        messages, interrupt = await asked_to_pay(client, "tool")
        entry = resolved(interrupt)
        body = asked_of("tool", *messages, of_tool(interrupt, '{"approved": true}'), resume=[entry])
        events = data_of(await ran(client, body))
        assert events[-1]["outcome"]["type"] == "success"
        assert said_in(events) == "Paid."
        assert data_of(await ran(client, body))[-1]["outcome"]["type"] == "success", "it may be repeated"
        changed = asked_of("tool", *messages, resume=[resolved(interrupt, approved=False)])
        assert "call_decided" in await ran(client, changed, status=409)


async def test_a_new_message_beside_a_decision_is_answered(tmp_path: Path, provider_url: str) -> None:
    async with services(tmp_path, provider_url) as (client,):
        messages, interrupt = await asked_to_pay(client, "message")
        news = {"id": "u2", "role": "user", "content": prompt("Noted, too.")}
        body = asked_of("message", *messages, news, resume=[resolved(interrupt)])
        for _ in range(2):
            events = data_of(await ran(client, body))
            assert events[-1]["outcome"]["type"] == "success" and said_in(events) == "Noted, too."
        texts = [block.get("text") for block in await blocks_of(client, "message") if block["kind"] == "user"]
        assert texts.count(news["content"]) == 1


async def test_two_answers_to_one_question_are_refused_and_decide_nothing(tmp_path: Path, provider_url: str) -> None:
    async with services(tmp_path, provider_url) as (client,):
        messages, interrupt = await asked_to_pay(client, "twice")
        both = [resolved(interrupt), resolved(interrupt, approved=False)]
        refused = await client.post("/v1/ag-ui/agent", json=asked_of("twice", *messages, resume=both))
        assert refused.status_code == 422 and "another answer" in refused.text
        alone = await client.post(
            "/v1/ag-ui/agent", json=asked_of("twice", *messages, of_tool(interrupt, "paid already"))
        )
        assert alone.status_code == 422, "a result of the client's is no approval"
        assert data_of(await ran(client, asked_of("twice", *messages, resume=both[:1])))[-1]["type"] == "RUN_FINISHED"


async def test_nothing_beside_a_decision_of_use_chat_is_refused_or_lost(tmp_path: Path, provider_url: str) -> None:
    def user(message_id: str, text: str) -> dict[str, Any]:
        return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}

    async with services(tmp_path, provider_url) as (client,):
        text = prompt([("driver", {"question": "When?"}), ("pay", {"euros": 5})], "Paid.")
        first = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [user("m1", text)], "engine": "agent"})
        assert first.status_code == 200, first.text
        shown = (await client.get("/v1/ui/chat/ui/messages")).json()["messages"][-1]
        parts = {part["type"]: part for part in shown["parts"]}
        driver = {**parts["tool-driver"], "state": "output-available", "output": "noon"}
        pay = parts["tool-pay"]
        approved = {**pay, "state": "approval-responded", "approval": {"id": pay["toolCallId"], "approved": True}}
        halfway = {**shown, "parts": [{"type": "step-start"}, driver, pay]}
        whole = {**shown, "parts": [{"type": "step-start"}, driver, approved]}
        more = user("m2", prompt("You are welcome."))
        busy = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [halfway, more]})
        assert busy.status_code == 409, "the run would wait on, and the message with it"
        assert len((await client.get("/v1/sessions/ui/turns")).json()["items"]) == 1
        for _ in range(2):
            both = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [whole, more]})
            assert both.status_code == 200 and said_in(data_of(both.text)) == "You are welcome.", both.text
        assert "Paid." in (await client.get("/v1/ui/chat/ui/messages")).text
        assert len((await client.get("/v1/sessions/ui/turns")).json()["items"]) == 2
        again = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [whole]})
        assert again.status_code == 200, again.text
        changed = {**shown, "parts": [{"type": "step-start"}, {**driver, "output": "midnight"}, approved]}
        refused = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [changed]})
        assert refused.status_code == 409 and refused.json()["error"] == "call_decided", refused.text
        unknown = {**shown, "parts": [{"type": "step-start"}, {**driver, "toolCallId": "nobody's"}]}
        refused = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [unknown]})
        assert refused.status_code == 422 and "no call of this id" in refused.text
        edited = await client.post("/v1/ui/chat", json={"id": "ui", "messages": [user("m2", prompt("No."))]})
        assert edited.status_code == 422 and edited.json()["error"] == "idempotency_conflict", edited.text

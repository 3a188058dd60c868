"""No request, whatever it brings, holds an event loop or a store up for long: each route gets its worst bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from scale import share, today
from servers.holds import HOLDS, LOOP_S, STORE_S, HoldsEngine, measure_this_loop, slowness
from servers.threaded_service import served
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.http import BearerTokens, HttpSettings, create_app
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.values.limits import MAX_BLOCKS, MAX_NAMES

Request = TypeVar("Request")

ANN, BOB = "a-long-secret-of-ann", "a-long-secret-of-bob"

MOST_BYTES = HttpSettings().max_body_bytes - 1000
MOST_VALUES = HttpSettings().max_body_values - 100
HUGE = "x" * MOST_BYTES


def _tools(form: str, count: int, properties: int) -> list[dict[str, Any]]:
    """Return tools as a dialect has them."""
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(properties)}}
    tools: list[dict[str, Any]] = [
        {"name": f"t{index}", "description": "", "parameters": schema} for index in range(count)
    ]
    if form == "chat":
        return [{"type": "function", "function": tool} for tool in tools]
    return [{"type": "function", **tool} for tool in tools] if form == "responses" else tools


AT_BOUND: dict[str, Any] = {
    "prompts": ["hello"] * MAX_BLOCKS,
    "blocks": [{"kind": "user", "text": "hello"}] * MAX_BLOCKS,
    "parts": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}] * MAX_BLOCKS}],
    "chat parts": [{"role": "user", "content": [{"type": "text", "text": "hello"}] * MAX_BLOCKS}],
    "dialogue": [{"role": role, "content": "hello"} for role in ("user", "assistant")] * (MOST_VALUES // 6),
    "messages": [{"id": "m1", "role": "user", "content": "hello"}] * MAX_BLOCKS,
    **{f"tools of {form}": _tools(form, 128, 20) for form in ("responses", "chat", "ours")},
    "names": [f"name {number}" for number in range(MAX_NAMES)],
}
"""Values as large as they may be; some are right for each kind of field, and wrong for the others."""

TOO_MANY: dict[str, Any] = {
    "texts": ["x"] * MOST_VALUES,
    **{f"thousands of tools of {form}": _tools(form, MOST_VALUES // 6, 0) for form in ("responses", "chat", "ours")},
    "numbers": [1] * MOST_VALUES,
    "objects": [{"kind": "user", "text": "x"}] * (MOST_VALUES // 3),
    "wrong objects": [{"a": 1, "b": 2, "c": 3}] * (MOST_VALUES // 4),
    "members": {f"name {number}": number for number in range(MOST_VALUES)},
    "schema": {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(MOST_VALUES // 3)}},
    "text": HUGE,
    "a text with commas": "a, " * (MOST_BYTES // 3),
    "a text of quotes": '"' * (MOST_BYTES // 2),
    "deep": json.loads("[" * 100 + "]" * 100),
}

BYTES: dict[str, bytes] = {
    "a million texts": b'{"prompt": [' + b'"x",' * (MOST_BYTES // 4) + b'"x"]}',
    "a million lists": b'{"input": [' + b"[]," * (MOST_BYTES // 3) + b"[]]}",
    "a million levels": b"[" * MOST_BYTES,
    "a thousand numbers of thousands of digits": b"[" + (b"1" * 4000 + b",") * (MOST_BYTES // 4001) + b"1]",
    "no JSON": b"\xff" * MOST_BYTES,
}
"""Bodies that are no request of any route."""

TIMES = 3
"""How often a request must hold others up to be one that does: a machine is slow now and then."""

QUERIES = ["", "?metadata=" + "x" * 30_000, "?" + "a=1&" * 5000, "?" + "&" * 20_000]

JSON = {"Content-Type": "application/json"}

RIGHT: dict[str, dict[str, Any]] = {
    "/v1/ui/chat": {"id": "chat"},
    "/v1/ag-ui": {
        "threadId": "chat",
        "runId": "r",
        "messages": [{"id": "m1", "role": "user", "content": "Hello!"}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    },
    "/openai/v1/chat/completions": {"model": "any", "messages": [{"role": "user", "content": "hello"}]},
    "/openai/v1/responses": {"input": "hello"},
}
"""What a request needs beside the field that is too large, where the description has no example."""


def routes(router: Any) -> Iterator[tuple[str, APIRoute]]:
    """Yield all routes of an app or a router, with their methods."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            for method in sorted(route.methods or ()):
                yield method, route
        elif included := getattr(route, "original_router", None):
            yield from routes(included)


def bodies(route: APIRoute) -> Iterator[tuple[str, bytes]]:
    """Yield the worst bodies of a route: its fields with values, and those that are right for none.

    Each field has a sixteenth of the values, and each value a sixteenth of the fields; with `make races` all.
    """
    if route.body_field is None:
        return
    yield from _some(route, BYTES.items())
    model: Any = route.body_field.field_info.annotation
    models = [candidate for candidate in (model, *getattr(model, "__args__", ())) if hasattr(candidate, "model_fields")]
    assert models, f"{route.path} takes {model}, of which this test knows nothing: teach it"
    (model,) = models
    examples = (model.model_config.get("json_schema_extra") or {}).get("examples") or [{}]
    needed = next((example for path, example in RIGHT.items() if route.path.startswith(path)), examples[0])
    for row, (name, field) in enumerate(model.model_fields.items()):
        has_members = any(
            word in str(field.annotation).lower() for word in ("list", "dict", "any", "json", "turnwise", "ag_ui")
        )
        for column, (kind, value) in enumerate((AT_BOUND | TOO_MANY if has_members else {"text": HUGE}).items()):
            if (row + column) % 16 >= share(16, 16):
                continue
            body = json.dumps({**needed, (field.alias or name): value}).encode()
            if len(body) < MOST_BYTES + 900:
                yield f"{name} = {kind}", body


def _some(route: APIRoute, requests: Iterable[Request]) -> list[Request]:
    """Return the request of all whose turn it is with this route; with `make races` all."""
    requests = list(requests)
    first = ROUTES.index(next(route_entry for route_entry in ROUTES if route_entry[1] is route)) % len(requests)
    return requests if share(2, 2) == 2 else [requests[first]]


def _app(manager: AsyncSessionManager | None = None) -> FastAPI:
    return create_app(manager or AsyncSessionManager("memory://described", engine=HoldsEngine()))


ROUTES = list(routes(_app()))


@dataclass
class Users:
    """Two users of one service, whose sessions share a process."""

    ann: httpx.Client
    bob: httpx.Client


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    """A service on a real server, with a real store; it and the sessions' process are measured."""
    store = f"sqlite:///{tmp_path_factory.mktemp('holds')}/chats.db"
    options: dict[str, Any] = {"settings": HttpSettings(models=("any",)), "placement": InProcess()}
    options["memory"] = [LexicalMemory(f"sqlite:///{tmp_path_factory.mktemp('holds')}/facts.db", name="facts")]
    with served(
        store, auth=BearerTokens({ANN: "ann", BOB: "bob"}), engine=HoldsEngine(), namespace="holds", **options
    ) as service:
        service.call(_measured())
        ann, bob = (httpx.Client(base_url=service.url, headers=_of(token), timeout=60) for token in (ANN, BOB))
        with ann, bob:
            bob.post("/v1/sessions", json={"id": "bob's"}).raise_for_status()
            yield Users(ann, bob)


def test_all_routes_of_the_description_are_tried() -> None:
    described = {
        (method.upper(), path) for path, operation in _app().openapi()["paths"].items() for method in operation
    }
    assert described <= {(method, route.path_format) for method, route in ROUTES} and len(described) > 60


@pytest.mark.parametrize(
    ("method", "route"),
    [
        pytest.param(*route_entry, id=f"{route_entry[0]} {route_entry[1].path}")
        for number, route_entry in enumerate(ROUTES)
        if (number + today()) % 2 < share(2, 2)  # every other one, and the rest the next day
    ],
)
def test_no_request_holds_another_user_up(users: Users, method: str, route: APIRoute) -> None:
    broken = list(_broken(users.ann, users.bob, method, route))
    assert not broken, "\n".join(broken)


def _broken(ann: httpx.Client, bob: httpx.Client, method: str, route: APIRoute) -> Iterator[str]:
    """Send a route its worst requests while another user works; yield those that held him up, each time they came."""
    path = _path(ann, route)
    requests = [(f"query {query_text[:20]}", query_text, b"") for query_text in _some(route, QUERIES)]
    requests += [(label, "", body) for label, body in bodies(route)]
    _take(bob)
    scale = 1.0
    for label, query, body in requests:
        status, holds = 0, list[Any]()
        for _ in range(TIMES):
            with ann.stream(method, path + query, content=body, headers=JSON) as sent:
                status = sent.status_code
            assert status < 500, (method, route.path, label, status)
            holds = [
                hold for hold in _take(bob) if hold["loop_s"] > LOOP_S * scale or hold["store_s"] > STORE_S * scale
            ]
            if not holds:
                break
            scale = slowness()
        else:
            yield f"{method} {route.path} {label} ({status}, {scale:.1f} times slower): {holds}"


def _of(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _path(ann: httpx.Client, route: APIRoute) -> str:
    """Return a path of a route, with a session and a run that are there."""
    session = ann.post("/v1/sessions", json={}).json()["id"]
    run = ann.post(f"/v1/sessions/{session}/runs?wait_s=60", json={"prompt": "hello"}).json()["id"]
    names = {"session_id": session, "chat_id": session, "thread_id": session, "run_id": run}
    return re.sub(r"{(\w+)(:\w+)?}", lambda match: names.get(match[1], "other"), route.path)


def _take(bob: httpx.Client) -> list[dict[str, Any]]:
    """Let another user work; return the longest holds since his last run, of his sessions' process and of this one."""
    answer = bob.post("/v1/sessions/bob's/runs?wait_s=60", json={"prompt": "hello"})
    assert answer.status_code == 200, answer.text
    return [HOLDS.take(), json.loads(answer.json()["text"])]


async def _measured() -> None:
    measure_this_loop()

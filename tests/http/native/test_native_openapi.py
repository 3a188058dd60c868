"""The description of the native API is valid and complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http import create_app
from turnwise.http.native.models import RunPage, SessionPage
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.base import Page

Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(AsyncSessionManager("memory://x", engine=EchoEngine())).openapi()


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> list[Operation]:
    paths = [(path, routes) for path, routes in document["paths"].items() if path.startswith("/v1/")]
    return [(path, verb, operation) for path, routes in paths for verb, operation in routes.items()]


def within(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from within(member)


def test_each_route_says_what_it_does_and_which_problems_it_answers_with(operations: list[Operation]) -> None:
    assert len(operations) > 50
    names = [operation["operationId"] for _, _, operation in operations]
    assert len(names) == len(set(names)) and all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    for path, verb, operation in operations:
        where = f"{verb} {path}"
        assert operation["summary"] and not operation["summary"].endswith("."), where
        assert {"401", "422", "429", "503"} <= operation["responses"].keys(), where
        assert "404" in operation["responses"] or "{" not in path, where
        for status, answer in operation["responses"].items():
            assert answer["description"], where
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], (where, status)
        assert [name for name, answer in operation["responses"].items() if int(name) < 300], where


def test_the_reference_names_each_route(operations: list[Operation]) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/routes.md").read_text(encoding="utf-8")
    assert not [path for path, verb, _ in operations if f"| `{verb.upper()} {path}` |" not in page]


def test_every_reference_leads_somewhere_and_every_schema_is_one(document: dict[str, Any]) -> None:
    for part in within(document):
        if isinstance(reference := part.get("$ref"), str):
            target: Any = document
            for name in reference.removeprefix("#/").split("/"):
                target = target[name]
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_request_has_an_example_that_fits(document: dict[str, Any], operations: list[Operation]) -> None:
    def check(schema: dict[str, Any], example: Any) -> None:
        Draft202012Validator({**schema, "components": document["components"]}).validate(example)

    for _path, _, operation in operations:
        if body := operation.get("requestBody"):
            if _path.endswith("/files"):  # the body is the file
                assert list(body["content"]) == ["application/octet-stream"]
                continue
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            schema = document["components"]["schemas"][name]
            assert schema.get("examples"), name
            assert schema["additionalProperties"] is False or name == "AgentInput", name  # AG-UI's fields may grow
            for example in schema["examples"]:
                check(schema, example)
    for schema in within(document["components"]["schemas"]):
        for example in (
            schema.get("examples", ()) if "properties" in schema and "additionalProperties" in schema else ()
        ):
            check(schema, example)


def test_pages_name_unreadable_sessions_with_their_users() -> None:
    keys = (SessionKey("chat", "ann"), SessionKey("chat", "bob"))
    for page in (SessionPage.of(Page((), None, keys)), RunPage.of(Page((), None, keys))):
        assert page.model_dump()["unreadable"] == [
            {"session_id": "chat", "user_id": "ann"},
            {"session_id": "chat", "user_id": "bob"},
        ]
    assert "chat of ann, chat of bob" in Page((), None, keys)._repr_html_()

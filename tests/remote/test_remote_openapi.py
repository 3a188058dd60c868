"""What a remote manager sends, and what it is answered, is what the service's OpenAPI document says."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from servers.each_verb import use_each_verb
from turnwise import EchoEngine
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.http import create_app

LEFT_OUT = {
    "list_turns": "`list_snapshots` has the turns with what the model was given",
    "get_turn": "`get_snapshot`, likewise",
    "get_input": "`get_snapshot_of_run`, likewise",
    "follow_partials": "the partial answers are read from the events",
    "get_webhook": "`list_webhooks` has it",
    "answer_chat": "for the Vercel AI SDK",
    "resume_chat": "likewise",
    "list_chat_messages": "likewise",
    "stop_chat": "likewise",
}
"""Operations that a remote manager does not ask for, and why."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(AsyncSessionManager("memory://x", engine=EchoEngine())).openapi()


class Checked:
    """Compares requests and answers with the document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._validators: dict[str, Draft202012Validator] = {}
        self.operations: set[str] = set()
        routes = [(path, *route) for path, verbs in document["paths"].items() for route in verbs.items()]
        self._routes = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), verb, operation)
            for path, verb, operation in sorted(routes, key=lambda route: route[0].count("{"))
        ]

    def __call__(self, request: httpx2.Request, status: int, body: bytes) -> None:
        path, _, query = request.url.raw_path.decode().partition("?")
        operation = next(
            operation
            for pattern, verb, operation in self._routes
            if verb == request.method.lower() and pattern.fullmatch(path)
        )
        name = operation["operationId"]
        self.operations.add(name)
        known = {parameter["name"] for parameter in operation.get("parameters", ())}
        assert parse_qs(query).keys() <= known, name
        content, body_types = request.read(), operation.get("requestBody", {}).get("content", {})
        if content and (schema := body_types.get("application/json")):
            self._check(f"the request of {name}", schema["schema"], json.loads(content))
        answers = operation["responses"][str(status)].get("content", {})
        for media_type, answer in answers.items():
            if "json" in media_type and body and body[:1] in b"{[n":
                self._check(f"the answer of {name}, {status}", answer["schema"], json.loads(body))

    def _check(self, what: str, schema: dict[str, Any], value: Any) -> None:
        if what not in self._validators:
            self._validators[what] = Draft202012Validator({**schema, "components": self._document["components"]})
        errors = [f"{error.json_path}: {error.message[:200]}" for error in self._validators[what].iter_errors(value)]
        assert not errors, (what, errors)


@pytest.fixture(scope="module")
def asked(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """What was asked for when each verb was called."""
    checked = Checked(document)
    use_each_verb(tmp_path_factory.mktemp("remote"), seen=checked)
    return checked


def test_each_operation_is_called_or_named(document: dict[str, Any], asked: Checked) -> None:
    operations = {
        operation["operationId"]
        for path, verbs in document["paths"].items()
        for operation in verbs.values()
        if path.startswith("/v1/") and "/ag-ui" not in path
    }
    assert operations - asked.operations == LEFT_OUT.keys()

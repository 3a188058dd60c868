"""`/files` of OpenAI's dialect, by the real `openai` client, and inputs that name files by their ids."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from openai.types import FileDeleted, FileObject
from pydantic import TypeAdapter

from servers.threaded_service import Served, served
from turnwise import SessionConfig
from turnwise.actors.hosting.placement import InProcess
from turnwise.engines import OpenAIEngine
from turnwise.http import BearerTokens
from turnwise.testing import LocalProvider

TOKENS = BearerTokens({"ann's-secret-token": "ann", "bob's-secret-token": "bob"})
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.7 of a paper"
ASKED: list[Sequence[dict[str, Any]]] = []


def note(messages: Sequence[dict[str, Any]]) -> str:
    ASKED.append(messages)
    return "I see"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with LocalProvider(reply=note) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="k")
        store = f"sqlite:///{tmp_path_factory.mktemp('http')}/chats.db"
        config = SessionConfig(max_file_bytes=1 << 20)
        with served(
            store, engine=engine, placement=InProcess(), auth=TOKENS, namespace="openai-files", config=config
        ) as running:
            yield running


def client_of(service: Served, user: str) -> Any:
    return service.openai_client(f"{user}'s-secret-token")


def data_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_files_are_uploaded_listed_read_and_deleted(service: Served) -> None:
    ann, bob = client_of(service, "ann"), client_of(service, "bob")
    first = ann.files.create(file=("paper.pdf", PDF, "application/pdf"), purpose="user_data")
    TypeAdapter(FileObject).validate_json(first.to_json(), strict=True)
    assert (first.filename, first.bytes, first.purpose, first.object) == ("paper.pdf", len(PDF), "user_data", "file")
    second = ann.files.create(file=("cat.png", io.BytesIO(PNG)), purpose="vision")
    assert [file.id for file in ann.files.list()] == [second.id, first.id]
    assert [file.id for file in ann.files.list(order="asc", limit=1)] == [first.id, second.id]
    assert [file.id for file in bob.files.list()] == []
    assert ann.files.retrieve(first.id) == first
    assert ann.files.content(second.id).read() == PNG
    for verb in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"File with id '{first.id}' not found"):
            verb(first.id)
    deleted = ann.files.delete(first.id)
    TypeAdapter(FileDeleted).validate_json(deleted.to_json(), strict=True)
    assert deleted.deleted
    for verb in (ann.files.retrieve, ann.files.delete):
        with pytest.raises(openai.NotFoundError):
            verb(first.id)
    ann.files.delete(second.id)


def test_what_cannot_be_stored_is_refused(service: Served) -> None:
    ann = client_of(service, "ann")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        ann.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="max_file_bytes"):
        ann.files.create(file=("a", b"x" * (1 << 20) + b"x"), purpose="user_data")
    with pytest.raises(openai.APIStatusError) as large:
        ann.files.create(file=("a", b"x" * (3 << 20)), purpose="user_data")
    assert large.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="file"):
        ann.post("/files", body={"purpose": "user_data"}, cast_to=object)
    assert list(ann.files.list()) == []


def test_responses_and_chats_name_files_by_their_ids(service: Served) -> None:
    ann, bob = client_of(service, "ann"), client_of(service, "bob")
    paper = ann.files.create(file=("paper.pdf", PDF, "application/pdf"), purpose="user_data")
    cat = ann.files.create(file=("cat.png", PNG), purpose="vision")
    parts = [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "file_id": cat.id, "detail": "auto"},
        {"type": "input_file", "file_id": paper.id},
    ]
    message = [{"role": "user", "content": parts}]
    conversation = ann.conversations.create()
    first = ann.responses.create(input=message, conversation=conversation.id)
    assert first.output_text == "I see"
    assert data_of(PNG) in str(ASKED[-1])
    assert data_of(PDF) in str(ASKED[-1])
    ann.files.delete(cat.id)  # the conversation has it
    ann.responses.create(input="And now?", conversation=conversation.id)
    assert data_of(PNG) in str(ASKED[-1])
    contents = [part for item in ann.conversations.items.list(conversation.id) for part in getattr(item, "content", ())]
    assert {getattr(part, "file_id", None) for part in contents} >= {cat.id, paper.id}
    with pytest.raises(openai.BadRequestError, match="has no file"):
        bob.responses.create(input=message)
    for wrong in ("file-abc", "../../etc/passwd", 7):
        with pytest.raises(openai.BadRequestError, match="there is no file"):
            ann.responses.create(input=[{"role": "user", "content": [{"type": "input_file", "file_id": wrong}]}])
    file = {"type": "file", "file": {"file_id": paper.id}}
    asked = [{"role": "user", "content": [{"type": "text", "text": "Read."}, file]}]
    for headers in ({}, {"X-Session-Id": "a-chat"}):
        answer = ann.chat.completions.create(model="local", messages=asked, extra_headers=headers)
        assert answer.choices[0].message.content == "I see"
        assert data_of(PDF) in str(ASKED[-1])

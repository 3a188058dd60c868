"""Images and documents that tools return: the model sees them, and one that it cannot see ends no run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.tool import external_tool, tool
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError, UnsupportedBlockError
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import Document, Image, ToolResult, encode as encode_block
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.providers.requests import encode
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.testing import LocalProvider, tool_script
from turnwise.testing.local_provider.http_protocol import RefusedError

API = Literal["chat", "responses"]
APIS: list[API] = ["chat", "responses"]

PNG = Image.from_bytes(b"\x89PNG", "image/png")
TIFF = Image.from_bytes(b"II*", "image/tiff")
PDF = Document.from_bytes("bill.pdf", b"%PDF-", "application/pdf")


@tool
def look(at: str) -> Any:
    """Take a picture."""
    if at == "page":
        return ToolResult.of({"pages": 1}, PDF)
    if at == "ill":
        return [Image(data="%%%", media_type="image/png")]
    return ["Seen:", TIFF if at == "scan" else PNG]


KEY = "sk-0123456789abcdef0123456789"


@tool
def leak() -> list[Any]:
    """Say too much."""
    return [KEY, Image(url=f"https://example.org/{KEY}.png"), KEY, Document(name=f"a {KEY}", chunks=(KEY,))]


ask = external_tool("ask", "Ask a person.", {"type": "object"})


def shown(messages: list[Any]) -> list[str]:
    """Return the kinds of the blocks in a request that are no texts."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part["type"] for part in parts if part["type"] != "text"]


def reply(messages: list[Any]) -> Any:
    """Call the tool that the prompt names; once it is called, say what the request shows."""
    prompts = [message for message in messages if message["role"] == "user" and isinstance(message["content"], str)]
    tool_name, _, argument = prompts[-1]["content"].partition(" ")
    if tool_name in ("look", "ask", "leak") and messages[-1] is prompts[-1]:
        arguments = f'{{"at":"{argument}"}}' if tool_name == "look" else "{}"
        call = {"id": f"c{len(messages)}", "type": "function", "function": {"name": tool_name, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return f"I see {shown(messages)}"


def blind_reply(messages: list[Any]) -> Any:
    if shown(messages):
        raise RefusedError(400, "The image data you provided does not represent a valid image", "invalid_image_format")
    return reply(messages)


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(reply=reply) as local_provider:
        yield local_provider


@pytest.fixture
def blind() -> Iterator[LocalProvider]:
    """Refuses every request with a picture or a file."""
    with LocalProvider(reply=blind_reply) as local_provider:
        yield local_provider


def engine(provider: LocalProvider, api: API, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(
        "local", base_url=provider.base_url, api=api, max_retries=0, tools=[look, ask, leak], **settings
    )


async def new_core(builder: Any, store: Any = None) -> SessionCore:
    store = store or InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    return SessionCore(SessionKey("s"), store, builder)


async def run(core: SessionCore, prompt: str) -> Any:
    run_id = f"r{len(await core.reads.runs(limit=1000))}"
    await core.admission.start([prompt], run_id=run_id)
    return await core.reads.wait(run_id)


def results(blocks: Any) -> list[ToolResult]:
    return [block for block in blocks if isinstance(block, ToolResult)]


@pytest.mark.parametrize("api", APIS)
async def test_the_model_sees_what_a_tool_returned(provider: LocalProvider, api: API, tmp_path: Path) -> None:
    """Also another process, a copy from an archive, and who reads the events alone; encrypted in SQLite."""
    store = EncryptedStore(SQLStore(f"sqlite:///{tmp_path}/store.db"), Encryption(lambda _: bytes(32)))
    core = await new_core(engine(provider, api), store)
    turn = (await run(core, "look there")).turn
    assert turn.text == "I see ['image_url']"
    (result,) = results(turn.output)
    assert (result.text, result.blocks) == ("Seen:", (PNG,))
    turn = (await run(core, "look page")).turn
    assert turn.text == "I see ['image_url', 'file']"
    assert results(turn.output)[0].data == {"pages": 1}
    events, _, _ = await core.reads.events()
    assert rebuild(events) == list(turn.blocks)
    await core.ownership.leave()
    again = SessionCore(SessionKey("s"), store, engine(provider, api))
    assert (await run(again, "and now?")).turn.text == "I see ['image_url', 'file']"
    await again.ownership.leave()
    assert PNG.data and PNG.data.encode() not in (tmp_path / "store.db").read_bytes()
    lines: list[str] = []
    await export_session(store, SessionKey("s"), lines.append)
    target_store = InMemoryStore()
    await import_session(target_store, lines)
    await store.close()
    copy = SessionCore(SessionKey("s"), target_store, engine(provider, api))
    turn = (await run(copy, "and here?")).turn
    assert turn.text == "I see ['image_url', 'file']" and results(turn.blocks)[0].blocks == (PNG,)
    await copy.ownership.leave()


@pytest.mark.parametrize("api", APIS)
async def test_what_the_provider_does_not_take_is_told_to_the_model(provider: LocalProvider, api: API) -> None:
    core = await new_core(engine(provider, api))
    outcome = await run(core, "look scan")
    assert outcome.run.state == "completed" and outcome.turn.text == "I see []"
    assert results(outcome.turn.output)[0].blocks == (TIFF,), "another engine may take it"
    sent = str(provider.requests[-1].body)
    assert "[image (image/tiff) is left out: OpenAI" in sent and str(TIFF.data) not in sent
    with pytest.raises(UnsupportedBlockError, match="image/tiff"):
        encode(outcome.turn.blocks, provider=api)
    outcome = await run(core, "look ill")
    (failed,) = results(outcome.turn.output)
    assert failed.is_error and "the image (image/png): its data is not base64" in failed.text
    assert (await run(core, "look there")).turn.text == "I see ['image_url']"
    await core.ownership.leave()


@pytest.mark.parametrize("api", APIS)
async def test_what_the_provider_refuses_is_left_out_and_the_run_goes_on(blind: LocalProvider, api: API) -> None:
    store = InMemoryStore()
    core = await new_core(engine(blind, api), store)
    outcome = await run(core, "look there")
    assert outcome.run.state == "completed", outcome.run.why
    assert results(outcome.turn.output)[0].blocks == (PNG,)
    assert "[image (image/png) is left out: the provider refused it]" in str(blind.requests[-1].body)
    assert len(blind.requests) == 3, "the call, the refusal, the answer"
    assert (await run(core, "and now?")).run.state == "completed"
    assert len(blind.requests) == 4, "it is not tried again"
    assert (await run(core, "look page")).run.state == "completed"
    assert len(blind.requests) == 7
    await core.ownership.leave()
    again = SessionCore(SessionKey("s"), store, engine(blind, api))
    assert (await run(again, "and here?")).run.state == "completed"
    assert len(blind.requests) == 9, "another process is refused once"
    await again.ownership.leave()


@pytest.mark.parametrize("api", APIS)
async def test_a_picture_may_be_provided_and_a_wrong_one_leaves_the_run_waiting(
    provider: LocalProvider, api: API
) -> None:
    store = InMemoryStore()
    core = await new_core(engine(provider, api), store)
    await core.admission.start(["ask"], run_id="run")
    while not (pending := await core.reads.pending("run")):
        await asyncio.sleep(0.01)
    (call,) = pending
    with pytest.raises(InvalidInputError, match=r"image \(image/tiff\).*data of image/tiff"):
        await core.approvals.decide("run", call.call_id, ApprovalDecision(verdict="provided", blocks=(TIFF,)))
    await core.ownership.leave()
    again = SessionCore(SessionKey("s"), store, engine(provider, api))  # as another process has it
    assert await again.reads.pending("run") == [call]
    decision = ApprovalDecision(verdict="provided", text="here", blocks=(PNG,))
    for _ in range(2):
        await again.approvals.decide("run", call.call_id, decision)
    outcome = await again.reads.wait("run")
    assert outcome.turn and outcome.turn.text == "I see ['image_url']"
    assert results(outcome.turn.output) == [ToolResult(call_id=call.call_id, text="here", blocks=(PNG,))]
    await again.ownership.leave()


async def test_a_secret_of_the_engine_is_in_no_block_of_a_result(provider: LocalProvider) -> None:
    core = await new_core(engine(provider, "chat", api_key=KEY))
    (result,) = results((await run(core, "leak")).turn.output)
    assert len(result.blocks) == 3 and KEY not in encode_block(result)
    assert [block.url for block in result.attachments] == ["https://example.org/***.png", None]
    await core.ownership.leave()


async def test_the_examples_scripts_go_on_after_a_picture() -> None:
    with LocalProvider(reply=tool_script([[("look", {"at": "a"})], [("look", {"at": "b"})], "Done."])) as scripted:
        core = await new_core(engine(scripted, "chat"))
        for _ in range(2):
            turn = (await run(core, "look")).turn
            assert turn.text == "Done." and len(results(turn.output)) == 2
        await core.ownership.leave()

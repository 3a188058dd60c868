"""Attachments: which are refused with the prompt, and what happens to one that a provider does not take."""

import asyncio
import base64
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from turnwise.actors.inference.engine import RunContext, SessionView, StepContext
from turnwise.actors.inference.middleware import LogCalls, SystemPrompt
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidPromptError, RequestRefusedError, UnsupportedBlockError
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import (
    KINDS,
    AnyBlock,
    Block,
    Document,
    Image,
    Summary,
    Text,
    ToolResult,
    User,
    decode,
    encode,
)
from turnwise.memory.conversation.prompts import accept
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.providers import anthropic, openai_chat as chat, openai_responses as responses
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, Rules, check
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing import LocalProvider
from turnwise.testing.local_provider.http_protocol import RefusedError

VIDEO = Document(name="v.mp4", data="aGk=", media_type="video/mp4")
PICTURE = Image(data=base64.b64encode(b"well-formed, yet no picture").decode(), media_type="image/png")

FLAWED: list[tuple[Block, str]] = [
    (Image(data="%%%", media_type="image/png"), "its data is not base64"),
    (Image(data="aGk", media_type="image/png"), "its data is not base64"),
    (Image(data="aGk=\n", media_type="image/png"), "its data is not base64"),
    (Image(data="é", media_type="image/png"), "its data is not base64"),
    (Document(name="a.pdf", data="!!!", media_type="application/pdf"), "its data is not base64"),
    (Image(data="aGk=", media_type="text/plain"), "an image is of a media type such as image/png, not 'text/plain'"),
    (Image(data="aGk=", media_type="image/"), "'image/' is no media type"),
    (Image(data="aGk=", media_type="image/png,x"), "'image/png,x' is no media type"),
    (Document(name="a", data="aGk=", media_type="pdf"), "'pdf' is no media type"),
    (Image(url="cat.png"), "its url is not valid"),
    (Image(url="https://"), "its url is not valid"),
    (Image(url="https://[::1/cat.png"), "its url is not valid"),
    (Image(url="https://example.org/a cat.png"), "its url is not valid"),
    (Image(url="javascript:alert(1)"), "its url is not valid"),
    (Image(url="data:image/png;base64,%%%"), "its data is not base64"),
    (Image(url="data:text/html;base64,aGk="), "an image is of a media type such as image/png, not 'text/html'"),
    (Document(name="a", url="data:,hello"), "its url is not valid"),
]

FINE: list[Block] = [
    Image(data="aGk=", media_type="image/png"),
    Image(url="https://example.org/cat.png?a=b#c"),
    Image(url="http://127.0.0.1:8000/cat.png"),
    Image(url="data:image/png;base64,aGk="),
    Image(url="gs://bucket/cat.png"),
    Document(name="a.txt", text="hello"),
    Document(name="a.txt", data="aGk=", media_type="text/plain; charset=utf-8"),
    VIDEO,
]


OPEN: list[SessionCore] = []


def play(story: Awaitable[Any]) -> Any:
    async def call() -> Any:
        try:
            return await story
        finally:
            while OPEN:
                await OPEN.pop().ownership.leave()
            await asyncio.sleep(0)

    return asyncio.run(call())


def open_core(session_id: str, store: InMemoryStore, builder: Any) -> SessionCore:
    OPEN.append(SessionCore(SessionKey(session_id), store, builder))
    return OPEN[-1]


def shows_picture(messages: list[Any]) -> bool:
    return any(part.get("type") == "image_url" for message in messages for part in parts(message))


def parts(message: Any) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def reply(messages: list[Any]) -> str:
    """Refuse pictures as OpenAI does; else answer."""
    if shows_picture(messages):
        raise RefusedError(400, "The image data you provided does not represent a valid image", "invalid_image_format")
    return "fine"


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as local_provider:
        yield local_provider


@pytest.fixture(scope="module")
def blind() -> Iterator[LocalProvider]:
    """Refuses every request with a picture."""
    with LocalProvider(reply=reply) as local_provider:
        yield local_provider


def engine(provider: LocalProvider, api: Any = "chat", **settings: Any) -> OpenAIEngine:
    return OpenAIEngine("local", base_url=provider.base_url, api=api, max_retries=0, **settings)


async def new_core(builder: Any, store: InMemoryStore | None = None) -> SessionCore:
    store = store or InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    return open_core("s", store, builder)


async def run(core: SessionCore, *prompts: Any) -> Any:
    """Return how a run of these prompts ended."""
    run_id = f"r{len(await core.reads.runs(limit=1000))} of {core.session_id}"
    await core.admission.start(list(prompts), run_id=run_id)
    return await core.reads.wait(run_id)


async def check_goes_on(core: SessionCore) -> Turn:
    """Run a prompt; the session must take it."""
    outcome = await run(core, "and now?")
    assert outcome.run.state == "completed", outcome.run.why
    turn: Turn = outcome.turn
    return turn


# Refused with the prompt


@pytest.mark.parametrize(("block", "reason"), FLAWED)
def test_an_attachment_that_nobody_could_take_is_refused_by_its_place(block: Block, reason: str) -> None:
    with pytest.raises(InvalidPromptError) as error:
        accept("s", ["look", block], 1000)
    assert f"prompts[1], the {block.kind}" in str(error.value) and reason in str(error.value)


@pytest.mark.parametrize("block", FINE)
def test_a_well_formed_attachment_is_accepted(block: Block) -> None:
    assert accept("s", ["look", block], 1000)[0][1] == block
    assert decode(encode(block)) == block


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("verb", ["start", "append"])
def test_a_bad_attachment_stores_nothing_and_the_session_goes_on(provider: LocalProvider, api: str, verb: str) -> None:
    async def story() -> None:
        core = await new_core(engine(provider, api))
        await run(core, "hello")
        before = await core.reads.session()
        bad = [block for block, _ in FLAWED]
        bad += [Image(data="aGk=", media_type="image/bmp"), *([VIDEO] if api == "chat" else [])]
        for block in bad:
            call = (
                core.admission.start(["look", block], run_id="b")
                if verb == "start"
                else core.admission.append(["look", block], "key")
            )
            with pytest.raises(InvalidPromptError, match=rf"^session 's' .* prompts\[1\], the {block.kind}"):
                await call
        assert await core.reads.session() == before
        await check_goes_on(core)

    play(story())


def test_the_refusal_says_what_the_provider_takes(provider: LocalProvider) -> None:
    async def story() -> None:
        core = await new_core(engine(provider, middleware=[SystemPrompt("Be brief."), LogCalls()]))
        message = (
            r"prompts\[0\], the document v.mp4 \(video/mp4\): OpenAI Chat Completions: it takes documents as text, "
            r"as data of application/pdf, by a url; this one is data of video/mp4"
        )
        with pytest.raises(InvalidPromptError, match=message):
            await core.admission.start([VIDEO], run_id="bad")

    play(story())


def test_bytes_are_refused_where_text_is_meant() -> None:
    for kind in ("image", "document"):
        with pytest.raises(ValidationError, match=r"base64\.b64encode\(data\)\.decode\(\)"):
            KINDS[kind].model_validate({"name": "a", "data": b"hi", "media_type": "image/png"})
    for make in (
        lambda: User(text=b"hi"),  # type: ignore[arg-type]
        lambda: Text(text=b"hi"),  # type: ignore[arg-type]
        lambda: Image(url=b"https://example.org/a.png"),  # type: ignore[arg-type]
        lambda: Image(data="aGk=", media_type=b"image/png"),  # type: ignore[arg-type]
        lambda: Document(name=b"a", text="b"),  # type: ignore[arg-type]
        lambda: ToolResult(call_id="a", text=bytearray(b"b")),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValidationError, match="valid string"):
            make()


class Redrawing:
    """A middleware that replaces each video by a text in requests."""

    async def run(self, turn: Turn, context: StepContext, runner: Any) -> Any:
        shown = [User(text="a cat jumps") if block == VIDEO else block for block in turn.blocks]
        return await runner.run(turn.showing(shown), context)


class Passing:
    """A middleware that shows the model what there is."""

    async def run(self, turn: Turn, context: StepContext, runner: Any) -> Any:
        return await runner.run(turn.showing(turn.blocks), context)


def test_what_a_middleware_may_make_something_of_is_accepted(provider: LocalProvider) -> None:
    """If the middleware does not, that run fails and no other."""

    async def story() -> None:
        core = await new_core(engine(provider, middleware=[Redrawing()]))
        assert (await run(core, "look", VIDEO)).run.state == "completed"
        core = await new_core(engine(provider, middleware=[Passing()]))
        outcome = await run(core, "look", VIDEO)
        assert outcome.run.state == "failed" and "this one is data of video/mp4" in outcome.run.why
        await check_goes_on(core)

    play(story())


# Those of earlier turns


HOSTILE = [*(block for block, _ in FLAWED), VIDEO, Image(data="aGk=", media_type="image/bmp")]


@pytest.mark.parametrize("rules", [CHAT, RESPONSES, ANTHROPIC])
def test_what_a_provider_does_not_take_of_ended_turns_is_sent_as_text(rules: Rules) -> None:
    history = [User(text="look"), *HOSTILE, *FINE, Text(text="I see")]
    with pytest.raises(UnsupportedBlockError):
        check(messages_of(history), rules)
    shown = rules.spare([*history, User(text="and now?")])
    check(messages_of(shown), rules)
    {CHAT: chat, RESPONSES: responses, ANTHROPIC: anthropic}[rules].encode(shown)
    texts = [block.text for block in shown if isinstance(block, User)]
    assert any("[document v.mp4 (video/mp4) is left out: " in text for text in texts) == (rules is not RESPONSES)
    for block in FINE:
        if isinstance(block, Image | Document) and rules.form(block):
            assert block in shown


def test_what_a_run_itself_asks_about_is_not_left_out_in_silence() -> None:
    history = [User(text="look"), VIDEO]
    assert CHAT.spare(history, keep=history) == tuple(history)
    with pytest.raises(UnsupportedBlockError):
        check(messages_of(CHAT.spare(history, keep=history)), CHAT)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_session_that_was_stored_with_bad_attachments_goes_on(provider: LocalProvider, api: str) -> None:
    """As sessions were before attachments were checked."""

    async def story() -> None:
        store = InMemoryStore()
        core = await new_core(engine(provider, api), store)
        row = (await store.activate(SessionKey("s"))).session
        blocks = [User(text="look"), *HOSTILE]
        span = Span(row.log, 0, len(blocks))
        turn = TurnRecord(index=0, status="failed", run_id="old", prompt=(span,), input=(span,))
        row = row.committed(log_size=len(blocks), next_index=1)
        commit = Commit(session=row, blocks=list(map(encode, blocks)), turns=[turn])
        await store.commit(SessionKey("s"), row.epoch, commit)
        turn = (await check_goes_on(core)).record
        assert len((await core.reads.turn(turn.index)).blocks) == len(blocks) + 2
        fork = open_core((await core.forking.fork(0, "f")).session_id, store, engine(provider, api))
        await check_goes_on(fork)

    play(story())


class AnyEngine:
    """Takes everything."""

    def build(self, session: SessionView) -> "AnyEngine":
        return self

    async def run(self, turn: Turn, context: RunContext) -> list[AnyBlock]:
        return [Text(text="I see")]


def test_a_session_goes_on_with_an_engine_that_takes_less(provider: LocalProvider) -> None:
    async def story() -> None:
        core = await new_core(AnyEngine())
        assert (await run(core, "look", VIDEO)).run.state == "completed"
        core.use(engine(provider), core.engines.config)
        await check_goes_on(core)
        (message,) = [m for m in provider.requests[-1].body["messages"] if "v.mp4" in str(m["content"])]
        assert message["content"].startswith("[document v.mp4 (video/mp4) is left out: OpenAI Chat")

    play(story())


# What only the provider refuses


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_picture_that_the_provider_refuses_fails_its_run_and_no_other(blind: LocalProvider, api: str) -> None:
    async def story() -> None:
        store = InMemoryStore()
        core = await new_core(engine(blind, api), store)
        await run(core, "hello")
        outcome = await run(core, "look", PICTURE)
        assert (outcome.run.state, outcome.run.code) == ("failed", "refused")
        assert outcome.turn.blocks[-1] == PICTURE
        turn = await check_goes_on(core)
        (left_out,) = [block for block in turn.blocks if isinstance(block, Summary)]
        assert left_out.text == "[image (image/png) is left out: the provider refused it]"
        assert await core.reads.expand(left_out) == (PICTURE,)
        again = open_core("s", store, engine(blind, api))  # as another process has it
        await check_goes_on(again)
        fork = open_core((await again.forking.fork(None, "f")).session_id, store, engine(blind, api))
        await check_goes_on(fork)
        lines: list[str] = []
        await export_session(store, SessionKey("f"), lines.append)
        target_store = InMemoryStore()
        await import_session(target_store, lines)
        await check_goes_on(open_core("f", target_store, engine(blind, api)))

    play(story())


def test_a_fork_from_the_refused_turn_itself_fails_once(blind: LocalProvider) -> None:
    """The fork continues the turn as it was, so its own provider refuses the attachment again."""

    async def story() -> None:
        store = InMemoryStore()
        core = await new_core(engine(blind), store)
        index = (await run(core, "look", PICTURE)).turn.index
        fork = open_core((await core.forking.fork(index, "f")).session_id, store, engine(blind))
        assert (await run(fork, "and now?")).run.code == "refused"
        await check_goes_on(fork)

    play(story())


def test_a_picture_that_another_provider_took_is_left_out_after_one_refusal(blind: LocalProvider) -> None:
    async def story() -> None:
        core = await new_core(AnyEngine())
        await run(core, "look", PICTURE)
        core.use(engine(blind), core.engines.config)
        assert (await run(core, "and now?")).run.code == "refused"
        await check_goes_on(core)

    play(story())


def test_a_refused_turn_that_is_forgotten_leaves_no_text_in_its_place(blind: LocalProvider) -> None:
    async def story() -> None:
        core = await new_core(engine(blind))
        index = (await run(core, "look", PICTURE)).turn.index
        await core.forgetting.forget_turn(index)
        turn = await check_goes_on(core)
        assert [block.kind for block in turn.blocks] == ["user", "text"]

    play(story())


@pytest.mark.parametrize(
    ("fault", "code"),
    [("400", "refused"), ("413", "refused"), ("422", "refused"), ("404", None), ("401", None), ("500", "away")],
)
def test_only_a_refusal_of_the_conversation_leaves_pictures_out(
    provider: LocalProvider, fault: str, code: str | None
) -> None:
    async def story() -> None:
        core = await new_core(replace(engine(provider), model=f"local/{fault}"))
        assert (await run(core, "look", PICTURE)).run.code == code
        core.use(engine(provider), core.engines.config)
        turn = await check_goes_on(core)
        assert (PICTURE in turn.blocks) == (code != "refused")

    play(story())


def test_a_setting_that_the_provider_refuses_leaves_no_picture_out() -> None:
    """The provider names the field of the request; one of the engine's own says nothing against attachments."""

    class FieldError(RefusedError):
        def body(self) -> Any:
            answer = super().body()
            answer["error"]["param"] = "temperature"
            return answer

    def refuse(messages: list[Any]) -> str:
        raise FieldError(400, "Unsupported value: 'temperature' does not support 2", "unsupported_value")

    async def story() -> None:
        with LocalProvider(reply=refuse) as provider:
            core = await new_core(engine(provider, temperature=2))
            outcome = await run(core, "look", PICTURE)
            assert (outcome.run.state, outcome.run.code) == ("failed", None)

    play(story())


def test_an_engine_of_ones_own_says_that_its_provider_refused_the_conversation() -> None:
    class Picky(AnyEngine):
        async def run(self, turn: Turn, context: RunContext) -> list[AnyBlock]:
            if PICTURE in turn.blocks:
                raise RequestRefusedError("the provider refuses the picture")
            return [Text(text="fine")]

    async def story() -> None:
        core = await new_core(Picky())
        assert (await run(core, "look", PICTURE)).run.code == "refused"
        await check_goes_on(core)

    play(story())


def test_pictures_that_the_provider_took_in_an_earlier_step_stay() -> None:
    """A refusal after a tool call is of what came since."""

    class Stepping(AnyEngine):
        async def run(self, turn: Turn, context: StepContext) -> list[AnyBlock]:  # type: ignore[override]
            if turn.record.index == 0:
                await context.record(Text(text="I see a cat"))
                raise RequestRefusedError("the provider refuses the result")
            return [Text(text="fine")]

    async def story() -> None:
        core = await new_core(Stepping())
        assert (await run(core, "look", PICTURE)).run.code == "refused"
        assert PICTURE in (await check_goes_on(core)).blocks

    play(story())

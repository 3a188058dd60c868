"""`OpenAIRunner`: sends one request, streams its answer, and maps the provider's failures to errors; for both APIs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.actors.inference.engine import RunContext
from turnwise.actors.inference.openai.fields import BrokenOffError
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.stream import AnswerStream
from turnwise.actors.inference.openai.structured_output import Form
from turnwise.actors.inference.redaction import redacted
from turnwise.errors import ContextOverflowError, EngineError, OutputError, RequestRefusedError
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, ToolResult, ToolUse
from turnwise.memory.conversation.output_type import OutputType, as_said
from turnwise.memory.conversation.transcript import system_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.validation import Rules

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai.engine import OpenAIEngine

_ADAPTABLE = (400, 404, 422)
"""The statuses by which servers refuse a field."""

_REMEDIES = {
    400: "the provider refuses the request: see its message",
    401: "check api_key= or OPENAI_API_KEY",
    403: "this key may not use this model: use another key or model=",
    404: "check model= and base_url=",
    413: "the request is too large: shorten the conversation",
    422: "the provider refuses the request: see its message",
    429: "wait, use fewer sessions at once, or raise max_retries=",
}

_REFUSALS = (400, 413, 415, 422)
"""What a provider says of a request that it would refuse again."""

_QUOTED = 500
"""How many characters of a refusal an error quotes."""

_TOO_LONG = "context_length_exceeded"

_TOO_LONG_SAID = re.compile(
    r"maximum context length|exceeds? (the|its|this model's) (available )?context|context (window|length|size) exceeded"
    r"|exceed_context_size|prompt is too long|input is too long|too many (input )?tokens|input tokens exceed"
    r"|input token count.{0,40}exceeds|context_length_exceeded|ContextWindowExceeded"
    r"|longer than the (model's )?(maximum )?(context|model)|too large for model|length of all messages is too long",
    re.IGNORECASE,
)
"""How servers say so: OpenAI and vLLM, llama.cpp, Anthropic, Bedrock and Gemini behind LiteLLM, Mistral, Perplexity."""

_REMEDIES_BY_CODE = {
    _TOO_LONG: "the conversation is longer than the model's window: pass an overflow strategy",
    "insufficient_quota": "check the account's plan and billing",
}


class Answer(Protocol):
    """An answer as its stream grows."""

    usage: Usage
    """Of one call; without tokens until the provider has counted them."""
    stop_reason: str | None
    """Why the model stopped; None until the provider has said so."""
    refusal: str
    """What the model says in place of the answer that it was asked for; empty if it does not refuse."""

    @property
    def is_cut(self) -> bool:
        """Whether it met the limit of its length."""

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        """Take the next object of the stream in; return what of it is to be emitted.

        Raises:
            BrokenOffError: the provider says that it failed.
            ValueError: a field is not what it has to be.
        """

    def blocks(self) -> list[AnyBlock]:
        """Return the answer so far: thoughts, text, calls.

        Raises:
            ValueError: a call cannot be made of what came.
        """


class API(Protocol):
    """One of the provider's APIs: what it is asked, and how its answer reads."""

    rules: Rules
    settings: RequestSettings

    def of_run(self, settings: RequestSettings) -> API:
        """Return the same API with the settings of one run."""

    @property
    def fields(self) -> dict[str, Any]:
        """What each request holds beside the conversation: the settings, and what the model is told of tools."""

    def request(self, blocks: Sequence[Block], form: Form | None) -> dict[str, Any]:
        """Return the request that says what the blocks say, and asks for an answer of this form.

        Raises:
            InvalidRequestError: the provider would refuse them.
        """

    def adapt(self, refused: str, form: Form | None) -> bool:
        """Learn from the words of a refusal what to leave out, that nobody asked for, or to say in another way.

        The form in which the answer was asked for may be such. Return whether there is anything new, so that the
        request can be made and sent once more.
        """

    def without_thoughts(self, request: Mapping[str, Any], refused: str) -> Mapping[str, Any] | None:
        """Return the request without thoughts that the provider cannot read; None if it was not refused for these."""

    async def open(self, client: openai.AsyncOpenAI, request: Mapping[str, Any]) -> openai.AsyncStream[Any]:
        """Send the request; return the stream of its answer. Raises the client's errors."""

    def answer(self, form: Form | None) -> Answer:
        """Return an answer of this form of which nothing has come yet."""


class OpenAIRunner:
    """Answers the turns of one session over one client, which keeps its connection between turns."""

    def __init__(self, settings: OpenAIEngine, client: openai.AsyncOpenAI, api: API) -> None:
        self._settings = settings
        self._client = client
        self._api = api

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        """Return the `Thinking` blocks, at most one `Text`, then the calls that the model makes, as `ToolUse`.

        Pictures and files of earlier turns that the provider does not take are sent as a text that says so.

        Text and thoughts are emitted as they come; usage and stop reason are reported at the end. Cancelled, it closes
        the connection at once.

        An answer that is to be of a type (`RunContext.output_type`) is a `Text`, in whatever form it came; it is not
        checked here.

        Raises:
            OutputError: the model refuses to give an answer of the type, or it is cut off.
            InvalidRequestError: the conversation cannot be sent.
            RequestRefusedError: the provider refused what the conversation holds.
            EngineError: the provider refused it, broke off, or sent nothing or what cannot be read. What came before
                that was emitted.
        """
        return await self._asking(turn.blocks, context).ask(turn, context)

    def _asking(self, blocks: Sequence[Block], context: RunContext) -> OpenAIRunner:
        is_later_step = _ends_in_results(blocks)
        settings = self._api.settings.of_run(context.model, context.params, is_later_step=is_later_step)
        return OpenAIRunner(self._settings, self._client, self._api.of_run(settings))

    async def ask(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        """See `run`: this asks for what it is set to, whatever the run asks for."""
        blocks = as_said(self._api.rules.spare(turn.blocks, keep=turn.asked))
        if self._settings.system is not None:
            blocks.append(System(text=self._settings.system))
        output = OutputType.read(context.output_type or self._settings.output_type)
        stream, form = await self._open(blocks, output)
        answer = self._api.answer(form)
        try:
            is_done = await self._read(stream, answer, context)
        finally:
            context.report(usage=answer.usage, stop_reason=answer.stop_reason, model=self._api.settings.model)
        if answer.stop_reason is None and not is_done:
            raise self._error("ended its answer without saying why, so it is cut short: run the prompt again")
        if form and (answer.refusal or answer.stop_reason == "content_filter"):
            raise OutputError(str(self._error(f"refuses to answer: {self._quoted(answer)}")), "output_refused")
        remedy = "raise max_output_tokens=" if answer.is_cut else "run the prompt again, or check model="
        try:
            said = form.answer(answer.blocks()) if form else answer.blocks()
            if form and answer.is_cut and not any(isinstance(block, ToolUse) for block in said):
                raise ValueError("the answer is cut off")
        except ValueError as error:
            if form and answer.is_cut:
                why = f"met the limit of its length (stop_reason={answer.stop_reason!r}) within its answer: {remedy}"
                raise OutputError(str(self._error(why)), "output_cut") from error
            raise self._error(f"made a tool call that cannot be read: {error}; {remedy}") from error
        if not any(isinstance(block, Text | ToolUse) for block in said):
            raise self._error(f"returned nothing (stop_reason={answer.stop_reason!r}): {remedy}")
        return said

    @property
    def key(self) -> str:
        """What it shows the provider."""
        return self._client.api_key

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _open(
        self, blocks: Sequence[Block], output: OutputType | None
    ) -> tuple[openai.AsyncStream[Any], Form | None]:
        """Send the request; return the stream of its answer, and the form in which it was asked for."""
        import openai

        form, request = self._request(blocks, output)
        while True:
            try:
                async with asyncio.timeout(self._settings.begins_within_s):  # the client's own is for each try
                    return await self._api.open(self._client, request), form
            except (openai.APITimeoutError, TimeoutError) as error:
                name = "timeout_s" if self._settings.first_byte_s is None else "first_byte_s"
                limit = f"{name}={self._settings.begins_within_s}, retries included"
                raise self._error(f"sent nothing within {limit}: raise it, or check base_url=") from error
            except openai.APIConnectionError as error:
                why = f"cannot be reached ({error.__cause__}), {self._tries}: check base_url= and the network"
                raise self._error(why) from error
            except openai.APIStatusError as error:
                said = f"{error.message} {error.body}" if error.status_code in _ADAPTABLE else ""
                if said and (other := self._api.without_thoughts(request, said)):
                    request = other
                elif said and self._api.adapt(said, form):
                    form, request = self._request(blocks, output)
                else:
                    raise self._refused(error) from self._safe(error)

    def _request(self, blocks: Sequence[Block], output: OutputType | None) -> tuple[Form | None, Mapping[str, Any]]:
        form = self._api.settings.form(output, self._api.fields) if output else None
        if form and form.told:
            blocks = [*blocks, System(text=f"{system_of(blocks) or ''}\n\n{form.told}".strip())]
        return form, self._api.request(blocks, form)

    def _refused(self, error: openai.APIStatusError) -> EngineError:
        remedy = _REMEDIES_BY_CODE.get(error.code or "") or _REMEDIES.get(error.status_code)
        remedy = remedy or f"the same {self._tries}: run the prompt again later"
        said = self._said(error)
        if error.code == _TOO_LONG or _TOO_LONG_SAID.search(f"{error.message} {error.body}"):
            return self._error(f"refused the request: {said}; {_REMEDIES_BY_CODE[_TOO_LONG]}", ContextOverflowError)
        kind = RequestRefusedError if self._is_of_conversation(error) else EngineError
        return self._error(f"refused the request: {said}; {remedy}", kind)

    async def _read(self, stream: openai.AsyncStream[Any], answer: Answer, context: RunContext) -> bool:
        """Take the answer in, event by event; return whether the provider said that it is all."""
        import httpx2

        loop, silence_s = asyncio.get_running_loop(), self._settings.timeout_s
        events = AnswerStream(stream.response, lambda: limit.reschedule(loop.time() + silence_s))
        try:
            async with stream, asyncio.timeout(silence_s) as limit:
                async for event in events:
                    for part in answer.add(event):
                        context.emit(part)
        except (httpx2.TimeoutException, TimeoutError) as error:
            why = f"fell silent for timeout_s={self._settings.timeout_s} within its answer: run the prompt again"
            raise self._error(why) from error
        except httpx2.TransportError as error:
            why = f"cut the connection within its answer ({error}): run the prompt again"
            raise self._error(why) from error
        except BrokenOffError as error:
            too_long = error.code == _TOO_LONG or _TOO_LONG_SAID.search(error.message)
            remedy = _REMEDIES_BY_CODE.get(_TOO_LONG if too_long else error.code or "", "run the prompt again")
            why = f"broke its answer off: {self._redacted(error.message)}; {remedy}"
            raise self._error(why, ContextOverflowError if too_long else EngineError) from self._safe(error)
        except ValueError as error:
            why = f"sent a malformed stream ({self._redacted(str(error))}): check base_url="
            raise self._error(why) from self._safe(error)
        return events.is_done

    @property
    def _tries(self) -> str:
        return f"after {self._settings.max_retries} retries"

    def _is_of_conversation(self, error: openai.APIStatusError) -> bool:
        """Return whether the provider would refuse what the conversation holds again, as far as it says so."""
        if error.status_code not in _REFUSALS or error.code in _REMEDIES_BY_CODE:
            return False
        field = re.split(r"[.\[]", error.param or "")[0]
        return field not in {"model", "stream", "store", *self._api.fields}

    def _error(self, why: str, kind: type[EngineError] = EngineError) -> EngineError:
        where = self._client.base_url.host
        return kind(f"model {self._api.settings.model!r} at {where} {why}")

    def _quoted(self, answer: Answer) -> str:
        """Return how a refusal begins."""
        return self._redacted(answer.refusal)[:_QUOTED] or f"stop_reason={answer.stop_reason!r}"

    def _redacted(self, text: str) -> str:
        return redacted(text, [self._client.api_key])

    def _safe(self, error: Exception) -> Exception | None:
        """Return the error, unless it quotes the key, which some servers do: a log that prints causes would show it."""
        return error if self._redacted(str(error)) == str(error) else None

    def _said(self, error: openai.APIStatusError) -> str:
        """Return status and message; servers that are merely compatible may have the message elsewhere."""
        has_message = isinstance(error.body, Mapping) and isinstance(error.body.get("message"), str)
        said = self._redacted(error.message)
        if has_message or not error.body:
            return said
        return f"{said} - {self._redacted(str(error.body))[:200]}"  # in this order: half a key is one too many


def _ends_in_results(blocks: Sequence[Block]) -> bool:
    """Return whether the model has called tools since the last prompt."""
    for block in reversed(blocks):
        if isinstance(block, ToolResult) or block.role == "user":
            return isinstance(block, ToolResult)
    return False

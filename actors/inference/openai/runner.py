"""`OpenAIRunner`: sends a request in one of the APIs, streams the answer, and maps failures to errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.actors.inference.engine import ASIDE, RunContext, output_of
from turnwise.actors.inference.observing import NO_OPERATION, Operation, part
from turnwise.actors.inference.openai.fields import BrokenOffError
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.settings import joined_prompt
from turnwise.actors.inference.openai.stream import AnswerStream
from turnwise.actors.inference.openai.structured_output import Form
from turnwise.actors.inference.redaction import redacted
from turnwise.actors.inference.replicas import Replicas
from turnwise.actors.inference.tools.tool import tools_of_run
from turnwise.errors import ContextOverflowError, EngineError, OutputError, ProviderAwayError, RequestRefusedError
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, ToolResult, ToolUse
from turnwise.memory.conversation.output_type import OutputType, as_said
from turnwise.memory.conversation.transcript import system_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.arrangement import before_answer, prompted
from turnwise.memory.providers.validation import Rules

if TYPE_CHECKING:
    import httpx2

    from turnwise.actors.inference.openai.settings import EngineSettings

_ADAPTABLE = (400, 404, 422)
"""The HTTP statuses with which servers refuse a field of a request."""

_REMEDIES = {
    400: "the provider refuses the request: see its message",
    403: "this key may not use this model: use another key or model=",
    404: "check model= and base_url=",
    413: "the request is too large: shorten the conversation",
    422: "the provider refuses the request: see its message",
    429: "wait, use fewer sessions at once, or raise max_retries=",
}

_NO_KEY = 401
"""The HTTP status with which a key is refused."""

_REFUSALS = (400, 413, 415, 422)
"""The HTTP statuses of requests that the provider would refuse again."""

_QUOTED = 500
"""The maximum length of a refusal's quotation in an error, in characters."""

_AWAY = (408, 409, 429)
"""The HTTP statuses, below 500, of requests that the provider may accept later."""

_BUSY = (429, 503)
"""The HTTP statuses of servers that do not begin to work on a request."""

_TOOK_TOO_LONG = (408, 504)
"""The HTTP statuses of requests on which a server may still be at work."""

_SERVER_ERROR = 500
"""The first HTTP status of those that are the server's fault."""

_TOO_LONG = "context_length_exceeded"

_AT_ONCE = 400
"""Of how many blocks a request is made on the event loop. That takes some 10 µs for each."""

TOO_LONG_MESSAGE = re.compile(
    r"maximum context length|exceeds? ((the|its|this model's) (available )?context|context limit)"
    r"|context (window|length|size) exceeded"
    r"|exceed_context_size|prompt is too long|input is too long|too many (input )?tokens|input tokens exceed"
    r"|input token count.{0,40}exceeds|context_length_exceeded|ContextWindowExceeded"
    r"|longer than the (model's )?(maximum )?(context|model)|too large for model|length of all messages is too long",
    re.IGNORECASE,
)
"""Messages of OpenAI and vLLM, llama.cpp, Anthropic, Bedrock and Gemini behind LiteLLM, Mistral, Perplexity."""

_REMEDIES_BY_CODE = {
    _TOO_LONG: "the conversation is longer than the model's window: pass an overflow strategy",
    "insufficient_quota": "check the account's plan and billing",
}


class Answer(Protocol):
    """An answer that is being streamed."""

    usage: Usage
    """The usage of one model call; without tokens until the provider reports them."""
    stop_reason: str | None
    """Why the model stopped; None until the provider reports it."""

    @property
    def refusal(self) -> str:
        """The text with which the model refuses to answer; empty if it does not refuse."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer was cut off at its maximum length."""

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        """Add the next event of the stream; return the parts of the answer to emit. O(the event).

        No part ends in half a character: what a stream cuts in two is joined first.

        Raises:
            BrokenOffError: the event reports a failure of the provider.
            ValueError: a field has a wrong type.
        """

    def end(self) -> list[str | Block]:
        """Return the rest to emit when the stream has ended, such as for half a character that it ended with."""

    def blocks(self) -> list[AnyBlock]:
        """Return the answer so far: thoughts, text, tool calls.

        Raises:
            ValueError: a tool call has no name.
        """


class Stream(Protocol):
    """An open answer, as the clients of OpenAI and Anthropic return it."""

    response: httpx2.Response

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class API(Protocol):
    """One of OpenAI's APIs, or Anthropic's: makes requests, and reads answers."""

    rules: Rules
    key_setting: str
    """Where the key is set, for the message about a key that is refused."""

    @property
    def settings(self) -> RequestSettings[Any]:
        """What requests are made of."""

    def of_run(self, settings: Any) -> API:
        """Return the same API with the settings of one run."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of each request beside the conversation: the settings and the tools."""

    def request(self, blocks: Sequence[Block], form: Form | None) -> dict[str, Any]:
        """Return a request with these blocks for an answer in this form; None for text.

        Raises:
            InvalidRequestError: the provider would refuse the blocks.
        """

    def adapt(self, message: str, form: Form | None) -> bool:
        """Remember what the server refused, as its message says: an optional field, or the form of the answer.

        Return whether something new was learnt. If so, the request can be built again, without it, and sent again.
        """

    def blamed(self, error: Any) -> tuple[str | None, str | None]:
        """Return the code of a refusal, and the field of the request that it blames; None for what it does not say."""

    def without_thoughts(self, request: Mapping[str, Any], message: str) -> Mapping[str, Any] | None:
        """Return the request without thoughts, if it was refused because of them, as the message says; else None."""

    async def open(self, client: Any, request: Mapping[str, Any]) -> Stream:
        """Send the request, and return the stream of the answer. Raises the client's errors."""

    def answer(self, form: Form | None) -> Answer:
        """Return an empty answer in this form, to which events can be added."""


class OpenAIRunner:
    """Answers the turns of one session. Its HTTP client reuses the connection for later turns.

    Args:
        client: of OpenAI's library, or of Anthropic's, which has the same interface.
        library: the client's package, for its errors.
        router: chooses the server of each request; None if the client has the only one.
        begins_by: until when an answer begins, by the event loop's clock; None if that is for the settings to say.
    """

    def __init__(
        self,
        settings: EngineSettings,
        client: Any,
        api: API,
        library: Any,
        router: Replicas | None = None,
        *,
        begins_by: float | None = None,
    ) -> None:
        self._begins_by = begins_by
        self._settings = settings
        self._router = router
        self._client = client
        self._api = api
        self._library = library

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        """Return the model's answer: `Thinking` blocks, at most one `Text`, then a `ToolUse` for each tool call.

        Pictures and files of earlier turns, and of tools, that the provider does not accept are replaced by a text.
        Text and thoughts are emitted as they arrive; usage and stop reason are reported at the end. A cancel closes the
        connection at once. A typed answer (see `RunContext.output_type`) is a `Text`, whichever way it was requested;
        it is not checked here.

        Raises:
            OutputError: the model refused to give a typed answer, or the answer was cut off.
            InvalidRequestError: the provider would refuse the conversation; nothing was sent.
            RequestRefusedError: the provider refused the content of the conversation.
            EngineError: the provider refused the request, broke off, sent nothing or an unreadable answer. The parts
                that arrived before were emitted.
        """
        return await self._for_run(turn, context).ask(turn, context)

    def _for_run(self, turn: Turn, context: RunContext) -> OpenAIRunner:
        # An earlier conversation, given as prompts, may end in results too.
        is_later_step = _ends_in_results(turn.blocks) and not _ends_in_results(turn.asked)
        tools = [tool.definition for tool in tools_of_run(context.tools)]
        settings = self._api.settings.of_run(
            context.model,
            context.params,
            tools,
            is_later_step=is_later_step,
            prefix_key=context.prefix_key,
            is_aside=context.run_id == ASIDE,
        )
        return OpenAIRunner(self._settings, self._client, self._api.of_run(settings), self._library, self._router)

    async def ask(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        """Return the answer, with the model and parameters of this runner; see `run`."""
        conversation = as_said(self._api.rules.spare(turn.blocks, keep=turn.asked))
        if context.instructions and not (turn.asked or turn.output):
            conversation = before_answer(conversation)
        if self._settings.system is not None and context.run_id != ASIDE:
            conversation.append(System(text=joined_prompt(self._settings.system, system_of(conversation)) or ""))
        if context.instructions:
            conversation.append(System(text=joined_prompt(system_of(conversation), context.instructions) or ""))
        output = OutputType.read(output_of(context, self._settings.output_type))
        if self._router is None:
            return await self.ask_here(conversation, output, context)
        router, retries = self._router, self._settings.max_retries
        begins_by = asyncio.get_running_loop().time() + self._settings.begins_within_s
        *others, last = router.candidates(self._api.settings.prefix_key)
        for url in others:
            try:
                with router.at(url):
                    return await self._at(url, 0, begins_by).ask_here(conversation, output, context)
            except ProviderAwayError as error:  # nothing of an answer has come
                if self._is_gone(error.__cause__):
                    router.gone(url)
                elif not _is_busy(error.__cause__):  # it may have worked on the request, so this is a retry
                    if not retries or self._may_answer(error.__cause__):
                        raise
                    retries -= 1
        with router.at(last):
            return await self._at(last, retries, begins_by).ask_here(conversation, output, context)

    def _at(self, url: str, retries: int, begins_by: float) -> OpenAIRunner:
        """Return a runner that asks one server; its answer begins until a time of the event loop."""
        client = self._client.with_options(base_url=url, max_retries=retries)
        return OpenAIRunner(self._settings, client, self._api, self._library, begins_by=begins_by)

    def _is_gone(self, error: BaseException | None) -> bool:
        """Return whether the error says that no connection was made."""
        import httpx2

        cause = error.__cause__ if isinstance(error, self._library.APIConnectionError) else None
        return isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout)

    def _may_answer(self, error: BaseException | None) -> bool:
        """Return whether the server may still be at work on the request; then another one would take as long."""
        if error is None:  # nobody knows: see `_safe`
            return True
        is_silent = isinstance(error, self._library.APITimeoutError | TimeoutError)
        return is_silent or getattr(error, "status_code", None) in _TOOK_TOO_LONG

    async def ask_here(
        self, conversation: Sequence[Block], output: OutputType | None, context: RunContext
    ) -> Sequence[AnyBlock]:
        """Return the answer of the client's own server."""
        with part("chat", lambda: self._facts(conversation, output)) as chat:
            return await self._answer(conversation, output, context, chat)

    def _facts(self, conversation: Sequence[Block], output: OutputType | None) -> Mapping[str, Any]:
        """Return what telemetry is told of a request."""
        settings, url = self._api.settings, self._client.base_url
        where = {
            "provider": settings.profile.name,
            "host": url.host,
            "port": url.port or (80 if url.scheme == "http" else 443),
        }
        request = {"model": settings.model, "fields": self._api.fields, "is_typed": output is not None}
        return {**where, **request, "blocks": conversation}

    async def _answer(
        self, conversation: Sequence[Block], output: OutputType | None, context: RunContext, chat: Operation
    ) -> Sequence[AnyBlock]:
        stream, form = await self._open(conversation, output, chat.headers)
        answer = self._api.answer(form)
        try:
            is_done = await self._read(stream, answer, context, chat)
        finally:
            context.report(usage=answer.usage, stop_reason=answer.stop_reason, model=self._api.settings.model)
            chat.note(usage=answer.usage, stop_reason=answer.stop_reason)
        if answer.stop_reason is None and not is_done:
            raise self._error("ended its answer without a stop reason, so it may be incomplete: run the prompt again")
        if form and (answer.refusal or answer.stop_reason == "content_filter"):
            raise OutputError(str(self._error(f"refuses to answer: {self._quoted(answer)}")), "output_refused")
        remedy = "raise max_output_tokens=" if answer.is_cut else "run the prompt again, or check model="
        try:
            blocks = form.answer(answer.blocks()) if form else answer.blocks()
            if (
                form
                and answer.is_cut
                and not any(isinstance(block, ToolUse) and block.name != form.tool for block in blocks)
            ):
                raise ValueError("the answer is cut off")
        except ValueError as error:
            if form and answer.is_cut:
                reason = f"reached the maximum length of an answer (stop_reason={answer.stop_reason!r}): {remedy}"
                raise OutputError(str(self._error(reason)), "output_cut") from error
            raise self._error(f"made a tool call that cannot be read: {error}; {remedy}") from error
        if not any(isinstance(block, Text | ToolUse) for block in blocks):
            raise self._error(f"returned nothing (stop_reason={answer.stop_reason!r}): {remedy}")
        chat.note(answer=blocks)
        return blocks

    @property
    def key(self) -> str:
        """The API key that is sent to the provider; empty if there is none."""
        return self._client.api_key or getattr(self._client, "auth_token", None) or ""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _open(
        self, blocks: Sequence[Block], output: OutputType | None, headers: Mapping[str, str]
    ) -> tuple[Stream, Form | None]:
        """Send the request; return the stream of the answer, and the form that was requested."""
        headers = {**headers, **self._session_header}
        client = self._client.with_options(default_headers=headers) if headers else self._client
        form, request = await self._prepared(blocks, output)
        while True:
            try:
                async with self._opening():  # the client's timeout applies to each attempt
                    return await self._api.open(client, request), form
            except (self._library.APITimeoutError, TimeoutError) as error:
                name = "timeout_s" if self._settings.first_byte_s is None else "first_byte_s"
                limit = f"{name}={self._settings.begins_within_s}, retries included"
                reason = f"sent nothing within {limit}: raise {name}=, or check base_url="
                raise self._error(reason, ProviderAwayError) from error
            except self._library.APIConnectionError as error:
                reason = f"cannot be reached ({error.__cause__}), {self._tries}: check base_url= and the network"
                raise self._error(reason, ProviderAwayError) from error
            except self._library.APIStatusError as error:
                message = f"{error.message} {error.body}" if error.status_code in _ADAPTABLE else ""
                if message and (without_thoughts := self._api.without_thoughts(request, message)):
                    request = without_thoughts
                elif message and self._api.adapt(message, form):
                    form, request = await self._prepared(blocks, output)
                else:
                    raise self._refused(error) from self._safe(error)

    def _opening(self) -> asyncio.Timeout:
        """Return the time limit until an answer begins."""
        if self._begins_by is None:
            return asyncio.timeout(self._settings.begins_within_s)
        return asyncio.timeout_at(self._begins_by)

    @property
    def _session_header(self) -> Mapping[str, str]:
        """The header by which routers send requests that begin alike to the same replica, unless the engine has it."""
        settings = self._api.settings
        name, key = settings.profile.session_header, settings.prefix_key
        own_names = {header.lower() for header in self._settings.default_headers or ()}
        return {name: key} if name and key and name.lower() not in own_names else {}

    async def _prepared(
        self, blocks: Sequence[Block], output: OutputType | None
    ) -> tuple[Form | None, Mapping[str, Any]]:
        """Return the request. A thread makes the request of a long conversation, so that other sessions go on."""
        if len(blocks) <= _AT_ONCE:
            return self._request(blocks, output)
        return await asyncio.to_thread(self._request, blocks, output)

    def _request(self, blocks: Sequence[Block], output: OutputType | None) -> tuple[Form | None, Mapping[str, Any]]:
        form = self._api.settings.form(output, self._api.fields) if output else None
        if form and form.instructions:
            blocks = [*blocks, System(text=f"{system_of(blocks) or ''}\n\n{form.instructions}".strip())]
        return form, self._api.request(prompted(blocks, self._api.rules), form)

    def _refused(self, error: Any) -> EngineError:
        code, field = self._api.blamed(error)
        remedies = {**_REMEDIES, _NO_KEY: f"check {self._api.key_setting}"}
        remedy = _REMEDIES_BY_CODE.get(code or "") or remedies.get(error.status_code)
        remedy = remedy or f"it failed {self._tries}: run the prompt again later"
        message = self._message(error)
        if code == _TOO_LONG or TOO_LONG_MESSAGE.search(f"{error.message} {error.body}"):
            return self._error(f"refused the request: {message}; {_REMEDIES_BY_CODE[_TOO_LONG]}", ContextOverflowError)
        kind = RequestRefusedError if self._is_of_conversation(error.status_code, code, field) else EngineError
        if (error.status_code in _AWAY or error.status_code >= _SERVER_ERROR) and (code not in _REMEDIES_BY_CODE):
            kind = ProviderAwayError
        return self._error(f"refused the request: {message}; {remedy}", kind)

    async def _read(self, stream: Stream, answer: Answer, context: RunContext, chat: Operation) -> bool:
        """Read the answer's events; return whether the provider marked the end of the stream."""
        import httpx2

        loop, silence_s = asyncio.get_running_loop(), self._settings.timeout_s
        events = AnswerStream(stream.response, lambda: limit.reschedule(loop.time() + silence_s))
        try:
            async with stream, asyncio.timeout(silence_s) as limit:
                async for event in events:
                    chat.answers()
                    for piece in answer.add(event):
                        context.emit(piece)
                    if chat is not NO_OPERATION:
                        chat.note(response=event.get("response", event))
                for piece in answer.end():
                    context.emit(piece)
        except (httpx2.TimeoutException, TimeoutError) as error:
            reason = f"sent nothing for timeout_s={self._settings.timeout_s} within its answer: run the prompt again"
            raise self._error(reason) from error
        except httpx2.TransportError as error:
            reason = f"cut the connection within its answer ({error}): run the prompt again"
            raise self._error(reason) from error
        except BrokenOffError as error:
            too_long = error.code == _TOO_LONG or TOO_LONG_MESSAGE.search(error.message)
            remedy = _REMEDIES_BY_CODE.get(_TOO_LONG if too_long else error.code or "", "run the prompt again")
            reason = f"reported an error within its answer: {self._redacted(error.message)}; {remedy}"
            raise self._error(reason, ContextOverflowError if too_long else EngineError) from self._safe(error)
        except ValueError as error:
            reason = f"sent a malformed stream ({self._redacted(str(error))}): check base_url="
            raise self._error(reason) from self._safe(error)
        return events.is_done

    @property
    def _tries(self) -> str:
        return f"after {self._settings.max_retries} retries"

    def _is_of_conversation(self, status: int, code: str | None, field: str | None) -> bool:
        """Return whether the provider refused the conversation's content, and so would refuse it again."""
        if status not in _REFUSALS or code in _REMEDIES_BY_CODE:
            return False
        return re.split(r"[.\[]", field or "")[0] not in {"model", "stream", "store", *self._api.fields}

    def _error(self, reason: str, kind: type[EngineError] = EngineError) -> EngineError:
        where = self._client.base_url.host
        return kind(f"model {self._api.settings.model!r} at {where} {reason}")

    def _quoted(self, answer: Answer) -> str:
        """Return the beginning of the model's refusal."""
        return self._redacted(answer.refusal)[:_QUOTED] or f"stop_reason={answer.stop_reason!r}"

    def _redacted(self, text: str) -> str:
        return redacted(text, [self.key] if self.key else [])

    def _safe(self, error: Exception) -> Exception | None:
        """Return the error; None if it quotes the key, since a log that prints causes would show it."""
        return error if self._redacted(str(error)) == str(error) else None

    def _message(self, error: Any) -> str:
        """Return status and message, or the body, since not every server has a message where OpenAI has it."""
        body = error.body.get("error", error.body) if isinstance(error.body, Mapping) else None
        has_message = isinstance(body, Mapping) and isinstance(body.get("message"), str)
        message = self._redacted(error.message)
        if has_message or not error.body:
            return message
        # Redacted before it is cut: a cut could leave half of the key.
        return f"{message} - {self._redacted(str(error.body))[:200]}"


def _is_busy(error: BaseException | None) -> bool:
    """Return whether a server has refused a request without beginning to work on it."""
    return getattr(error, "status_code", None) in _BUSY


def _ends_in_results(blocks: Sequence[Block]) -> bool:
    """Return whether the last block of a user or tool is a tool result, so that this is a later step of a run."""
    for block in reversed(blocks):
        if isinstance(block, ToolResult) or block.role == "user":
            return isinstance(block, ToolResult)
    return False

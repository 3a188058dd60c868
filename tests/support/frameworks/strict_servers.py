"""What real servers refuse, as data; and a server that refuses it, and otherwise gives the given answers.

Each row names the server, the source that says that it refuses this, and its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quirks import EVENTS, JSON, PARIS, ROME, call, chunk, completed, events, function, spoken

Body = Mapping[str, Any]

Answer = tuple[int, str, bytes]
"""A status, a content type and a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One thing that a server refuses."""

    title: str
    source: str
    words: str
    """Its message; `{found}` in it is what was found."""
    find: Callable[[Body], Sequence[object]]
    """Finds it in a request; nothing, if the request is all right."""
    status: int = 400
    is_known: bool = True
    """Whether the server's profile says so; else it is found out when it is refused."""

    def answer(self, body: Body) -> Answer | None:
        """Return how a request is refused for this; None if it is not."""
        if not (faults := self.find(body)):
            return None
        error = {"error": {"message": self.words.replace("{found}", str(faults[0])), "code": None, "param": None}}
        return self.status, JSON, json.dumps(error).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictServer:
    """A kind of server: what it refuses, and how its calls look."""

    name: str
    provider: str | None
    refusals: Sequence[Refusal]
    api: Literal["chat", "responses"] = "chat"
    ids: Sequence[str | None] = ("call_paris", "call_rome")
    thought: str | None = None
    attached: Mapping[str, Any] | None = None
    """What the first of parallel calls has beside its function."""
    takes_images: bool = True
    settings: Mapping[str, Any] | None = None

    def judge(self, body: Body) -> Answer | None:
        """Return how a request is refused; None if it is not."""
        return next(filter(None, (refusal.answer(body) for refusal in self.refusals)), None)

    def calls(self, *ids: str | None) -> Answer:
        """Return an answer that looks at Paris and Rome at once."""
        ids = ids or tuple(self.ids)
        if self.api == "responses":
            output = [
                {
                    "type": "function_call",
                    "id": f"fc_{call_id}",
                    "call_id": call_id,
                    "name": "look",
                    "arguments": arguments,
                }
                for call_id, arguments in zip(ids, (PARIS, ROME), strict=True)
            ]
            return 200, EVENTS, events(completed(*output))
        pieces = [
            call(
                index=index,
                id=call_id,
                function=function("look", arguments),
                **(self.attached or {} if index == 0 else {}),
            )
            for index, (call_id, arguments) in enumerate(zip(ids, (PARIS, ROME), strict=True))
        ]
        thoughts = [chunk(reasoning_content=self.thought)] if self.thought else []
        return 200, EVENTS, events(*thoughts, *pieces, chunk("tool_calls"))

    def says(self, text: str) -> Answer:
        """Return an answer that is a text."""
        if self.api == "responses":
            return 200, EVENTS, events(completed(spoken(text)))
        return 200, EVENTS, events(chunk(content=text), chunk("stop"))


def messages(body: Body, *roles: str) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of a request that are of these roles, of any if there is none."""
    return (message for message in body.get("messages", ()) if not roles or message["role"] in roles)


def fields(*names: str) -> Callable[[Body], Sequence[object]]:
    """Find fields of the request."""
    return lambda body: [name for name in names if name in body]


def unknown_fields(*extra_fields: str) -> Callable[[Body], Sequence[object]]:
    """Find fields of the request that are none of these."""
    return lambda body: sorted(set(body) - {"model", "messages", "stream", "tools", *extra_fields})


def fields_of_messages(*names: str) -> Callable[[Body], Sequence[object]]:
    """Find fields of messages."""
    return lambda body: [name for message in messages(body) for name in names if name in message]


def lists_of_texts(body: Body) -> Sequence[object]:
    """Find a content that is a list of texts alone."""
    lists = [message["content"] for message in messages(body) if isinstance(message.get("content"), list)]
    return [parts for parts in lists if all(part["type"] == "text" for part in parts)]


def lists(body: Body) -> Sequence[object]:
    """Find a content that is a list."""
    return [True for message in messages(body) if isinstance(message.get("content"), list)]


def null_contents(body: Body) -> Sequence[object]:
    """Find a message without content."""
    return [True for message in messages(body) if message.get("content") is None]


def calls_without_thoughts(body: Body) -> Sequence[object]:
    """Find a message that calls tools and has no thoughts, which may be empty."""
    return [
        index
        for index, message in enumerate(messages(body))
        if "tool_calls" in message and "reasoning_content" not in message
    ]


def ids_longer_than(limit: int) -> Callable[[Body], Sequence[object]]:
    """Find ids of calls that are longer than so many characters."""

    def find(body: Body) -> Sequence[object]:
        calls = [call for message in messages(body) for call in message.get("tool_calls", ())]
        ids = [call["id"] for call in calls] + [item["call_id"] for item in body.get("input", ()) if "call_id" in item]
        return [call_id for call_id in ids if len(call_id) > limit]

    return find


def long_ids(body: Body) -> Sequence[object]:
    """Find ids of calls that are not nine letters and digits."""
    ids = [call["id"] for message in messages(body) for call in message.get("tool_calls", ())]
    ids += [message["tool_call_id"] for message in messages(body, "tool")]
    return [call_id for call_id in ids if not re.fullmatch("[a-zA-Z0-9]{9}", call_id)]


def users_after_tools(body: Body) -> Sequence[object]:
    """Find a prompt right after the results of calls."""
    roles = [message["role"] for message in messages(body)]
    return [index for index in range(1, len(roles)) if roles[index - 1 : index + 1] == ["tool", "user"]]


def roles_in_a_row(body: Body) -> Sequence[object]:
    """Find two messages of one side with nothing between them but calls and results, as chat templates count."""
    roles = [message["role"] for message in messages(body, "user", "assistant") if "tool_calls" not in message]
    return [index for index in range(1, len(roles)) if roles[index] == roles[index - 1]] + [0] * (
        roles[:1] == ["assistant"]
    )


def late_systems(body: Body) -> Sequence[object]:
    """Find a system message that is not the first."""
    return [
        True for index, message in enumerate(messages(body)) if message["role"] in ("system", "developer") and index
    ]


def unsigned_calls(body: Body) -> Sequence[object]:
    """Find a message since the last prompt whose first call is not signed."""
    roles = [message["role"] for message in messages(body)]
    since = len(roles) - roles[::-1].index("user")
    calls = [message["tool_calls"][0] for message in body["messages"][since:] if "tool_calls" in message]
    return [call["function"]["name"] for call in calls if not _signature(call)]


def _signature(call: Mapping[str, Any]) -> object:
    return call.get("extra_content", {}).get("google", {}).get("thought_signature")


def keywords(*refused: str) -> Callable[[Body], Sequence[object]]:
    """Find these keywords in the parameters of tools."""

    def find(schema: object) -> Iterator[str]:
        if isinstance(schema, list):
            for item in schema:
                yield from find(item)
        if isinstance(schema, dict):
            yield from (keyword for keyword in refused if keyword in schema)
            for keyword, value in schema.items():
                inner = value.values() if keyword in ("properties", "$defs") else [value]
                for part in inner:
                    yield from find(part)

    return lambda body: [keyword for tool in body.get("tools", ()) for keyword in find(tool["function"]["parameters"])]


def image_addresses(body: Body) -> Sequence[object]:
    """Find a picture that is an address."""
    parts = [part for message in messages(body) if isinstance(message["content"], list) for part in message["content"]]
    return [True for part in parts if part["type"] == "image_url" and not part["image_url"]["url"].startswith("data:")]


_EXTRA = 'body.{found}: Extra inputs are not permitted ["extra_forbidden"]'
_UNKNOWN = 'Invalid JSON payload received. Unknown name "{found}": Cannot find field.'
_KEYWORD = (
    'Invalid JSON payload received. Unknown name "{found}" at'
    " 'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field."
)
_SAMPLING = ("temperature", "top_p", "seed", "stop", "response_format", "tool_choice", "parallel_tool_calls")
_GOOGLE = {"extra_content": {"google": {"thought_signature": "AY89a1=="}}}

STRICT = [
    StrictServer(
        name="DeepSeek",
        provider="deepseek",
        thought="Hm.",
        takes_images=False,
        refusals=[
            Refusal(
                title="a content that is a list",
                source="https://github.com/BerriAI/litellm/issues/6642",
                words="Failed to deserialize the JSON body into the target type: messages[2]: invalid type: sequence,"
                " expected a string at line 1 column 13946",
                status=422,
                find=lists,
            ),
            Refusal(
                title="calls without the thoughts behind them",
                source="https://github.com/decolua/9router/issues/773",
                words="The `reasoning_content` in the thinking mode must be passed back to the API.",
                find=calls_without_thoughts,
                is_known=False,
            ),
        ],
    ),
    StrictServer(
        name="Kimi",
        provider="kimi",
        thought="Hm.",
        refusals=[
            Refusal(
                title="calls without the thoughts behind them",
                source="https://github.com/mastra-ai/mastra/issues/12592",
                words="thinking is enabled but reasoning_content is missing in assistant tool call message at index"
                " {found}",
                find=calls_without_thoughts,
                is_known=False,  # thoughts go back where there are any
            ),
        ],
    ),
    StrictServer(
        name="Mistral",
        provider="mistral",
        ids=("D681PevKs", "aB3dE5gH7"),
        settings={"max_output_tokens": 900},
        refusals=[
            Refusal(
                title="fields that it does not know",
                source="https://github.com/dnakov/anon-kode/issues/53",
                words=_EXTRA,
                status=422,
                find=unknown_fields("max_tokens", "random_seed", "prompt_cache_key", *_SAMPLING),
            ),
            Refusal(
                title="thoughts in a field of the message",
                source="https://github.com/charmbracelet/crush/issues/1590",
                words=_EXTRA,
                status=422,
                find=fields_of_messages("reasoning_content", "reasoning_details", "name"),
            ),
            Refusal(
                title="ids that are not nine letters and digits",
                source="https://github.com/anomalyco/opencode/issues/1680",
                words="Tool call id was {found} but must be a-z, A-Z, 0-9, with a length of 9.",
                find=long_ids,
            ),
            Refusal(
                title="a prompt right after results",
                source="https://github.com/avante-corp/avante.nvim/pull/2695",
                words="Unexpected role 'user' after role 'tool'",
                find=users_after_tools,
            ),
            Refusal(
                title="an empty list of tools",
                source="https://github.com/partITech/php-mistral/issues/76",
                words=_EXTRA,
                status=422,
                find=lambda body: ["tools"] if body.get("tools") == [] else [],
            ),
        ],
    ),
    StrictServer(
        name="Gemini 3",
        provider="gemini",
        attached=_GOOGLE,
        refusals=[
            Refusal(
                title="a call without its signature",
                source="https://github.com/lbjlaq/Antigravity-Manager/issues/938",
                words="Function call is missing a thought_signature in functionCall parts. Additional data, function"
                " call `default_api:{found}`, position 2.",
                find=unsigned_calls,
            ),
            *(
                Refusal(title=f"the keyword {keyword}", source=source, words=_KEYWORD, find=keywords(keyword))
                for keyword, source in (
                    ("$schema", "https://github.com/router-for-me/CLIProxyAPI/issues/97"),
                    ("const", "https://github.com/zed-industries/zed/issues/44875"),
                    ("examples", "https://github.com/AstrBotDevs/AstrBot/issues/7572"),
                    ("prefixItems", "https://github.com/decolua/9router/issues/3743"),
                )
            ),
            Refusal(
                title="fields that it does not know",
                source="https://github.com/MinLL/SkyrimNet-GamePlugin/issues/77",
                words=_UNKNOWN,
                find=fields("reasoning", "top_k", "frequency_penalty", "extra_body", "store"),
            ),
        ],
    ),
    StrictServer(
        name="Ollama",
        provider="ollama",
        ids=(None, None),
        refusals=[
            Refusal(
                title="calls without content",
                source="https://github.com/pydantic/pydantic-ai/issues/5206",
                words="invalid message content type: <nil>",
                find=null_contents,
            ),
            Refusal(
                title="a list of texts",
                source="https://github.com/OpenCoworkAI/open-cowork/pull/254",
                words="invalid message format",
                find=lists_of_texts,
            ),
            Refusal(
                title="a picture by its address",
                source="https://github.com/ollama/ollama/issues/6753",
                words="invalid image input",
                find=image_addresses,
            ),
        ],
    ),
    StrictServer(
        name="Groq",
        provider="groq",
        thought="Hm.",
        refusals=[
            Refusal(
                title="thoughts in a field of the message",
                source="https://github.com/janhq/jan/issues/8136",
                words="'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property"
                " '{found}' is unsupported)]",
                find=fields_of_messages("reasoning_content"),
            ),
            Refusal(
                title="the field `store`",
                source="https://github.com/fanenr/chatbot/issues/21",
                words="property '{found}' is unsupported, did you mean 'stop'?",
                find=fields("store"),
            ),
        ],
    ),
    StrictServer(
        name="vLLM with the template of Mistral",
        provider="vllm",
        ids=("", ""),
        refusals=[
            Refusal(
                title="roles that do not alternate",
                source="https://github.com/vllm-project/vllm/issues/6862",
                words="After the optional system message, conversation roles must alternate user/assistant/user/...",
                find=roles_in_a_row,
                is_known=False,
            ),
        ],
    ),
    StrictServer(
        name="llama.cpp",
        provider="llama.cpp",
        ids=("", ""),
        refusals=[
            Refusal(
                title="a system message that is not the first",
                source="https://github.com/lemonade-sdk/lemonade/issues/2674",
                words="System message must be at the beginning.",
                find=late_systems,
            ),
        ],
    ),
    StrictServer(
        name="Azure with the API version 2023-05-15",
        provider="azure",
        takes_images=False,
        refusals=[
            Refusal(
                title="the field `stream_options`",
                source="https://github.com/openai/openai-python/issues/1469",
                words="Unrecognized request argument supplied: {found}",
                find=fields("stream_options"),
                is_known=False,
            ),
        ],
    ),
    StrictServer(
        name="a model of OpenAI's that thinks",
        provider="openai",
        settings={"max_output_tokens": 900},
        refusals=[
            Refusal(
                title="the older name of the limit",
                source="https://github.com/decolua/9router/issues/560",
                words="Unsupported parameter: '{found}' is not supported with this model. Use 'max_completion_tokens'"
                " instead.",
                find=fields("max_tokens"),
            ),
            Refusal(
                title="ids of more than 40 characters",
                source="https://github.com/openclaw/openclaw/pull/875",
                words="Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length"
                " 40, but got a string with length 83 instead.",
                find=ids_longer_than(40),
            ),
            Refusal(
                title="a temperature",
                source="https://github.com/QwenLM/qwen-code/issues/921",
                words="Unsupported value: '{found}' does not support 0 with this model. Only the default (1) value is"
                " supported.",
                find=fields("temperature"),
            ),
        ],
    ),
    StrictServer(
        name="gpt-4o by the Responses API",
        provider="openai",
        api="responses",
        refusals=[
            Refusal(
                title="that encrypted reasoning is asked for",
                source="https://github.com/pydantic/pydantic-ai/issues/2865",
                words="Encrypted content is not supported with this model.",
                find=fields("include"),
                is_known=False,
            ),
            Refusal(
                title="ids of more than 64 characters",
                source="https://github.com/BerriAI/litellm/issues/41534",
                words="Invalid 'input[3].call_id': string too long. Expected a string with maximum length 64, but got a"
                " string with length 949 instead.",
                find=ids_longer_than(64),
            ),
        ],
    ),
]

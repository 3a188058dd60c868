"""Annotated types for the arguments of public methods, and `checked`, which validates them before anybody is asked."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from turnwise.errors import InvalidIdError, InvalidInputError, TooManyError, shown
from turnwise.memory.conversation.events import KINDS, AnyEvent
from turnwise.memory.conversation.ledger import LedgerField
from turnwise.memory.conversation.marks import check_mark_name
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.model_params import ModelParams, check_params
from turnwise.memory.conversation.output_type import MAX_RETRIES
from turnwise.memory.conversation.runs import FROM_SESSION, LABEL_IS_RESERVED
from turnwise.memory.conversation.sessions import MAX_TITLE_CHARS
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.chat_messages import ChatMessage
from turnwise.memory.conversation.views.message_formats import MessageFormat
from turnwise.memory.deliveries.webhooks import WEBHOOK_EVENTS, WebhookEvent, check_secret
from turnwise.memory.longterm.base import Status
from turnwise.memory.longterm.memory_types import AnyCategory, AnyType, MemoryCategory, MemoryType
from turnwise.memory.longterm.retention.about import About, Mention
from turnwise.memory.quotas.records import Quota, check_quota
from turnwise.memory.quotas.tenants import check_tenant
from turnwise.memory.values.frozen_json import MAX_INTEGER, MIN_INTEGER, plain_json, plain_text
from turnwise.memory.values.ids import check_id, is_file_id
from turnwise.memory.values.limits import MAX_NAMES, MAX_VALUES
from turnwise.memory.values.ranges import MAX_COUNT, MAX_SECONDS
from turnwise.memory.values.required_arguments import check_given
from turnwise.memory.values.weights import MAX_PAGE

Given = ParamSpec("Given")
Made = TypeVar("Made")

EventSink = Callable[[AnyEvent], object]
"""A function that is called with each event; an awaitable that it returns is awaited by the asynchronous family."""

IfExists = Literal["refuse", "update", "keep"]
"""What `open` does if the session exists and has another title or other metadata than those given."""

IfRaises = Literal["repeat", "skip"]
"""What a subscription does with an event if its function raises: call it with the event again, or go on."""

MAX_LIFETIME_S = 1e10
"""The longest `ttl_s`, in seconds: three centuries."""

MAX_SILENCE_S = 86_400.0
"""The longest `debounce_s`, in seconds: a day. Whoever waits for longer wants a scheduler."""

MAX_TEXT_BYTES = 4_000_000
"""The largest text other than a prompt, in bytes of UTF-8."""

MAX_JSON_BYTES = 4_000_000
"""The largest arguments of a tool call, or notes of a working memory, in bytes of JSON in UTF-8."""


def checked(**types: Any) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Decorate a function so that these arguments are validated strictly, by their types, before it begins.

    Defaults are not validated. A coroutine function stays one, and validates when it is awaited.

    Raises:
        InvalidInputError: of the decorated function: names the argument.
    """

    def decorate(function: Callable[Given, Made]) -> Callable[Given, Made]:
        arguments = _Arguments(function, types)

        @wraps(function)
        def blocking(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            return function(*arguments.positional(args), **arguments.keyword(kwargs))

        @wraps(function)
        async def awaited(*args: Given.args, **kwargs: Given.kwargs) -> Any:
            answer: Any = function(*arguments.positional(args), **arguments.keyword(kwargs))
            return await answer

        return cast("Callable[Given, Made]", awaited) if inspect.iscoroutinefunction(function) else blocking

    return decorate


class _Arguments:
    """Validates the arguments of a function. What validates each of them is built at its first use."""

    def __init__(self, function: Callable[..., object], types: Mapping[str, Any]) -> None:
        parameters = inspect.signature(function).parameters
        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        self._names = [
            name for name, kind in kinds.items() if kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)
        ]
        self._varargs_name = next(
            (name for name, kind in kinds.items() if kind is kind.VAR_POSITIONAL and name in types), None
        )
        self._types = types
        self._validators: dict[str, TypeAdapter[Any]] = {}

    def positional(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the validated values of a call's positional arguments."""
        declared, extra = values[: len(self._names)], values[len(self._names) :]
        valid = [self._valid(name, value) for name, value in zip(self._names, declared, strict=False)]
        return [*valid, *(self._valid(self._varargs_name, extra) if self._varargs_name else extra)]

    def keyword(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the validated values of a call's keyword arguments."""
        return {name: self._valid(name, value) for name, value in values.items()}

    def _valid(self, name: str, value: Any) -> Any:
        if name not in self._types:
            return value
        try:
            return (self._validators.get(name) or self._build(name)).validate_python(value, strict=True)
        except ValidationError as error:
            raise _refusal(name, error) from None

    def _build(self, name: str) -> TypeAdapter[Any]:
        with _building:  # pydantic resolves names in a stack that the threads of a first call would share
            if name not in self._validators:
                self._validators[name] = TypeAdapter(self._types[name])
            return self._validators[name]


_building = Lock()


def check_names(of: str, values: Collection[str], names: Sequence[str]) -> None:
    """Check the names of keyword arguments that are passed on as a mapping.

    Raises:
        TypeError: there is no such argument.
    """
    for name in values:
        if name not in names:
            raise TypeError(_unexpected(of, name, names))


_HINTS = {"engine": "pass what answers the runs, such as engine=OpenAIEngine('gpt-5'), or EchoEngine() for a first try"}


def checks_init(init: Callable[Given, None]) -> Callable[Given, None]:
    """Decorate `__init__` so that its errors about missing and misspelt arguments name the class that was called.

    Raises:
        MissingArgumentError: of the decorated method: there is no engine.
        TypeError: likewise, for other arguments.
    """

    @wraps(init)
    def wrapper(*args: Given.args, **kwargs: Given.kwargs) -> None:
        signature = inspect.signature(init)
        of = f"{type(args[0]).__name__}()"
        check_names(of, kwargs, list(signature.parameters)[1:])
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            check_given(type(args[0]).__name__, signature, args, kwargs, _HINTS)
            raise TypeError(f"{of}: {error}") from None
        init(*args, **kwargs)

    return wrapper


def _unexpected(of: str, name: str, names: Sequence[str]) -> str:
    """Return the message about a keyword that does not exist, with the nearest one that does."""
    near = get_close_matches(name, names, 1)
    parameters = [] if near or "params" not in names else get_close_matches(name, ModelParams.__annotations__, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    hint = f"; did you mean params={{{parameters[0]!r}: ...}}?" if parameters else hint
    return f"{of} got an unexpected keyword argument {name!r}{hint}"


def _refusal(name: str, error: ValidationError) -> InvalidInputError:
    detail = error.errors(include_url=False)[0]
    field = name + "".join(f"[{shown(part)}]" for part in detail["loc"] if part != "[key]")
    if detail["type"] == _TOO_MANY:
        return TooManyError(field, *(detail["ctx"][name] for name in ("count", "limit", "most")))
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return InvalidInputError(field, shown(detail["input"]), reason)


def _text(value: str) -> str:
    plain = plain_text(value)
    if (size := len(plain.encode())) > MAX_TEXT_BYTES:
        raise ValueError(f"must take at most {MAX_TEXT_BYTES} bytes in UTF-8, not {size}")
    return plain


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank; omit it for none")
    return _text(value)


def _item_id(value: str) -> str:
    if "\0" in value:
        raise ValueError("must be text without null characters")
    return _text(value)


def few(value: Any, limit: str = "MAX_NAMES", most: int = MAX_NAMES) -> Any:
    """Return an argument, unless it has more members than a bound allows. Use it before the check of each member.

    Raises:
        PydanticCustomError: `checked` makes a TooManyError of it.
    """
    if isinstance(value, Collection) and not isinstance(value, str | bytes) and len(value) > most:
        bound = {"count": len(value), "limit": limit, "most": most}
        raise PydanticCustomError(_TOO_MANY, "has too many members", bound)
    return value


def _page_size(value: int) -> int:
    if value > MAX_PAGE:
        raise PydanticCustomError(_TOO_MANY, "is too large", {"count": value, "limit": "MAX_PAGE", "most": MAX_PAGE})
    return value


_TOO_MANY = "turnwise_too_many"


def _mapping(value: Any) -> Any:
    return dict(few(value)) if isinstance(value, Mapping) else value


def _no_reserved(labels: Mapping[str, str]) -> Mapping[str, str]:
    if FROM_SESSION in labels:
        raise ValueError(LABEL_IS_RESERVED)
    return labels


def _types(value: Any) -> tuple[MemoryType, ...]:
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        raise ValueError("must be a list of memory types, such as [MemoryType.FACTS]")
    few(value)
    return tuple(map(_type, value))


def _type(value: Any) -> MemoryType:
    try:
        return MemoryType(plain_text(value) if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"must be one of {', '.join(MemoryType)}") from None


def _category(value: Any) -> MemoryCategory:
    try:
        return MemoryCategory(plain_text(value) if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"must be one of {', '.join(MemoryCategory)}") from None


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        raise ValueError("must be a list of names")
    few(value)
    return tuple(map(_name, value))


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a list of names, none of them blank")
    return _text(value)


def _item_status(value: Any) -> Status:
    if isinstance(value, str) and value in get_args(Status):
        return cast(Status, value)
    raise ValueError(f"must be one of {', '.join(get_args(Status))}")


def _removable(value: Any) -> Any:
    if not isinstance(value, Turn | ChatMessage):
        raise ValueError("must be a turn or a message of the session")
    return value


def _shown_turn(value: Any) -> Any:
    if isinstance(value, Turn) or (type(value) is int and MIN_INTEGER <= value <= MAX_INTEGER):
        return value
    raise ValueError("must be a turn of the session, or its index")


def _markable(value: Any) -> Any:
    if isinstance(value, ChatMessage):
        if value.is_partial:
            raise ValueError("it is still being answered: wait for its run or cancel it")
        return value
    if not isinstance(value, str):
        raise ValueError("must be a message of the session, or the id of one")
    return _text(value)


def _about(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, About) or not all(isinstance(mention, Mention) for mention in few(value.mentions)):
        raise ValueError("must be a text, or what find_about returned")
    for mention in value.mentions:
        _text(mention.memory)
        _item_id(mention.id)
    for part in few(value.notes):
        _text(part)
    return value


def _turn_ref(value: Any) -> int | str:
    if isinstance(value, str):
        try:
            return check_id("turn id", value)
        except InvalidIdError as error:
            raise ValueError(str(error)) from None
    if isinstance(value, int) and not isinstance(value, bool) and MIN_INTEGER <= value <= MAX_INTEGER:
        return value
    raise ValueError("must be the index of a turn, or the turn_id that it was started with")


def _file_id(value: Any) -> str:
    if not is_file_id(value):
        raise ValueError("must be the id of a file, as put() returned it")
    return str(value)


def _folder(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise ValueError("must be the path of a folder")
    if not path or "\0" in path:
        raise ValueError("must be the path of a folder, which is not empty and has no null character")
    return Path(path)


def _sink(value: Any) -> EventSink:
    if not callable(value):
        raise ValueError("must be a function that takes an event")
    sink: EventSink = value
    return sink


def _kinds(value: Any) -> frozenset[str]:
    """Check kinds of events, those of live ones among them."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        raise ValueError("must be a list of kinds of events, such as ['run_completed']")
    few(value)
    for kind in value:
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"must be kinds of events, as event.kind has them; {shown(kind)} is none")
    return frozenset(value)


def _stored_kinds(value: Any) -> frozenset[str]:
    kinds = _kinds(value)
    for kind in kinds:
        if KINDS[kind].live:
            raise ValueError(f"events of kind {kind} are not stored: use on_event of a run")
    return kinds


def _webhook_events(value: Any) -> tuple[WebhookEvent, ...]:
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping) or not value:
        raise ValueError("must be a list of what to tell of, such as ['run.completed']")
    few(value)
    for event in value:
        if not isinstance(event, str) or event not in WEBHOOK_EVENTS:
            raise ValueError(f"must name events of {', '.join(WEBHOOK_EVENTS)}; {shown(event)} is none")
    return tuple(dict.fromkeys(value))


def _quota(value: Any) -> Quota:
    if not isinstance(value, Quota):
        raise ValueError("must be a Quota, such as Quota(user_id='*', runs=100, per='day')")
    return check_quota(value)


def _tenant(value: Any) -> str:
    try:
        return check_tenant(value)
    except InvalidIdError as error:
        raise ValueError(str(error)) from None


def _secret(value: Any) -> str | None:
    return None if value is None else check_secret(value)


def _day(value: Any) -> str:
    """Return a day in UTC, as `2026-11-29`."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("must have a time zone, or be a date")
        value = value.astimezone(UTC).date()
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            raise ValueError("must be a day, such as 2026-11-29") from None
    if not isinstance(value, date):
        raise ValueError("must be a date, or a text such as 2026-11-29")
    return value.isoformat()


def _ledger_fields(value: Any) -> tuple[LedgerField, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of names")
    names = tuple(few(value))
    if wrong := [name for name in names if name not in get_args(LedgerField)]:
        raise ValueError(f"{shown(wrong[0])} is none of {', '.join(get_args(LedgerField))}")
    return tuple(dict.fromkeys(names))


FileId = Annotated[str, PlainValidator(_file_id)]
SessionId = Annotated[str, PlainValidator(partial(check_id, "session id"))]
Addressee = Annotated[str, PlainValidator(partial(check_id, "to_session"))]
UserId = Annotated[str, PlainValidator(partial(check_id, "user id"))]
AsUser = Annotated[str, PlainValidator(partial(check_id, "as_user"))]
AgentName = Annotated[str, PlainValidator(partial(check_id, "agent"))]
TurnId = Annotated[str, PlainValidator(partial(check_id, "turn id"))]
EngineName = Annotated[str, PlainValidator(partial(check_id, "engine"))]
ParentRun = Annotated[str, PlainValidator(partial(check_id, "parent run"))]
RunId = Annotated[str, PlainValidator(partial(check_id, "run id"))]
IdempotencyKey = Annotated[str, PlainValidator(partial(check_id, "idempotency key"))]
ScheduleKey = Annotated[str, PlainValidator(partial(check_id, "schedule key"))]

Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
WaitSeconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
"""How long to wait, in seconds; 0 checks once and returns."""
Silence = Annotated[float, Field(gt=0, le=MAX_SILENCE_S, allow_inf_nan=False)]
"""How long nobody must have added a prompt before a run begins, in seconds."""
Lifetime = Annotated[float, Field(ge=0, le=MAX_LIFETIME_S, allow_inf_nan=False)]
Time = Annotated[float, Field(allow_inf_nan=False)]


MAX_TIME_S = 1e300
"""The latest time that anybody can ask for, in seconds since the epoch."""


def time_before(moment: float | Turn) -> float:
    """Return a time, in seconds since the epoch; of a turn, the last one before its prompts were given."""
    return math.nextafter(moment.created_at, -math.inf) if isinstance(moment, Turn) else moment


def _past_time(value: Any) -> float | Turn:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_time = is_number and -MAX_TIME_S <= value <= MAX_TIME_S  # which no NaN is
    if not (is_time or isinstance(value, Turn)):
        raise ValueError("must be a time in seconds since the epoch, or a turn")
    return cast("float | Turn", value)


PastTime = Annotated[Any, PlainValidator(_past_time)]
"""Seconds since the epoch."""

Number = Annotated[int, Field(ge=MIN_INTEGER, le=MAX_INTEGER)]
"""The index of a turn, or the number of an event."""
TurnRef = Annotated[int | str, PlainValidator(_turn_ref)]
"""The index of a turn, or its id."""
Removable = Annotated[Turn | ChatMessage, PlainValidator(_removable)]
ShownTurn = Annotated[Turn | int, PlainValidator(_shown_turn)]
Markable = Annotated[ChatMessage | str, PlainValidator(_markable)]
MarkName = Annotated[str, AfterValidator(check_mark_name)]
Limit = Annotated[int, Field(ge=1, le=MAX_COUNT), AfterValidator(_page_size)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Connections = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Retries = Annotated[int, Field(ge=0, le=MAX_RETRIES)]

Text = Annotated[str, AfterValidator(_text)]
Title = Annotated[str, Field(max_length=MAX_TITLE_CHARS), AfterValidator(_text)]
ItemId = Annotated[str, Field(min_length=1), AfterValidator(_item_id)]
"""The id of a memory item: may be longer than other ids, since it can contain the source that the text is from."""
ItemIds = Annotated[tuple[ItemId, ...], BeforeValidator(few)]
Blocks = Annotated[tuple[Count, ...], BeforeValidator(partial(few, limit="MAX_VALUES", most=MAX_VALUES))]
"""The numbers of blocks of a turn or a message."""
Names = Annotated[Collection[str], PlainValidator(_names)]
AboutArg = Annotated[str | About, PlainValidator(_about)]
"""A text, or what `find_about` returned."""
ItemStatus = Annotated[Status, PlainValidator(_item_status)]
"""The status of a memory item."""
Labels = Annotated[Mapping[Text, Text], BeforeValidator(_mapping)]
NewLabels = Annotated[Labels, AfterValidator(_no_reserved)]
"""Labels that a caller sets: none of those that turnwise sets itself."""
Model = Annotated[str, PlainValidator(partial(check_id, "model"))]
Format = Annotated[MessageFormat, Field()]
"""The format of messages of another library."""
Instructions = Annotated[str, AfterValidator(_not_blank)]
Params = Annotated[ModelParams, PlainValidator(partial(check_params, "params"))]
MemoryUseArg = Annotated[MemoryUse | bool, PlainValidator(memory_use)]
Type = Annotated[AnyType, PlainValidator(_type)]
Types = Annotated[Collection[AnyType], PlainValidator(_types)]
Category = Annotated[AnyCategory, PlainValidator(_category)]
Sink = Annotated[EventSink, PlainValidator(_sink)]
Kinds = Annotated[Collection[str], PlainValidator(_kinds)]
StoredKinds = Annotated[Collection[str], PlainValidator(_stored_kinds)]
WebhookEvents = Annotated[Sequence[WebhookEvent], PlainValidator(_webhook_events)]
QuotaArg = Annotated[Quota, PlainValidator(_quota)]
TenantName = Annotated[str, PlainValidator(_tenant)]
NameCursor = Annotated[str, PlainValidator(partial(check_id, "cursor"))]
"""The cursor of a page of names: the last name of the page before."""
CallIds = Annotated[tuple[Text, ...], BeforeValidator(few)]
"""Ids of calls of a webhook."""
Secret = Annotated[str | None, PlainValidator(_secret)]
Day = Annotated[date | str, PlainValidator(_day)]
LedgerFields = Annotated[Sequence[LedgerField], PlainValidator(_ledger_fields)]
Folder = Annotated[str | Path, PlainValidator(_folder)]


def json_object(field: str, value: Any, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return a JSON object that a caller passed, as plain dicts, lists and scalars.

    Raises:
        InvalidInputError: the value is no JSON object, or is too large.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(field, shown(value), "must be a JSON object: a mapping")
    plain: dict[str, Any] = plain_json(field, value, max_bytes)
    return plain

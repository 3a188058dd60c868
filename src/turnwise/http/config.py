"""`ServiceConfig`: what `turnwise serve` and the deployment on Ray Serve are told, by a TOML file and the environment.

`examples/serve.toml` shows a file. A variable such as `TURNWISE_SERVE_PORT`, or `TURNWISE_SERVE_ENGINES__MAIN__MODEL`
for a key in a table, takes the place of the file's value. Secrets are never in the file: it names the variable or the
file that has them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed, Placement
from turnwise.actors.inference.openai.engine import AzureOpenAI
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, StoreURLError
from turnwise.http.settings import HttpSettings
from turnwise.http.tables import Path as KeyPath, Section, Table, line_of
from turnwise.memory.stores.urls import redact
from turnwise.memory.values.ranges import MAX_SECONDS
from turnwise.telemetry.settings import Telemetry

PREFIX = "TURNWISE_SERVE_"

DEFAULT_MODEL = "gpt-5-mini"

ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""An object in a module, such as `my_agents.tools:weather`. The module must be importable where sessions run, too."""

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$", max_length=100)]
"""The name of an environment variable."""


class EngineConfig(Section):
    """`[engines.<name>]`: a model behind one of OpenAI's APIs, or an engine of your own.

    Fields that are omitted have the defaults of `OpenAIEngine`.
    """

    object: ImportPath | None = None
    """An engine of your own, instead of all other keys."""
    model: str | None = None
    """The provider's name for the model."""
    api: Literal["chat", "responses"] = "chat"
    """The API that the server is asked by."""
    base_url: str | None = None
    """The API's URL; `OPENAI_BASE_URL`, else OpenAI's own, if omitted."""
    key: VariableName | None = None
    """The environment variable that has the key; `OPENAI_API_KEY` if omitted. The service reads it and hands the key to
    the processes of sessions."""
    provider: str | None = None
    """The server's profile, if the host of `base_url` does not identify it."""
    session_header: str | None = None
    """The header by which a router before several servers keeps a session at one of them."""
    azure: Annotated[AzureOpenAI, Table()] | None = None
    """An Azure OpenAI resource, instead of `base_url`."""
    system: str | None = None
    """A system prompt before the conversation's own in every request."""
    tools: tuple[ImportPath, ...] = ()
    """The tools that the model may call, made by `tool` or `external_tool`, or lists of tools, as of `mcp_tools`."""
    max_steps: int = 20
    """How often a run may call the model."""
    tool_timeout_s: float = 60.0
    """The time limit of one call of a tool, in seconds."""
    temperature: float | None = None
    max_output_tokens: int | None = None
    connect_timeout_s: float | None = None
    first_byte_s: float | None = None
    timeout_s: float | None = None
    max_retries: int | None = None
    extra: dict[str, Any] | None = None
    """More fields of the request body."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.object is not None and self.model_fields_set != {"object"}:
            raise ValueError("with 'object', the engine has its settings in its module: remove the other keys")
        if self.object is None and not self.model:
            raise ValueError("give a 'model', or an 'object' such as \"my_agents:engine\"")
        return self


class MemoryTable(Section):
    """`[[memories]]`: a long-term memory. For more settings, make it in a module and give its `object`."""

    object: ImportPath | None = None
    """A memory of your own, instead of all other keys."""
    kind: Literal["vector", "lexical", "extractive", "static"] = "vector"
    """`VectorMemory`, `LexicalMemory`, `ExtractiveMemory`, or `StaticMemory` with the facts of a file."""
    store: str | None = None
    """Its URL, or the path of a SQLite file."""
    file: Path | None = None
    """The file that has the facts of a static memory."""
    engine: str | None = None
    """The engine, by its name in this file, with which an extractive memory reads; the first one if omitted."""
    name: str | None = None
    """Its name in sessions."""
    max_tokens: int | None = None
    """The most tokens that its items take in a request."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.object is not None:
            if self.model_fields_set != {"object"}:
                raise ValueError("with 'object', the memory has its settings in its module: remove the other keys")
        elif self.kind == "static":
            if self.file is None or self.store is not None:
                raise ValueError("a static memory has a 'file', and no 'store'")
        elif self.store is None or self.file is not None:
            raise ValueError("give a 'store', such as \"sqlite:///memory.db\"; only a static memory has a 'file'")
        if self.engine is not None and self.kind != "extractive":
            raise ValueError("only an extractive memory has an 'engine'")
        return self


class NotesTable(Section):
    """`[working_memory]`: a scratchpad that is part of every request."""

    store: str
    per: Literal["session", "user"] = "session"
    max_bytes: int = 8192
    template: str | None = None
    """A Markdown text whose headings the note keeps; free text if omitted."""


class OverflowTable(Section):
    """`[overflow]`: what happens when a conversation outgrows the window. Other keys are the strategy's fields."""

    strategy: Literal["default", "none", "trim", "delete_oldest", "keep_last", "summarize", "flush"] | None = None
    object: ImportPath | None = None
    """A strategy of your own, instead of all other keys."""
    engine: str | None = None
    """The engine, by its name in this file, that writes summaries; the first one if omitted."""
    max_tokens: int | None = None
    count: int | None = None
    turns: int | None = None
    messages: int | None = None
    trigger_ratio: float | None = None
    keep_turns: int | None = None
    keep_tokens: int | None = None
    max_summary_tokens: int | None = None
    model_window: int | None = None
    prompt: str | None = None
    max_ratio: float | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.strategy is None) == (self.object is None):
            raise ValueError("give either a 'strategy' or an 'object' such as \"my_agents:strategy\"")
        return self


class ServiceConfig(BaseSettings):
    """All settings of a service. Make it with `load`, which names the place of a mistake."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
    )

    store: str = "sqlite:///turnwise.db"
    """Where sessions are kept; see `SessionManager`."""
    history_store: str | None = None
    """Where events are kept, if not with the conversations."""
    files: str | None = None
    """Where the bytes of files are kept: a folder, or a URL of fsspec; see `SessionManager`."""
    namespace: str = "turnwise"
    """The Ray namespace; services of one store and namespace share their sessions."""
    encryption: ImportPath | None = None
    """An `Encryption`, made in a module of yours."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """The port to listen on; 0 takes a free one."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """How many processes answer requests. They share one Ray, one port and all sessions."""
    console: bool = False
    """Whether the web console is at `/console`."""
    stop_s: Annotated[int, Field(ge=1, le=MAX_SECONDS)] = 10
    """How long requests that are under way may take when the service stops, in seconds."""
    tokens: Path | None = None
    """A file of bearer tokens; see `BearerTokens.from_file`."""
    tokens_variable: VariableName | None = None
    """An environment variable that has them instead."""
    auth: ImportPath | None = None
    """A function of yours that says who makes a request, instead of tokens; see `Auth`."""
    anonymous: bool = False
    """Let everybody who reaches the service use all of it, also from other machines."""
    engines: dict[str, EngineConfig] = {}
    """The engines by name; sessions use the first unless they name another. `model` is short for one engine."""
    memories: tuple[MemoryTable, ...] = ()
    working_memory: NotesTable | None = None
    overflow: OverflowTable = OverflowTable(strategy="default")
    telemetry: Annotated[Telemetry, Table("setup")] | None = None
    """Traces and metrics by OpenTelemetry, set up by the OTEL_* variables of the environment; see `Telemetry`."""
    session: Annotated[SessionConfig, Table("token_counter", "telemetry")] = Field(default_factory=SessionConfig)
    """How sessions behave, with their budgets; see `SessionConfig`."""
    placement: Literal["packed", "dedicated", "in_process"] = "packed"
    """Where sessions run: in a few actors, in an actor each, or in the service's own process, without Ray. The table of
    that name has its settings."""
    packed: Annotated[Packed, Table()] = Packed()
    """The actors that sessions share; see `Packed`."""
    dedicated: Annotated[Dedicated, Table()] = Dedicated()
    """The actor of each session; see `Dedicated`."""
    in_process: Annotated[InProcess, Table()] = InProcess()
    """The sessions of the service's one process; see `InProcess`. Open runs wait until the service starts again."""
    http: HttpSettings = Field(default_factory=HttpSettings)
    """Limits and defaults of requests; see `HttpSettings`."""

    @model_validator(mode="after")
    def _one_auth(self) -> Self:
        if sum(setting is not None for setting in (self.tokens, self.tokens_variable, self.auth)) > 1:
            raise ValueError("give one of 'tokens', 'tokens_variable' and 'auth'")
        return self

    @model_validator(mode="after")
    def _one_placement(self) -> Self:
        for name in {"packed", "dedicated", "in_process"} & self.model_fields_set - {self.placement}:
            raise _refused(name, f"the placement is {self.placement!r}: remove this, or set placement to {name!r}")
        if self.placement == "in_process" and self.workers > 1:
            raise _refused("workers", "sessions in the service's own process need one worker: take 'packed' for more")
        return self

    @property
    def session_placement(self) -> Placement:
        """Where sessions run, with its settings."""
        return cast(Placement, getattr(self, self.placement))

    @property
    def has_auth(self) -> bool:
        """Whether requests need credentials."""
        return bool(self.tokens or self.tokens_variable or self.auth)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read what is given in the call first, then the environment, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _FILE.get())


def _refused(key: str, reason: str) -> PydanticCustomError:
    """Return what a validator of the whole configuration raises about one of its keys."""
    return PydanticCustomError("turnwise", "{why}", {"why": reason, "key": key})


_FILE: ContextVar[dict[str, Any]] = ContextVar("turnwise_service_file", default={})  # noqa: B039 - never changed
"""The tables of the file that is read right now."""


@dataclass(frozen=True, repr=False, eq=False)
class Source:
    """Where the values of a configuration come from, to say where a wrong one is."""

    name: str | None
    """The name of the file, if there is one."""
    text: str
    """What is in it."""
    overrides: Mapping[str, Any]
    """What was given in the call."""

    def error(self, path: KeyPath, value: object, reason: str) -> ConfigError:
        """Return the error about a key: it names the file's line, or the variable, that has the key."""
        key = ".".join(map(str, path)) or "the configuration"
        for size in range(len(path), 0, -1):
            variable = PREFIX + "__".join(map(str, path[:size])).upper()
            if variable in os.environ and path[0] not in self.overrides:
                return ConfigError(f"{variable}: {key}", value, reason)
        if self.name and path[:1] and path[0] not in self.overrides:
            line = line_of(self.text, path)
            return ConfigError(f"{self.name}:{line}: {key}" if line else f"{self.name}: {key}", value, reason)
        return ConfigError(key, value, reason)

    @contextmanager
    def at(self, *path: str | int) -> Iterator[None]:
        """Name the place of this key in an error that is raised inside."""
        try:
            yield
        except StoreURLError as error:
            raise self.error(path, error.url, error.why) from None
        except ConfigError as error:
            raise self.error(path, error.value, error.why) from error

    @contextmanager
    def within(self, *path: str | int) -> Iterator[None]:
        """Name the place of this table, and in it the key of an error's setting, in an error that is raised inside."""
        try:
            yield
        except StoreURLError as error:
            raise self.error((*path, "store"), error.url, error.why) from None
        except ConfigError as error:
            key = str(error.setting).rpartition(".")[2]
            if not path and key in SessionConfig.__dataclass_fields__:
                path = ("session",)
            raise self.error((*path, key), error.value, error.why) from error


def load(file: str | Path | None = None, **overrides: Any) -> tuple[ServiceConfig, Source]:
    """Read a configuration: what is given here, else the environment, else the file.

    Raises:
        ConfigError: the file cannot be read, or a value is wrong; it names the key with its line or variable.
    """
    text, tables, name = "", {}, None
    if file is not None:
        name = str(file)
        try:
            text = Path(file).read_text(encoding="utf-8")
            tables = tomllib.loads(text)
        except OSError as error:
            raise ConfigError("config", name, f"the file cannot be read: {error.strerror}") from None
        except ValueError as error:  # what is no UTF-8, too
            raise ConfigError("config", name, f"the file is no TOML: {error}") from None
    source = Source(name, text, overrides)
    tables = _without_what_the_environment_has(tables)
    token = _FILE.set(tables)
    try:
        return ServiceConfig(**overrides), source
    except ValidationError as error:
        raise _wrong(source, error) from None
    except SettingsError as error:
        raise ConfigError(f"{PREFIX}...", "***", f"{error}: give it as JSON") from None
    finally:
        _FILE.reset(token)


def _without_what_the_environment_has(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables without what `TURNWISE_HTTP_...` overrides, which `HttpSettings` reads by itself."""
    http = tables.get("http")
    if not isinstance(http, dict):
        return tables
    prefix = HttpSettings.model_config["env_prefix"]
    return tables | {"http": {key: http[key] for key in http if f"{prefix}{key}".upper() not in os.environ}}


def _wrong(source: Source, error: ValidationError) -> ConfigError:
    """Return the error of the first mistake, with the others in its text."""
    errors = [_error(source, mistake) for mistake in error.errors()]
    first, *further = errors
    if not further:
        return first
    return ConfigError(first.setting, first.value, "; ".join([first.why, *map(str, further)]))


def _error(source: Source, mistake: ErrorDetails) -> ConfigError:
    path = tuple(step for step in mistake["loc"] if step not in _TAGS)
    context = mistake.get("ctx", {})
    if key := context.get("key"):
        path = (*path, str(key))
    reason = mistake["msg"].removeprefix("Value error, ")
    value: object = mistake["input"]
    if mistake["type"] == "extra_forbidden":
        return source.error(path, "...", "there is no such key here")  # its value may be anything, such as a secret
    if isinstance(value, dict) and key:
        value = value.get(str(key))
    value = "..." if isinstance(value, dict | list) or path[-1:] == ("key",) else value
    return source.error(path, redact(value) if isinstance(value, str) else value, reason[:1].lower() + reason[1:])


_TAGS = ("made", "table")
"""The names that pydantic has for the two forms of a `Table`."""

"""Durations, counts and sizes that make no sense are refused when they are given, with their range."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.budget import Budget, Price
from turnwise.adapters import AgentsSDKEngine
from turnwise.adapters.mcp.servers import McpHttp
from turnwise.cli.commands import app
from turnwise.errors import ConfigError
from turnwise.http.settings import HttpSettings
from turnwise.memory.longterm.base import Label
from turnwise.memory.longterm.index.locations import ChromaServer
from turnwise.memory.longterm.retention.retention import Retention
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.ranges import check_seconds, check_whole_number
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim


def a_tool(**settings: Any) -> Any:
    return tool(**settings)(lambda: "said")


def a_vector_memory(**settings: Any) -> Any:
    return VectorMemory("sqlite:///a.db", embedding=None, **settings)


def an_http_setting(**settings: Any) -> HttpSettings:
    """Return settings; pydantic's error names the field, its value and the range, too."""
    try:
        return HttpSettings(**settings)
    except ValidationError as error:
        (refused,) = error.errors()
        raise ConfigError(str(refused["loc"][0]), refused["input"], refused["msg"]) from error


POSTGRES = "postgresql://user@host/name"

SECONDS: list[tuple[Callable[..., Any], str]] = [
    *((SessionConfig, name) for name in ("cancel_grace_s", "idle_s", "delta_interval_s", "store_retry_s")),
    (SessionConfig, "compaction_timeout_s"),
    (ToolRegistry, "timeout_s"),
    (ToolRegistry, "backoff_s"),
    (lambda **settings: a_tool(name="a", **settings), "timeout_s"),
    *((lambda **settings: OpenAIEngine("m", **settings), name) for name in ("timeout_s", "connect_timeout_s")),
    (MemoryConfig, "timeout_s"),
    (EchoEngine, "token_delay_s"),
    (lambda **settings: McpHttp("http://127.0.0.1:1/mcp", **settings), "idle_s"),
    (Retention, "keep_s"),
    (lambda **settings: SQLStore(POSTGRES, **settings), "lock_timeout_s"),
    (lambda **settings: RedisStore("redis://host", **settings), "timeout_s"),
    *((a_vector_memory, f"{name}_s") for name in ("pause", "embed", "query", "keep")),
    (ChromaServer, "timeout_s"),
    (lambda **settings: Encryption(key=lambda _: None, **settings), "cache_s"),
    *((an_http_setting, name) for name in ("heartbeat_s", "max_wait_s", "max_header_s", "max_stall_s")),
]

COUNTS: list[tuple[Callable[..., Any], str]] = [
    *((SessionConfig, name) for name in ("max_resumes", "max_queued", "max_labels", "max_prompt_bytes")),
    *((SessionConfig, name) for name in ("max_metadata_bytes", "max_label_chars", "compaction_attempts")),
    *((ToolRegistry, name) for name in ("retries", "max_parallel", "max_steps", "max_result_chars")),
    *((Packed, name) for name in ("hosts", "max_resident", "max_calls", "max_session_calls", "max_waits")),
    (Dedicated, "max_live"),
    (Dedicated, "max_waits"),
    *((MemoryConfig, name) for name in ("max_results", "max_tokens", "profile_tokens")),
    *((lambda **settings: OpenAIEngine("m", **settings), name) for name in ("max_retries", "max_output_tokens")),
    *((lambda **settings: Summarize(None, **settings), name) for name in ("keep_turns", "max_summary_tokens")),
    (lambda **settings: SQLStore(POSTGRES, **settings), "connections"),
    (lambda **settings: RedisStore("redis://host", **settings), "connections"),
    (SessionConfig, "max_context_tokens"),
    (SessionConfig, "reserve_output_tokens"),
    (Trim, "max_tokens"),
    (KeepLast, "turns"),
    (KeepLast, "messages"),
    (lambda **settings: KeepLast(turns=1, **settings), "max_tokens"),
    (DeleteOldest, "count"),
    (Label, "max_tokens"),
    (ChromaServer, "port"),
    (lambda **settings: AgentsSDKEngine("a:b", **settings), "max_turns"),
    *((an_http_setting, name) for name in HttpSettings.model_fields if name.startswith("max_") and name[-2:] != "_s"),
]

SHARES: list[tuple[Callable[..., Any], str]] = [
    (lambda **settings: Summarize(None, **settings), "trigger_ratio"),
    (FlushToMemory, "trigger_ratio"),
    (FlushToMemory, "max_ratio"),
]


@pytest.mark.parametrize("value", [-1.0, 0, 1.5, math.nan, math.inf, "0.5", True])
@pytest.mark.parametrize(("make", "setting"), SHARES)
def test_a_share_that_makes_no_sense_is_refused(make: Callable[..., Any], setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        make(**{setting: value})


@pytest.mark.parametrize("option", [("ls", "--limit"), ("show", "-n"), ("tail", "--after")])
def test_an_option_beyond_its_range_is_refused(option: tuple[str, str]) -> None:
    command, name = option
    arguments = [command, "memory://", *(["s"] if command != "ls" else []), name, str(10**30)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2 and name in answer.output and "less than or equal to" in answer.output


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e300])
@pytest.mark.parametrize(("make", "setting"), SECONDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_duration_that_makes_no_sense_is_refused(make: Callable[..., Any], setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        make(**{setting: value})


@pytest.mark.parametrize("value", [-1, 2**31, 10**30, math.nan, math.inf, 1.5, True])
@pytest.mark.parametrize(("make", "setting"), COUNTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_count_that_makes_no_sense_is_refused(make: Callable[..., Any], setting: str, value: Any) -> None:
    if make is an_http_setting and value is True:
        return  # pydantic reads it as 1, as it reads texts of the environment
    with pytest.raises(ConfigError, match=setting):
        make(**{setting: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_prices_and_budgets_are_finite(value: float) -> None:
    """A budget's seconds may be many: they are compared, and nobody waits for them."""
    with pytest.raises(ConfigError):
        Price(input=value, output=1.0)
    with pytest.raises(ConfigError, match="cost"):
        Budget(cost=value)
    with pytest.raises(ConfigError, match="seconds"):
        Budget(seconds=value)
    assert Budget(seconds=1e300).seconds == 1e300


def test_the_error_of_a_range_says_the_range() -> None:
    with pytest.raises(ConfigError, match=r"^idle_s=inf: must be a number of seconds, above 0 and up to 1e\+09$"):
        check_seconds("idle_s", math.inf, may_be_0=False)
    with pytest.raises(ConfigError, match=r"^hosts=0: must be a whole number from 1 to 9$"):
        check_whole_number("hosts", 0, 1, 9)

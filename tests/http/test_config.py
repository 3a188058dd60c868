"""A configuration is read whole, and a mistake in it is named with its key and line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import serve_objects
from typer.testing import CliRunner

from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed, Placement
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.cli import app
from turnwise.errors import ConfigError
from turnwise.http.assembly import Assembly, _memory, _working_memory, assemble, overflow_of
from turnwise.http.config import load
from turnwise.http.server.listening import url_of
from turnwise.http.server.processes import listen
from turnwise.memories import ExtractiveMemory, LexicalMemory, StaticMemory
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.working.formats import Markdown
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.summarize import Summarize

EXAMPLE = Path(__file__).parents[2] / "examples/serve.toml"
ENGINE = '[engines.main]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "serve.toml"


def assembled(file: Path, text: str, **overrides: Any) -> Assembly:
    file.write_text(text, encoding="utf-8")
    return assemble(*load(file, **overrides))


def test_the_example_is_valid_and_says_all_that_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-tests")
    monkeypatch.chdir(tmp_path)
    checked = CliRunner().invoke(app, ["serve", "--config", str(EXAMPLE), "--check"])
    assert checked.exit_code == 0, checked.output
    rows = dict(line.split("  ", 1) for line in checked.output.splitlines() if "  " in line)
    assert rows["engine main"].strip() == "gpt-5-mini" and "/v1/sessions" in rows["serves"]
    assert "sk-for-tests" not in checked.output
    config, source = load(EXAMPLE)
    assert config.session.run_budget and config.session.run_budget.tokens == 200_000
    assert config.packed.hosts == 2 and config.http.heartbeat_s == 10
    engines = assemble(config, source).engines
    small = engines["small"]
    assert isinstance(small, OpenAIEngine) and small.api == "responses" and small.api_key == "sk-for-tests"


def test_an_engine_behind_a_router_names_its_header(file: Path) -> None:
    engine = assembled(file, f"{ENGINE}session_header = 'x-my-session'\n").engines["main"]
    assert isinstance(engine, OpenAIEngine) and engine.session_header == "x-my-session"


def test_options_come_before_the_environment_and_the_environment_before_the_file(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("TURNWISE_SERVE_PORT", "2")
    monkeypatch.setenv("TURNWISE_SERVE_ENGINES__MAIN__SYSTEM", "Be brief.")
    monkeypatch.setenv("TURNWISE_HTTP_MAX_BODY_BYTES", "77")
    config = assembled(file, f"port = 1\nworkers = 1\n{ENGINE}[http]\nmax_body_bytes = 5\n", workers=3).config
    assert (config.port, config.workers, config.http.max_body_bytes) == (2, 3, 77)
    assert (config.engines["main"].model, config.engines["main"].system) == ("m", "Be brief.")


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        ("port = 1\n\n[engines.main]\n# a comment\nmodle = 'm'\n", 5, "engines.main.modle", "no such key"),
        ("port = 90000\n", 1, "port", "65535"),
        ("[session]\n\nidle_s = -4\n", 3, "session.idle_s", "above 0"),
        ("[session]\nidle_s = 1\n[session.run_budget]\n\ntokens = -5\n", 5, "session.run_budget.tokens", "more than 0"),
        ("[session]\nrun_budget = {tokens = 'many'}\n", 2, "session.run_budget.tokens", "integer"),
        ("[session.memory]\nmax_results = 0\n", 2, "session.memory.max_results", "from 1"),
        ("[[memories]]\nkind = 'static'\nfile = 'x'\n[[memories]]\nkind = 'lexical'\n", 4, "memories.1", "'store'"),
        (
            f"{ENGINE}tools = [\n 'serve_objects:weather',\n 'serve_objects:gone',\n]\n",
            4,
            "engines.main.tools.1",
            "gone",
        ),
        (f"{ENGINE}tools = ['serve_objects:engine']\n", 4, "engines.main.tools.0", "no Tool"),
        (f"{ENGINE}temperature = -1\n", 4, "engines.main.temperature", "0 or more"),
        (f"{ENGINE}key = 'NO_SUCH_KEY'\n", 4, "engines.main.key", "not set"),
        (f"{ENGINE}[overflow]\nstrategy = 'trim'\ncount = 2\n", 6, "overflow.count", "takes no such key"),
        (f"{ENGINE}[overflow]\nstrategy = 'summarize'\nengine = 'x'\n", 6, "overflow.engine", "there are main"),
        (f"{ENGINE}[overflow]\nstrategy = 'trim'\nmax_tokens = 0\n", 6, "overflow.max_tokens", "1"),
        (f"tokens = 'no.json'\n{ENGINE}", 1, "tokens", "cannot be read"),
        (f"store = 'nowhere://x'\n{ENGINE}", 1, "store", "scheme"),
        (f"{ENGINE}[working_memory]\nstore = 'mysql://h'\n", 5, "working_memory.store", "scheme is not known"),
        (f"host = '0.0.0.0'\n{ENGINE}", 1, "host", "give --tokens FILE"),
        (f"console = true\nworkers = 2\n{ENGINE}", 1, "console", "turnwise console"),
        (f"auth = 'serve_objects:auth'\ntokens = 'x'\n{ENGINE}", None, "the configuration", "one of 'tokens'"),
        ("[http]\nmax_body_bytes = 0\n", 2, "http.max_body_bytes", "greater"),
        ("port = 1\n", None, "engines", "--model"),
        (f"{ENGINE}[dedicated]\nmax_waits = 3\n", 4, "dedicated", "set placement to 'dedicated'"),
        (f"placement = 'in_process'\nworkers = 2\n{ENGINE}", 2, "workers", "one worker"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_line(
    file: Path, text: str, line: int | None, key: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        assembled(file, text)
    place = f"{file}:{line}: {key}" if line else key
    assert caught.value.setting.endswith(place), caught.value
    assert reason in caught.value.why, caught.value


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("", Packed()),
        ("placement = 'dedicated'\n[dedicated]\nmax_waits = 3\n", Dedicated(max_waits=3)),
        ("placement = 'in_process'\n", InProcess()),
        ("placement = 'in_process'\n[in_process]\nresume_lost = false\n", InProcess(resume_lost=False)),
    ],
)
def test_a_file_says_where_sessions_run(file: Path, text: str, placement: Placement) -> None:
    file.write_text(text, encoding="utf-8")
    assert load(file)[0].session_placement == placement


def test_all_mistakes_are_named_and_no_pasted_secret_is_quoted(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        assembled(file, "[engines.main]\nmodel = 'm'\nkey = 'sk-12-34'\napi_key = 'sk-12-34'\n[packed]\nhosts = 0\n")
    message = str(caught.value)
    assert f"{file}:3: engines.main.key" in message and f"{file}:4: engines.main.api_key" in message
    assert f"{file}:6: packed.hosts" in message
    assert "sk-12" not in message


def test_a_wrong_variable_is_named_rather_than_the_line_that_it_overrides(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("TURNWISE_SERVE_PORT", "many")
    with pytest.raises(ConfigError, match=r"^TURNWISE_SERVE_PORT: port='many'"):
        assembled(file, f"port = 1\n{ENGINE}")
    monkeypatch.setenv("TURNWISE_SERVE_PORT", "1")
    monkeypatch.setenv("TURNWISE_SERVE_SESSION", "no json")
    with pytest.raises(ConfigError, match="JSON"):
        assembled(file, ENGINE)


def test_objects_of_ones_own_are_imported(file: Path) -> None:
    text = "auth = 'serve_objects:auth'\n[engines.own]\nobject = 'serve_objects:engine'\n"
    assembly = assembled(file, f"{text}[overflow]\nstrategy = 'none'\n")
    assert type(assembly.engines["own"]).__name__ == "EchoEngine"


def test_memories_notes_and_a_strategy_of_each_kind_are_made(file: Path, tmp_path: Path) -> None:
    (tmp_path / "handbook.md").write_text("The office opens at nine.", encoding="utf-8")
    text = f"""{ENGINE}
[engines.small]
model = "s"
base_url = "http://127.0.0.1:9/v1"
[[memories]]
kind = "lexical"
store = "{tmp_path}/words.db"
name = "words"
max_tokens = 500
[[memories]]
kind = "extractive"
store = "{tmp_path}/facts.db"
engine = "small"
[[memories]]
kind = "static"
file = "{tmp_path}/handbook.md"
[[memories]]
object = "serve_objects:memory"
[working_memory]
store = "sqlite:///{tmp_path}/notes.db"
per = "user"
template = "# Plan"
[overflow]
object = "serve_objects:strategy"
"""
    assembled(file, text)
    config, source = load(file)
    assert config.working_memory and config.working_memory.per == "user"
    engines = assemble(config, source).engines
    kinds = [type(_memory(table, n, engines, source)) for n, table in enumerate(config.memories)]
    assert kinds == [LexicalMemory, ExtractiveMemory, StaticMemory, StaticMemory]
    notes = _working_memory(config, source)
    store = SQLItems(f"sqlite:///{tmp_path}/notes.db", space="notes")
    expected = WorkingMemory(store, form=Markdown("# Plan"), per="user")
    assert pickle.dumps(notes) == pickle.dumps(expected)
    assert overflow_of(config, engines, source) is serve_objects.strategy


def test_summaries_are_written_by_the_engine_that_is_named(file: Path) -> None:
    text = f"{ENGINE}[engines.small]\nmodel = 's'\nbase_url = 'http://127.0.0.1:9/v1'\n"
    text += "[overflow]\nstrategy = 'summarize'\nengine = 'small'\nkeep_turns = 3\n"
    with pytest.raises(ConfigError, match=r"session\.max_context_tokens=None: the window of model 'm' is not known"):
        assembled(file, text)
    file.write_text(f"{text}[session]\nmax_context_tokens = 8000\n", encoding="utf-8")
    config, source = load(file)
    engines = assemble(config, source).engines
    overflow = overflow_of(config, engines, source)
    assert isinstance(overflow, Summarize) and overflow.model is engines["small"] and overflow.keep_turns == 3


def test_a_port_that_is_taken_is_an_error_with_a_remedy(file: Path) -> None:
    file.write_text(f"port = 0\n{ENGINE}", encoding="utf-8")
    with listen(*load(file)) as taken:
        port = int(url_of(taken).rpartition(":")[2])
        file.write_text(f"\nport = {port}\n{ENGINE}", encoding="utf-8")
        with pytest.raises(ConfigError, match=r":2: port=\d+: the port cannot be opened \(Address already in use\)"):
            listen(*load(file))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "there is no engine: give --model"),
        (["--model", "m"], "OPENAI_API_KEY"),
        (["--base-url", "http://127.0.0.1:9/v1"], "give --model, too"),
        (["--demo", "--host", "0.0.0.0"], "give --tokens FILE"),
        (["--demo", "--tokens", "nowhere.json"], "cannot be read"),
        (["--config", "nowhere.toml"], "cannot be read"),
        (["postgresql://nobody@127.0.0.1:1/x", "--demo", "--port", "0"], "connection"),
        (["sqlite:////nowhere/chats.db", "--demo", "--port", "0"], "unable to open"),
        (["--demo", "--packed", "0"], "from 1"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(words: list[str], reason: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", *words])
    assert result.exit_code == 1 and result.stderr.startswith("error: ") and reason in result.stderr, result.output
    assert result.stderr.count("\n") == 1

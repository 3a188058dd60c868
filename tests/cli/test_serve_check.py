"""`turnwise serve --check`: which model would be served, to whom, and the same as JSON."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, cast

import pytest
from filled import turnwise
from typer.testing import Result

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http.app import _App, create_app

FILE = '[engines.mine]\nmodel = "from-the-file"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_ADDRESS", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "TURNWISE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_App, "openapi", lambda _: described())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.toml").write_text(FILE, encoding="utf-8")
    return tmp_path


describe = _App.openapi


@functools.cache
def described() -> dict[str, Any]:
    """Return what a service says of itself, which takes a second to make and is the same for all here."""
    return describe(cast(_App, create_app(AsyncSessionManager("memory://x", engine=EchoEngine()))))


def check(*words: str, **env: str) -> Result:
    return turnwise("serve", "--check", "--json", *words, env=env)


@pytest.mark.parametrize(
    ("words", "env", "name", "model"),
    [
        ([], {"OPENAI_API_KEY": "k"}, "main", "gpt-5-mini"),
        ([], {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "named"}, "main", "named"),
        ([], {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_MODEL": "named"}, "main", "named"),
        (["--base-url", "http://127.0.0.1:9/v1"], {"OPENAI_MODEL": "named"}, "main", "named"),
        (["--model", "given"], {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "named"}, "main", "given"),
        (["--demo"], {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "named"}, "main", "named"),
        (["--demo"], {"OPENAI_MODEL": "named"}, "main", "stand-in"),
        (["--config", "serve.toml"], {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "named"}, "mine", "from-the-file"),
        (["--demo", "--config", "serve.toml"], {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "x"}, "mine", "from-the-file"),
    ],
)
def test_the_model_is_the_options_then_the_files_then_the_variables(
    words: list[str], env: dict[str, str], name: str, model: str
) -> None:
    ran = check(*words, **env)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.count("\n") == 1
    report = json.loads(ran.stdout)
    assert {key: value for key, value in report.items() if key.startswith("engine ")} == {f"engine {name}": model}


def test_telemetry_is_an_option() -> None:
    assert "telemetry" in json.loads(check("--telemetry", OPENAI_API_KEY="k").stdout)
    assert "telemetry" not in json.loads(check(OPENAI_API_KEY="k").stdout)


def test_with_tokens_it_may_listen_anywhere(folder: Path) -> None:
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"a-very-secret-token": "ann"}), encoding="utf-8")
    result = check("--demo", "--host", "0.0.0.0", "--tokens", str(tokens))
    assert json.loads(result.stdout)["users"] == f"tokens from {tokens}" and "a-very-secret-token" not in result.output


def test_tokens_of_a_file_come_before_those_of_the_variable(folder: Path) -> None:
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"a-very-secret-token": "ann"}), encoding="utf-8")
    env = {"TURNWISE_HTTP_TOKENS": json.dumps({"another-secret-token": "bob"})}
    assert json.loads(check("--demo", **env).stdout)["users"] == "tokens from TURNWISE_HTTP_TOKENS"
    result = check("--demo", "--tokens", str(tokens), **env)
    assert json.loads(result.stdout)["users"] == f"tokens from {tokens}", result.output


def test_two_models_are_refused() -> None:
    ran = check("--config", "serve.toml", "--model", "given", OPENAI_API_KEY="k")
    assert ran.exit_code == 1 and "has engines: change the model there" in ran.stderr


def test_a_url_needs_a_model() -> None:
    ran = check("--base-url", "http://127.0.0.1:9/v1")
    assert ran.exit_code == 1 and "give --model, too" in ran.stderr


def test_only_a_check_prints_json() -> None:
    ran = turnwise("serve", "--json")
    assert ran.exit_code == 2 and "--check" in ran.stderr

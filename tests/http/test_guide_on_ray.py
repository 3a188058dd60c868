"""The commands, files and requests of docs/service.md work."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pages.markdown_blocks import Block, blocks_of
from servers.served import run_all, served
from turnwise.cli import app
from turnwise.http.auth import BearerTokens
from turnwise.http.config import load

pytestmark = pytest.mark.ray

GUIDE = Path(__file__).parents[2] / "docs/service.md"
ROOT = GUIDE.parents[1]
BLOCKS = blocks_of(GUIDE)
TOKENS = next(block.text for block in BLOCKS if block.kind == "json")
TOKEN = "a-long-secret-of-ann"


def texts(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def test_every_block_is_tested_or_plain_text() -> None:
    assert {block.kind for block in BLOCKS} == {"console", "bash", "json", "toml", "text"}


def test_its_requests_work_against_a_service_with_tokens(ray_address: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(TOKENS, encoding="utf-8")
    with served("--demo", "--port", "0", "--packed", "1", "--tokens", str(tokens), RAY_ADDRESS=ray_address) as service:
        commands = [line.strip() for line in service.printed if line.startswith("  ")]
        assert all(run_all(commands, TURNWISE_TOKEN=TOKEN))
        script = "\n".join(block.text for block in texts("bash")).replace("http://127.0.0.1:8000", service.url)
        ran = subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert ran.stdout.count("run_completed") >= 2 and "When does the train leave?" in ran.stdout
        assert ran.stdout.count("event: run_started") == 1, "the second stream began behind it"


def test_its_file_of_tokens_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(TOKENS, encoding="utf-8")
    identity = BearerTokens.from_file(tmp_path / "tokens.json").find("another-long-secret")
    assert identity and identity.is_operator


def test_its_configuration_has_keys_that_exist(tmp_path: Path) -> None:
    (block,) = texts("toml")
    file = tmp_path / "serve.toml"
    file.write_text(block.text, encoding="utf-8")
    config, _ = load(file)
    assert list(config.engines) == ["main", "own"] and config.http.max_streams_per_user == 20


def test_its_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for command in (line[2:] for block in texts("console") for line in block.text.splitlines()):
        match shlex.split(command):
            case ["pip", "install", package]:
                assert set(package.partition("[")[2].removesuffix("]").split(",")) <= set(extras), command
            case ["turnwise", *words]:
                assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, command
            case _:
                pytest.fail(command)


def test_the_mistake_that_it_shows_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,), (file,) = texts("text"), texts("toml")
    mistakes = re.findall(r"^error: (.*)$", shown.text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("serve.toml").write_text(file.text.replace("model =", "modle =", 1), encoding="utf-8")
    checked = CliRunner().invoke(app, ["serve", "--config", "serve.toml", "--check"])
    assert checked.exit_code == 1
    assert mistakes[0] in checked.stderr

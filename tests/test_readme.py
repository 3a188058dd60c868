"""What README.md shows works as it is shown."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from local_provider import LocalProvider
from turnwise.cli import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


class Block(NamedTuple):
    """A fenced block: what its fence says, the line it begins at, counted from 1, and its text."""

    kind: str
    line: int
    text: str


def blocks_of(text: str) -> list[Block]:
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1].strip(), text.count("\n", 0, m.start(2)) + 1, m[2]) for m in found]


BLOCKS = blocks_of(README.read_text(encoding="utf-8"))


def those(kind: str) -> list[object]:
    return [pytest.param(block, id=f"line-{block.line}") for block in BLOCKS if block.kind == kind]


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


def at_its_lines(block: Block) -> str:
    """Return the text so that a traceback names the lines of the README."""
    return "\n" * (block.line - 1) + block.text


def test_every_block_is_of_a_kind_that_is_tested_or_plain_text() -> None:
    assert {block.kind for block in BLOCKS} <= {"python", "python no-run", "console", "text", "mermaid"}
    assert "python" in {block.kind for block in BLOCKS}


@pytest.mark.parametrize("block", those("python"))
def test_a_python_block_runs_by_itself(block: Block, provider: LocalProvider, ray_address: str, tmp_path: Path) -> None:
    """In a process of its own; all share a Ray, as starting one takes longer than what most of them do."""
    script = tmp_path / "readme.py"
    script.write_text(at_its_lines(block), encoding="utf-8")
    local = {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "local-key", "PYTHONIOENCODING": "utf-8"}
    if "OpenAI" not in block.text:  # else the processes of its sessions need these settings too
        local["RAY_ADDRESS"] = ray_address
    local["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=os.environ | local,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("block", those("python no-run"))
def test_a_python_block_that_is_not_run_is_python(block: Block) -> None:
    compile(at_its_lines(block), str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("block", those("console"))
def test_a_console_block_shows_commands_that_exist(block: Block) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
    assert commands
    for command in commands:
        words = [word for word in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", word)]
        match words:
            case ["make", *wanted]:
                assert set(wanted) <= set(targets), command
            case ["pip" | "uv", "install" | "add", package]:
                name, _, chosen = package.removesuffix("]").partition("[")
                assert name in ("turnwise", "."), command
                assert set(filter(None, chosen.split(","))) <= set(extras), command
            case ["python", script, *_]:
                compile((ROOT / script).read_text(encoding="utf-8"), script, "exec")
            case ["turnwise", *arguments]:  # it reads all of them before it helps
                assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0, command
            case ["git", "clone", _] | ["cd", _]:
                pass
            case _:
                pytest.fail(f"nothing here can tell whether this works: {command}")


def test_the_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"`(?:tests/)?(test_\w+\.py)`", README.read_text(encoding="utf-8")))
    assert len(named) > 10
    assert not [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()]

"""The code blocks of README.md work."""

import ast
import os
import re
import secrets
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from markdown_blocks import Block, blocks_of
from turnwise.cli import app
from turnwise.testing import LocalProvider

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

pytestmark = pytest.mark.ray

BLOCKS = blocks_of(README)

_AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def those(kind: str) -> list[object]:
    return [pytest.param(block, id=f"line-{block.line}") for block in BLOCKS if block.kind == kind]


A_RAY = """
import sys
import ray
ray.init(address="local", num_cpus=4, include_dashboard=False, configure_logging=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The environment of the blocks: a provider, also for the processes of their sessions, and a shared Ray.

    Of this clone it has only the package. Starting Ray takes longer than most blocks.
    """
    with LocalProvider() as provider:
        local = {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "local-key", "PYTHONPATH": str(ROOT / "src")}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | local | token
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", A_RAY], env=env, **pipes) as process:
            assert process.stdout
            address = process.stdout.readline().strip()
            assert address, "no Ray was started"
            yield env | {"RAY_ADDRESS": address, "PYTHONIOENCODING": "utf-8"}


def test_every_code_block_is_tested_or_plain_text() -> None:
    assert {block.kind for block in BLOCKS} <= {"python", "python no-run", "console", "text", "mermaid"}
    assert "python" in {block.kind for block in BLOCKS}


def test_the_python_blocks_import_only_what_is_installed_with_turnwise() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    installed = {"turnwise", *sys.stdlib_module_names, *(re.split(r"[^\w-]", each)[0] for each in needed)}
    for block in BLOCKS:
        if block.kind.startswith("python"):
            nodes = list(ast.walk(compile(block.text, str(README), "exec", ast.PyCF_ONLY_AST | _AWAITS)))
            imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
            assert {name.partition(".")[0] for name in imported} <= installed, f"line {block.line}"


@pytest.mark.parametrize("block", those("python"))
def test_a_python_block_runs_by_itself(block: Block, environment: dict[str, str], tmp_path: Path) -> None:
    """In a process of its own."""
    script = tmp_path / "readme.py"
    script.write_text(block.at_its_lines, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("block", those("python no-run"))
def test_a_python_block_that_is_not_run_compiles(block: Block) -> None:
    compile(block.at_its_lines, str(README), "exec", flags=_AWAITS, dont_inherit=True)


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


def test_the_tests_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`(?:tests/)?(test_\w+\.py)`", README.read_text(encoding="utf-8")))
    assert len(named) > 10
    assert not [name for name in sorted(named) if not list((ROOT / "tests").rglob(name))]

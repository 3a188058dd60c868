"""Checks of the code blocks in pages of documentation."""

import ast
import json
import os
import queue
import re
import secrets
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from pages.markdown_blocks import Block
from processes.fork_server import FORKED_WORKER, fork_environment
from servers.served import served
from turnwise.cli import app
from turnwise.testing import LocalProvider

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

SERVICE = "http://127.0.0.1:8000"
"""Where the pages have their service: programs and requests that name it get one."""

_AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

A_RAY = """
import sys
import ray
from ray._private import ray_constants
ray_constants.SETUP_WORKER_FILENAME = sys.argv[1] or ray_constants.SETUP_WORKER_FILENAME
ray.init(address="local", num_cpus=4, include_dashboard=False, configure_logging=False, log_to_driver=False)
ray._private.worker._global_node.kill_log_monitor()
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def snippet_environment() -> Iterator[dict[str, str]]:
    """Yield the environment of the blocks: a provider, also for the processes of their sessions, and a shared Ray.

    Of this clone it has only the package. Starting Ray takes longer than most blocks.
    """
    with LocalProvider() as provider, fork_environment(2) as forks:
        local = {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "local-key", "PYTHONPATH": str(ROOT / "src")}
        local |= {"ANTHROPIC_BASE_URL": provider.anthropic_url, "ANTHROPIC_API_KEY": "local-key"}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | local | token | forks
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", A_RAY, FORKED_WORKER], env=env, **pipes) as process:
            assert process.stdout
            address = process.stdout.readline().strip()
            assert address, "no Ray was started"
            yield env | {
                "RAY_ADDRESS": address,
                "PYTHONIOENCODING": "utf-8",
                "TOKENS": '{"a-long-secret-of-ann": "ann"}',
            }


class SnippetRunner:
    """Runs programs in one process, and in a new one after one that hung or died."""

    def __init__(self, env: dict[str, str], timeout_s: float = 250) -> None:
        self.env = env
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def run(self, text: str, folder: Path, *, hidden: Sequence[str] = ()) -> str:
        """Return what the program prints; fail if it raises or hangs.

        Args:
            hidden: prefixes of environment variables that it does not get.
        """
        script = folder / "snippet.py"
        script.write_text(text, encoding="utf-8")
        process = self._process or self._start()
        assert process.stdin
        process.stdin.write(json.dumps([str(script), str(folder), hidden]) + "\n")
        process.stdin.flush()
        try:
            answer = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            pytest.fail(f"it had not ended after {self._timeout_s:g} s")
        if not answer:
            self.close()
            pytest.fail("its process died")
        ended, printed = json.loads(answer)
        assert ended, printed
        return str(printed)

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> "subprocess.Popen[str]":
        program = Path(__file__).with_name("snippet_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)], env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers = queue.Queue()
        threading.Thread(target=_read, args=(self._process, self._answers), daemon=True).start()
        return self._process


def _read(process: "subprocess.Popen[str]", answers: "queue.Queue[str]") -> None:
    for line in process.stdout or ():
        answers.put(line)
    answers.put("")


@contextmanager
def service_of(snippets: SnippetRunner) -> Iterator[str]:
    """Yield the URL of a service with a simulated model, on the Ray of the code blocks."""
    names = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "PYTHONPATH")
    env: dict[str, Any] = {name: snippets.env[name] for name in names}
    with served("--demo", "--port", "0", "--packed", "1", **env) as running:
        yield running.url


def check_imports(block: Block, *also: str) -> None:
    """Check that a block imports only turnwise, its requirements and these packages."""
    required = {re.split(r"[^\w-]", requirement)[0] for requirement in PROJECT["dependencies"]}
    nodes = list(ast.walk(compile(block.text, "block", "exec", ast.PyCF_ONLY_AST | _AWAITS)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    installed = {"turnwise", *sys.stdlib_module_names, *required, *also}
    assert {name.partition(".")[0] for name in imported} <= installed, f"line {block.line}"


def check_syntax(block: Block, page: Path) -> None:
    """See that a file or a program that is not run can be read."""
    match block.kind.partition(" ")[0]:
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            assert list(yaml.safe_load_all(block.text))
        case "python":
            compile(block.at_its_lines, str(page), "exec", flags=_AWAITS, dont_inherit=True)


def commands_of(block: Block) -> list[str]:
    """Return the commands behind `$`."""
    commands = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
    assert commands, f"line {block.line}: no line begins with a $"
    return commands


def check_command(command: str) -> None:
    """Check that a command exists, and takes these arguments."""
    extras = PROJECT["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for word in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", word)]
    match words:
        case ["make", *goals]:
            assert set(goals) <= set(targets), command
        case ["pip" | "uv", "install" | "add", package]:
            name, _, extra_names = package.removesuffix("]").partition("[")
            assert name in ("turnwise", ".", "ray"), command
            assert name == "ray" or set(filter(None, extra_names.split(","))) <= set(extras), command
        case ["pip", "install", "-r", lock]:
            assert (ROOT / lock).is_file(), command
        case ["pip", "install", "--no-deps", package]:
            assert package == "turnwise", command
        case ["pip", "install", *packages]:
            names = {re.split(r"[^\w.-]", dependency)[0] for dependency in PROJECT["dependencies"]}
            assert set(packages) <= names, command
        case ["python", script, *_]:
            file = next(folder / script for folder in (ROOT, ROOT / "examples/tutorial") if (folder / script).is_file())
            compile(file.read_text(encoding="utf-8"), script, "exec")
        case ["turnwise", *arguments]:  # it reads all of them before it helps
            assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0, command
        case ["git", "clone", _] | ["cd", _] | ["ray", "start" | "stop" | "status", *_]:
            pass
        case _:
            pytest.fail(f"nothing here can tell whether this works: {command}")

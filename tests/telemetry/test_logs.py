"""What sessions' processes log, and what a program prints that asks for nothing."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes.late_ray import without_late_start
from turnwise.actors.hosting.logs import JsonFormatter, LogSettings
from turnwise.testing import LocalProvider

PROGRAM = """
import logging, sys
from turnwise import OpenAIEngine, SessionManager
from turnwise.engines import LogCalls
from turnwise.telemetry import JsonFormatter

if sys.argv[2:]:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
engine = OpenAIEngine("local", base_url=sys.argv[1], middleware=[LogCalls()])
with SessionManager("memory://logs", engine=engine) as manager:
    print(manager.open("chat-7", user_id="ada").run("Hello!").wait().session_id, flush=True)
    sys.stdin.read()
"""


def run_program(*arguments: str, until: str = "") -> tuple[str, str]:
    """Run a program that starts a Ray of its own; return what it printed, and what it wrote to stderr.

    Args:
        until: it ends after a line on stderr that has this.
    """
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    environment.pop("RAY_AUTH_MODE", None)
    with (
        LocalProvider() as provider,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, provider.base_url, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as program,
    ):
        assert program.stdin and program.stdout and program.stderr
        errors = ""
        if not until:
            program.stdin.close()
        for line in program.stderr:
            errors += line
            if until and until in line:  # Ray brings the lines of other processes some time later
                program.stdin.close()
        printed = program.stdout.read()
    assert program.returncode == 0, errors
    return printed, errors


@pytest.mark.ray
def test_a_plain_program_says_that_it_starts_ray_and_has_no_other_warnings_on_its_console() -> None:
    printed, errors = run_program()
    (line,) = without_late_start(errors).splitlines()
    assert printed == "chat-7\n"
    assert line.startswith("starting Ray, which takes some seconds; `ray start --head` keeps one running")


@pytest.mark.ray
def test_session_processes_log_like_the_calling_program() -> None:
    _, errors = run_program("json", until="turnwise.calls")
    lines = [line for line in errors.splitlines() if "turnwise.calls" in line]
    assert len(lines) == 1 and "(Session(chat-7) pid=" in lines[0]
    logged = json.loads(lines[0][lines[0].index("{") :])
    assert (logged["user_id"], logged["session_id"], logged["level"]) == ("ada", "chat-7", "INFO")
    assert logged["run_id"] in logged["message"] and "Hello" not in errors


def test_a_record_is_one_line_of_json_with_its_exception() -> None:
    record = logging.LogRecord("turnwise.x", logging.ERROR, str(Path("f")), 1, "failed: %s", ("ü\n",), None)
    record.session_id, record.user_id = "chat", "ann"
    try:
        raise ValueError("no")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = JsonFormatter().format(record)
    fields = json.loads(line)
    assert (
        "\n" not in line
        and fields["message"] == "failed: ü\n"
        and (fields["session_id"], fields["user_id"]) == ("chat", "ann")
    )
    assert "ValueError: no" in fields["exception"] and "run_id" not in fields


def test_the_settings_are_those_of_the_logger_turnwise_and_of_its_handlers() -> None:
    logger, handler = logging.getLogger("turnwise"), logging.StreamHandler()
    before = logger.level, logger.propagate
    try:
        logger.setLevel(logging.ERROR)
        assert LogSettings.of_this_process() == LogSettings(logging.ERROR)
        handler.setFormatter(JsonFormatter())
        logger.addHandler(handler)
        assert LogSettings.of_this_process() == LogSettings(logging.ERROR, as_json=True)
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before

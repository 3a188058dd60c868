"""The log of a process that serves: a line for a message, and one line for what repeats."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator

import pytest

from turnwise.http.server.log import SparseHandler


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def handler(stream: io.StringIO) -> Iterator[SparseHandler]:
    handler = SparseHandler(stream, interval_s=600)
    yield handler
    handler.close()


@pytest.fixture
def log(handler: SparseHandler) -> logging.Logger:
    log = logging.Logger("service")  # noqa: LOG001 - of this test alone
    log.addHandler(handler)
    return log


def test_what_a_client_sent_makes_no_further_line(log: logging.Logger, stream: io.StringIO) -> None:
    log.warning("%s failed", "x\nERROR forged\x1b[2J\u2028\ud800é")
    try:
        raise ValueError("y\nERROR forged\r")
    except ValueError:
        log.exception("it failed")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "WARNING service: x\\nERROR forged\\x1b[2J\\u2028\\ud800é failed"
    assert lines[1] == "ERROR service: it failed"
    assert all(line.startswith("  ") for line in lines[2:]) and "forged" in stream.getvalue()


def test_what_repeats_is_one_line_and_a_count(log: logging.Logger, handler: SparseHandler, stream: io.StringIO) -> None:
    for number in range(10_000):
        log.error("request %s: %s", number, KeyError(number))
        if number % 2:
            log.warning(f"an address that varies: {number}")  # noqa: G004 - as libraries do
    log.error("another line of code")
    assert len(stream.getvalue().splitlines()) == 3
    handler.close()
    assert [line.partition("[")[2] for line in stream.getvalue().splitlines()[3:]] == [
        "9999 more of this kind in 600 s or less]",
        "4999 more of this kind in 600 s or less]",
    ]


def test_errors_of_several_kinds_are_told_apart(log: logging.Logger, stream: io.StringIO) -> None:
    for error in (KeyError("a"), ValueError("b"), KeyError("c")):
        log.error("a request failed: %s", error)
    for server in ("one", "two", "one"):
        log.info("server %s says hello", server)
    assert len(stream.getvalue().splitlines()) == 4


def test_a_message_is_written_again_when_its_interval_is_over() -> None:
    counted = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if "more of this kind" in text:
                counted.set()
            return written

    stream = Stream()
    handler = SparseHandler(stream, interval_s=0.05)
    log = logging.Logger("service")  # noqa: LOG001 - of this test alone
    log.addHandler(handler)

    def fail() -> None:
        log.error("it failed")

    fail()
    for _ in range(3000):
        fail()
        if counted.wait(0.01):
            break
    fail()
    handler.close()
    first, *_, summary, last = stream.getvalue().splitlines()
    assert first == last == "ERROR service: it failed" and summary.startswith(f"{first} [")

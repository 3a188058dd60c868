"""Makes the blocking families of actors/client and src/turnwise/client from the asynchronous ones: `make blocking`."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "actors/client"
BLOCKING = CLIENT / "blocking"

MODULES = (
    *(
        "session_host",
        "execution",
        "user_memory",
        "session_memory",
        "session",
        "chat_memory",
        "manager",
        "store_reads",
        "run_once",
    ),
    *("forgetting", "expiry", "importing", "event_push", "subscriptions", "webhooks", "files"),
)
"""The modules that are written once."""

REMOTE = ROOT / "src/turnwise/client"

REMOTE_MODULES = (
    "connection",
    "execution",
    "files",
    "session",
    "session_memory",
    "webhooks",
    "subscription",
    "manager",
)
"""Likewise, of the client of a service."""

HEADER = "# Made from {path} by `make blocking`: change that file.\n"

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aread": "read",
    "aiter_bytes": "iter_bytes",
    "aiter_lines": "iter_lines",
}
"""Names that are others in the blocking family, besides those that begin with `Async`."""

UNWRAPPED = {"Awaitable"}
"""Types that stand for their argument there."""

LEFT_OUT = {"__await__"}
"""Methods that it does not have."""

PHRASES = {
    "manager": {
        """\
`SessionManager` with coroutine methods. Use it on one event loop.

    It connects to Ray, or starts one, at the first call or `async with`, in a thread, so that the event loop is not
    blocked. An error of that is raised by this call, and the next call tries again.
""": """\
Opens, finds and lists sessions. Safe to use from many threads.

    A method whose argument has the wrong type or is out of range raises InvalidInputError, which names the argument,
    and changes nothing.

    The manager connects this process to Ray if it is not connected yet, and starts Ray if none is running. Sessions
    and runs live in Ray: they continue after the manager is closed, until they are idle, and after its process ends,
    unless Ray ends with that process. A Ray that the manager started does (logged at INFO); a cluster, or one started
    by `ray start --head`, does not.
""",
        "an argument cannot be used.\n": (
            "an argument cannot be used, or another Ray has the SQLite file of the store open.\n"
        ),
    },
    "session": {
        """\
`Session` with its methods as coroutines: any number at once, from any process; they take effect one at a time.
""": """\
A conversation. Methods may be called from many threads and processes at once; they take effect one at a time.
""",
    },
    "session_memory": {
        "`SessionMemory` with its verbs as coroutines.\n": (
            "The long-term memories of the session's user, and the session's working memory.\n"
        ),
    },
    "user_memory": {
        "`UserMemory` with its verbs as coroutines.\n": "The long-term memories of a user.\n",
    },
    "files": {
        "`Files` with its verbs as coroutines.\n": "The files of a session, or of a user that belong to no session.\n",
    },
    "webhooks": {
        "`Webhook` with its verbs as coroutines.\n": "A URL that is told of what happens in sessions.\n",
    },
    "execution": {
        "`ExecutionHandle` with its verbs as coroutines; `await handle` is `await handle.wait()`.\n": (
            "A run: wait for it, follow it or cancel it, from any process. The run needs no handle; it lives in Ray.\n"
        ),
    },
    "chat_memory": {
        "`ChatMemory` with its verbs as coroutines.\n": """\
A session as a memory with three verbs, for programs that call their models themselves.

    The short-term memory is the session, with its store and overflow strategy; the long-term memories are those of its
    manager. Sessions that run their engine need none of this. Each verb raises what those of `Session` raise.
""",
    },
    "src/turnwise/client/manager.py": {
        "`RemoteManager` with coroutine methods. Use it on one event loop.\n": (
            "Opens, finds and lists the sessions of a service. Safe to use from many threads.\n"
        ),
        """\
        token: what is sent as `Authorization: Bearer`, or a function that returns it for each request; in the
            asynchronous family it may be a coroutine function.
""": "        token: what is sent as `Authorization: Bearer`, or a function that returns it for each request.\n",
        "such as `httpx2.ASGITransport(app)` in tests": "such as `httpx2.HTTPTransport(uds=...)`",
    },
    "src/turnwise/client/subscription.py": {
        "Calls a function, or a coroutine function, with events, in a task of its own, until it is closed.\n": (
            "Calls a function with events, in a thread of its own, until it is closed.\n"
        ),
    },
    "src/turnwise/client/session.py": {
        "`RemoteSession` with its methods as coroutines: any number at once; they take effect one at a time.\n": (
            "A conversation of a service. Methods may be called from many threads; they take effect one at a time.\n"
        ),
    },
    "src/turnwise/client/execution.py": {
        "`RemoteExecutionHandle` with its verbs as coroutines; `await handle` is `await handle.wait()`.\n": (
            "A run of a service: wait for it, follow it or cancel it, from any process.\n"
        ),
    },
    "src/turnwise/client/session_memory.py": {
        "`RemoteSessionMemory` with its verbs as coroutines: those of `SessionMemory`, which says more.": (
            "Long-term memories and working memory. The verbs are those of `SessionMemory`, which says more."
        ),
    },
    "src/turnwise/client/files.py": {
        "`RemoteFiles` with its verbs as coroutines.\n": "The files of a session of a service, or of a user.\n",
    },
    "src/turnwise/client/webhooks.py": {
        "`RemoteWebhook` with its verbs as coroutines: those of `Webhook`.": (
            "A URL that a service tells of what happens in sessions. The verbs are those of `Webhook`."
        ),
    },
    "subscriptions": {
        "Calls a function, or a coroutine function, with events, in a task of its own, until it is closed.": (
            "Calls a function with events, in a thread of its own, until it is closed. Also a context manager."
        ),
    },
}
"""What docstrings say of one family only, by module: what the asynchronous text has, and the blocking one instead."""


def family() -> Mapping[Path, str]:
    """Return the text of each module of the blocking family, by its path."""
    modules = [CLIENT / f"{name}.py" for name in MODULES] + [REMOTE / f"{name}.py" for name in REMOTE_MODULES]
    texts = {path: blocking_text(path, path.read_text(encoding="utf-8")) for path in modules}
    return {path.parent / "blocking" / path.name: tidied(text) for path, text in texts.items()}


def blocking_text(path: Path, text: str) -> str:
    """Return the blocking text of a module, before it is tidied.

    Raises:
        ValueError: the module no longer has one of the phrases.
    """
    name = path.relative_to(ROOT).as_posix()
    for phrase, replacement in PHRASES.get(path.stem if path.parent == CLIENT else name, {}).items():
        if text.count(phrase) != 1:
            raise ValueError(f"{name} has {text.count(phrase)} times, not once: {phrase}")
        text = text.replace(phrase, replacement)
    for package, modules in (("actors.client", MODULES), ("client", REMOTE_MODULES)):
        names = "|".join((*modules, "steps"))
        text = re.sub(rf"\bturnwise\.{package}\.({names})\b", rf"turnwise.{package}.blocking.\1", text)
        text = text.replace(f"from turnwise.{package} import steps", f"from turnwise.{package}.blocking import steps")
    return HEADER.format(path=name) + replaced(without_methods(text))


def without_methods(text: str) -> str:
    """Return the text without the methods that only the asynchronous family has."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name in LEFT_OUT:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "".join(lines)


def replaced(text: str) -> str:
    """Return the text with its tokens replaced, all else as it was."""
    lines = text.splitlines(keepends=True)
    for (row, start), (_, end), replacement in reversed([*edits(text)]):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + replacement + line[end:]
    return re.sub(r"`Async(?=[A-Z])", "`", "".join(lines))


def edits(text: str) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    """Yield the replacements, with their places in the lines, in the order of the text."""
    unwrapped: list[bool] = []
    """Whether each open bracket is that of a type that stands for its argument."""
    before = ""
    for token, after in pairwise(tokenize.generate_tokens(io.StringIO(text).readline)):
        if token.type == tokenize.NAME:
            if token.string in ("async", "await"):
                yield token.start, after.start, ""
            elif token.string in UNWRAPPED and after.string == "[":
                yield token.start, token.end, ""
            elif token.string in NAMES or re.match(r"Async[A-Z]", token.string):
                yield token.start, token.end, NAMES.get(token.string, token.string.removeprefix("Async"))
        elif token.type == tokenize.OP and token.string in "([{":
            unwrapped.append(before in UNWRAPPED)
            if unwrapped[-1]:
                yield token.start, token.end, ""
        elif token.type == tokenize.OP and token.string in ")]}" and unwrapped.pop():
            yield token.start, token.end, ""
        before = token.string


def tidied(text: str) -> str:
    """Return the text as ruff lays it out, without imports that it no longer needs."""
    name = str(BLOCKING / "module.py")
    for command in (["check", "--fix-only", "--select", "F401,I001"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", name, "-"]
        text = subprocess.run(ruff, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for path, text in family().items():
        path.write_text(text, encoding="utf-8")

"""Programs that use turnwise are typed: those in the documentation, and those that read events and blocks."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from pages.markdown_blocks import blocks_of
from pages.reference_pages import public_modules

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHECKED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["files"]

NARROWED = """
from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from turnwise import (
    AnyBlock,
    AnyEvent,
    AsyncExecutionHandle,
    AsyncSession,
    ExecutionHandle,
    IfBusy,
    Page,
    Prompt,
    RunState,
    Session,
    Turn,
    __version__,
    blocks,
    events,
)
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.engines import InferenceRunner, StepContext
from turnwise.memory.longterm.text_model import TextModel
from turnwise.stores import HistoryStore, SessionStore
from turnwise.strategies import Window
from turnwise.strategies.summary_task import SummaryTask


def sync(execution: ExecutionHandle, session: Session) -> None:
    for event in execution.events():
        assert_type(event, AnyEvent)
        if event.kind == "text_delta":
            assert_type(event, events.TextDelta)
            assert_type(event.text, str)
        elif event.kind == "tool_ended":
            assert_type(event.seconds, float)
            assert_type(event.blocks, tuple[AnyBlock, ...])
        elif event.kind == "unknown":
            assert_type(event, events.UnknownEvent)
            assert_type(event.stored_kind, str)
    assert_type(session.events()[0], AnyEvent)
    assert_type(session.messages().items[0].blocks, tuple[AnyBlock, ...])
    assert_type(session.expand(blocks.Summary(text="")), tuple[AnyBlock, ...])
    assert_type(execution.status(), RunState)
    answered(execution.wait())


async def asynchronous(execution: AsyncExecutionHandle, session: AsyncSession) -> None:
    async for event in execution.events():
        assert_type(event, AnyEvent)
        if event.kind == "run_completed":
            assert_type(event.text, str)
    assert_type((await session.events())[0], AnyEvent)
    assert_type(await session.expand(blocks.Summary(text="")), tuple[AnyBlock, ...])
    answered(await execution)


async def stored(store: SessionStore, history: HistoryStore) -> None:
    assert_type(await store.events(SessionKey("s")), list[AnyEvent])
    assert_type(await history.events(SessionKey("s")), list[AnyEvent])


async def wrapped(turn: Turn, context: StepContext, runner: InferenceRunner) -> None:
    for block in await runner.run(turn, context):
        assert_type(block, AnyBlock)


class Model:
    async def answer(self, request: Sequence[AnyBlock], *, schema: Mapping[str, Any] | None = None) -> str:
        return "".join(block.text for block in request if block.kind == "user")


async def summarized(task: SummaryTask, window: Window) -> None:
    model: TextModel = Model()
    for block in task.request(window):
        assert_type(block, AnyBlock)
    await model.answer(task.request(window))


def answered(turn: Turn) -> None:
    for block in (*turn.blocks, *turn.new_blocks, *turn.output, *turn.asked):
        assert_type(block, AnyBlock)
        if block.kind == "tool_use":
            assert_type(block, blocks.ToolUse)
            assert_type(block.name, str)
        elif block.kind == "unknown":
            assert_type(block.stored_kind, str)
    assert_type(turn.parse(int), int)


def named(session: Session, prompts: Sequence[Prompt], if_busy: IfBusy, page: Page[Turn]) -> None:
    session.run(*prompts, if_busy=if_busy)
    assert_type(__version__, str)
"""

IMPORTED = """
from typing import assert_type

from turnwise import events as same
from turnwise.blocks import Text as OneText
from turnwise.events import TextDelta as OneDelta


def same_classes(delta: turnwise.events.TextDelta, text: turnwise.blocks.Text) -> None:
    assert_type(delta, same.TextDelta)
    assert_type(delta, OneDelta)
    assert_type(text, OneText)
"""

WRONG = """
from turnwise import AnyEvent, SesionManager
from turnwise.stores import InMemoryStor


def read(event: AnyEvent) -> None:
    print(event.text)
    if event.kind == "text_deltas":
        print("never")
    print(SesionManager, InMemoryStor)


from turnwise.actors.hosting import verbs

verbs.turn(3)
verbs.turn(b"3", ())
"""

USES = {
    "narrowed": NARROWED,
    "imported": "".join(
        f"import {name}\nimport {name} as _{last}\nfrom turnwise import {last}\nprint({last}, _{last}, {name})\n"
        for name in public_modules()
        for last in [name.partition(".")[2]]
    )
    + IMPORTED,
    "wrong": WRONG,
}


def test_pyright_narrows_events_and_blocks_by_their_kind_and_finds_mistakes(tmp_path: Path) -> None:
    """By basedpyright, which is pyright with a node of its own, and as strict as pyright can be."""
    for name, text in USES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        str(tmp_path),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    report = json.loads(checked.stdout)
    assert report["summary"]["filesAnalyzed"] == len(USES), checked.stdout
    errors = {
        (Path(diagnostic["file"]).stem, diagnostic["range"]["start"]["line"] + 1, diagnostic["rule"])
        for diagnostic in report["generalDiagnostics"]
        if not diagnostic["rule"].startswith("reportUnknown")  # these follow from the others
    }
    assert errors == {
        ("wrong", 2, "reportAttributeAccessIssue"),
        ("wrong", 3, "reportAttributeAccessIssue"),
        ("wrong", 7, "reportAttributeAccessIssue"),
        ("wrong", 8, "reportUnnecessaryComparison"),
        ("wrong", 15, "reportCallIssue"),
        ("wrong", 16, "reportArgumentType"),
    }, checked.stdout


def test_the_project_and_its_documentation_are_typed_and_mistakes_are_found() -> None:
    """One process of mypy checks everything, with the project's settings and the cache of `make lint`.

    What it checked the last time is in that cache, too, as the files are where they were.
    """
    folder = ROOT / ".cache/typed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = {
        re.sub(r"\W", "_", f"{page.relative_to(ROOT).with_suffix('')}_{block.line}").lower(): block.at_its_lines
        for page in PAGES
        for block in blocks_of(page)
        if block.kind in ("python", "python no-run")  # not files of tests, whose arguments have no types
    }
    assert len(texts) > 20
    texts |= USES
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--hide-error-context",
            "--no-pretty",
            *CHECKED,
            *sorted(map(str, folder.iterdir())),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    errors = re.findall(r"^(?:.*[/\\])?(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, re.MULTILINE)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert not [error for error in errors if error[0] != "wrong"], checked.stdout
    assert {(int(line), code) for _, line, code in errors} == {
        (2, "attr-defined"),
        (3, "attr-defined"),
        (7, "union-attr"),
        (8, "comparison-overlap"),
        (9, "unreachable"),
        (15, "call-arg"),
        (16, "arg-type"),
    }, checked.stdout

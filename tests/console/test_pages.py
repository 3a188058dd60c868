"""What pages do when something fails, or changes, while they wait; without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.console.app import _Console
from turnwise.console.elements.frame import Frame
from turnwise.console.pages.conversation import _Conversation
from turnwise.console.pages.memories import _Memories
from turnwise.console.pages.search import _Search
from turnwise.http import HttpSettings, Service


async def test_pages_that_could_not_be_started_are_started_by_the_next_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries: list[int] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no more files can be open")
        yield

    manager = AsyncSessionManager("memory://pages", engine=EchoEngine(), read_only=True)
    service = Service(manager, HttpSettings(), None)
    console = _Console(service, FastAPI(lifespan=lifespan))
    for answer in await asyncio.gather(console.started(), console.started(), return_exceptions=True):
        assert isinstance(answer, OSError)
    await console.started()
    assert len(tries) == 2 and "the console failed" in caplog.text
    service.stop()
    await service.drained()


async def test_a_page_tries_again_whatever_has_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str | None] = []
    frame: Any = object.__new__(Frame)
    frame.wake, frame.show = asyncio.Event(), messages.append
    tries: list[int] = []

    async def work() -> None:
        frame.wake.set()
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("a mistake")

    await frame.repeat(work)
    assert messages == ["This did not work: the service's log has the cause. Trying again.", None]
    assert "a mistake" in caplog.text

    monkeypatch.setattr("turnwise.console.pages.conversation.REFRESH_S", 0)
    page: Any = object.__new__(_Conversation)
    nothing = SimpleNamespace(clear=lambda: None, is_stored=lambda: None)
    page._live, page._frame, page._session, page._followed = nothing, frame, SimpleNamespace(), "run"  # noqa: SLF001 - no browser
    frame.wake.clear()
    await page._follow("run")  # noqa: SLF001 - its session has no such method
    assert page._followed is None and frame.wake.is_set()  # noqa: SLF001 - no browser


async def test_a_further_page_of_memories_is_not_shown_under_another_user() -> None:
    requested, answered = asyncio.Event(), asyncio.Event()

    class Memory:
        async def list(self, limit: int, cursor: str) -> Any:
            requested.set()
            await answered.wait()
            return _Page(["Ann's"])

    shown: list[Any] = []
    page: Any = _Memories(SimpleNamespace(), {"user": "ann"})  # type: ignore[arg-type]
    page._list, page._show, page._set_cursor = nullcontext(), shown.extend, lambda _: None  # noqa: SLF001 - no browser
    page._session, page._cursor = SimpleNamespace(memory=Memory()), "50"  # noqa: SLF001 - it shows a page of Ann's
    for user in ("bob", "ann"):
        requested.clear()
        answered.clear()
        further = asyncio.create_task(page._next())  # noqa: SLF001 - as its button does
        await requested.wait()
        if user == "bob":
            page._session = SimpleNamespace(memory=Memory())  # noqa: SLF001 - it shows Bob's
        answered.set()
        await further
        assert shown == ([] if user == "bob" else ["Ann's"])


class _Control:
    """An element of a page that is hidden, or is not."""

    text, is_hidden = "", False

    def set_text(self, text: str) -> None:
        self.text = text

    def classes(self, add: str = "", remove: str = "") -> None:
        self.is_hidden = (self.is_hidden or add == "hidden") and remove != "hidden"


async def test_a_search_leads_to_pages_that_there_are() -> None:
    class Manager:
        async def search(self, *_: Any, cursor: str | None, **__: Any) -> Any:
            return SimpleNamespace(items=(), cursor=None if cursor else "25")

    viewer = SimpleNamespace(sees_all=False, user_id="ann", manager=Manager())
    frame: Any = SimpleNamespace(viewer=viewer, wake=asyncio.Event())
    page: Any = _Search(frame, {"q": "boats", "user": "", "role": "", "mark": ""})
    page._note, page._list, page._earlier, page._later = (_Control() for _ in range(4))  # noqa: SLF001 - no browser
    page._shown = ()  # noqa: SLF001 - no browser
    for turn_over, hidden in ((None, (True, False)), (page._forward, (False, True)), (page._back, (True, False))):  # noqa: SLF001 - as its buttons do
        if turn_over:
            turn_over()
        await page.refresh()
        assert (page._earlier.is_hidden, page._later.is_hidden) == hidden  # noqa: SLF001 - no browser


class _Page(list[str]):
    cursor = "100"

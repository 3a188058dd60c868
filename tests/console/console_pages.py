"""A real Chromium for the tests of the console, and pages that say what went wrong in them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
from conftest import end_actors
from console_engine import Engine
from console_server import NAMESPACE, Console
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, WebSocket, expect, sync_playwright

from processes.programs import path_to
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed

PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(PATIENCE_MS)
        browser = playwright.chromium.launch(executable_path=path_to("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def address(ray_session: ModuleType) -> Iterator[str]:
    """The address of the tests' Ray; what the console's tests have started there ends with the file."""
    yield ray_session.get_runtime_context().gcs_address
    end_actors(ray_session, NAMESPACE)


@pytest.fixture(scope="module")
def console(address: str, folder: Path) -> Iterator[Console]:
    """A console without authentication."""
    with Console(folder, address) as console:
        yield console


@pytest.fixture(scope="module")
def manager(console: Console, folder: Path) -> Iterator[SessionManager]:
    """A manager of the console's sessions."""
    with SessionManager(console.store, engine=Engine(), placement=Packed(hosts=1), namespace=NAMESPACE) as manager:
        yield manager


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages. The test fails if a script failed, or if a page asked another host for anything."""
    wrong: list[str] = []
    contexts = []

    def open_page(url: str, **settings: Any) -> Page:
        host = urlsplit(url).netloc

        def asked(request: Request | WebSocket) -> None:
            if urlsplit(request.url).netloc not in ("", host):
                wrong.append(f"another host: {request.url}")

        def said(message: ConsoleMessage) -> None:
            if message.type == "error":
                wrong.append(f"console: {message.text}")

        def opened(dialog: Dialog) -> None:
            wrong.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        context = browser.new_context(**settings)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
        page.on("console", said)
        page.on("dialog", opened)
        page.on("request", asked)
        page.on("websocket", asked)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong

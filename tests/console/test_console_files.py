"""Files and pictures of a conversation, and conversations that others share, in a browser. Needs no Ray."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from typing import Any

import httpx
import pytest
from playwright.sync_api import FilePayload, Page, Route, expect

from servers.served import Served, served

pytest_plugins = ["console_pages"]

TOKENS = {name: f"a-long-secret-of-{name}" for name in ("ann", "bob", "tom")}


def png(width: int, height: int) -> bytes:
    """Return a picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))

    header = pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\x24\x56\xc7" * width) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    """A service in one process, with the console."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({token: name for name, token in TOKENS.items()}), encoding="utf-8")
    words = ("--demo", "--port", "0", "--placement", "in_process", "--console", "--tokens", str(tokens))
    small = "100000"  # smaller than the files below
    with served(
        f"sqlite:///{folder}/chats.db", *words, RAY_TMPDIR=str(folder), TURNWISE_HTTP_MAX_BODY_BYTES=small
    ) as service:
        yield service


def api(service: Served, name: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKENS[name]}"}, timeout=60)


def make(service: Served, session_id: str, **members: str) -> None:
    with api(service, "ann") as client:
        client.post("/v1/sessions", json={"id": session_id}).raise_for_status()
        for member, role in members.items():
            client.put(f"/v1/sessions/{session_id}/members/{member}", json={"role": role}).raise_for_status()


def ask(service: Served, session_id: str, **body: object) -> dict[str, Any]:
    with api(service, "ann") as client:
        path = f"/v1/sessions/{session_id}/runs"
        run: dict[str, Any] = client.post(path, params={"wait_s": 30}, json=body).raise_for_status().json()
    return run


def log_in(page: Page, name: str) -> None:
    page.get_by_label("Token").fill(TOKENS[name])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/session"))


def file(name: str, media_type: str, data: bytes) -> FilePayload:
    return {"name": name, "mimeType": media_type, "buffer": data}


def width_of(page: Page, place: str) -> int:
    picture = page.locator(f"{place} img.picture")
    expect(picture).to_be_visible()
    picture.evaluate("picture => picture.decode()")
    width: int = picture.evaluate("picture => picture.naturalWidth")
    return width


def test_files_are_attached_to_a_prompt_shown_downloaded_and_deleted(
    service: Served, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    make(service, "trip")
    paper = b"%PDF-1.7 " + bytes(range(256)) * 1_000
    page = open_page(f"{service.url}/console/session?id=trip")
    log_in(page, "ann")
    listing = page.locator("details.files")
    expect(page.get_by_label("Message")).to_be_visible()
    expect(listing).to_be_hidden()
    files = [file("map.png", "image/png", png(321, 20)), file("<b>paper</b>.pdf", "", paper), file("no.txt", "", b"no")]
    page.get_by_label("Attach files").set_input_files(files)
    expect(page.locator(".attached")).to_contain_text("no.txt")
    page.get_by_role("button", name="Do not send no.txt").click()
    expect(page.locator(".attached")).not_to_contain_text("no.txt")
    page.get_by_label("Message").fill("Where is this?")
    page.get_by_role("button", name="Send", exact=True).click()
    turn = page.locator("article.turn")
    expect(turn).to_contain_text("Where is this?")
    expect(turn.get_by_role("link", name="document <b>paper</b>.pdf (application/pdf), 256.0 kB")).to_be_visible()
    assert width_of(page, "article.turn") == 321
    expect(page.locator(".attached")).to_be_empty()

    listing.locator("summary").click()
    expect(listing).to_contain_text("Files: 3")
    with page.expect_download() as begun:
        listing.get_by_role("link", name="Download <b>paper</b>.pdf").click()
    assert Path(begun.value.path()).read_bytes() == paper
    listing.get_by_role("button", name="Delete <b>paper</b>.pdf").click()
    page.get_by_role("button", name="Delete the file").click()
    expect(listing).to_contain_text("Files: 2")
    with api(service, "ann") as client:
        names = {item["name"] for item in client.get("/v1/sessions/trip/files").json()["items"]}
    assert names == {"map.png", "no.txt"}


def test_a_file_without_words_is_a_prompt(service: Served, open_page: Callable[..., Page]) -> None:
    make(service, "wordless")
    page = open_page(f"{service.url}/console/session?id=wordless")
    log_in(page, "ann")
    page.get_by_label("Attach files").set_input_files([file("note.txt", "text/plain", b"All is well.")])
    expect(page.locator(".attached")).to_contain_text("note.txt · 12 bytes")
    page.get_by_label("Message").press("Enter")
    expect(page.locator("article.turn .answer")).to_be_visible()
    expect(page.locator("article.turn").get_by_role("link", name=re.compile("note.txt"))).to_be_visible()


def test_a_small_picture_that_is_no_file_is_shown_too(service: Served, open_page: Callable[..., Page]) -> None:
    make(service, "inline")
    image = {"kind": "image", "media_type": "image/png", "data": base64.b64encode(png(45, 9)).decode()}
    ask(service, "inline", prompt=["Look.", image])
    page = open_page(f"{service.url}/console/session?id=inline")
    log_in(page, "ann")
    assert width_of(page, "article.turn") == 45


def test_a_file_that_cannot_be_stored_says_why(service: Served, open_page: Callable[..., Page]) -> None:
    make(service, "strange")
    page = open_page(f"{service.url}/console/session?id=strange")
    log_in(page, "ann")
    refused = []

    def send_strange(route: Route) -> None:
        answer = route.fetch(headers={**route.request.headers, "content-type": "x"})
        refused.append(answer.status)
        route.fulfill(response=answer, status=200)  # else Chromium logs it, which fails the test

    page.route("**/session/files?*", send_strange)
    page.get_by_label("Attach files").set_input_files([file("odd", "", b"odd")])
    expect(page.locator(".q-notification")).to_contain_text("no media type")
    expect(page.locator(".attached")).to_be_empty()
    assert refused == [422]


def test_a_reader_downloads_and_a_member_attaches_and_others_reach_nothing(
    service: Served, open_page: Callable[..., Page]
) -> None:
    make(service, "shared", tom="member", bob="reader")
    with api(service, "ann") as client:
        path = "/v1/sessions/shared/files?name=map.png"
        image = client.post(path, content=png(77, 7), headers={"Content-Type": "image/png"}).raise_for_status().json()
    ask(service, "shared", prompt=["Our map.", {"kind": "image", "file": image["file_id"]}])
    pages = {}
    for name in ("tom", "bob"):
        pages[name] = page = open_page(f"{service.url}/console/sessions?shared=true")
        log_in(page, name)
        page.get_by_role("link", name="shared").click()
        expect(page.locator("article.turn").first).to_contain_text("Our map.")
        assert width_of(page, "article.turn") == 77
        expect(page.get_by_role("button", name="Rename")).to_have_count(0)
        page.locator("details.files summary").click()
        expect(page.get_by_role("link", name="Download map.png")).to_be_visible()
        expect(page.get_by_role("button", name="Delete map.png")).to_have_count(0)
    expect(pages["bob"].get_by_label("Message")).to_have_count(0)
    tom = pages["tom"]
    tom.get_by_label("Attach files").set_input_files([file("mine.txt", "text/plain", b"from tom")])
    expect(tom.locator(".attached")).to_contain_text("mine.txt")
    tom.get_by_label("Message").fill("And this?")
    tom.get_by_label("Message").press("Enter")
    expect(pages["bob"].locator("article.turn").nth(1)).to_contain_text("And this?")
    expect(pages["bob"].locator("article.turn").nth(1).locator(".mine .who").first).to_have_text("tom")

    to = "/console/session/files?id=shared&user=ann&name=x.txt"
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKENS['bob']}"}) as reader:
        assert reader.post(to, content=b"x").status_code == 403
        assert reader.get(f"/console/session/file?id=shared&user=ann&file={image['file_id']}").content == png(77, 7)
        assert reader.get(f"/console/session/file?id=trip&user=ann&file={image['file_id']}").status_code == 404
        foreign = reader.post(to, content=b"x", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403 and "another site" in foreign.text

"""`turnwise files`: lists, puts, gets and removes the files of a session."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.cli import app

HOSTILE = "../../etc/passwd"


def turnwise(*words: str, **settings: Any) -> Result:
    return CliRunner().invoke(app, words, **settings)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """A store with a session `trip` of ann, where no Ray is, and the options that say where its files are."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in ("RAY_ADDRESS", "TURNWISE_STORE"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "sqlite":
        store, files = f"sqlite:///{tmp_path}/chats.db", None
    else:
        store, files = request.getfixturevalue("database"), str(tmp_path / "files")
    with SessionManager(store, engine=EchoEngine(), placement=InProcess(), files=files) as manager:
        manager.open("trip", user_id="ann")
    return store, ["--files", files] if files else []


@pytest.mark.by_turns
def test_a_file_is_put_listed_read_and_removed(place: tuple[str, list[str]], tmp_path: Path) -> None:
    store, options = place
    options = ["--user", "ann", *options]
    paper, data = tmp_path / "paper.pdf", b"%PDF-1.7 " + bytes(range(256)) * 5_000
    paper.write_bytes(data)
    put = turnwise("files", "put", store, "trip", str(paper), *options)
    assert put.exit_code == 0, put.output
    file_id = put.stdout.strip()
    piped = turnwise("files", "put", store, "trip", "-", "--name", HOSTILE, *options, "--json", input=b"no pdf")
    assert json.loads(piped.stdout)["media_type"] == "text/plain", piped.output

    listed = turnwise("files", "ls", store, "trip", *options)
    names, first, second = (line.split("\t") for line in listed.stdout.splitlines())
    assert names == ["file", "name", "type", "size", "stored"]
    assert first[:4] == [file_id, "paper.pdf", "application/pdf", "1.3 MB"]
    assert (second[1], second[3]) == (HOSTILE, "6 bytes")
    cut = turnwise("files", "ls", store, "trip", "-n", "1", *options)
    assert f"--after {file_id}" in cut.stderr and len(cut.stdout.splitlines()) == 2
    rest = json.loads(turnwise("files", "ls", store, "trip", "--after", file_id, "--json", *options).stdout)
    assert [(item["name"], item["session_id"]) for item in rest["items"]] == [(HOSTILE, "trip")]

    assert turnwise("files", "get", store, "trip", file_id, *options).stdout_bytes == data
    copy = tmp_path / "copy.pdf"
    assert turnwise("files", "get", store, "trip", file_id, str(copy), *options).exit_code == 0
    assert copy.read_bytes() == data and not copy.with_suffix(".pdf.part").exists()

    asked = turnwise("files", "rm", store, "trip", file_id, *options, input="n\n")
    assert asked.exit_code == 1 and turnwise("files", "get", store, "trip", file_id, *options).exit_code == 0
    removed = turnwise("files", "rm", store, "trip", file_id, "--yes", *options)
    assert removed.stdout.strip() == f"file {file_id} is deleted", removed.output
    assert len(turnwise("files", "ls", store, "trip", *options).stdout.splitlines()) == 2


@pytest.mark.by_turns
def test_what_is_not_there_is_an_error_of_one_line(place: tuple[str, list[str]], tmp_path: Path) -> None:
    store, options = place
    put = turnwise("files", "put", store, "trip", "-", *options, "--user", "ann", input=b"words")
    file_id = put.stdout.strip()
    ann = ["--user", "ann", *options]
    for words, message in (
        (["get", store, "trip", file_id[:-1], *ann], f"did you mean '{file_id}'?"),
        (["rm", store, "trip", "file-0", "--yes", *ann], "there is no file 'file-0'"),
        (["get", store, "trip", file_id, str(tmp_path / "no" / "folder"), *ann], "No such file or directory"),
        (["put", store, "trip", str(tmp_path / "absent"), *ann], "No such file or directory"),
        (["ls", store, "tripp", *ann], "did you mean 'trip'?"),
        (["ls", store, "trip", *options], "--user ann"),
        (["put", store, "trip", "-", "--type", "odd", *ann], "no media type"),
        (["put", store, "trip", "-", "--name", "\x1b[2J", *ann], "name"),
    ):
        ran = turnwise("files", *words, input=b"")
        assert ran.exit_code == 1 and message in ran.stderr and len(ran.stderr.splitlines()) == 1, (words, ran.output)


def test_a_store_without_a_place_for_files_says_what_to_do(request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue("database")
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("trip", user_id="ann")
    ran = turnwise("files", "ls", store, "trip", "--user", "ann")
    assert ran.exit_code == 1 and "files=" in ran.stderr

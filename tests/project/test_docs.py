"""The pages in docs/ can be built into a site, their links lead somewhere, and their code blocks work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Route, expect, sync_playwright

from pages import docs_site
from pages.markdown_blocks import Block, blocks_of
from pages.names_in_tables import problems
from pages.snippets import (
    ROOT,
    SERVICE,
    SnippetRunner,
    check_command,
    check_imports,
    check_syntax,
    commands_of,
    service_of,
)
from processes.programs import path_to
from servers.served import run_all

pytestmark = pytest.mark.ray

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
KINDS = {"python", "python no-run", "python pytest", "console", "text", "mermaid", "json", "toml", "yaml"}
OWN_TESTS = {"service.md": {"bash"}}
"""Kinds of blocks that a test of the page's own runs: tests/http/test_guide_on_ray.py."""
ALSO_INSTALLED = {
    "agents",
    "anthropic",
    "fastapi",
    "langchain_core",
    "langgraph",
    "mcp",
    "opentelemetry",
    "pydantic_ai",
    "uvicorn",
}  # with extras of turnwise


def blocks_of_kind(*kinds: str) -> list[Any]:
    """Return the blocks of these kinds, with their pages."""
    return [
        pytest.param(page, block, id=f"{page.relative_to(DOCS)}:{block.line}")
        for page in PAGES
        for block in blocks_of(page)
        if block.kind in kinds
    ]


@pytest.fixture(scope="module")
def service(snippets: SnippetRunner) -> Iterator[str]:
    with service_of(snippets) as url:
        yield url


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built of copies, so that several tests may build it at once."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, root / "docs")
    shutil.copy(ROOT / "zensical.toml", root)
    (root / "src").symlink_to(ROOT / "src")
    return docs_site.build(root)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_code_block_is_tested_or_plain_text(page: Path) -> None:
    kinds = {block.kind for block in blocks_of(page)}
    assert kinds <= KINDS | OWN_TESTS.get(page.relative_to(DOCS).as_posix(), set()), page


@pytest.mark.parametrize(("page", "block"), blocks_of_kind("python", "python no-run", "python pytest"))
def test_a_python_block_imports_only_what_is_installed_with_turnwise(page: Path, block: Block) -> None:
    check_imports(block, *ALSO_INSTALLED, *(["pytest"] if block.kind == "python pytest" else []))


@pytest.mark.by_turns
@pytest.mark.parametrize(("page", "block"), blocks_of_kind("python"))
def test_a_python_block_runs_by_itself(
    page: Path, block: Block, snippets: SnippetRunner, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = block.at_its_lines
    if SERVICE in text and ("import openai" in text or "from turnwise.client" in text):
        text = text.replace(SERVICE, request.getfixturevalue("service"))
    snippets.run(text, tmp_path)


@pytest.mark.by_turns
@pytest.mark.parametrize(("page", "block"), blocks_of_kind("python pytest"))
def test_the_tests_of_a_block_pass_without_a_ray(page: Path, block: Block, tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(block.at_its_lines, encoding="utf-8")
    env = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_page.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(("page", "block"), blocks_of_kind("python no-run", "json", "toml", "yaml"))
def test_a_block_that_is_not_run_can_be_read(page: Path, block: Block) -> None:
    check_syntax(block, page)


@pytest.mark.parametrize(("page", "block"), blocks_of_kind("console"))
def test_a_console_block_shows_commands_that_exist(page: Path, block: Block, request: pytest.FixtureRequest) -> None:
    for command in commands_of(block):
        if command.startswith("curl "):
            url = request.getfixturevalue("service").removeprefix("http://")
            assert all(run_all([command.replace("localhost:8000", url)]))
        else:
            check_command(command)


OF_OTHERS = {"Runner.run", "agent.run", "canceled"}
"""What the right column of `coming-from.md` says of another system."""


@pytest.mark.by_turns
def test_what_other_systems_are_mapped_to_exists_and_takes_these_arguments() -> None:
    wrong: dict[str, list[str]] = {}
    for line in (DOCS / "coming-from.md").read_text(encoding="utf-8").splitlines():
        last_cell = line.strip("|").split(" | ")[-1] if line.startswith("| ") else ""
        codes = set(re.findall("`([^`]+)`", last_cell)) - OF_OTHERS
        wrong |= {code: reasons for code in codes if (reasons := problems(code))}
    assert not wrong


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("manager.opens(id)", "there is no manager.opens"),
        ("session.fork(after=1)", "session.fork does not take these arguments"),
        ("session.run(prompt, if_bussy='enqueue')", "session.run does not take these arguments"),
        ("turn.texts", "there is no turn.texts"),
        ("overflow=Trimm()", "there is no Trimm"),
        ("overfow=Trim()", "nothing is called overfow"),
    ],
)
def test_a_name_or_an_argument_that_does_not_exist_is_found(code: str, reason: str) -> None:
    assert problems(code) == [reason]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    names = set(re.findall(r"`(?:tests/)?(?:\w+/)?(test_\w+\.py)`", page.read_text(encoding="utf-8")))
    assert not [name for name in sorted(names) if not list((ROOT / "tests").rglob(name))]


@pytest.mark.parametrize("page", sorted((DOCS / "concepts").glob("*.md")), ids=lambda page: page.name)
def test_each_concept_has_a_diagram(page: Path) -> None:
    assert "mermaid" in {block.kind for block in blocks_of(page)}


def test_each_example_is_listed() -> None:
    examples = ROOT / "examples"
    file_names = {path.relative_to(examples).as_posix() for path in examples.rglob("*.*") if path.suffix != ".pyc"}
    page = (DOCS / "reference/examples.md").read_text(encoding="utf-8")
    assert not [name for name in sorted(file_names) if f"`{name}`" not in page]


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.name)
def test_no_table_of_the_reference_is_empty(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    rules = [index for index, line in enumerate(lines) if line.startswith("|---")]
    assert all(lines[index + 1].startswith("|") for index in rules)


def test_the_environment_variables_that_the_code_names_are_listed() -> None:
    page = (DOCS / "reference/environment.md").read_text(encoding="utf-8")
    for path in (file for folder in ("src", "actors", "memory") for file in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        names = set(re.findall(r"\b(?:TURNWISE|OPENAI|OTEL|RAY_AUTH)_[A-Z][A-Z_]*[A-Z]\b", text))
        assert not [name for name in sorted(names) if name not in page], path


@pytest.mark.by_turns
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(site: Path) -> None:
    assert len(list(site.rglob("index.html"))) == len(PAGES)


def test_the_site_shows_each_fenced_block_as_code(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if "```" in page.read_text(encoding="utf-8")]


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "index.html").write_text('<a href="page/#there">1</a><a href="page/#gone">2</a><a href="no/">3</a>')
    (tmp_path / "page/index.html").write_text('<h1 id="there">x</h1><img src="../no.png"><a href="https://x.org">4</a>')
    assert [link.split(": ")[1] for link in docs_site.broken_links(tmp_path)] == [
        "page/#gone",
        "no/ is not there",
        "../no.png is not there",
    ]


def test_a_broken_link_or_reference_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs/assets").mkdir(parents=True)
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\n')
    (tmp_path / "docs/index.md").write_text("# Here\n\nA [link](nowhere.md).\n")
    with pytest.raises(docs_site.BrokenSiteError, match="page does not exist"):
        docs_site.build(tmp_path)


@pytest.mark.by_turns
def test_the_site_loads_nothing_from_elsewhere_and_draws_its_diagrams(site: Path) -> None:
    """In a browser, which gets what it asks this site for and nothing else."""
    drawn = {page: sum(block.kind == "mermaid" for block in blocks_of(page)) for page in PAGES}
    hosts, errors = set(), []

    def answer(route: Route) -> None:
        url = urlsplit(route.request.url)
        hosts.add(url.hostname)
        file = site / unquote(url.path).lstrip("/")
        route.fulfill(path=file / "index.html" if file.is_dir() else file)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path_to("chromium"), args=["--no-sandbox"])
        browser_page = browser.new_page()
        browser_page.on("pageerror", lambda error: errors.append(str(error)))
        browser_page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        browser_page.route("**/*", answer)
        for page in [DOCS / "index.md", *(page for page in PAGES if drawn[page])]:
            name = page.relative_to(DOCS).with_suffix("").as_posix()
            browser_page.goto(f"http://site.test/{'' if name == 'index' else name.removesuffix('/index') + '/'}")
            expect(browser_page.locator("div.diagram svg")).to_have_count(drawn[page], timeout=60_000)
        browser.close()
    assert hosts == {"site.test"} and not errors

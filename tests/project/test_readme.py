"""The code blocks of README.md work."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from pages.markdown_blocks import Block, blocks_of
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

README = ROOT / "README.md"

pytestmark = pytest.mark.ray

BLOCKS = blocks_of(README)


def blocks_of_kind(kind: str) -> list[object]:
    return [pytest.param(block, id=f"line-{block.line}") for block in BLOCKS if block.kind == kind]


def test_every_code_block_is_tested_or_plain_text() -> None:
    assert {block.kind for block in BLOCKS} <= {"python", "python no-run", "console", "text", "mermaid"}
    assert "python" in {block.kind for block in BLOCKS}


def test_the_python_blocks_import_only_what_is_installed_with_turnwise() -> None:
    for block in BLOCKS:
        if block.kind.startswith("python"):
            check_imports(block)


@pytest.mark.parametrize("block", blocks_of_kind("python"))
def test_a_python_block_runs_by_itself(block: Block, snippets: SnippetRunner, tmp_path: Path) -> None:
    text = block.at_its_lines
    with service_of(snippets) if SERVICE in text else nullcontext(SERVICE) as url:
        snippets.run(text.replace(SERVICE, url), tmp_path)


@pytest.mark.parametrize("block", blocks_of_kind("python no-run"))
def test_a_python_block_that_is_not_run_compiles(block: Block) -> None:
    check_syntax(block, README)


@pytest.mark.parametrize("block", blocks_of_kind("console"))
def test_a_console_block_shows_commands_that_exist(block: Block) -> None:
    for command in commands_of(block):
        check_command(command)


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") < 200
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).is_file(), target
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
        ]


def test_its_first_program_prints_what_it_shows(snippets: SnippetRunner, tmp_path: Path) -> None:
    """`...` stands for any text: how much of an answer is there when it is stopped depends on the machine."""
    program, output = [block for block in BLOCKS if block.kind in ("python", "text")][:2]
    printed = snippets.run(program.text, tmp_path)
    of_ray = r"(\x1b\[\d+m)?\((\w+ pid=\d+|raylet)\).*?\n"  # what its processes log, at any place
    assert fnmatchcase(re.sub(of_ray, "", printed).strip("\n"), output.text.strip().replace("...", "*")), printed


def test_the_numbers_of_its_table_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    growth = {row[0]: row for row in rows_of(page[page.index("**Growth") :].partition("\n## ")[0])}
    stored_sizes, slower = (
        next(row[1:] for row in rows_of(README.read_text(encoding="utf-8")) if row[0].startswith(start))
        for start in ("2,000 turns of", "the last 100 of these turns")
    )
    for column, name in enumerate(("turnwise, dedicated", "turnwise, in process", "LangGraph", "OpenAI Agents SDK")):
        _, turns, _, times, megabytes, _ = growth[name]
        after = "" if turns == "2,000" else f", after {turns.partition(' ')[0]}"
        assert stored_sizes[column] == megabytes + after
        assert slower[column].partition(" ")[2] == "times as long"
        assert float(slower[column].partition(" ")[0]) == pytest.approx(float(times), rel=0.01)


UNITS = {"ms": 1.0, "s": 1000.0, "KB": 1.0, "MB": 1000.0}


@pytest.mark.parametrize(
    ("row", "part", "cell", "on_ray"),
    [
        ("one of the first 100 turns takes", "**Turns 1 to 100**", 2, ["turnwise, dedicated"]),
        ("a turn takes, where 100 conversations", "**100 at once", 2, ["turnwise, packed"]),
        (
            "a program has its first answer after",
            "## From the start",
            2,
            ["turnwise, dedicated", "turnwise, dedicated, Ray runs"],
        ),
        ("a conversation that waits takes", "## Memory", -1, ["turnwise, dedicated", "turnwise, packed"]),
    ],
)
def test_the_costs_in_its_table_are_those_of_the_benchmarks(row: str, part: str, cell: int, on_ray: list[str]) -> None:
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    measured = {cells[0]: cells[cell] for cells in rows_of(re.split(r"\n\*\*|\n## ", page[page.index(part) + 2 :])[0])}
    cells = next(cells for cells in rows_of(README.read_text(encoding="utf-8")) if cells[0].startswith(row))
    names = [*on_ray, "turnwise, in process", "LangGraph", "OpenAI Agents SDK"]
    expected = [next(quantities(measured[name])) for name in names]
    assert list(quantities("; ".join(cells[1:]))) == pytest.approx(expected, rel=0.05)


def quantities(text: str) -> Iterator[float]:
    """Yield the times in a text in milliseconds, or the sizes in kilobytes."""
    for number, unit in re.findall(r"([\d.,]*\d) (ms|s|KB|MB)\b", text):
        yield float(number.replace(",", "")) * UNITS[unit]


def test_its_costs_are_those_of_the_benchmarks() -> None:
    """Rounded, to a fifth: the machine of the next measurement may be another."""
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    adds = {row[0]: row[-1] for row in rows_of(page[page.index("## Memory") :].partition("\n## ")[0])}
    starts = {row[0]: row[2] for row in rows_of(page[page.index("## From the start") :].partition("\n## ")[0])}
    measured = (starts["turnwise, dedicated"], starts["turnwise, dedicated, Ray runs"], adds["turnwise, dedicated"])
    text = README.read_text(encoding="utf-8")
    costs = re.search(r"takes (\d+) s on 2 cores, ([\d.]+) s if a Ray runs", text), re.search(r"takes (\d+) MB", text)
    assert costs[0] and costs[1]
    for number, exact in zip((*costs[0].groups(), costs[1][1]), measured, strict=True):
        assert float(number) == pytest.approx(float(exact.split(" ")[0].replace(",", "")) / 1000, rel=0.2)
    for name in ("concepts/placement.md", "guides/packed.md", "deployment.md"):
        assert f"{costs[1][1]} MB" in (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of the tables in a page."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]

"""The command line: its output, exit codes and files."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from filled import turnwise
from typer.testing import Result

from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory

PERSON = {"content": "Sarah lives in Warsaw", "memory_type": "facts"}
RULE = {"content": "Run the tests first", "memory_type": "workflow"}


def lines(path: Path, *memories: tuple[list[str] | str, str, Any]) -> str:
    records = ({"namespace": place, "key": key, "value": value} for place, key, value in memories)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return lines(
        tmp_path / "flat.jsonl",
        (["sarah", "memories"], "f", PERSON),
        (["sarah", "memories"], "w", RULE),
        (["[red]tom", "memories"], "f", {"content": "Tom likes tea", "memory_type": "hobby"}),
        ("a.b.memories", "\x1b[2J", PERSON),
        (["sarah", "notes"], "n", PERSON),
    )


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/facts.db"


def invoke(*words: str) -> Result:
    return turnwise("memory", "migrate", *words)


def rows(shown: str) -> dict[str, str]:
    return dict(re.findall(r"^ (\S.*?) +│ (\d+) *$", shown, re.MULTILINE))


def recalled(target: str, user: str, query: str, agent: str | None = None) -> list[str]:
    async def use() -> list[str]:
        memory = LexicalMemory(SQLItems(target))
        try:
            return [item.text for item in await memory.recall(Scope(user_id=user, agent=agent), query)]
        finally:
            await memory.close()

    return asyncio.run(use())


def test_a_migration_prints_a_report_and_its_memories_are_recalled(source: str, target: str) -> None:
    ran = invoke(source, target)
    assert ran.exit_code == 0, ran.output
    assert rows(ran.stdout) == {
        "read": "4",
        "written": "3",
        "already there, or forgotten": "0",
        "skipped": "1",
        "facts, semantic": "1",
        "general, semantic": "1",
        "workflow, procedural": "1",
        "sarah": "2",
        "[red]tom": "1",
        "ambiguous_user": "1",
    }
    assert r"'a.b.memories' '\x1b[2J': ambiguous_user" in ran.stdout
    assert "memories of an unknown type that became general: 1" in ran.stdout
    assert recalled(target, "sarah", "Where does Sarah live?") == ["Sarah lives in Warsaw"]
    assert recalled(target, "[red]tom", "tea") == ["Tom likes tea"]


def test_a_repeated_migration_copies_nothing_twice(source: str, target: str) -> None:
    invoke(source, target)
    shown = rows(invoke(source, target).stdout)
    assert (shown["written"], shown["already there, or forgotten"]) == ("0", "3")


def test_options_choose_users_namespace_and_agent(source: str, target: str) -> None:
    shown = rows(invoke(source, target, "--user", "a.b", "--user", "[red]tom", "--user", "nobody").stdout)
    assert (shown["a.b"], shown["[red]tom"], shown["nobody"], shown["written"]) == ("1", "1", "0", "2")
    assert rows(invoke(source, target, "--namespace", "notes").stdout)["written"] == "1"
    assert recalled(target, "sarah", "tests") == []
    several = rows(invoke(source, target, "--dry-run", "--user-ids", "a.b", "[red]tom", "--agent", "coder").stdout)
    assert (several["a.b"], several["[red]tom"], several["already there, or forgotten"]) == ("1", "1", "2")
    assert invoke(source, target, "--user-ids").exit_code == 2
    invoke(source, target, "--user", "sarah", "--agent", "coder")
    assert recalled(target, "sarah", "tests") == []
    assert recalled(target, "sarah", "tests", "coder") == ["Run the tests first"]


def test_json_prints_the_whole_report(source: str, target: str) -> None:
    ran = invoke(source, target, "--json")
    report = json.loads(ran.stdout)
    assert report["by_user"] == {"sarah": 2, "[red]tom": 1}
    assert report["by_type"] == {"facts": 1, "workflow": 1, "general": 1}
    assert report["skipped"] == {"ambiguous_user": 1}
    (skip,) = report["skips"]
    assert (skip["where"], skip["key"], skip["reason"]) == ("a.b.memories", "\x1b[2J", "ambiguous_user")
    assert {name: report[name] for name in ("read", "written", "known", "unknown_types", "dry_run")} == {
        "read": 4,
        "written": 3,
        "known": 0,
        "unknown_types": 1,
        "dry_run": False,
    }


def test_a_dry_run_creates_no_file(source: str, target: str, tmp_path: Path) -> None:
    shown = rows(invoke(source, target, "--dry-run").stdout)
    assert (shown["would be written"], "written" in shown) == ("3", False)
    assert [path.name for path in tmp_path.iterdir()] == ["flat.jsonl"]
    invoke(source, target, "--user", "sarah")
    again = json.loads(invoke(source, target, "--dry-run", "--json").stdout)
    assert (again["written"], again["known"], again["dry_run"]) == (1, 2, True)
    assert recalled(target, "[red]tom", "tea") == []


def test_a_dry_run_creates_no_tables_in_a_server(source: str, database: str) -> None:
    assert rows(invoke(source, database, "--dry-run").stdout)["would be written"] == "3"
    with psycopg.connect(database) as server:
        assert server.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'turnwise%'").fetchall() == []
    assert rows(invoke(source, database).stdout)["written"] == "3"
    assert rows(invoke(source, database, "--dry-run").stdout)["would be written"] == "0"


def test_long_lists_of_users_and_skips_are_shortened(tmp_path: Path, target: str) -> None:
    users = [([f"user{index:02}", "memories"], "f", PERSON) for index in range(25)]
    blank: list[Any] = [(["busy", "memories"], f"blank{index}", {}) for index in range(30)]
    busy = [(["busy", "memories"], f"f{index}", PERSON) for index in range(2)]
    shown = invoke(lines(tmp_path / "many.jsonl", *users, *blank, *busy), target).stdout
    assert rows(shown)["busy"] == "2"
    assert rows(shown)["and 6 more"] == "6"
    assert shown.count("no_text ''") == 20
    assert "10 more were skipped; --json lists 30" in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("missing.jsonl", "{target}"), "no such file"),
        (("{source}", "nonsense"), "scheme is not known"),
        (("{source}", "memory://"), "a store in memory ends"),
        (("{source}", "sqlite:////no/such/folder/facts.db"), "unable to open database file"),
        (("{source}", "sqlite:////no/such/folder/facts.db", "--agent", " "), "agent ' ' cannot be used"),
        (("{source}", "postgresql://u:secret@localhost:1/d", "--dry-run"), "postgresql://u:***@localhost:1/d"),
        (("{source}", "postgresql://u:secret@localhost:port/d", "--dry-run"), "not a database URL"),
        (("postgresql://u:secret@localhost:1/d", "{target}"), "postgresql://u:***@localhost:1/d"),
        (("{source}", "{target}", "--namespace", ""), "namespace '' cannot be used"),
    ],
)
def test_an_error_is_printed_in_one_line_without_a_traceback(
    words: tuple[str, ...], reason: str, source: str, target: str, tmp_path: Path
) -> None:
    ran = invoke(*(word.format(source=source, target=target) for word in words))
    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert re.fullmatch(r"error: .+\n", ran.stderr) and reason in ran.stderr
    assert "secret" not in ran.stderr
    assert not (tmp_path / "facts.db").exists()


@pytest.mark.parametrize("words", [("memory", "migrate", "a"), ("memory", "migrate", "a", "b", "--no"), ("none",)])
def test_wrong_usage_exits_with_2(words: tuple[str, ...]) -> None:
    assert turnwise(*words).exit_code == 2


def test_a_bug_is_one_line_and_with_debug_a_traceback(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("turnwise.memory.longterm.migration.migrate.migrate", broken)
    ran = invoke(source, target)
    assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert "RuntimeError: a bug" in ran.stderr and "turnwise --debug" in ran.stderr
    debugged = turnwise("--debug", "memory", "migrate", source, target)
    assert isinstance(debugged.exception, RuntimeError)


def process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.by_turns
def test_the_script_and_the_module_are_the_same_command(source: str, target: str) -> None:
    script = str(Path(sys.executable).parent / "turnwise")
    version = process(script, "--version").stdout
    assert re.fullmatch(r"turnwise \d+\.\d+\.\d+\S*\n", version)
    assert process(sys.executable, "-m", "turnwise", "--version").stdout == version
    assert rows(process(script, "memory", "migrate", source, target).stdout)["written"] == "3"
    ran = process(sys.executable, "-m", "turnwise", "--debug", "memory", "migrate", "missing", target)
    assert (ran.returncode, ran.stdout) == (1, "") and "Traceback" in ran.stderr and "ConfigError" in ran.stderr
    assert "Usage: turnwise " in process(sys.executable, "-m", "turnwise", "--help").stdout


LOADED = """
import json, sys
import turnwise.cli
before = {name.partition(".")[0] for name in sys.modules}
try:
    turnwise.cli.app(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps([sorted(before), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_a_command_imports_only_what_it_needs(source: str, target: str) -> None:
    ran = process(sys.executable, "-c", LOADED, "memory", "migrate", source, target, "--json")
    assert ran.returncode == 0, ran.stderr
    before, after = (set(names) for names in json.loads(ran.stdout.splitlines()[-1]))
    assert "typer" in before and not before & {"ray", "chromadb", "sqlalchemy", "pydantic", "openai", "numpy", "rich"}
    assert "sqlalchemy" in after and not after & {"ray", "chromadb", "openai", "psycopg", "redis"}

"""The code listings of `coala-memory-architecture.md`, with turnwise's names; docs/coming-from.md maps the terms."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memories.memory_engines import Mirror
from turnwise import LexicalMemory, MemoryConfig, OpenAIEngine, SessionConfig, SessionManager, memory_tools
from turnwise.cli import app
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memories import MemoryCategory, MemoryType, Scope
from turnwise.stores import SQLItems

FLAT = (
    ("user-123", "Lives in Warsaw, Poland", "facts"),
    ("user-123", "Always run tests before committing", "instructions"),
    ("user-456", "Discussed deployment pipeline improvements", "session_summary"),
    ("user-789", "Prefers tabs", "preferences"),
)


def test_memories_are_saved_by_type_recalled_by_category_and_listed(
    make_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    """The sections Direct Service Usage, Namespace Structure and Prompt Context Format."""
    memory = LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))
    config = SessionConfig(memory=MemoryConfig(timeout_s=60.0, save="none", max_results=5))
    manager = make_manager(engine=Mirror(), memory=[memory], config=config)
    chat = manager.open(user_id="user-123", agent="my_agent")
    service = chat.memory
    service.save("User prefers concise bullet-point answers", type="preferences")
    service.save("Discussed Q1 roadmap, decided to prioritize API redesign", type="session_summary")
    skill = service.save("Always include type annotations in code examples for this user", type="skill")
    service.save("Wants the deployment process to take less than five minutes", type="goals")

    (item,) = service.recall("what answers the user prefers", category=MemoryCategory.SEMANTIC)
    assert (item.type, item.type.category) == (MemoryType.PREFERENCES, "semantic")
    assert service.recall("what answers the user prefers", category="episodic") == []
    assert [item.type for item in service.recall("deployment process")] == ["goals"]
    with pytest.raises(InvalidInputError, match="category='sematic': must be one of semantic, episodic, procedural"):
        service.recall("deployment process", category="sematic")  # type: ignore[arg-type]

    def listed(agent: str | None, **filters: object) -> set[str]:
        page = manager.open(user_id="user-123", agent=agent).memory.list(**filters)  # type: ignore[arg-type]
        return {item.type.value for item in page}

    assert listed("my_agent") == {"preferences", "session_summary", "skill", "goals"}
    assert listed("other_agent") == listed(None) == {"preferences", "goals"}  # semantic is always shared
    assert listed("my_agent", category="procedural") == {"skill"}
    assert listed("my_agent", type="goals") == {"goals"}
    first = service.list(limit=3)
    assert len(first) == 3 and first.cursor
    assert [item.type for item in service.list(limit=3, cursor=first.cursor)] == ["preferences"]

    text = chat.run("Where do we stand with the Q1 roadmap?").wait(60).text
    lines = (
        r'<episodic_memory>\nToday:\n- \[[\d: -]+\] \(session_summary\) "Discussed Q1 roadmap[^"]+"\n</episodic_memory>'
    )
    assert re.search(lines, text) and "<semantic_memory>" not in text
    for number in range(12):
        service.save(f"The Q1 roadmap of Q1 roadmap team {number} stands.", type="facts")
    run = chat.run("Where do we stand with the Q1 roadmap?")
    assert "Discussed Q1 roadmap" in run.wait(60).text  # five facts, and what happened
    (recalled,) = [event for event in run.events() if event.kind == "memory_recalled"]
    assert recalled.found == {"LexicalMemory": 6}
    assert service.delete(skill).count == 1 and listed("my_agent", category="procedural") == set()


def test_the_engine_gets_the_tools() -> None:
    """The diagram's four Memory Tools, one more, and Agent Service (Automatic)."""
    names = [tool.name for tool in memory_tools()]
    assert names == ["save_memory", "recall_memories", "update_memory", "delete_memory", "forget_about"]
    engine = OpenAIEngine("gpt-5-mini", system="You are a helpful assistant.", tools=[*memory_tools()])
    assert [tool.name for tool in engine.registry.definitions()] == names


def test_the_environment_configures_recall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The section Configuration, by its names."""
    settings = {
        "ENABLED": "true",
        "MAX_RESULTS": "5",
        "CATEGORIES": "semantic,episodic",
        "AGENT_SCOPE_ENABLED": "false",
    }
    lines = [f"AGENT_MEMORY_{name}={value}\n" for name, value in settings.items()]
    (tmp_path / ".env").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    memory = SessionConfig().memory
    assert (memory.enabled, memory.max_results, memory.agent_scope) == (True, 5, False)
    assert memory.categories == (MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC)
    monkeypatch.setenv("TURNWISE_MEMORY_MAX_RESULTS", "7")
    assert SessionConfig().memory.max_results == 7, "a name of turnwise comes before one of others"
    monkeypatch.setenv("AGENT_MEMORY_MAX_RESULTS", "many")
    assert SessionConfig().memory.max_results == 7
    monkeypatch.delenv("TURNWISE_MEMORY_MAX_RESULTS")
    with pytest.raises(ConfigError, match="AGENT_MEMORY_MAX_RESULTS='many'"):
        SessionConfig()


def test_flat_memories_are_migrated_to_their_categories(tmp_path: Path) -> None:
    """The section Migration from Flat Namespace."""
    target = f"sqlite:///{tmp_path}/facts.db"
    records = [
        {"namespace": [user, "memories"], "key": f"{number}", "value": {"content": text, "memory_type": kind}}
        for number, (user, text, kind) in enumerate(FLAT)
    ]
    source = tmp_path / "legacy.jsonl"
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")

    def migrate(*options: str) -> dict[str, int]:
        ran = CliRunner().invoke(app, ["memory", "migrate", str(source), target, "--json", *options])
        assert ran.exit_code == 0, ran.output
        report: dict[str, int] = json.loads(ran.stdout)
        return report

    async def stored_texts() -> list[tuple[str, str]]:
        memory = LexicalMemory(SQLItems(target))
        pages = [await memory.list_items(Scope(user_id=user)) for user in ("user-123", "user-456", "user-789")]
        await memory.close()
        return [(item.text, item.type.category) for page in pages for item in page]

    assert migrate("--dry-run")["written"] == 4 and not Path(target.removeprefix("sqlite:///")).exists()
    assert migrate("--user-ids", "user-123", "user-456")["written"] == 3
    assert sorted(asyncio.run(stored_texts())) == [
        ("Always run tests before committing", "procedural"),
        ("Discussed deployment pipeline improvements", "episodic"),
        ("Lives in Warsaw, Poland", "semantic"),
    ]
    assert migrate()["written"] == 1

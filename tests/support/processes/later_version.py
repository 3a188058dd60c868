"""A copy of the package as a later version may be, which programs and nodes use beside this one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import turnwise

ADDED = {
    "actors/hosting/placement.py": ("Dedicated", "Packed"),
    "actors/hosting/logs.py": ("LogSettings",),
    "actors/hosting/store_spec.py": ("StoreSpec",),
    "actors/hosting/engine_override.py": ("EngineOverride",),
    "actors/hosting/wire.py": ("SessionRef", "Message", "PackedTurn", "PackedOutcome", "StartAnswer", "HostLoad"),
    "actors/cluster/actor_spec.py": ("ActorSpec",),
    "actors/cluster/actors/session_actor.py": ("SessionAssignment",),
    "actors/cluster/actors/packed_actor.py": ("HostAssignment",),
    "actors/cluster/actors/dispatcher_actor.py": ("DispatcherAssignment",),
    "actors/cluster/sharding.py": ("Layout",),
    "actors/inference/engine.py": ("SessionView",),
    "actors/inference/tools/context.py": ("ToolContext",),
    "actors/inference/openai/engine.py": ("OpenAIEngine",),
    "memory/longterm/base.py": ("MemoryItem", "Scope", "Reminder"),
    "memory/longterm/retention/retention.py": ("Retention",),
    "dataset/selection.py": ("Selection",),
    "http/config.py": ("Source",),
    "replay/scale/sums.py": ("Receipt",),
}
"""The classes that have one field more, whatever travels between processes: each gets it as its first."""


def make_later(folder: Path) -> Path:
    """Make the copy; return the folder to put first on PYTHONPATH.

    It has one more column, which earlier code need not know, and one more setting of sessions.
    """
    package = folder / "turnwise"
    shutil.copytree(Path(turnwise.__file__).parent, package)  # with what Python has compiled of it
    edit(package / "__init__.py", '__version__ = "0.1.0"', '__version__ = "0.2.0"')
    schema = package / "memory/stores/sql/schema.py"
    added = 'migrations={1: ["ALTER TABLE turnwise_turns ADD COLUMN mood TEXT"]}, writable_from=1, readable_from=1'
    edit(schema, "version=1, tables=tables", f"version=2, tables=tables, {added}")
    edit(schema, '    Column("marks", Text),\n', '    Column("marks", Text),\n    Column("mood", Text),\n')
    marks = '"marks": to_json(turn.marks or None),\n'
    edit(package / "memory/stores/sql/rows.py", marks, f'{marks}        "mood": turn.mood,\n')
    edit(
        package / "memory/conversation/turns.py",
        "    marks: FrozenDict = field(default_factory=FrozenDict)\n",
        '    mood: str = "calm"\n    marks: FrozenDict = field(default_factory=FrozenDict)\n',
    )
    edit(package / "actors/session/config.py", "    idle_s:", "    hurries: bool = False\n    idle_s:")
    return folder


def add_fields(folder: Path) -> None:
    """Give each class of `ADDED` in the copy one field more."""
    for file, names in ADDED.items():
        path = folder / "turnwise" / file
        for name in names:
            # Whatever the class takes by position, this field is none of it.
            field = 'mood: str = __import__("dataclasses").field(default="calm", kw_only=True)'
            text, count = re.subn(
                rf'(^class {name}\b[^\n]*:\n    """.*?"""\n)',
                rf"\1\n    {field}\n",
                path.read_text(encoding="utf-8"),
                count=1,
                flags=re.DOTALL | re.MULTILINE,
            )
            assert count == 1, f"{path}: no class {name}"
            path.write_text(text, encoding="utf-8")


def edit(path: Path, before: str, after: str) -> None:
    """Replace a text in a file that has it once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path}: {text.count(before)} of {before!r}"
    path.write_text(text.replace(before, after), encoding="utf-8")

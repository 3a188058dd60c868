"""Kinds of memory, after Cognitive Architectures for Language Agents (Sumers et al., 2023, arXiv:2309.02427)."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Literal, TypeAlias

from turnwise.errors import InvalidInputError, shown


class MemoryCategory(StrEnum):
    """The category of a memory, which decides whether the user or one agent owns it."""

    SEMANTIC = "semantic"
    """Facts about the user and the world. Shared by all of a user's agents."""
    EPISODIC = "episodic"
    """Events. They belong to one agent; without a named agent, to all of the user's agents."""
    PROCEDURAL = "procedural"
    """How to do things. They belong to one agent; without a named agent, to all of the user's agents."""


class MemoryType(StrEnum):
    """The kind of a memory item. It decides the category."""

    PREFERENCES = "preferences"
    FACTS = "facts"
    GOALS = "goals"
    GENERAL = "general"
    CONTEXT = "context"
    SESSION_SUMMARY = "session_summary"
    INTERACTION = "interaction"
    PLANNER_NOTE = "planner_note"
    """What an engine noted about its plan, by `context.note`: see `MemoryConfig.planner_notes`."""
    INSTRUCTIONS = "instructions"
    WORKFLOW = "workflow"
    SKILL = "skill"

    @property
    def category(self) -> MemoryCategory:
        """The category of memories of this type."""
        return _CATEGORIES[self]


AnyCategory: TypeAlias = MemoryCategory | Literal["semantic", "episodic", "procedural"]
"""A category, or its name."""

AnyType: TypeAlias = (
    MemoryType
    | Literal[
        "preferences",
        "facts",
        "goals",
        "general",
        "context",
        "session_summary",
        "interaction",
        "planner_note",
        "instructions",
        "workflow",
        "skill",
    ]
)
"""A type, or its name."""


def types_of(category: AnyCategory | None, types: Collection[AnyType] | None = None) -> tuple[MemoryType, ...] | None:
    """Return the types that are of a category and among `types`, where None means any; None for all types."""
    if category is None and types is None:
        return None
    kinds = map(MemoryType, MemoryType if types is None else types)
    return tuple(kind for kind in kinds if category in (None, kind.category))


def checked_types(types: Collection[AnyType] | None) -> tuple[MemoryType, ...] | None:
    """Return the types, which may be given by name.

    Raises:
        InvalidInputError: one of them is no type.
    """
    try:
        if isinstance(types, str):
            raise TypeError("one text")
        return None if types is None else tuple(map(MemoryType, types))
    except (TypeError, ValueError) as error:
        names = ", ".join(MemoryType)
        raise InvalidInputError("types", shown(types), f"must be a list of {names}") from error


_CATEGORIES = {
    kind: category
    for category, kinds in {
        MemoryCategory.SEMANTIC: (MemoryType.PREFERENCES, MemoryType.FACTS, MemoryType.GOALS, MemoryType.GENERAL),
        MemoryCategory.EPISODIC: (
            MemoryType.CONTEXT,
            MemoryType.SESSION_SUMMARY,
            MemoryType.INTERACTION,
            MemoryType.PLANNER_NOTE,
        ),
        MemoryCategory.PROCEDURAL: (MemoryType.INSTRUCTIONS, MemoryType.WORKFLOW, MemoryType.SKILL),
    }.items()
    for kind in kinds
}

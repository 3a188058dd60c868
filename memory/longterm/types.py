"""Kinds of memory, after Cognitive Architectures for Language Agents (Sumers et al., 2023, arXiv:2309.02427)."""

from __future__ import annotations

from enum import StrEnum


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
    INSTRUCTIONS = "instructions"
    WORKFLOW = "workflow"
    SKILL = "skill"

    @property
    def category(self) -> MemoryCategory:
        """The category of memories of this type."""
        return _CATEGORIES[self]


_CATEGORIES = {
    kind: category
    for category, kinds in {
        MemoryCategory.SEMANTIC: (MemoryType.PREFERENCES, MemoryType.FACTS, MemoryType.GOALS, MemoryType.GENERAL),
        MemoryCategory.EPISODIC: (MemoryType.CONTEXT, MemoryType.SESSION_SUMMARY, MemoryType.INTERACTION),
        MemoryCategory.PROCEDURAL: (MemoryType.INSTRUCTIONS, MemoryType.WORKFLOW, MemoryType.SKILL),
    }.items()
    for kind in kinds
}

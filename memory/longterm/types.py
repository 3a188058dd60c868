"""Kinds of memory, after Cognitive Architectures for Language Agents (Sumers et al., 2023, arXiv:2309.02427)."""

from __future__ import annotations

from enum import StrEnum


class MemoryCategory(StrEnum):
    """What a memory is about, and with that whose it is."""

    SEMANTIC = "semantic"
    """What is so: about the user and the world. Shared by all of a user's agents."""
    EPISODIC = "episodic"
    """What has happened. One agent's, unless none is named."""
    PROCEDURAL = "procedural"
    """How things are to be done. One agent's, unless none is named."""


class MemoryType(StrEnum):
    """What kind of memory it is; decides its category."""

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
        """Where memories of this type belong."""
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

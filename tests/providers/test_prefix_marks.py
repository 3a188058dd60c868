"""Where Claude's requests are marked for the cache of prefixes."""

from __future__ import annotations

from typing import Any

from turnwise.memory.conversation.blocks import Block, Recalled, System, Text, User
from turnwise.memory.providers.anthropic import encode


def marked(*blocks: Block) -> list[str]:
    """Return the texts that are marked."""
    system, messages = encode(blocks, cache="5m")
    parts: list[Any] = [
        *(system if isinstance(system, list) else ()),
        *(part for one in messages for part in one["content"]),
    ]
    return [part["text"] for part in parts if "cache_control" in part]


def test_what_is_recalled_for_a_prompt_has_a_mark_before_it() -> None:
    history = [System(text="Be brief."), User(text="one"), Text(text="two")]
    assert marked(*history, Recalled(text="a memory"), User(text="three")) == ["Be brief.", "two", "three"]
    assert marked(*history, User(text="three")) == ["Be brief.", "three"]
    profile, more = Recalled(text="the profile"), Recalled(text="more")
    assert marked(profile, User(text="one"), Text(text="two"), more, User(text="three")) == ["two", "three"]
    assert marked(profile, User(text="one")) == ["one"], "the profile is not recalled for the prompt"

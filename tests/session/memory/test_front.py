"""The profile before the conversation: it stays as it is while it holds, so that what follows it stays in caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from test_profile import ADA, ENGINES, WHO, chat, items_of, memory_of, request, section

from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.blocks import Block, Recalled, System, User
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.strategies.keep_last import KeepLast


def front_of(blocks: Sequence[Block]) -> str:
    """Return the recalled text before the first prompt; empty if a request has none."""
    first, second, *_ = [block for block in blocks if not isinstance(block, System)]
    assert isinstance(first, Recalled) or not isinstance(second, Recalled)
    return first.text if isinstance(first, Recalled) and "about the user" in first.text else ""


async def known(*, at_first: int = 3, **settings: object) -> tuple[InMemoryItems, SessionCore]:
    facts = await items_of(*WHO[:at_first])
    return facts, await chat(memory_of(facts), **settings)


async def test_what_is_learnt_later_stands_late_and_the_front_stays() -> None:
    facts, core = await known()
    first = await request(core, "hey")
    await facts.put(ADA, WHO[3:5])
    later = await request(core, "hey again")
    assert front_of(later) == front_of(first) and all(item.text in front_of(first) for item in WHO[:3])
    assert all(section(later).count(item.text) == 0 for item in WHO[3:5]), "the front lacks them"
    (*_, late) = [block.text for block in later if isinstance(block, Recalled)]
    assert all(late.count(item.text) == 1 for item in WHO[3:5]) and WHO[0].text not in late
    assert next(block for block in later if isinstance(block, User)).text == "hey", "the front is before all prompts"


async def test_a_fact_that_holds_no_longer_is_in_no_later_request() -> None:
    facts, core = await known()
    await request(core, "hey")
    await facts.delete(ADA, [WHO[1].id])
    later = await request(core, "hey again")
    texts = "".join(block.text for block in later if isinstance(block, Recalled))
    assert WHO[1].text not in texts and WHO[0].text in front_of(later)
    await facts.put(ADA, [replace(WHO[0], id="new", text="The user's name is Sally.")])
    await facts.delete(ADA, [WHO[0].id, WHO[2].id])
    last = await request(core, "and again")
    assert "Sally" in front_of(last) and WHO[0].text not in front_of(last)


async def test_a_compaction_moves_all_and_so_takes_what_is_new_into_the_front() -> None:
    facts, core = await known(overflow=KeepLast(turns=2, slack=0))
    await request(core, "one")
    await facts.put(ADA, WHO[3:4])
    assert WHO[3].text not in front_of(await request(core, "two")), "nothing has gone yet"
    await request(core, "three")
    await request(core, "four")
    assert WHO[3].text in front_of(await request(core, "five"))


async def test_a_front_becomes_smaller_with_its_limit() -> None:
    facts, core = await known()
    slot = MemorySlot(memory=memory_of(facts), name="memory 0", section=None)
    first = front_of(await request(core, "hey"))
    assert core.engines.config.memory.profile_tokens > 60
    for tokens in (40, 0):
        config = replace(core.engines.config, memory=MemoryConfig(profile_tokens=tokens))
        core.use(ENGINES[id(core)], config, memories=[slot])
        smaller = front_of(await request(core, "hey again"))
        assert len(smaller) < len(first) and bool(smaller) == bool(tokens)

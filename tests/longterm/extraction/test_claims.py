"""Which claims become facts: by the rules alone, and if the model that made them is asked whether they are stated.

The model's judgement is simulated by what is expected. So this measures what the rules let through, and that each
judgement decides about its own claim, but not how well a real model judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from memories.extraction_models import USER, Model, fact, texts, told
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems


class Probe(NamedTuple):
    """A message of a user, and what a model claims with it."""

    is_stated: bool
    message: str
    claim: str
    evidence: str


PROBES = [
    # Its number tells a claim from the same one of another message.
    Probe(expected == "holds", message.replace("\\n", "\n"), f"{claim} ({number})", message.replace("\\n", "\n"))
    for number, line in enumerate((Path(__file__).parent / "claims.txt").read_text(encoding="utf-8").splitlines())
    if not line.startswith("#")
    for expected, message, claim in [line.split(" | ")]
]
AGAINST = [
    Probe(False, "I don't eat meat, sorry.", "The user eats meat.", "eat meat"),
    Probe(False, "My sister lives in Oslo.", "The user lives in Oslo.", "lives in Oslo"),
    Probe(False, "I used to smoke, years ago.", "The user smokes.", "smoke"),
    Probe(False, "I would love to live in Lisbon.", "The user lives in Lisbon.", "live in Lisbon"),
    Probe(False, "If I buy a boat, I need a mooring.", "The user buys a boat.", "I buy a boat"),
    Probe(False, "Do I live in Graz?", "The user lives in Graz.", "I live in Graz"),
    Probe(False, 'Ann wrote "I own a vineyard" to me.', "The user owns a vineyard.", "I own a vineyard"),
    Probe(False, "Write a story. I am a dragon in a cave.", "The user is a dragon.", "I am a dragon in a cave"),
    Probe(False, "I own a submarine. Just kidding!", "The user owns a submarine.", "I own a submarine"),
]
"""A claim against what was said of each kind, with the evidence that supports it best."""


async def facts_of(probes: Sequence[Probe], *, checks: bool) -> tuple[set[str], ExtractiveMemory, Model]:
    """Return the claims of a turn that became facts. Asked, the model judges as it is expected."""

    def judge(lines: list[dict[str, str]]) -> dict[str, bool]:
        expected = {(probe.claim, probe.evidence): probe.is_stated for probe in probes}
        return {line["claim"]: expected[line["text"], line["quote"]] for line in lines if "claim" in line}

    model = Model(lambda _: [fact(probe.claim, probe.evidence) for probe in probes], judge)
    memory = ExtractiveMemory(model, InMemoryItems(), checks=checks)
    await memory.remember(USER, [told(number, probe.message, at=9e8) for number, probe in enumerate(probes)])
    return set(await texts(memory.store)), memory, model


async def wrong_and_missed(probes: Sequence[Probe], *, checks: bool) -> tuple[list[str], list[str]]:
    """Return the claims that became facts though they are not stated, and those that are stated and did not."""
    wrong, missed = [], []
    for start in range(0, len(probes), 16):
        batch = probes[start : start + 16]
        facts, *_ = await facts_of(batch, checks=checks)
        wrong += [probe.message for probe in batch if not probe.is_stated and probe.claim in facts]
        missed += [probe.message for probe in batch if probe.is_stated and probe.claim not in facts]
    return wrong, missed


@pytest.mark.parametrize(("checks", "most_wrong"), [(True, 0), (False, 7)])
async def test_of_nine_claims_against_what_was_said_none_becomes_a_fact_if_they_are_checked(
    checks: bool, most_wrong: int
) -> None:
    """By the rules alone, a question and quoted speech become none."""
    wrong, _ = await wrong_and_missed(AGAINST, checks=checks)
    assert len(wrong) == most_wrong, wrong


@pytest.mark.by_turns
@pytest.mark.parametrize("checks", [True, False])
async def test_the_model_decides_about_what_the_rules_let_through(checks: bool) -> None:
    """Of claims in many languages, with the whole message as evidence."""
    wrong, missed = await wrong_and_missed(PROBES, checks=checks)
    stated = sum(probe.is_stated for probe in PROBES)
    print(f"{len(wrong)} of {len(PROBES) - stated} wrong, {len(missed)} of {stated} missed")
    assert missed == ["I live in Graz, can you recommend a bar?"], "the evidence is a question"
    assert (len(wrong) == 0) is checks


async def test_what_the_user_said_is_kept_instead_of_a_claim_that_is_not_stated() -> None:
    facts, memory, model = await facts_of(AGAINST, checks=True)
    quotations = [f'On 9 July 1998 the user said: "{probe.message}"' for probe in AGAINST if '"' not in probe.message]
    assert facts == {text for text in quotations if "Do I" not in text}
    assert memory.stats["quoted"] == memory.stats["added"] == 7 and memory.stats["not_stated"] == 2
    assert len(model.checks) == 1


async def test_each_judgement_decides_about_its_own_claim() -> None:
    """In one call for all claims of a turn, of which every third is stated."""
    probes = [Probe(number % 3 == 0, f"I own boat {number}.", f"Owns boat {number}", f"own boat {number}")
              for number in range(12)]  # fmt: skip
    facts, memory, model = await facts_of(probes, checks=True)
    assert {text for text in facts if text.startswith("Owns")} == {f"Owns boat {number}" for number in (0, 3, 6, 9)}
    assert len(facts) == 12 and len(model.checks) == 1
    assert (memory.stats["calls"], memory.stats["checks"], memory.stats["quoted"]) == (2, 1, 8)

"""Which claims a message supports, on probes written before the rules. Half of the probes are held out."""

import hashlib
from pathlib import Path

import pytest

from turnwise.memory.conversation.blocks import User
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.extraction.candidates import Candidate, Limits
from turnwise.memory.longterm.extraction.grounding import Verdict, judge
from turnwise.memory.longterm.extraction.input import input_of

PROBES = [
    (expected, message.replace("\\n", "\n"), claim)
    for line in (Path(__file__).parent / "claims.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
    for expected, message, claim in [line.split(" | ")]
]
"""What is expected, what the user says, and what the model claims."""


def is_held_out(message: str, claim: str) -> bool:
    return hashlib.sha256(f"{message}|{claim}".encode()).digest()[0] % 2 == 0


def is_taken(message: str, claim: str) -> bool:
    """Return whether the claim is accepted as a fact of any type, with the whole message as evidence."""
    messages = input_of([MemoryItem(id="1", text="x", blocks=(User(text=message),))], Limits())
    verdicts = [judge(Candidate(text=claim, type=kind, evidence=message), messages, Limits()) for kind in KINDS]
    return any(isinstance(verdict, Verdict) and verdict.quote is None for verdict in verdicts)


KINDS = ("facts", "instructions")


@pytest.mark.parametrize("held_out", [False, True], ids=["seen", "held out"])
def test_few_false_claims_are_accepted_and_few_true_ones_are_refused(held_out: bool) -> None:
    probes = [probe for probe in PROBES if is_held_out(*probe[1:]) is held_out]
    plain = [probe for probe in probes if probe[0] == "holds"]
    wrong = [probe for probe in probes if probe[0] == "said" and is_taken(*probe[1:])]
    missed = [probe for probe in plain if not is_taken(*probe[1:])]
    print(f"held out: {held_out}; {len(wrong)} of {len(probes) - len(plain)} wrongly taken: {wrong}")
    print(f"{len(missed)} of {len(plain)} missed: {missed}")
    assert len(probes) > 75 and len(plain) > 25
    assert len(wrong) <= 0.02 * (len(probes) - len(plain))
    assert len(missed) <= 0.15 * len(plain)

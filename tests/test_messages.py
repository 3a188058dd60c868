"""The messages that long-term memory is measured with."""

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent / "bench"))

from messages import KINDS, WORDS, Conversation, Kind, half_of, messages_of, misspelt

from turnwise.memory.long_term import MemoryItem

ASKED = {
    "When did Ada paint the barn?": frozenset({"1"}),
    "What instruments does Bo play?": frozenset({"2"}),
    "What is Ada's favourite cheese?": frozenset({"3"}),
    "Would Ada move to Lima?": frozenset({"4"}),
}
TALK = Conversation(
    "ada-and-bo", [MemoryItem(id="1", text="Ada: I painted it"), MemoryItem(id="2", text="Bo: I did")], [*ASKED.items()]
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_messages_and_another_half_gives_others(kind: Kind) -> None:
    made = messages_of([TALK], kind, seed=3)
    assert made == messages_of([TALK], kind, seed=3)
    if kind not in ("bare", "changed subject"):
        assert made != messages_of([TALK], kind, "held out", seed=3)
    if kind != "nothing":
        assert [message.evidence for message in made] == [*ASKED.values()]


def test_the_halves_have_no_way_of_writing_and_no_message_in_common() -> None:
    for ways in (*WORDS["no_need"].values(), WORDS["short"], WORDS["long"], WORDS["telegram"], WORDS["lower"]):
        dev, held_out = half_of(ways, "dev"), half_of(ways, "held out")
        assert len(dev) >= 7 and len(held_out) >= 7
        assert not any(way in held_out for way in dev)
    needless = [message for half in ("dev", "held out") for message in messages_of([TALK], "nothing", half)]
    assert len({message.prompts[-1] for message in needless}) >= 150
    assert not any(message.evidence for message in needless)


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_prompt_of_a_follow_up_leaves_out_what_the_one_before_names(seed: int) -> None:
    for message, question in zip(messages_of([TALK], "follow-up", seed=seed), ASKED, strict=True):
        before, newest = message.prompts
        (name,) = {"Ada", "Bo"}.intersection(question.replace("'", " ").split())
        assert name in before and name not in newest
        if message.group == "matter":
            assert all(word in before for word in question.rstrip("?").split()[-2:])


@pytest.mark.parametrize("seed", range(50))
def test_a_typo_changes_one_word_by_at_most_a_letter_swapped_added_or_missing(seed: int) -> None:
    spelt, _ = misspelt("instruments", Random(seed))
    assert spelt != "instruments" and abs(len(spelt) - len("instruments")) <= 1
    same = sum(one == other for one, other in zip(spelt, "instruments", strict=False))
    same_from_behind = sum(one == other for one, other in zip(spelt[::-1], "stnemurtsni", strict=False))
    assert same + same_from_behind >= len("instruments") - 2

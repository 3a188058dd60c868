"""How long those who try again wait."""

from __future__ import annotations

from turnwise.memory.growing_pauses import GrowingPauses


def test_pauses_double_vary_and_have_a_maximum() -> None:
    for failures, longest_s in [(0, 0.5), (1, 1.0), (2, 2.0), (49, 30.0), (5000, 30.0)]:
        pauses_s = {GrowingPauses(0.5, 30.0, failures).next_s() for _ in range(50)}
        assert len(pauses_s) > 1
        assert all(longest_s / 2 <= pause_s <= longest_s for pause_s in pauses_s)


def test_the_first_pause_is_no_longer_than_the_longest() -> None:
    assert GrowingPauses(9.0, 1.0).next_s() <= 1.0


def test_pauses_begin_anew_after_a_success() -> None:
    pauses = GrowingPauses(1.0, 60.0)
    for failures in range(5):
        assert pauses.failures == failures
        assert 2**failures / 2 <= pauses.next_s() <= 2**failures
    pauses.reset()
    assert pauses.next_s() <= 1.0

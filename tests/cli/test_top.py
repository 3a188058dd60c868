"""`Rate`: the tokens a second that `turnwise top` shows."""

from turnwise.cli.top import RATE_S, Rate, Snapshot


def at(seconds: float, tokens: int) -> Snapshot:
    return Snapshot(at=seconds, sessions={}, runs=(), tokens=tokens, hosts=None)


def test_the_first_look_has_no_rate() -> None:
    assert Rate().add(at(100, 5_000)) == 0


def test_tokens_are_averaged_over_the_last_seconds() -> None:
    rate = Rate()
    rate.add(at(0, 1_000))
    assert rate.add(at(2, 1_100)) == 50
    assert rate.add(at(RATE_S, 1_200)) == 200 / RATE_S
    assert rate.add(at(2 + RATE_S, 1_200)) == 100 / RATE_S, "the look at 0 is too old"
    assert rate.add(at(100, 1_200)) == 0


def test_deleted_sessions_make_no_negative_rate() -> None:
    rate = Rate()
    rate.add(at(0, 1_000))
    assert rate.add(at(1, 200)) == 0

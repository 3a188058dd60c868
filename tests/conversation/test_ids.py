"""Ids: which are valid, and how new ones are made."""

import time

import pytest

from turnwise.errors import InvalidIdError
from turnwise.memory.values.ids import MAX_LENGTH, check_id, new_id


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "it is blank"),
        ("   ", "it is blank"),
        ("\t\n", "it is blank"),
        ("\u3000", "it is blank"),
        ("a\0b", "it holds a control character"),
        ("a\n", "it holds a control character"),
        ("\x1b[2Ja", "it holds a control character"),
        ("a\x7f", "it holds a control character"),
        ("a\x85", "it holds a control character"),
        ("a\ud800", "it holds a control character"),
        (".", "an address cannot hold it"),
        ("..", "an address cannot hold it"),
        ("x" * 257, "it has 257 characters"),
        ("🦀" * 193, "it has 772 bytes"),
        (None, "it is not a string"),
        (7, "it is not a string"),
        (b"abc", "it is not a string"),
        (["a"], "it is not a string"),
    ],
)
def test_an_id_that_cannot_be_used_is_refused_with_the_reason(value: object, reason: str) -> None:
    """Case 46: empty ids are refused."""
    with pytest.raises(InvalidIdError, match=f"^session id .*: {reason}; use 1 to 256 characters") as error:
        check_id("session id", value)  # type: ignore[arg-type]
    assert error.value.kind == "session id"
    assert len(str(error.value)) < 250
    str(error.value).encode()  # it can be printed


@pytest.mark.parametrize(
    "value",
    [
        "a",
        " a ",
        "user-1",
        "user_1%",
        "a/b.c:d#e",
        "...",
        "../a",
        "'\"\\",
        "é",
        "e\u0301",
        "文字",
        "👩\u200d🚀",
        "x" * 256,
        "🦀" * 192,
    ],
)
def test_any_other_string_is_an_id_and_is_not_changed(value: str) -> None:
    """Case 46: unusual characters are kept literally; they are neither forbidden nor changed."""
    assert len(value) <= MAX_LENGTH
    assert check_id("user id", value) is value


def test_new_ids_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [0, 1, 15, 16, 255, 256, 1_763_700_000_000, 1_763_700_000_001, 4_102_444_800_000, 253_402_300_799_999]
    ids = []
    for at_ms in now_ms:
        monkeypatch.setattr(time, "time_ns", lambda at_ms=at_ms: at_ms * 1_000_000 + 999_999)
        ids.append(new_id())
    assert sorted(ids) == ids
    assert [int(new_id[:12], 16) for new_id in ids] == now_ms


def test_new_ids_are_unique_and_ids() -> None:
    ids = {new_id() for _ in range(20_000)}
    assert len(ids) == 20_000
    for run_id in ids:
        assert len(check_id("run id", run_id)) == 24
        int(run_id, 16)


def test_new_ids_of_one_millisecond_differ_in_random_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert len({new_id()[12:] for _ in range(1000)}) == 1000

"""What is counted in a body before it is read as JSON, without a server."""

from __future__ import annotations

import json

import pytest

from turnwise.errors import TooManyError
from turnwise.http.middleware.counts import MAX_BODY_DEPTH, MAX_DIGITS, check_body

MOST = 100

TOO_MANY = {
    "max_body_values": '["\u0122", ' + ", ".join(["1"] * (MOST + 1)) + "]",
    "MAX_BODY_DEPTH": '{"\u2222": ' + "[" * (MAX_BODY_DEPTH + 1) + "]" * (MAX_BODY_DEPTH + 1) + "}",
    "MAX_DIGITS": "[" + "1" * (MAX_DIGITS + 1) + "]",
}
"""By the bound: bodies above it. Some have characters whose bytes in UTF-16 are those of quotes."""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("limit", TOO_MANY)
def test_a_body_is_counted_in_each_encoding_of_json(limit: str, encoding: str) -> None:
    with pytest.raises(TooManyError, match=limit):
        check_body(TOO_MANY[limit].encode(encoding), 10 * MAX_BODY_DEPTH if limit == "MAX_BODY_DEPTH" else MOST)
    small = json.dumps({"a": ["\u0122", 1, {"b": '"[[[' * MOST}]}, ensure_ascii=False)
    check_body(small.encode(encoding), MOST)


def test_what_is_no_json_is_left_to_the_routes() -> None:
    for body in (b"", b"\0", b"\xff\xfe\x00", b"\0\xd8\0\xd8", bytes(range(256))):
        check_body(body, MOST)

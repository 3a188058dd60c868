"""Replaces an engine's secrets, such as its key, in texts that are shown or stored."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote

LONG = 16
"""The length from which a key is removed from texts, in characters: a shorter one could be an ordinary word."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text with *** instead of each secret, whether plain, quoted for a URL, or escaped in JSON."""
    for secret in secrets:
        for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
            text = text.replace(form, "***")
    return text

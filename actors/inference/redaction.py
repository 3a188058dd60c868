"""Replaces an engine's secrets, such as its key, in texts that are shown or stored."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote

LONG = 16
"""A key of so many characters is no word: wherever it stands, it is the key."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text with *** in place of each secret, as it stands or quoted for a URL or in JSON."""
    for secret in secrets:
        for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
            text = text.replace(form, "***")
    return text

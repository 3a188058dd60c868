"""Ids of OpenAI's dialect. Each is made of ours and leads back to it, so no process has to remember any.

A conversation is a session, and its id the session's. A response is a part of a run: its id is the run's with the
number of the part, which begins with 0 and grows each time that the run has waited for its client. Sessions of
responses without a conversation have ids of their own kind, which are no conversations.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from turnwise.memory.values.ids import new_id

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_RESPONSE = re.compile(r"resp_([0-9a-f]{24})([0-9a-f]{2,6})")
_HIDDEN = "resp-"


def conversation_id(session_id: str) -> str:
    """Return the id of the conversation that is a session."""
    if _PLAIN.fullmatch(session_id):
        return f"conv_{session_id}"
    return f"conv__{base64.urlsafe_b64encode(session_id.encode()).decode().rstrip('=')}"


def session_of(conversation_id: str) -> str | None:
    """Return the session that is this conversation; None if there cannot be one."""
    kind, _, name = conversation_id.partition("_")
    if kind != "conv" or is_hidden(name):
        return None
    if _PLAIN.fullmatch(name):
        return name
    try:
        session_id = base64.b64decode(name[1:] + "=" * (-len(name[1:]) % 4), b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        return None
    return session_id if name[:1] == "_" and conversation_id == globals()["conversation_id"](session_id) else None


def response_id(run_id: str, part: int) -> str:
    """Return the id of the response that is this part of a run."""
    return f"resp_{run_id}{part:02x}"


def run_of(response_id: str) -> tuple[str, int] | None:
    """Return the run and the number of its part; None if there cannot be such a response."""
    match = _RESPONSE.fullmatch(response_id)
    return (match[1], int(match[2], 16)) if match else None


def hidden_session(key: str | None = None) -> str:
    """Return the id of a session for responses without a conversation: always the same for a key, else a new one."""
    return _HIDDEN + (hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:32] if key else new_id())


def is_hidden(session_id: str) -> bool:
    """Return whether a session is for responses without a conversation."""
    return session_id.startswith(_HIDDEN)


def prompt_item_id(prefix: str, log: str, position: int) -> str:
    """Return the id of an item of the input. It is made of the log and the position of the item's first block."""
    return f"{prefix}_in{_digest(log)}{position:x}"


def output_item_id(prefix: str, run_id: str, answer: int, number: int = 0) -> str:
    """Return the id of an item of the output: the run, the model's answer in it, and the number of a call there."""
    return f"{prefix}_{run_id}{answer:02x}{number:02x}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]

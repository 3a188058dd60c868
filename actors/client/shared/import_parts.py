"""`Conversation`: a conversation from elsewhere, read and checked, which is stored in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from turnwise.memory.conversation.exchanges import exchanges, goes_on
from turnwise.memory.providers.message_reading import Given
from turnwise.memory.values.limits import MAX_BLOCKS, check_count

PART = 1_000
"""The most blocks of a part, unless one turn has more: a part is one commit, and delays others as long as that."""


@dataclass(frozen=True)
class Part:
    """Some turns of a conversation, which are stored in one commit."""

    content: Given
    key: str | None
    """Its idempotency key; None for the session to make one, of a conversation that is one part."""


@dataclass(frozen=True)
class Conversation:
    """A conversation that was read and checked."""

    content: Given
    texts: Sequence[str]
    """Its blocks as stored texts."""
    key: str | None
    """The idempotency key of the whole conversation; None if its content tells what is stored already."""

    def parts(self, stored_count: int = 0) -> list[Part]:
        """Return what follows the first `stored_count` blocks in parts, which end where turns end.

        Raises:
            TooManyError: there are too many blocks in one turn.
        """
        ends, start = [stored_count], stored_count
        for begins, _, stop in exchanges(self.content.blocks[stored_count:]):
            check_count("messages of one turn", stop - begins, "MAX_BLOCKS", MAX_BLOCKS)
            if stored_count + stop - start > PART and stored_count + begins > start:
                start = stored_count + begins
                ends.append(start)
        ends.append(len(self.texts))
        if len(ends) == 2 and not stored_count:  # noqa: PLR2004 - one part
            return [Part(self.content, self.key)]
        keys = self._digests(ends) if self.key is None else _keys_of_parts(self.key, len(ends) - 1)
        return [Part(self.content.part(*places), key) for places, key in zip(pairwise(ends), keys, strict=True)]

    def begins_with(self, stored_count: int, digest: str) -> bool:
        """Return whether its first blocks have this digest, and what follows is turns of their own."""
        return (
            0 < stored_count <= len(self.texts)
            and self._digests([0, stored_count]) == [digest]
            and goes_on(self.content.blocks, stored_count)
        )

    def _digests(self, ends: Sequence[int]) -> list[str]:
        """Return a digest of all texts up to each end but the first one."""
        running_hash, digests, digest_ends = hashlib.sha256(), [], set(ends[1:])
        for count, text in enumerate(self.texts[: ends[-1]], 1):
            running_hash.update(f"{text}\n".encode())
            if count in digest_ends:
                digests.append(running_hash.hexdigest())
        return digests


def _keys_of_parts(key: str, count: int) -> list[str]:
    return [key, *(f"{hashlib.sha256(key.encode()).hexdigest()}#{number}" for number in range(1, count))]

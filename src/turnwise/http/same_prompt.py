"""`is_same_prompt`: whether a client repeats a prompt that a session has."""

from __future__ import annotations

from typing import TypeVar

from turnwise.memory.conversation.blocks import Block, Document, Image, User
from turnwise.memory.files.attachments import moved_id


def is_same_prompt(stored: Block, sent: Block) -> bool:
    """Return whether a prompt as it is stored is what was sent, whatever its author, and with its file named."""
    if isinstance(stored, Image | Document) and stored.file and type(stored) is type(sent):
        return stored.file == (sent.file or moved_id(sent))
    return unsigned(stored) == sent


AnyKind = TypeVar("AnyKind", bound=Block)


def unsigned(block: AnyKind) -> AnyKind:
    """Return a prompt without its author, as clients send it."""
    return block.model_copy(update={"author": None}) if isinstance(block, User) and block.author else block

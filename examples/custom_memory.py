"""A long-term memory of your own: one that never learns card numbers, whatever users and models say.

    pip install turnwise
    python examples/custom_memory.py

It is made by composition of `LexicalMemory`; one on a vector database of yours has the same methods. The example
checks the laws of memories first: users are apart, what is forgotten stays away, and so on.
"""

import asyncio
import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise import EchoEngine, LexicalMemory, MemoryItem, SessionManager
from turnwise.conformance import check_memory
from turnwise.memories import Scope

CARD = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")


def masked(text: str) -> str:
    """Return the text with only the last digits of card numbers."""
    return CARD.sub(lambda card: f"card ...{card[0][-4:]}", text)


class CarefulMemory:
    """Masks card numbers in the items that it keeps, and in queries.

    It is pickled to an actor that all sessions share, so it holds settings only and opens its file there. The scope
    says whose items they are; it comes from the session, never from a model.
    """

    is_local = True  # its actor stays on the node with the file

    def __init__(self, file: Path) -> None:
        self._within = LexicalMemory(file)

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        """Keep the items; return the ids of those that are durable, so that the session tries the others again."""
        return await self._within.remember(scope, [replace(item, text=masked(item.text), blocks=()) for item in items])

    async def recall(self, scope: Scope, query: str, **options: Any) -> Sequence[MemoryItem]:
        """Return what is relevant to the query, the best first."""
        return await self._within.recall(scope, masked(query), **options)

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return await self._within.update(scope, id, text and masked(text), **changes)

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **options: Any) -> int:
        return await self._within.forget(scope, ids, **options)

    async def list_items(self, scope: Scope, **options: Any) -> Any:
        """Optional: for `session.memory.list()`."""
        return await self._within.list_items(scope, **options)

    async def close(self) -> None:
        await self._within.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        asyncio.run(check_memory(lambda law: CarefulMemory(Path(folder, f"{law}.db"))))
        print("CarefulMemory keeps the laws of memories")

        memory = [CarefulMemory(Path(folder, "facts.db"))]
        with SessionManager(f"sqlite:///{folder}/chats.db", engine=EchoEngine(), memory=memory) as manager:
            chat = manager.open("booking", user_id="sarah")
            chat.run("Pay the hotel with 4111 1111 1111 1111, please.").wait()
            chat.memory.save("Her card for travel is 5500-0000-0000-0004.")
            chat.memory.wait()  # turns are saved beside the conversation
            for item in manager.open("later", user_id="sarah").memory.recall(
                "Which card pays for the hotel, and for travel?"
            ):
                print(f"  {item.text!r}")
            print("the store has what was said:", chat.turn(0).asked)


if __name__ == "__main__":
    main()

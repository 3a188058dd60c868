"""A scripted model and messages of a user, for tests of `ExtractiveMemory`."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from turnwise.memory.conversation.blocks import AnyBlock, Block, System, User
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source, item_id
from turnwise.memory.longterm.extraction import check
from turnwise.memory.longterm.extraction.prompt import SCHEMA
from turnwise.memory.longterm.items.base import ItemFilter, ItemStore

USER = Scope(user_id="u", session_id="s")


EVER = ItemFilter(superseded=True)


class Model:
    """Answers with what `say` makes of the lines that it is shown; takes each of the user's for a fact otherwise.

    Asked which claims are stated, it answers with what `judge` makes of the lines: all of them otherwise.
    """

    def __init__(
        self,
        say: Callable[[list[dict[str, str]]], Any] | None = None,
        judge: Callable[[list[dict[str, str]]], Any] | None = None,
    ) -> None:
        self.say = say or (lambda lines: [fact(line["user"]) for line in lines if "user" in line])
        self.judge = judge or (lambda lines: {line["claim"]: True for line in lines if "claim" in line})
        self.calls: list[list[dict[str, str]]] = []
        """The lines of each request for facts."""
        self.checks: list[list[dict[str, str]]] = []
        """The lines of each request to check them."""
        self.during: Callable[[], Awaitable[object]] | None = None
        """Awaited in each request for facts."""
        self.during_check: Callable[[], Awaitable[object]] | None = None
        """Awaited in each request to check them."""

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        assert isinstance(request[0], System) and isinstance(request[1], User)
        lines = [json.loads(line) for line in request[1].text.split("\n")[:-2]]
        if claims := [line for line in lines if "claim" in line]:
            assert schema == check.schema(len(claims))
            self.checks.append(lines)
            verdicts = self.judge(lines)
            if self.during_check:
                await self.during_check()
            return verdicts if isinstance(verdicts, str) else json.dumps(verdicts)
        assert schema == SCHEMA
        self.calls.append(lines)
        answer = self.say(lines)
        if self.during:
            await self.during()
        return answer if isinstance(answer, str) else json.dumps({"facts": answer})


def fact(text: str, evidence: str | None = None, **values: Any) -> dict[str, Any]:
    return {"text": text, "type": "facts", "topic": None, "evidence": evidence or text, "action": "add", **values}


def told(number: int, *blocks: AnyBlock | str, at: float = 0.0, session: str | None = "s") -> MemoryItem:
    content = tuple(User(text=block) if isinstance(block, str) else block for block in blocks)
    spans = (Span(f"log-{session}", number * 10, number * 10 + len(content)),)
    source = Source(session_id=session, turn_index=number, spans=spans)
    return MemoryItem(id=item_id(spans, content), text="user: ...", source=source, blocks=content, created_at=at)


def all_stated(request: str) -> str | None:
    """Return the answer that all claims of a request are stated; None if it is no request to check claims."""
    rows = [json.loads(line) for line in request.split("\n") if line.startswith('{"claim"')]
    return json.dumps({row["claim"]: True for row in rows}) if rows else None


async def texts(facts: ItemStore, scope: Scope = USER, which: ItemFilter = ItemFilter()) -> list[str]:  # noqa: B008
    return sorted(item.text for item in await facts.query(scope, which))

"""Pages of items, as OpenAI's API lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from turnwise.http.openai.errors import OpenAIError, invalid
from turnwise.http.openai.fields import check_include


class Including(BaseModel):
    """What an answer includes: a query that has no other fields is refused by their names."""

    model_config = ConfigDict(extra="forbid")

    include: list[str] = Field(default=[], alias="include[]")
    owner: str | None = None
    """Read by `MemberCaller`."""

    def check(self) -> None:
        """Refuse what cannot be included.

        Raises:
            OpenAIError: names it.
        """
        check_include(self.include)


class Page(Including):
    """Which items are listed, and in which order."""

    limit: int = Field(default=20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


Asked = Annotated[Page, Query()]


def page_of(items: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """Return a page of items.

    Args:
        items: all, oldest first.

    Raises:
        OpenAIError: there is no item behind which it begins.
    """
    items = items if page.order == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    if page.after is not None and page.after not in ids:
        raise no_such(page.after)
    start = 0 if page.after is None else ids.index(page.after) + 1
    return listed(items[start : start + page.limit], is_more=start + page.limit < len(items))


def no_such(id: str) -> OpenAIError:
    """Return the refusal of a page behind an item that does not exist."""
    return invalid("after", f"Item with id '{id}' not found.", "not_found")


def listed(items: Sequence[dict[str, Any]], *, is_more: bool) -> dict[str, Any]:
    """Return items as a page."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": is_more}

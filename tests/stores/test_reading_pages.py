"""Stores are read page by page, to the end."""

from __future__ import annotations

import asyncio
from typing import Any

from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.reading import pages, pages_by_cursor


def test_pages_go_on_behind_the_last_record_until_there_are_none() -> None:
    async def read(after: int) -> list[int]:
        return [number for number in (1, 2, 5, 8, 9) if number > after][:2]

    async def main() -> list[list[int]]:
        return [list(page) async for page in pages(read, 1, lambda number: number)]

    assert asyncio.run(main()) == [[2, 5], [8, 9]]


def test_other_tasks_run_between_two_pages() -> None:
    steps: list[Any] = []

    async def read(after: int) -> list[int]:
        return [after + 1] if after < 3 else []

    async def other_work() -> None:
        while len(steps) < 5:
            steps.append("other")
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(other_work())
        async for (number,) in pages(read, 0, lambda number: number):
            steps.append(number)
        await task

    asyncio.run(main())
    assert steps[:5] == [1, "other", 2, "other", 3]


def test_pages_by_cursor_end_with_the_page_without_one_and_keep_what_is_unreadable() -> None:
    unreadable_key = SessionKey("lost")
    unreadable: Page[int] = Page((), "b", (unreadable_key,))
    stored = {None: Page((1,), "a"), "a": unreadable, "b": Page((2,), None)}

    async def read(cursor: str | None) -> Page[int]:
        return stored[cursor]

    async def main() -> list[Page[int]]:
        return [page async for page in pages_by_cursor(read)]

    assert asyncio.run(main()) == list(stored.values())

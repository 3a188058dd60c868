"""`/openai/v1/conversations`: conversations and their items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, JsonValue

from turnwise.actors.client.session import AsyncSession
from turnwise.errors import InvalidInputError, SessionBusyError, TurnNotFoundError
from turnwise.http.bounded import within_bounds
from turnwise.http.openai.errors import OpenAIError, OpenAIRoute, check_own, invalid, not_found
from turnwise.http.openai.fields import Metadata
from turnwise.http.openai.ids import conversation_id
from turnwise.http.openai.inputs import read_items
from turnwise.http.openai.items import ENCRYPTED, Item, Placed, placed_output, placed_prompt, prompt_items
from turnwise.http.openai.pages import Asked, Including, listed, no_such
from turnwise.http.openai.start_response import DELETED, busy, conversation
from turnwise.http.service import MemberCaller
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import cut, join, size
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.reading import read_runs, read_turns
from turnwise.memory.values.frozen_json import plain_json

router = APIRouter(prefix="/openai/v1/conversations", tags=["OpenAI conversations"], route_class=OpenAIRoute)

MAX_ITEMS = 20
"""How many items one request may add. OpenAI has the same limit."""

TURNS = 20
"""How many turns are read at once for their items."""

Include = Annotated[Including, Query()]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    _within_bounds = within_bounds


class CreateConversation(_Strict):
    """What a conversation begins with."""

    items: list[JsonValue] | None = None
    metadata: Metadata | None = None


class UpdateConversation(_Strict):
    """The metadata that replaces that of a conversation."""

    metadata: Metadata | None = None


class AddItems(_Strict):
    """Items for a conversation."""

    items: list[JsonValue]


@router.post("")
async def create(caller: MemberCaller, body: CreateConversation | None = None) -> Response:
    """Create a conversation, with items that the first response in it continues."""
    check_own(caller.owner, "owner", "leave `owner` out")
    body = body or CreateConversation()
    blocks = _blocks(body.items or [])
    session = await caller.manager.open(user_id=caller.user_id, metadata=_checked(body.metadata))
    if blocks:
        try:
            await session.append(*blocks)
        except BaseException:
            await session.delete(memory=False)
            raise
    return JSONResponse(_shown((await session.info()).session))


@router.get("/{id}")
async def retrieve(id: str, caller: MemberCaller) -> Response:
    """Return a conversation."""
    session = await conversation(caller, id)
    return JSONResponse(_shown((await session.info()).session))


@router.post("/{id}")
async def update(id: str, body: UpdateConversation, caller: MemberCaller) -> Response:
    """Replace the metadata of a conversation."""
    session = await conversation(caller, id)
    had = [name for name in (await session.info()).session.metadata if not name.startswith(DELETED)]
    return JSONResponse(_shown(await session.update(metadata={**dict.fromkeys(had), **_checked(body.metadata)})))


@router.delete("/{id}")
async def delete(id: str, caller: MemberCaller) -> Response:
    """Delete a conversation with all that was said in it. A response that waits for its client is cancelled."""
    session = await conversation(caller, id)
    try:
        await session.delete()
    except SessionBusyError as error:
        execution = await session.execution(error.run_id)
        if await execution.status() != "awaiting_approval":
            reason = "Another process is currently operating on this conversation. Please retry in a few seconds."
            raise invalid("conversation", reason, "conversation_locked") from None
        await execution.cancel("its conversation was deleted")
        await session.delete()
    return JSONResponse({"id": id, "object": "conversation.deleted", "deleted": True})


@router.get("/{id}/items")
async def items(
    id: str,
    caller: MemberCaller,
    page: Asked,
) -> Response:
    """List the items of a conversation."""
    page.check()
    session = await conversation(caller, id)
    items_of_page: list[Item] = []
    is_behind = page.after is None
    async for _, placed in _items(session, newest_first=page.order == "desc", include=page.include):
        if not is_behind:
            is_behind = placed.item["id"] == page.after
        elif placed.is_removed:
            continue
        elif len(items_of_page) == page.limit:
            return JSONResponse(listed(items_of_page, is_more=True))
        else:
            items_of_page.append(placed.item)
    if not is_behind:
        raise no_such(page.after or "")
    return JSONResponse(listed(items_of_page, is_more=False))


@router.post("/{id}/items")
async def add_items(id: str, body: AddItems, caller: MemberCaller, query: Include) -> Response:
    """Add items to a conversation; the next response in it continues them."""
    query.check()
    blocks = _blocks(body.items)
    session = await conversation(caller, id)
    if not blocks:
        raise invalid("items", "there must be at least one item")
    turn = await session.append(*blocks)
    added = cut(turn.record.prompt, size(turn.record.prompt) - len(blocks))[1]
    return JSONResponse(listed(prompt_items(added, turn.asked[-len(blocks) :]), is_more=False))


@router.get("/{id}/items/{item_id}")
async def item(id: str, item_id: str, caller: MemberCaller, query: Include) -> Response:
    """Return an item of a conversation."""
    query.check()
    session = await conversation(caller, id)
    _, placed = await _find(session, item_id, query.include)
    return JSONResponse(placed.item)


@router.delete("/{id}/items/{item_id}")
async def delete_item(id: str, item_id: str, caller: MemberCaller) -> Response:
    """Delete an item, so that no later response is made with it; return the conversation.

    Responses that were made with it stay as they are.
    """
    session = await conversation(caller, id)
    turn, placed = await _find(session, item_id, None)
    try:
        await session.remove(turn, *placed.numbers)
    except SessionBusyError as error:
        raise await busy(caller, session, error.run_id) from None
    except (TurnNotFoundError, InvalidInputError):  # somebody else has just deleted it
        raise not_found("Item", item_id) from None
    return JSONResponse(_shown((await session.info()).session))


def _shown(session: SessionRecord) -> dict[str, Any]:
    metadata: dict[str, Any] = plain_json("metadata", dict(session.metadata), 1 << 20)
    metadata = {name: value for name, value in metadata.items() if not name.startswith(DELETED)}
    name = conversation_id(session.session_id)
    return {"id": name, "object": "conversation", "created_at": int(session.created_at), "metadata": metadata}


def _checked(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a client's metadata, none of which has a name that the service uses itself."""
    for name in metadata or {}:
        if name.startswith(DELETED):
            raise invalid(f"metadata.{name}", f"names that begin with {DELETED!r} are the service's: use another name")
    return dict(metadata or {})


def _blocks(items_given: list[JsonValue]) -> list[Block]:
    if len(items_given) > MAX_ITEMS:
        raise OpenAIError(
            400,
            f"There may be {MAX_ITEMS} items, not {len(items_given)}.",
            param="items",
            code="array_above_max_length",
        )
    read = read_items(items_given, "items", answers=False)
    if read.approvals:
        raise invalid("items", "approvals are sent as input of a response")
    return read.blocks


async def _find(session: AsyncSession, item_id: str, include: list[str] | None) -> tuple[Turn, Placed]:
    """Return an item of a session, and the turn that has it.

    Raises:
        OpenAIError: there is none, or it was deleted.
    """
    async for turn, placed in _items(session, newest_first=True, include=include):
        if placed.item["id"] == item_id and not placed.is_removed:
            return turn, placed
    raise not_found("Item", item_id)


async def _items(
    session: AsyncSession, *, newest_first: bool, include: list[str] | None
) -> AsyncIterator[tuple[Turn, Placed]]:
    """Yield the items of a session with their turns, a page of turns at a time; also those that were deleted."""
    end, start = (await session.info()).session.next_index, 0
    while start < end:
        first = max(start, end - TURNS) if newest_first else start
        count = min(TURNS, end - first)
        turns = await read_turns(session.turns, first, first + count)
        runs = {run.run_id: run for run in await read_runs(session.runs, first, first + count)}
        placed_items: list[tuple[Turn, Placed]] = []
        for turn in turns:
            removed = frozenset(turn.removed)
            items = placed_prompt(turn.record.prompt, turn.asked, removed)
            if run := runs.get(turn.run_id or ""):
                options: dict[str, Any] = {"removed": removed, "encrypted": ENCRYPTED in (include or ())}
                items += placed_output(
                    run.run_id, turn.output, run.calls, first=len(turn.asked), where=turn.record.output, **options
                )
            elif turn.run_id is None and turn.output:  # it was imported
                items = placed_prompt(join(turn.record.prompt, turn.record.output), turn.new_blocks, removed)
            placed_items += ((turn, item) for item in items)
        for placed_item in reversed(placed_items) if newest_first else placed_items:
            yield placed_item
        start, end = (start, first) if newest_first else (first + count, end)

"""Answers with long lists, such as the snapshot of a turn: threads make them, so that the event loop serves others.

A thread holds Python's lock while it encodes one member, not the whole list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.responses import Response

from turnwise.actors.hosting.wire import PackedTurn
from turnwise.http.native.models import BlocksShown, MessagesShown, Shown, Snapshot, TurnShown
from turnwise.memory.conversation.blocks import AnyBlock, decode
from turnwise.memory.conversation.spans import Span, Spans, size, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.message_formats import Messages

_SHORT = 1_000
"""How many members are encoded by the event loop."""


async def turn_answer(turn: Turn, *, snapshot: bool = False) -> Any:
    """Return a turn as the answer of a route; see `TurnShown`."""
    record = turn.record
    if size(record.spans) + size(record.prompt) <= _SHORT:
        return TurnShown.of(turn, snapshot=snapshot)

    def encoded() -> bytes:
        blocks = turn.blocks if snapshot else turn.new_blocks
        return _encoded(TurnShown.of(turn, blocks=[]), "blocks", blocks)

    return await _by_thread(encoded)


async def blocks_answer(blocks: Iterable[AnyBlock]) -> Any:
    """Return blocks as the answer of a route; see `BlocksShown`."""
    blocks = list(blocks)
    if len(blocks) <= _SHORT:
        return BlocksShown(blocks=blocks)
    return await _by_thread(lambda: _encoded(BlocksShown(blocks=[]), "blocks", blocks))


async def messages_answer(messages: Messages) -> Any:
    """Return messages as the answer of a route; see `MessagesShown`."""
    fields: dict[str, Any] = {"format": messages.format, "system": messages.system, "left_out": messages.left_out}
    if len(messages) <= _SHORT:
        return MessagesShown(**fields, messages=list(messages))
    empty = MessagesShown(**fields, messages=[])
    return await _by_thread(lambda: _encoded(empty, "messages", messages))


async def _by_thread(encoded: Callable[[], bytes]) -> Response:
    return Response(await asyncio.to_thread(encoded), media_type="application/json")


def _encoded(empty: Shown, name: str, members: Iterable[Any]) -> bytes:
    """Return a model as JSON, with the members of its list, which is empty."""
    other_fields = empty.model_dump_json(by_alias=True, exclude={name}).encode()
    return b'{"%s":[%s]%s' % (
        name.encode(),
        b",".join(to_json(member) for member in members),
        b"}" if other_fields == b"{}" else b"," + other_fields[1:],
    )


async def snapshot_of(turn: Turn, held: Spans) -> Snapshot:
    """Return a turn as part of the answer of a route; see `Snapshot`."""
    packed = await PackedTurn.pack(turn, held)
    names = {name: getattr(packed, name) for name in ("session_id", "record", "branches", "source", "spans")}
    return Snapshot.model_construct(**names, blocks=list(map(decode, packed.blocks)))


async def snapshot_answer(turn: Turn | None, held: Spans) -> Any:
    """Return a turn as the answer of a route; see `Snapshot`."""
    if turn is None:
        return Response(b"null", media_type="application/json")
    packed = await PackedTurn.pack(turn, held)
    encoded = partial(snapshot_bytes, packed)
    body = encoded() if len(packed.blocks) <= _SHORT else await asyncio.to_thread(encoded)
    return Response(body, media_type="application/json")


async def snapshots_answer(turns: Sequence[Turn], held: Spans, next: int | None) -> Any:
    """Return turns as the answer of a route, each with the blocks that neither the client nor an earlier one has."""
    packed: list[PackedTurn] = []
    for turn in turns:
        packed.append(await PackedTurn.pack(turn, held))
        source = Span(packed[-1].source, 0, 1)
        held = union(held if source in held else (source,), packed[-1].spans)

    def encoded() -> bytes:
        return b'{"items":[%s],"next":%s}' % (b",".join(map(snapshot_bytes, packed)), to_json(next))

    body = encoded() if sum(len(turn.blocks) for turn in packed) <= _SHORT else await asyncio.to_thread(encoded)
    return Response(body, media_type="application/json")


def snapshot_bytes(packed: PackedTurn) -> bytes:
    """Return a turn as JSON; its blocks are encoded already."""
    names = {name: getattr(packed, name) for name in ("session_id", "record", "branches", "source", "spans")}
    members = [b'"%s":%s' % (name.encode(), _JSON.dump_json(value)) for name, value in names.items()]
    return b'{%s,"blocks":[%s]}' % (b",".join(members), ",".join(packed.blocks).encode())


_JSON: TypeAdapter[Any] = TypeAdapter(Any)

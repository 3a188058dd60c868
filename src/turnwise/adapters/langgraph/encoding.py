"""How values of a graph's channels are stored: each element of a list once, and lists as spans over the elements.

The elements of a channel have positions from 0 on, in the order in which they were first stored. A list that shares
most of its elements with an earlier one refers to their positions as spans, so it takes the same space at any length.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.adapters.version_checks import framework
from turnwise.errors import CorruptRecordError

with framework("langgraph-checkpoint", extra="langgraph", tested="4.3"):
    import ormsgpack
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

Typed = tuple[str, bytes]
"""A serialised value: the serializer's name of its type, and its bytes."""

Ref = list[Any]
"""Where a value is: `[LIST, start, end, start, end...]`, `[VALUE, position]`, or `[INLINE, type, bytes]`."""

Ranges = dict[str, list[tuple[int, int]]]
"""By channel: ranges of positions, each without its end."""

LIST, VALUE, INLINE, MIXED = 0, 1, 2, 3

INLINE_BYTES = 48
"""Values up to this size are stored in the checkpoint itself."""

WORTH_BYTES = 64
"""A span over elements of fewer bytes would take about as much as storing them again, in each later checkpoint."""

ELEMENT_BYTES = 16
"""What a stored element takes beside its own bytes: its key, or its type."""

SMALL_BYTES = 2048
"""Data up to this size is compressed with a small window."""

SHARED_WRITES = 8
"""Lists in pending writes refer to stored elements if they have at least this many elements."""

# The first byte of packed data. What zlib's dictionary holds must never change: stored data was compressed with it.
_PLAIN, _COMPRESSED = b"\0", b"\1"
_WORDS = (
    b"invalid_tool_calls\x90\xaeusage_metadata\xc0\xb3model_validate_json tool_call_id artifact status success "
    b"input_tokens output_tokens total_tokens finish_reason stop tool_calls token_usage model_name "
    b"langchain_core.messages.tool ToolMessage langchain_core.messages.system SystemMessage channel_versions "
    b"versions_seen updated_channels pending_sends __interrupt__ __error__ __resume__ ~__pregel_pull, "
    b"~__pregel_push, agent tools model branch:to:agent branch:to:tools branch:to:model __start__ __input__ "
    b"source input update fork loop step parents messages msgpack null user "
    b"langchain_core.messages.human\xacHumanMessage\x86\xa7content "
    b"langchain_core.messages.ai\xa9AIMessage\x89\xa7content"
    b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa5human\xa4name\xc0\xa2id\xd9$"
    b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa4name\xc0\xa2id\xd9$"
    b"\xaatool_calls\x90\xb2invalid_tool_calls\x90\xaeusage_metadata\xc0\xb3model_validate_json"
)


def pack(value: Any) -> bytes:
    """Return plain data (numbers, texts, bytes, lists and dicts of them) as bytes, compressed if that is shorter."""
    data = ormsgpack.packb(value)
    # A small window takes less memory, to get which takes longer than to compress. It must reach to the dictionary.
    window, memory = (12, 5) if len(data) <= SMALL_BYTES else (15, 8)
    compressor = zlib.compressobj(3, zlib.DEFLATED, -window, memory, zdict=_WORDS)
    shorter = compressor.compress(data) + compressor.flush()
    return _COMPRESSED + shorter if len(shorter) < len(data) else _PLAIN + data


def unpack(key: str, stored: bytes) -> Any:
    """Return what was packed.

    Raises:
        CorruptRecordError: the bytes of record `key` were not made by `pack`.
    """
    try:
        if stored[:1] == _COMPRESSED:
            expander = zlib.decompressobj(-15, zdict=_WORDS)
            return ormsgpack.unpackb(expander.decompress(stored[1:]) + expander.flush())
        if stored[:1] == _PLAIN:
            return ormsgpack.unpackb(stored[1:])
    except (zlib.error, ValueError) as error:
        raise CorruptRecordError(key, f"{type(error).__name__}: its bytes are damaged") from None
    raise CorruptRecordError(key, "its format is not known")


class Codec:
    """Serialises values with LangGraph's serializer; in two steps if it encrypts, so that equal ones are recognised."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._encrypted = serde if isinstance(serde, EncryptedSerializer) else None
        self._plain = self._encrypted.serde if self._encrypted else serde

    def dump(self, value: Any) -> Typed:
        """Return the value serialised, not encrypted."""
        kind, data = self._plain.dumps_typed(value)
        return kind, bytes(data)

    def load(self, typed: Typed) -> Any:
        """Return a value of its serialised, not encrypted form."""
        return self._plain.loads_typed(typed)

    def load_all(self, elements: Sequence[Typed]) -> list[Any]:
        """Return the values of serialised forms: by one call of LangGraph's own serializer, of those in MessagePack."""
        if type(self._plain) is not JsonPlusSerializer or any(kind != "msgpack" for kind, _ in elements):
            return [self._plain.loads_typed(element) for element in elements]
        count = len(elements).to_bytes(4, "big")  # a list is its length and its elements
        values: list[Any] = self._plain.loads_typed(
            ("msgpack", b"".join([b"\xdd", count, *(data for _, data in elements)]))
        )
        return values

    def seal(self, typed: Typed) -> Typed:
        """Return what is stored of a serialised value: itself, or encrypted."""
        if self._encrypted is None:
            return typed
        name, data = self._encrypted.cipher.encrypt(typed[1])
        return f"{typed[0]}+{name}", data

    def unseal(self, kind: str, data: bytes) -> Typed:
        """Return a serialised value of what is stored of it."""
        if self._encrypted is None or "+" not in kind:
            return kind, data
        kind, name = kind.split("+", 1)
        return kind, self._encrypted.cipher.decrypt(name, data)


def is_divided(value: Any) -> bool:
    """Return whether a value is stored element by element: a list, unless it holds numbers only."""
    return type(value) is list and not all(type(element) in (int, float, bool) for element in value)


@dataclass(slots=True)
class Known:
    """The elements of one channel that a process knows, serialised, and their positions."""

    elements: dict[int, Typed] = field(default_factory=dict)
    positions: dict[Typed, int] = field(default_factory=dict)
    """The last of each."""
    starts: Sequence[int] = ()
    """Where the spans of the latest list start, so that one of equal elements is found where it begins."""
    size: int = 0
    """The bytes of all elements."""

    def learn(self, position: int, element: Typed) -> None:
        self.elements[position] = element
        self.positions[element] = position
        self.size += len(element[1])

    def only(self, ranges: Iterable[tuple[int, int]]) -> Known:
        """Return what is known of the positions in these ranges, which ascend."""
        subset = Known(starts=self.starts)
        for position in (index for span in ranges for index in range(*span)):
            if (element := self.elements.get(position)) is not None:
                subset.learn(position, element)
        return subset

    def find(self, elements: Sequence[Typed], first: int) -> tuple[int, int]:
        """Return where most of the elements from `first` on stand, and how many; 0 if not even the first is known."""
        best, longest = -1, 0
        for place in dict.fromkeys([*self.starts, self.positions.get(elements[first], -1)]):
            if (run := self.run(place, elements, first)) > longest:
                best, longest = place, run
                if first + run == len(elements):
                    break
        return best, longest

    def run(self, position: int, elements: Sequence[Typed], first: int) -> int:
        """Return how many of the elements from `first` on stand at `position` and after it."""
        count, known_at, length = 0, self.elements.get, len(elements) - first
        while count < length and known_at(position + count) == elements[first + count]:
            count += 1
        return count


def arranged(elements: Sequence[Typed], memory: Known, end: int) -> tuple[list[int], list[tuple[int, Typed]]]:
    """Decide where the elements of a list are: at known positions, or at new ones from `end` on.

    Returns:
        The spans, flat, and the new elements with their positions. `memory` has learnt them.
    """
    spans: list[int] = []
    new: list[tuple[int, Typed]] = []
    index = 0
    while index < len(elements):
        position, count = end, 1
        if spans and (run := memory.run(spans[-1], elements, index)):
            position, count = spans[-1], run
        else:
            position_known, run = memory.find(elements, index)
            if _is_worth(elements[index : index + run]):
                position, count = position_known, run
        if position == end:
            new.append((end, elements[index]))
            memory.learn(end, elements[index])
            end += 1
        if spans and spans[-1] == position:
            spans[-1] += count
        else:
            spans += (position, position + count)
        index += count
    memory.starts = spans[::2]
    return spans, new


def share(elements: Sequence[Typed], memory: Known | None, codec: Codec) -> Ref:
    """Return the reference of a list in a pending write: known elements as spans, all others in the reference."""
    parts: list[Any] = []
    index = 0
    while index < len(elements):
        start, run = memory.find(elements, index) if memory else (0, 0)
        if _is_worth(elements[index : index + run]):
            parts.append([start, start + run])
            index += run
        else:
            parts.append(list(codec.seal(elements[index])))
            index += 1
    return [MIXED, *parts]


def _is_worth(elements: Sequence[Typed]) -> bool:
    """Return whether a span over elements takes less than storing them again would."""
    some = elements[: WORTH_BYTES // ELEMENT_BYTES]  # which are worth it whatever they are, if there are so many
    return sum(len(data) + ELEMENT_BYTES for _, data in some) >= WORTH_BYTES


def spans_of(ref: Ref) -> Iterator[tuple[int, int]]:
    """Yield the ranges of positions that a reference names."""
    if ref[0] == LIST:
        yield from zip(ref[1::2], ref[2::2], strict=True)
    elif ref[0] == VALUE:
        yield ref[1], ref[1] + 1
    elif ref[0] == MIXED:
        yield from ((part[0], part[1]) for part in ref[1:] if isinstance(part[0], int))


def ranges_of(refs: Iterable[tuple[str, Ref]]) -> Ranges:
    """Return the ranges of positions that references name, merged where they touch."""
    named: Ranges = {}
    for channel, ref in refs:
        named.setdefault(channel, []).extend(spans_of(ref))
    merged: Ranges = {}
    for channel, ranges in named.items():
        into: list[tuple[int, int]] = []
        for start, end in sorted(ranges):
            if into and start <= into[-1][1]:
                into[-1] = (into[-1][0], max(end, into[-1][1]))
            else:
                into.append((start, end))
        if into:
            merged[channel] = into
    return merged


def value_of(codec: Codec, channel: str, ref: Ref, elements: Mapping[tuple[str, int], Typed]) -> Any:
    """Return the value of a reference.

    Raises:
        CorruptRecordError: an element is missing.
    """
    try:
        if ref[0] == INLINE:
            return codec.load(codec.unseal(ref[1], ref[2]))
        if ref[0] == VALUE:
            return codec.load(elements[channel, ref[1]])
        if ref[0] == LIST:
            places = ((channel, index) for start, end in spans_of(ref) for index in range(start, end))
            return codec.load_all([elements[place] for place in places])
    except KeyError as error:
        raise CorruptRecordError(f"channel {channel!r}", f"element {error.args[0]} is missing") from None
    values: list[Any] = []
    for part in ref[1:]:
        if isinstance(part[0], int):
            values += value_of(codec, channel, [LIST, *part], elements)
        else:
            values.append(codec.load(codec.unseal(*part)))
    return values

"""`front_end_stream`: a run as the body of a response."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import overload

from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.shared.event_page import EventPage
from turnwise.adapters.front_ends.encoding import Frame, FrontEndEncoder
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import AnyEvent, RunCancelled

PAGE, SILENCE_S = 1000, 60.0
"""How many events are read at once, and how long the next one is waited for at once."""

_log = logging.getLogger(__name__)


@overload
def front_end_stream(execution: AsyncExecutionHandle, encoder: FrontEndEncoder) -> AsyncGenerator[bytes, None]: ...
@overload
def front_end_stream(execution: ExecutionHandle, encoder: FrontEndEncoder) -> Iterator[bytes]: ...
def front_end_stream(
    execution: AsyncExecutionHandle | ExecutionHandle, encoder: FrontEndEncoder
) -> AsyncGenerator[bytes, None] | Iterator[bytes]:
    """Return a run's answers as the body of a response, for the stream response of any web framework.

    It begins where the encoder begins, reads on while the run goes on, and ends with the run, or where calls wait for
    somebody. The media type is `text/event-stream`; `encoder.headers` has further headers. A stream that is dropped
    changes nothing: make another one with the id of the last frame, in any process.

    Of a merged run, it is the answer of the run that has its prompts. An error of turnwise ends the stream with a frame
    that says so.

    Args:
        execution: the run's handle, of either family; the stream is of the same family.
        encoder: a new `VercelEncoder` or `AgUiEncoder`.
    """
    if isinstance(execution, AsyncExecutionHandle):
        return _follow(execution, encoder)
    return _follow_blocking(execution, encoder)


async def _follow(execution: AsyncExecutionHandle, encoder: FrontEndEncoder) -> AsyncGenerator[bytes, None]:
    following: int | None = 0
    is_held = False
    try:
        while following is not None and not encoder.is_done:
            page = await execution.event_page(following, PAGE, wait_s=0.0 if is_held else SILENCE_S)
            if frames := _added(encoder, page):
                yield frames
            if _may_stop(encoder, page, is_held) and _waits(encoder, await execution.pending()):
                yield _encoded(encoder.stop())
            is_held = _may_be_held(encoder, page, is_held) and (await execution.info()).state == "awaiting_approval"
            following = _following(page)
    except TurnwiseError as error:
        yield _failed(encoder, error)


def _follow_blocking(execution: ExecutionHandle, encoder: FrontEndEncoder) -> Iterator[bytes]:
    following: int | None = 0
    is_held = False
    try:
        while following is not None and not encoder.is_done:
            page = execution.event_page(following, PAGE, wait_s=0.0 if is_held else SILENCE_S)
            if frames := _added(encoder, page):
                yield frames
            if _may_stop(encoder, page, is_held) and _waits(encoder, execution.pending()):
                yield _encoded(encoder.stop())
            is_held = _may_be_held(encoder, page, is_held) and execution.info().state == "awaiting_approval"
            following = _following(page)
    except TurnwiseError as error:
        yield _failed(encoder, error)


def _following(page: EventPage) -> int | None:
    """Return the number to read on after: from the first event if the rest is another run's, which has the prompts."""
    return 0 if any(isinstance(event, RunCancelled) and event.leads_to for event in page) else page.next


def _added(encoder: FrontEndEncoder, events: Sequence[AnyEvent]) -> bytes:
    return b"".join(_encoded(encoder.add(event)) for event in events)


def _may_stop(encoder: FrontEndEncoder, page: Sequence[AnyEvent], is_held: bool) -> bool:
    """Return whether the run waits for somebody: by its events, or as it did so before a page without any was read."""
    return bool(encoder.waiting) or (is_held and not page and bool(encoder.waiting_calls))


def _may_be_held(encoder: FrontEndEncoder, page: Sequence[AnyEvent], is_held: bool) -> bool:
    """Return whether to look if the run waits: then a page is read at once, and if it is empty, the stream ends."""
    return bool(encoder.waiting_calls) and not encoder.is_done and (bool(page) or not is_held)


def _waits(encoder: FrontEndEncoder, pending: Sequence[PendingCall]) -> bool:
    """Return whether the calls that waited when the last event came still wait."""
    return encoder.waiting_calls.keys() <= {call.call_id for call in pending}


def _failed(encoder: FrontEndEncoder, error: TurnwiseError) -> bytes:
    _log.info("a stream of a run ended: %s", type(error).__name__)
    return _encoded(encoder.failed(error))


def _encoded(frames: Sequence[Frame]) -> bytes:
    return b"".join(frame.encode() for frame in frames)

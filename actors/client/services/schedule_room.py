"""`check_room`: how many schedules the users of a service may have."""

from __future__ import annotations

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.errors import DeliveryNotFoundError, TooManySchedulesError

PAGE = 1000
"""How many schedules are read at once."""


async def check_room(
    manager: AsyncSessionManager, session: AsyncSession, key: str | None, limit: tuple[str, int]
) -> None:
    """Refuse a further schedule of a session whose user has as many as a service lets a user have.

    Nothing is locked meanwhile, so calls at the same moment may exceed the limit.

    Args:
        manager: that of the session.
        key: of the schedule that is to be added. One that the session has may be added again, as that changes nothing.
        limit: its name, and how many schedules all sessions of a user may have together.

    Raises:
        TooManySchedulesError: see above.
    """
    name, most = limit
    count, cursor = 0, None
    while count < most:
        page = await manager.schedules(user_id=session.user_id, cursor=cursor, limit=min(most - count, PAGE))
        count, cursor = count + len(page), page.cursor
        if cursor is None:
            break
    if count < most:
        return
    if key is not None:
        try:
            await session.get_schedule(key)
        except DeliveryNotFoundError:
            pass
        else:
            return
    raise TooManySchedulesError(session.session_id, name, most)

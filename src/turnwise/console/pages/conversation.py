"""The page of a conversation: its turns, the answer as it streams, and what can be done with it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from nicegui import ui
from nicegui.element import Element

from turnwise.actors.client.session import AsyncSession
from turnwise.actors.hosting.wire import SessionInfo
from turnwise.console.elements.blocks import show_block
from turnwise.console.elements.dialogs import confirmed, show_report
from turnwise.console.elements.frame import Frame, NotThereError, log_unexpected
from turnwise.console.elements.tags import badge, button, replace_text, tag
from turnwise.console.elements.text import moment, number, tokens_spent
from turnwise.console.pages.calls import MAX_CHARS, Calls
from turnwise.console.pages.files import Attachments, SessionFiles, file_url
from turnwise.console.pages.inspector import Inspector
from turnwise.console.pages.live import Live
from turnwise.console.pages.schedules import SessionSchedules
from turnwise.errors import InvalidInputError, NoActiveRunError, NotFoundError, RunNotFoundError
from turnwise.memory.conversation.blocks import AnyBlock, User
from turnwise.memory.conversation.codec import to_json
from turnwise.memory.conversation.sessions import MemberRole
from turnwise.memory.conversation.turns import OPEN_STATUSES
from turnwise.memory.conversation.views.chat_messages import ChatMessage

PAGE = 60
"""How many messages are read at once."""

REFRESH_S = 1.5
"""How often it is looked whether somebody else has changed the session, in seconds."""

GATHER_S = 0.1
"""How long stored events are gathered before the turns are read again, in seconds."""

THUMB = "thumb"
"""The mark that the console sets, `up` or `down`."""

_MARK_CHARS = 200
"""How many characters of a mark are shown."""

_KINDS = {"failed": "bad", "interrupted": "bad", "queued": "busy"}

_STAY_BELOW = """
(() => {
  let below = true;
  const at = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 120;
  window.addEventListener("scroll", () => { below = at(); }, {passive: true});
  const down = () => { if (below) window.scrollTo(0, document.documentElement.scrollHeight); };
  const observer = new ResizeObserver(down);
  for (const each of document.querySelectorAll(".turns, .composer, body")) observer.observe(each);
  down();
})();
"""


async def conversation_page(id: str = "", user: str = "") -> None:
    """Show a conversation."""
    page: _Conversation | None = None
    with Frame.of_page("session", "Conversation") as frame:
        heading = tag("h1", "", "Conversation")
        whole = tag("div")
        whole.on("keydown.escape", lambda: page and page.cancel(), args=[])
    if not await frame.arrived():
        return

    async def look() -> float | None:
        nonlocal page
        try:
            if page is None:
                session = await frame.viewer.session(id, user)
                heading.delete()
                with whole:
                    page = _Conversation(frame, session, await _role_of(session))
            return await page.refresh()
        except RunNotFoundError:
            return 0.0  # its turn was rolled back meanwhile
        except (NotFoundError, InvalidInputError) as error:
            raise NotThereError from error

    try:
        await frame.repeat(look)
    except NotThereError:
        if page:
            page.is_gone()
        frame.show("This conversation does not exist, or not any more.")


class _Conversation:
    """A conversation on a page. It follows the active run's events; other changes it finds by looking now and then."""

    def __init__(self, frame: Frame, session: AsyncSession, role: MemberRole) -> None:
        self._frame = frame
        self._session = session
        self._can_change = not frame.viewer.is_read_only and role == "owner"
        self._can_write = not frame.viewer.is_read_only and role != "reader"
        """Whether the viewer may send prompts. What else a member may do is checked when it is done."""
        self._may_read_schedules = role == "owner"
        self._file_url = partial(file_url, frame.viewer, session)
        self._messages: dict[int, dict[int, ChatMessage]] = defaultdict(dict)
        """What was read of each turn, by the number of the message."""
        self._turns: dict[int, tuple[object, Element]] = {}
        """What is shown of each turn: what it was made from, and its element."""
        self._earlier: str | None = None
        self._revision: int | None = None
        self._active: str | None = None
        self._followed: str | None = None
        """The active run whose events are followed."""
        self._is_read_soon = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self._is_waiting = False
        self._build()
        frame.client.on_delete(self.stop)

    def stop(self) -> None:
        """End what goes on beside the page's own task."""
        for task in list(self._tasks):
            task.cancel()

    def _build(self) -> None:
        with tag("div", "row top heading"):
            with tag("div", "grow"):
                self._title: Any = tag("h1", "", self._session.session_id)
                with tag("div", "row small soft"):
                    self._state: Any = badge("", "")
                    self._facts: Any = tag("span", "", "")
            if self._can_change:
                with tag("div", "row"):
                    button("Rename", self._rename)
                    button("Fork", self._fork)
                    button("End", self._end)
                    button("Delete", self._delete, "bad")
        self._report = tag("div", "", aria_live="polite")
        self._schedules = SessionSchedules(self._frame, self._session)
        self._files = SessionFiles(self._frame, self._session, may_delete=self._can_change)
        with tag("div", "talk") as talk, tag("section", "turns", aria_label="Turns"):
            self._more = button("Show earlier messages", self._show_earlier, "hidden")
            self._list = tag("div")
            self._live = Live()
            self._calls = Calls(self._frame.wake.set, self._frame.viewer.identity, is_read_only=not self._can_write)
        with talk:
            self._inspector = Inspector(self._session, talk, self._frame.viewer, is_read_only=not self._can_change)
        if self._can_write:
            self._composer = self._compose()
        self._frame.client.run_javascript(_STAY_BELOW)

    def _compose(self) -> Element:
        with tag("div", "composer") as composer:
            self._prompt = ui.textarea("Message").props(f"outlined autogrow maxlength={MAX_CHARS}")
            self._prompt.on("keydown.enter.exact.prevent", self._send, args=[])
            with tag("div", "row"):
                button("Send", self._send, "main")
                self._attachments = Attachments(self._frame, self._session)
                self._stop = button("Cancel the run", self.cancel, "bad hidden")
                tag("span", "small soft hint", "Enter sends, Shift+Enter makes a new line, Escape cancels")
            self._attachments.build()
        return composer

    # What it shows.

    async def refresh(self) -> float:
        """Show the session as it is, and follow the active run beside this."""
        info = await self._session.info()
        self._show_info(info)
        if info.session.revision != self._revision:
            await self._read(info)
        if self._may_read_schedules:
            await self._schedules.refresh()
        await self._files.refresh()
        if self._can_write:
            _show_if(self._attachments.choose, self._files.has_place)
        if info.active_run_id and info.active_run_id != self._followed:
            self._followed = info.active_run_id
            self._begin(self._follow(info.active_run_id))
        return REFRESH_S

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the page's own task, until it ends or the page goes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, run_id: str) -> None:
        self._live.clear()
        try:
            execution = await self._session.execution(run_id)
            async for event in execution.events():
                if event.live:
                    self._live.show_event(event)
                else:
                    if getattr(event, "span", None) or event.terminal:
                        self._live.is_stored()
                    self._read_soon()
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            log_unexpected(error)
            await asyncio.sleep(REFRESH_S)
            self._followed = None  # `refresh` says what is wrong, or begins again
        self._live.is_stored()
        self._revision = None
        self._frame.wake.set()

    def _read_soon(self) -> None:
        """Read the turns again once the events that come with this one have come too."""
        if not self._is_read_soon:
            self._is_read_soon = True
            self._begin(self._read_later())

    async def _read_later(self) -> None:
        await asyncio.sleep(GATHER_S)
        self._is_read_soon = False
        self._revision = None
        self._frame.wake.set()

    async def _read(self, info: SessionInfo) -> None:
        """Read the newest messages, and show what has changed."""
        page = await self._session.messages(PAGE)
        messages = [message for message in page if not message.is_partial]  # the live answer has the rest
        if not self._messages or page.cursor is None:
            self._earlier = page.cursor
        first = messages[0] if messages else None
        if first and page.cursor and first.turn_index > max(self._messages, default=first.turn_index) + 1:
            self._messages.clear()  # more has come than a page has
            self._earlier = page.cursor
        for index in [index for index in self._messages if first is None or index > first.turn_index]:
            del self._messages[index]
        if page.cursor is None:
            self._messages.clear()
        self._add(messages)
        self._revision = info.session.revision
        self._show_turns()
        await self._show_calls(info)
        self._live.give_way()
        await self._inspector.refresh()

    def _add(self, messages: Iterable[ChatMessage]) -> None:
        for message in messages:
            self._messages[message.turn_index][message.number] = message

    async def _show_calls(self, info: SessionInfo) -> None:
        execution = await self._session.execution(info.active_run_id) if info.active_run_id else None
        pending = await execution.pending() if execution else ()
        self._calls.show(execution, pending)
        self._is_waiting = bool(pending)
        self._show_state(info)

    def _show_info(self, info: SessionInfo) -> None:
        session = info.session
        self._active = info.active_run_id
        self._ended = session.status == "ended"
        replace_text(self._title, session.title or session.session_id)
        self._show_state(info)
        facts = [session.session_id, f"user {session.user_id}", session.agent and f"agent {session.agent}"]
        facts += [f"{number(session.next_index)} turns", tokens_spent(session.usage, session.agents_usage)]
        facts += [session.parent and f"forked from {session.parent}"]
        replace_text(self._facts, " · ".join(filter(None, facts)))
        if self._can_write:
            _show_if(self._stop, self._active is not None)
            _show_if(self._composer, not self._ended)

    def _show_state(self, info: SessionInfo) -> None:
        state, kind = ("ended", "") if self._ended else ("idle", "good")
        if self._active:
            state, kind = "waits for a person" if self._is_waiting else "running", "busy"
        queued = f", {len(info.queued_run_ids)} queued" if info.queued_run_ids else ""
        replace_text(self._state, f"{state}{queued}")
        self._state.classes(replace=f"badge {kind}")

    def _show_turns(self) -> None:
        for index in [index for index in self._turns if index not in self._messages]:
            self._turns.pop(index)[1].delete()
        order = sorted(self._messages)
        for place, index in enumerate(order):
            messages = [self._messages[index][key] for key in sorted(self._messages[index])]
            made_from = tuple(
                (message.turn_status, message.versions, message.blocks, message.marks) for message in messages
            )
            if index in self._turns and self._turns[index][0] == made_from:
                continue
            if index not in self._turns:
                with self._list:
                    element = tag("article", "turn", aria_label=f"Turn {index}")
                element.move(target_index=place)
            else:
                element = self._turns[index][1]
                element.clear()
            self._turns[index] = made_from, element
            with element:
                self._show_turn(index, messages)
        _show_if(self._more, self._earlier is not None)

    def _show_turn(self, index: int, messages: list[ChatMessage]) -> None:
        for message in messages:
            for block in message.blocks:
                show_block(block, self._session.user_id, self._file_url)
            self._show_marks(message)
        last = messages[-1]
        with tag("div", "foot"):
            tag("span", "", f"Turn {index}")
            tag("span", "", moment(last.at))
            if last.turn_status not in ("completed", "running"):
                badge(last.turn_status, _KINDS.get(last.turn_status, ""))
            if len(last.versions) > 1:
                self._show_versions(index, last.versions)
            if run_id := last.run_id:
                button("Inspect", lambda: self._inspector.open(index, run_id), "quiet")
            if self._can_write and last.turn_status not in OPEN_STATUSES:
                if self._can_change:
                    button("Fork from here", lambda: self._fork(index), "quiet")
                if any(message.role == "user" for message in messages):  # else the session spoke first
                    button("Edit", lambda: self._edit(index), "quiet")
                    button("Regenerate", lambda: self._rerun(index), "quiet")
                if self._can_change:
                    button("Forget", lambda: self._forget(index), "quiet")

    def _show_versions(self, index: int, versions: tuple[int, ...]) -> None:
        """Show which version of the turn this is, with arrows to the versions before and after it."""
        place = versions.index(index)
        with tag("span", "row versions", role="group", aria_label=f"Versions of turn {index}"):
            if self._can_change:
                self._arrow("←", "Show the version before", versions[place - 1] if place else None)
            tag("span", "", f"{place + 1} of {len(versions)}")
            if self._can_change:
                self._arrow("→", "Show the version after", (*versions[place + 1 :], None)[0])

    def _arrow(self, label: str, name: str, index: int | None) -> None:
        if index is None:
            tag("button", "button quiet", label, type="button", disabled=True, aria_label=name)
        else:
            button(label, lambda: self._choose(index), "quiet", aria_label=name)

    def _show_marks(self, message: ChatMessage) -> None:
        """Show the marks of a message, and at answers two thumbs."""
        has_thumbs = self._can_write and message.role == "assistant" and message.text.strip()
        if message.turn_status in OPEN_STATUSES or not (has_thumbs or message.marks):
            return
        thumb = message.marks.get(THUMB)
        with tag("div", "row small marks"):
            for name, mark in sorted(message.marks.items()):
                if name != THUMB or not has_thumbs:
                    value = mark.value if isinstance(mark.value, str) else to_json(mark.value)
                    tag("span", "badge", f"{name}: {value}"[:_MARK_CHARS], title=mark.by or "")
            for value, label in (("up", "Good answer"), ("down", "Bad answer")) if has_thumbs else ():
                is_set = thumb is not None and thumb.value == value
                with button(
                    "",
                    partial(self._mark, message, None if is_set else value),
                    "quiet",
                    aria_label=label,
                    aria_pressed="true" if is_set else "false",
                ):
                    # A ligature of NiceGUI's own font: for emojis some systems have none.
                    tag("span", "material-icons sign", f"thumb_{value}", aria_hidden="true")

    async def _mark(self, message: ChatMessage, value: str | None) -> None:
        identity = self._frame.viewer.identity
        await self._session.mark(message, THUMB, value, by=identity.user_id if identity else None)
        self._frame.wake.set()

    async def _show_earlier(self) -> None:
        if self._earlier:
            page = await self._session.messages(PAGE, before=self._earlier)
            self._earlier = page.cursor
            self._add(page)
            self._show_turns()

    def is_gone(self) -> None:
        """Take away what can be done: the session does not exist any more."""
        self.stop()
        if self._can_write:
            _show_if(self._composer, False)

    # What can be done.

    async def _send(self) -> None:
        text, attached = self._prompt.value or "", self._attachments.blocks
        if not (text.strip() or attached):
            return
        self._prompt.value, files = "", self._attachments.take()
        try:
            await self._session.run(*([text] if text.strip() else []), *attached, if_busy="enqueue")
        except Exception:
            self._prompt.value = self._prompt.value or text
            self._attachments.put_back(files)
            raise
        self._frame.wake.set()

    async def cancel(self) -> None:
        if self._active and self._can_write:
            with suppress(NoActiveRunError):
                await self._session.cancel("cancelled in the console")
            self._frame.wake.set()

    async def _rerun(self, index: int, *prompts: AnyBlock) -> None:
        """Answer a turn anew, with its own prompts if none are given."""
        await self._session.rerun(*prompts, at=index)
        self._frame.wake.set()

    async def _choose(self, index: int) -> None:
        await self._session.choose(index)
        self._frame.wake.set()

    async def _edit(self, index: int) -> None:
        turn = await self._session.turn(index)
        texts = [block.text for block in turn.asked if isinstance(block, User)]
        attached = [block for block in turn.asked if not isinstance(block, User)]
        with ui.dialog() as dialog, tag("div", "card"):
            tag("h2", "", f"Edit the message of turn {index}")
            field = ui.textarea("Message", value="\n".join(texts)).props(f"outlined autogrow maxlength={MAX_CHARS}")
            with tag("div", "row"):
                button("Answer it", lambda: dialog.submit(True), "main")
                button("Back", lambda: dialog.submit(False))
        if await dialog and (field.value or "").strip():
            await self._rerun(index, *attached, User(text=field.value))
        dialog.delete()

    async def _forget(self, index: int) -> None:
        reason = "No later request has it, and memories lose what they keep of it. The page still shows it."
        if await confirmed(f"Forget turn {index}?", reason, "Forget it"):
            report = await self._session.memory.forget(index, verify=True)
            self._report.clear()
            with self._report:
                show_report(report, self._close_report)
            self._frame.wake.set()

    def _close_report(self) -> None:
        self._report.clear()

    async def _fork(self, turn: int | None = None) -> None:
        fork = await self._session.fork(turn)
        viewer = self._frame.viewer
        ui.navigate.to(viewer.session_url(fork.session_id, fork.user_id).removeprefix(viewer.root))

    async def _end(self) -> None:
        if await confirmed("End this conversation?", "Its runs are cancelled, and it takes no new ones.", "End it"):
            await self._session.end()
            self._frame.wake.set()

    async def _delete(self) -> None:
        reason = "It cannot be restored. Memories forget what they keep of it."
        if await confirmed("Delete this conversation?", reason, "Delete it"):
            await self._session.delete()
            ui.navigate.to("/sessions")

    async def _rename(self) -> None:
        with ui.dialog() as dialog, tag("div", "card"):
            tag("h2", "", "Rename the conversation")
            field = ui.input("Title", value=self._title.text).props("outlined dense autofocus maxlength=1000")
            field.on("keydown.enter", lambda: dialog.submit(True), args=[])
            with tag("div", "row"):
                button("Save", lambda: dialog.submit(True), "main")
                button("Back", lambda: dialog.submit(False))
        if await dialog:
            await self._session.update(title=field.value or "")
            self._frame.wake.set()
        dialog.delete()


async def _role_of(session: AsyncSession) -> MemberRole:
    """Return what the viewer may do in a session."""
    return (await session.info()).session.role_of(session.as_user) or "reader"


def _show_if(element: Element, is_visible: bool) -> None:
    element.classes(remove="hidden") if is_visible else element.classes(add="hidden")
    element.update()

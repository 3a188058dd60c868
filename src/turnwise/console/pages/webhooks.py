"""The page of webhooks: whom operators have told of what, and calls that were given up, to be sent again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from turnwise.actors.client.webhooks import AsyncWebhook
from turnwise.console.elements.dialogs import confirmed
from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, button, fact, link, tag
from turnwise.console.elements.text import moment, number
from turnwise.errors import InvalidInputError, OperatorsOnlyError
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.webhooks import WEBHOOK_EVENTS
from turnwise.memory.stores.base import Page
from turnwise.memory.values.plain_text import plain

FAILED = 10
"""How many failed calls of a webhook are shown."""

REFRESH_S, _PAUSES = 2.0, 10
"""How often it is looked for changes, in seconds; less often if a look takes long."""

_URL_CHARS = 2000

_CHARS = 300
"""How many characters of an answer, and of a reason, are shown."""


async def webhooks_page() -> None:
    """Show the webhooks that the viewer may see."""
    with Frame.of_page("webhooks", "Webhooks") as frame:
        page = _Webhooks(frame)
    if await frame.arrived():
        await frame.repeat(page.refresh)


class _Webhooks:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._shown: object = None
        """What of the webhooks is shown, to be compared with what there is."""
        with tag("div", "row heading"):
            tag("h1", "grow", "Webhooks")
            if frame.viewer.sees_all and not frame.viewer.is_read_only:
                button("Add a webhook", self._add)
        self._list = tag("div")

    async def refresh(self) -> float | None:
        """Show what the store says now."""
        began, viewer = time.monotonic(), self._frame.viewer
        try:
            user_id = viewer.service.webhook_user(viewer.identity)
        except OperatorsOnlyError:
            with self._list:
                tag("div", "card empty", "Webhooks are shown to operators.")
            return None
        webhooks = await viewer.manager.webhooks(user_id=user_id)
        failed = [await webhook.failed(limit=FAILED) for webhook in webhooks]
        self._show(webhooks, failed)
        return max(REFRESH_S, _PAUSES * (time.monotonic() - began))

    def _show(self, webhooks: Sequence[AsyncWebhook], failed: Sequence[Page[Delivery]]) -> None:
        facts = [(webhook.id, webhook.url, webhook.events, webhook.is_enabled) for webhook in webhooks]
        now = facts, [(calls.items, calls.cursor) for calls in failed]
        if now == self._shown:
            return
        self._shown = now
        self._list.clear()
        with self._list:
            for webhook, calls in zip(webhooks, failed, strict=True):
                self._show_webhook(webhook, calls)
            if not webhooks:
                tag("div", "card empty", "There are no webhooks.")

    async def _add(self) -> None:
        """Ask whom to tell of what; show the new webhook's secret, which is shown nowhere else."""
        with (
            self._frame.client.content,
            ui.dialog() as dialog,
            tag("div", "card box", role="dialog", aria_label="Add a webhook"),
        ):
            tag("h2", "", "Add a webhook")
            url = ui.input("URL").props(f"outlined dense autofocus maxlength={_URL_CHARS}")
            user = ui.input("Sessions of this user; of all if empty").props(f"outlined dense maxlength={_URL_CHARS}")
            events = {event: ui.checkbox(event).props("dense") for event in WEBHOOK_EVENTS}
            private = ui.checkbox("The URL may lead inside the network, and be http://").props("dense")
            with tag("div", "row"):
                button("Add it", lambda: dialog.submit(True), "main")
                button("Back", lambda: dialog.submit(False))
        is_confirmed = bool(await dialog)
        dialog.delete()
        if not is_confirmed:
            return
        try:
            webhook = await self._frame.viewer.manager.webhook(
                (url.value or "").strip(),
                events=[event for event, box in events.items() if box.value],
                user_id=(user.value or "").strip() or None,
                allow_private=private.value,
            )
        except InvalidInputError as error:
            ui.notify(plain(str(error)), type="warning")
            return
        self._frame.wake.set()
        with (
            self._frame.client.content,
            ui.dialog(value=True),
            tag("div", "card box", role="dialog", aria_label="Its secret"),
        ):
            tag("h2", "", "Its secret")
            tag("p", "text", "The receiver checks signatures with it. It is shown this once.")
            tag("p", "mono", webhook.secret or "")

    def _show_webhook(self, webhook: AsyncWebhook, calls: Page[Delivery]) -> None:
        with tag("section", "card", aria_label=webhook.url):
            with tag("div", "row heading"):
                tag("h2", "grow clip", webhook.url)
                badge("enabled" if webhook.is_enabled else "disabled", "good" if webhook.is_enabled else "bad")
                if not self._frame.viewer.is_read_only:
                    self._show_buttons(webhook)
            with tag("dl", "facts"):
                fact("Tells of", ", ".join(webhook.events))
                if self._frame.viewer.sees_all:
                    fact("Sessions of", webhook.user_id or "all users")
                fact("Created", moment(webhook.created_at))
                fact("Id", webhook.id)
            if calls:
                self._show_failed(webhook, calls)

    def _show_buttons(self, webhook: AsyncWebhook) -> None:
        async def switch() -> None:
            await (webhook.disable() if webhook.is_enabled else webhook.enable())
            self._frame.wake.set()

        async def delete() -> None:
            with self._frame.client.content:  # not in the card, which may go while the viewer is asked
                reason = f"{webhook.url} is told of nothing more, and what failed is deleted, too."
                is_confirmed = await confirmed("Delete this webhook?", reason, "Delete the webhook")
            if is_confirmed:
                await webhook.delete()
                self._frame.wake.set()

        label = "Disable" if webhook.is_enabled else "Enable"
        button(label, switch, aria_label=f"{label} {webhook.url}")
        button("Delete", delete, "bad", aria_label=f"Delete {webhook.url}")

    def _show_failed(self, webhook: AsyncWebhook, calls: Page[Delivery]) -> None:
        is_read_only = self._frame.viewer.is_read_only
        with tag("div", "row"):
            tag("h3", "grow", "What it was not told")
            if not is_read_only:
                self._send_button(webhook, (), "Send all again", f"Send all again to {webhook.url}")
        names = ["Conversation", "Event", "Why it failed", "When", *([] if is_read_only else ["Actions"])]
        with tag("table", "list", aria_label=f"Failed calls of {webhook.url}"):
            with tag("thead"), tag("tr"):
                for name in names:
                    tag("th", "", name, scope="col")
            with tag("tbody"):
                for call in calls:
                    self._show_call(webhook, call)
        if calls.cursor:
            tag("div", "soft small", "There are more. Those of later events are shown when these are sent.")

    def _show_call(self, webhook: AsyncWebhook, call: Delivery) -> None:
        viewer, data = self._frame.viewer, call.payload.get("data")
        content: Any = data if isinstance(data, dict) else {}
        with tag("tr", "", aria_label=call.delivery_id):
            with tag("td"):
                link(call.session_id, viewer.session_url(call.session_id, call.user_id), "clip")
                if viewer.sees_all:
                    tag("div", "soft small", call.user_id)
            with tag("td"):
                tag("div", "", str(call.payload.get("type", "")))
                tag("div", "soft small clip", str(content.get("text") or content.get("why") or "")[:_CHARS])
            with tag("td"):
                tag("div", "", (call.why or "")[:_CHARS])
                tag("div", "soft small", f"{number(call.attempts)} attempt{'' if call.attempts == 1 else 's'}")
            tag("td", "", moment(call.created_at))
            if not viewer.is_read_only:
                with tag("td"):
                    name = f"Send {call.payload.get('type')} of {call.session_id} again"
                    self._send_button(webhook, (call.delivery_id,), "Send again", name)

    def _send_button(self, webhook: AsyncWebhook, calls: tuple[str, ...], label: str, name: str) -> None:
        async def send() -> None:
            await webhook.send_again(*calls)
            self._frame.wake.set()

        button(label, send, aria_label=name)

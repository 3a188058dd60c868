"""`turnwise webhooks`: which programs are told of what happens in a store's sessions, and what they were not told.

What changes webhooks finds the Ray that has the store as other commands do: see `session_control`. Calls are sent by
the process that begins scheduled runs, never by the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import AsJson, Command, Cursor, Limit, Namespace, OfUser, Server, Store, missing, reading, run
from turnwise.cli.output import Cell, Column, note, one_line, print_json, print_table, write
from turnwise.cli.session_control import changing
from turnwise.console.elements.text import moment, number

if TYPE_CHECKING:
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.client.webhooks import AsyncWebhook
    from turnwise.memory.deliveries.records import Delivery

webhooks = typer.Typer(
    help="Which programs are told of what happens, and what they were not told.", no_args_is_help=True
)

_MOST = 1000
"""How many failed calls of a webhook are counted."""

_TEXT_CHARS = 200

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook, as `turnwise webhooks ls` names it.")]
Secret = Annotated[
    str | None,
    typer.Option(
        envvar="TURNWISE_WEBHOOK_SECRET",
        help="Signs the calls: whsec_ and base64; random if omitted. Arguments can be seen: set the variable.",
    ),
]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", help="What it is told of, such as run.completed or run.failed; repeatable."),
]


@webhooks.command("ls", cls=Command)
def list_(
    store: Store,
    *,
    server: Server = None,
    user: OfUser = None,
    as_json: AsJson = False,
) -> None:
    """List webhooks: whom they tell, of what, and how many calls were given up."""

    async def work() -> None:
        async with reading(store) as manager:
            hooks = await manager.webhooks(user_id=user)
            counts = [len(await hook.failed(limit=_MOST)) for hook in hooks]
        if as_json:
            from turnwise.http.native.webhook_models import WebhookShown

            shown = [WebhookShown.model_validate(hook).model_dump(mode="json") for hook in hooks]
            print_json({"items": [{**hook, "failed": count} for hook, count in zip(shown, counts, strict=True)]})
            return
        names = ("webhook", "url", "events", "user", "state", "failed", "created")
        columns = [Column(name, right=name == "failed", cut=name == "events") for name in names]
        print_table(columns, [_row(hook, count) for hook, count in zip(hooks, counts, strict=True)])

    run(work())


def _row(hook: AsyncWebhook, failed: int) -> list[Cell]:
    return [
        hook.id,
        hook.url,
        ", ".join(hook.events),
        hook.user_id or "all",
        ("enabled", "green") if hook.is_enabled else ("disabled", "red"),
        "" if not failed else f"{number(failed)}{'+' if failed == _MOST else ''}",
        moment(hook.created_at),
    ]


@webhooks.command("add", cls=Command)
def add(
    store: Store,
    url: Annotated[str, typer.Argument(metavar="URL", help="Whom to tell: https://...")],
    *,
    server: Server = None,
    events: Events = None,
    secret: Secret = None,
    user: Annotated[str | None, typer.Option("--user", help="Only of this user's sessions; else of all.")] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="The URL may lead inside the network, and be http://.")
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="Repeated with the same key, it prints the webhook that it added first.")
    ] = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Have a URL told of what happens; print the webhook's id, and its secret, which is shown nowhere else."""
    event_types: Any = events or ()

    async def work() -> None:
        async with changing(store, namespace) as manager:
            hook = await manager.webhook(
                url, events=event_types, user_id=user, secret=secret, allow_private=allow_private, idempotency_key=key
            )
        if as_json:
            from turnwise.http.native.webhook_models import WebhookAdded

            print_json(WebhookAdded.model_validate(hook))
        else:
            write(f"{hook.id}\n{hook.secret}")

    run(work())


@webhooks.command("change", cls=Command)
def change(
    store: Store,
    webhook: WebhookId,
    *,
    server: Server = None,
    url: Annotated[str | None, typer.Option("--url", help="Tell this URL, also of what waits or failed.")] = None,
    events: Events = None,
    enable: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether it is told of what happens from now on.")
    ] = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Tell another URL, or of other events; enable a webhook again, as after its receiver has answered 410."""
    event_types: Any = events or None

    async def work() -> None:
        async with changing(store, namespace) as manager:
            hook = await _find(manager, webhook)
            if url is not None or event_types is not None:
                await hook.change(url=url, events=event_types)
            if enable is not None:
                await (hook.enable() if enable else hook.disable())
        if as_json:
            from turnwise.http.native.webhook_models import WebhookShown

            print_json(WebhookShown.model_validate(hook))
        else:
            state = "enabled" if hook.is_enabled else "disabled"
            write(one_line(f"webhook {hook.id} is {state}, and tells {hook.url} of {', '.join(hook.events)}"))

    run(work())


@webhooks.command("rotate-secret", cls=Command)
def rotate_secret(
    store: Store,
    webhook: WebhookId,
    *,
    server: Server = None,
    secret: Secret = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Replace a webhook's secret; print the new one, which is shown nowhere else. For a day both sign."""

    async def work() -> None:
        async with changing(store, namespace) as manager:
            fresh = await (await _find(manager, webhook)).rotate_secret(secret)
        _report({"id": webhook, "secret": fresh}, fresh, as_json=as_json)

    run(work())


@webhooks.command("rm", cls=Command)
def remove(
    store: Store,
    webhook: WebhookId,
    *,
    server: Server = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Delete a webhook for good, with its calls: what was not sent yet is not sent any more."""
    if not yes:
        typer.confirm(f"Delete webhook {webhook!r} and its calls? They cannot be restored.", abort=True, err=True)

    async def work() -> None:
        async with changing(store, namespace) as manager:
            await (await _find(manager, webhook)).delete()
        _report({"id": webhook, "deleted": True}, f"webhook {webhook} is deleted", as_json=as_json)

    run(work())


@webhooks.command("failed", cls=Command)
def failed(
    store: Store,
    webhook: WebhookId,
    *,
    server: Server = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the calls of a webhook that were given up: of which session, what they tell, and why they failed."""

    async def work() -> None:
        async with reading(store) as manager:
            page = await (await _find(manager, webhook)).failed(cursor=cursor, limit=min(limit, _MOST))
        if as_json:
            from turnwise.http.native.webhook_models import FailedCalls

            print_json(FailedCalls.of(page))
            return
        names = ("call", "session", "user", "event", "at", "attempts", "why", "text")
        columns = [Column(name, right=name == "attempts", cut=name in ("why", "text")) for name in names]
        print_table(columns, list(map(_failed_row, page)))
        if page.cursor:
            note(f"there are more: --limit shows more at once, --cursor '{page.cursor}' the next ones")

    run(work())


def _failed_row(call: Delivery) -> list[Cell]:
    data: Any = call.payload.get("data") or {}
    return [
        call.delivery_id,
        call.session_id,
        call.user_id,
        str(call.payload.get("type", "")),
        moment(call.created_at),
        number(call.attempts),
        call.why or "",
        str(data.get("text") or data.get("why") or "")[:_TEXT_CHARS],
    ]


@webhooks.command("send-again", cls=Command)
def send_again(
    store: Store,
    webhook: WebhookId,
    calls: Annotated[
        list[str] | None, typer.Argument(metavar="[CALL]...", help="Which failed calls; all of them if omitted.")
    ] = None,
    *,
    server: Server = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Send calls that were given up again, with the ids that they had, within a minute.

    The Ray that has the store sends them; without one, the next program that opens the store.
    """

    async def work() -> None:
        async with changing(store, namespace) as manager:
            count = await (await _find(manager, webhook)).send_again(*calls or ())
        _report({"id": webhook, "count": count}, f"calls that are sent again: {number(count)}", as_json=as_json)

    run(work())


async def _find(manager: AsyncSessionManager, webhook_id: str) -> AsyncWebhook:
    """Return a webhook.

    Raises:
        NotFoundError: there is none; the message names the nearest id.
    """
    hooks = {hook.id: hook for hook in await manager.webhooks()}
    if webhook_id not in hooks:
        raise missing("webhook", webhook_id, list(hooks))
    return hooks[webhook_id]


def _report(fields: dict[str, Any], message: str, *, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        write(one_line(message))

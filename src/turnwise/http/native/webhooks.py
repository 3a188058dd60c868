"""The native API: webhooks, by which other programs are told of what happens in sessions.

They are operators' things, since a store has few of them, and each makes the service call another program. A service
may let its users have some of their own, which are told of their own sessions: `max_webhooks_per_user`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from turnwise.actors.client.webhooks import AsyncWebhook
from turnwise.errors import OperatorsOnlyError, TooManyWebhooksError, WebhookNotFoundError
from turnwise.http.middleware.paths import InPath, path_of
from turnwise.http.native.sessions import CONFLICT, NOT_FOUND, Cursor, Limit
from turnwise.http.native.webhook_models import (
    AddWebhook,
    ChangeWebhook,
    FailedCalls,
    RotateSecret,
    SecretShown,
    SendAgain,
    SentAgain,
    WebhookAdded,
    WebhookDeleted,
    Webhooks,
    WebhookShown,
)
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import MAX_WEBHOOKS_PER_USER, Caller, RequestCaller
from turnwise.memory.deliveries.webhooks import repeatable_webhook_id

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["webhooks"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 403, 422, 429, 503),
)

Key = Annotated[
    str | None,
    Header(description="A repeated request with the same key gets the webhook that the first one created."),
]


async def _webhook(caller: Caller, webhook_id: str) -> AsyncWebhook:
    """Return a webhook that the caller reaches.

    Raises:
        OperatorsOnlyError: see `Service.webhook_user`.
        WebhookNotFoundError: there is none, or it is told of sessions of others, too.
    """
    for webhook in await caller.manager.webhooks(user_id=caller.service.webhook_user(caller.identity)):
        if webhook.id == webhook_id:
            return webhook
    raise WebhookNotFoundError(webhook_id)


@router.post(
    "/webhooks",
    summary="Have a URL told of what happens in sessions",
    status_code=201,
    responses=documented(409),
)
async def add_webhook(
    body: AddWebhook, caller: RequestCaller, *, request: Request, response: Response, idempotency_key: Key = None
) -> WebhookAdded:
    """The URL gets signed requests, as Standard Webhooks are, of all that is committed a minute later and after that.

    What happens is told at least once, and again for three days until the receiver answers with 200 to 299.
    """
    user_id = body.user_id
    if (own := caller.service.webhook_user(caller.identity)) is not None:
        if user_id not in (None, own):
            raise OperatorsOnlyError(own, "be told of sessions of others", "omit user_id")
        if body.allow_private:
            raise OperatorsOnlyError(own, "call addresses inside the network", "omit allow_private")
        user_id = own
        await _check_room(caller, own, idempotency_key)
    webhook = await caller.manager.webhook(
        body.url,
        events=body.events,
        user_id=user_id,
        secret=body.secret,
        allow_private=body.allow_private,
        idempotency_key=idempotency_key,
    )
    response.headers["Location"] = path_of(request.scope.get("root_path", ""), "v1", "webhooks", webhook.id)
    return WebhookAdded.model_validate(webhook)


async def _check_room(caller: Caller, user_id: str, idempotency_key: str | None) -> None:
    """Refuse a further webhook of a user who has as many as the service allows; see `check_room` of schedules."""
    most = caller.service.settings.max_webhooks_per_user
    ids = [webhook.id for webhook in await caller.manager.webhooks(user_id=user_id)]
    is_repeated = idempotency_key is not None and repeatable_webhook_id(user_id, idempotency_key) in ids
    if len(ids) >= most and not is_repeated:
        raise TooManyWebhooksError(user_id, MAX_WEBHOOKS_PER_USER, most)


@router.get("/webhooks", summary="List webhooks, oldest first")
async def list_webhooks(caller: RequestCaller) -> Webhooks:
    """Operators get all; others those that are told of their sessions alone."""
    return Webhooks.of(await caller.manager.webhooks(user_id=caller.service.webhook_user(caller.identity)))


@router.get("/webhooks/{webhook_id}", summary="Get a webhook", responses=NOT_FOUND)
async def get_webhook(webhook_id: InPath, caller: RequestCaller) -> WebhookShown:
    return WebhookShown.model_validate(await _webhook(caller, webhook_id))


@router.patch("/webhooks/{webhook_id}", summary="Change a webhook, enable or disable it", responses=CONFLICT)
async def change_webhook(webhook_id: InPath, body: ChangeWebhook, caller: RequestCaller) -> WebhookShown:
    """May be repeated. URL and events are changed first, and then it is enabled or disabled."""
    webhook = await _webhook(caller, webhook_id)
    if body.url is not None or body.events is not None:
        await webhook.change(url=body.url, events=body.events)
    if body.is_enabled is not None:
        await (webhook.enable() if body.is_enabled else webhook.disable())
    return WebhookShown.model_validate(webhook)


@router.post("/webhooks/{webhook_id}/rotate-secret", summary="Replace its secret", responses=CONFLICT)
async def rotate_secret(webhook_id: InPath, body: RotateSecret, caller: RequestCaller) -> SecretShown:
    """For a day both sign. A request that is repeated replaces it once more, unless it has the secret."""
    webhook = await _webhook(caller, webhook_id)
    return SecretShown(secret=await webhook.rotate_secret(body.secret))


@router.delete("/webhooks/{webhook_id}", summary="Delete a webhook with all its calls", responses=CONFLICT)
async def delete_webhook(webhook_id: InPath, caller: RequestCaller) -> WebhookDeleted:
    """May be repeated. What was not sent yet is not sent any more."""
    try:
        webhook = await _webhook(caller, webhook_id)
    except WebhookNotFoundError:
        return WebhookDeleted(deleted=False)
    await webhook.delete()
    return WebhookDeleted(deleted=True)


@router.get("/webhooks/{webhook_id}/failed", summary="Its calls that were given up", responses=NOT_FOUND)
async def list_failed_calls(
    webhook_id: InPath, caller: RequestCaller, *, cursor: Cursor = None, limit: Limit = 100
) -> FailedCalls:
    webhook = await _webhook(caller, webhook_id)
    return FailedCalls.of(await webhook.failed(cursor=cursor, limit=limit))


_ALL = SendAgain()


@router.post("/webhooks/{webhook_id}/send-again", summary="Send failed calls again", responses=CONFLICT)
async def send_again(webhook_id: InPath, caller: RequestCaller, body: SendAgain = _ALL) -> SentAgain:
    """Without a body, all that have failed. They have the `webhook-id` that they had.

    May be repeated: a call that waits is left as it is.
    """
    webhook = await _webhook(caller, webhook_id)
    return SentAgain(count=await webhook.send_again(*body.calls or ()))

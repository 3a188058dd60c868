from turnwise.actors.client.blocking.subscriptions import Subscription as Subscription
from turnwise.actors.client.blocking.webhooks import Webhook as Webhook
from turnwise.actors.client.shared.event_page import EventPage as EventPage
from turnwise.actors.client.subscriptions import AsyncSubscription as AsyncSubscription
from turnwise.actors.client.webhooks import AsyncWebhook as AsyncWebhook
from turnwise.actors.hosting.wire import (
    DrainReport as DrainReport,
    HostInfo as HostInfo,
    SessionInfo as SessionInfo,
)
from turnwise.memory.conversation.branches import Version as Version
from turnwise.memory.conversation.marks import Mark as Mark, MarkedMessage as MarkedMessage
from turnwise.memory.longterm.recall.recalled_content import RecalledItems as RecalledItems

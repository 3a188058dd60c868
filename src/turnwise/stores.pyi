from turnwise.actors.client.blocking.files import Files as Files
from turnwise.actors.client.files import AsyncFiles as AsyncFiles
from turnwise.memory.archive.expiry import Swept as Swept
from turnwise.memory.archive.export import export_session as export_session, import_session as import_session
from turnwise.memory.conversation.ledger import (
    LedgerQuery as LedgerQuery,
    LedgerRow as LedgerRow,
    UsageReport as UsageReport,
)
from turnwise.memory.conversation.runs import RunRecord as RunRecord, RunState as RunState
from turnwise.memory.conversation.sessions import SessionKey as SessionKey, SessionRecord as SessionRecord
from turnwise.memory.conversation.usage import Usage as Usage
from turnwise.memory.conversation.views.steps import Step as Step
from turnwise.memory.deliveries.records import Delivery as Delivery, DeliveryChange as DeliveryChange
from turnwise.memory.deliveries.schedules import Schedule as Schedule
from turnwise.memory.deliveries.webhooks import WebhookEvent as WebhookEvent, WebhookRecord as WebhookRecord
from turnwise.memory.event_store.base import HistoryStore as HistoryStore, check_appended as check_appended
from turnwise.memory.event_store.encrypted import EncryptedHistory as EncryptedHistory
from turnwise.memory.event_store.in_memory import InMemoryHistory as InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory as SQLHistory
from turnwise.memory.event_store.urls import open_history as open_history
from turnwise.memory.files.records import FileRecord as FileRecord
from turnwise.memory.longterm.items.base import (
    ItemFilter as ItemFilter,
    ItemStore as ItemStore,
    StoredItem as StoredItem,
)
from turnwise.memory.longterm.items.in_memory import InMemoryItems as InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems as RedisItems
from turnwise.memory.longterm.items.sql import SQLItems as SQLItems
from turnwise.memory.longterm.items.urls import open_items as open_items
from turnwise.memory.quotas.records import (
    CounterKey as CounterKey,
    Quota as Quota,
    QuotaCount as QuotaCount,
    QuotaCounter as QuotaCounter,
    QuotaCounters as QuotaCounters,
    QuotaUse as QuotaUse,
)
from turnwise.memory.quotas.tenants import Tenant as Tenant
from turnwise.memory.stores.base import (
    Commit as Commit,
    DeliveryLease as DeliveryLease,
    Page as Page,
    SessionStore as SessionStore,
)
from turnwise.memory.stores.encrypted.settings import Encryption as Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore as EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore as InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore as RedisStore
from turnwise.memory.stores.search.finding import SearchHit as SearchHit
from turnwise.memory.stores.search.records import (
    MessageText as MessageText,
    Searchable as Searchable,
    TextFilter as TextFilter,
    TextHit as TextHit,
)
from turnwise.memory.stores.sql.store import SQLStore as SQLStore

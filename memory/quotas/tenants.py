"""Tenants: labels on users, such as the name of the company for which they work. A user has one, or none.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from dataclasses import dataclass
from typing import Any

from turnwise.errors import InvalidIdError, shown
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.values.ids import check_id
from turnwise.memory.values.records import Record

MAX_TENANT_BYTES = 64
"""The most bytes of a tenant in UTF-8, so that a database can index it in the ledger together with other names."""


@dataclass(frozen=True, kw_only=True)
class Tenant(Record):
    """A tenant of a store."""

    tenant: str
    users: int
    """How many users have this label."""

    _repr_html_ = record_html


def check_tenant(tenant: Any) -> str:
    """Return a tenant that can be stored: an id, of at most `MAX_TENANT_BYTES`, and not `*`, which stands for each.

    Raises:
        InvalidIdError: it cannot.
    """
    name = check_id("tenant", tenant)
    if (size := len(name.encode())) > MAX_TENANT_BYTES:
        raise InvalidIdError("tenant", shown(name), f"it has {size} bytes, and may have {MAX_TENANT_BYTES}")
    if name == "*":
        raise InvalidIdError("tenant", name, "it stands for each tenant")
    return name

"""Commands about what is used by whom: `quotas`, `usage` and `tenants`."""

"""Commands about what is used by whom, and who they are: `quotas`, `usage` and `tenants`.

Import from the modules; `commands.py` does.
"""

"""Sessions, memories and stores as actors of a Ray cluster: what `Dedicated` and `Packed` need beside the hosts.

All other rooms do without Ray. `client` imports from here when a manager's placement needs it, and so do the command
line and the HTTP service, to connect.
"""

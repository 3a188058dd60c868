"""Sessions, memories and stores in the caller's process, without Ray: what `InProcess` needs beside the hosts.

Only `client` imports from here, and only if a manager's placement is `InProcess`.
"""

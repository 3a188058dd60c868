"""Long-term memories as hosts: the process that has one, and how all others use it.

The runtimes make a `MemoryHost` in its process; `client` imports `RemoteMemory` and `equip` from `remote_memory.py`.
"""

"""Long-term memories: their items, models that extract and embed, and sessions that have some.

On Ray there is `memory_manager.py`, and on virtual time `session_memories.py`.
"""

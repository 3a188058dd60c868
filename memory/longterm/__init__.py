"""Long-term memory: the protocol in `base`, the memories that keep what they are told, and sections of prompts.

Rooms within: items (where facts are kept), search (how they are found), extraction (facts that a model finds),
vector, migration.
"""

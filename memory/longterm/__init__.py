"""Long-term memory: the protocol in `base`, its implementations, and the sections of prompts that it fills.

Packages: items (storage of facts), search (how facts are found), extraction (facts that a model finds in messages),
vector, migration. Programs import names from `turnwise.memories`; `actors` imports from the modules here.
"""

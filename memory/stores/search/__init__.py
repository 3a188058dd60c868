"""Full-text search over what was said: words of texts, queries, snippets, and what a store that can search has.

Builds on `memory.conversation` and `memory.values`; stores, the core of sessions and the manager import from its files.
"""

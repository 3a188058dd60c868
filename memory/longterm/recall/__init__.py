"""How items are found and get into a request: words, ranking, the index of a user's items, sections of prompts.

Nothing here stores anything. Memories and `actors` import from the modules here.
"""

"""How long items stay, and how they are deleted for good: expiry by use, verified deletion, the search of files.

Programs import names from `turnwise.memories`; `actors` imports from the modules here.
"""

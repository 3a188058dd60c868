"""Migration: converts the memories of other systems to memory items.

Only the command line imports from the modules here: `turnwise memory migrate`.
"""

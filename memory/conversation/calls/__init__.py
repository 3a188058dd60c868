"""Calls of tools and their results: arguments, states, decisions, and which result answers which call.

Import from the modules here in any room above `turnwise.memory.values`.
"""

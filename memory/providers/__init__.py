"""Blocks as messages of each provider's API, and the rules by which a provider takes them.

Imports conversation only.
"""

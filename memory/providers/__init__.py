"""Converts blocks to messages of each provider's API, and checks them by the provider's rules.

Imports conversation only.
"""

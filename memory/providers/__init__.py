"""Converts blocks to messages of each provider's API, and checks them by the provider's rules.

Imports conversation only. Engines, `tokens` and `adapters` import from the modules here; programs import the
conversions from `turnwise.transcripts`.
"""

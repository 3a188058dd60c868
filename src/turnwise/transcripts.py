"""Transcripts: a conversation as ordered messages, its providers' rules, and how events rebuild it."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)

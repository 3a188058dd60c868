"""`OpenAIEngine`: an engine for the Chat Completions API, the Responses API, and compatible servers.

Programs import it from `turnwise`. `adapters.anthropic` builds on the modules here; the rooms of sessions know only the
protocols of `inference/engine.py`.
"""

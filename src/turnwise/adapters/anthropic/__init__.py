"""Anthropic's models: `AnthropicEngine`, which asks the Messages API through the official client.

Programs import it from `turnwise.adapters`; nothing else imports from the modules here. The conversion of blocks to
messages is in `turnwise.memory.providers`.
"""

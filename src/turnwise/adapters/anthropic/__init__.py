"""Anthropic's models: `AnthropicEngine`, which asks the Messages API through the official client."""

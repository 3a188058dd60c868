"""`OpenAIEngine`: the Chat Completions API, the Responses API, and servers that speak one of them."""

"""`OpenAIEngine`: an engine for the Chat Completions API, the Responses API, and compatible servers."""

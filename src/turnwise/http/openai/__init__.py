"""OpenAI's dialect, under `/openai/v1`, for any client of its API.

`models.py` and `chat.py` are the routes of models and of chat completions; `messages.py` reads chat messages into
blocks, and `completion.py` shows a run as a completion. `errors.py` answers errors as OpenAI does.
"""

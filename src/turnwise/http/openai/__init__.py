"""OpenAI's dialect, under `/openai/v1`, for any client of its API.

`models.py` and `chat.py` are the routes of models and of chat completions; `messages.py` reads chat messages into
blocks, and `completion.py` shows a run as a completion. `errors.py` answers errors as OpenAI does.

`responses.py` and `conversations.py` are the routes of the stateful API. `fields.py` has what a request may say,
`starting.py` starts responses, `inputs.py` reads items into blocks, `items.py` shows blocks as items, in `pages.py`,
`projection.py` shows a run's events as those of a response, `answers.py` shows the response, and `ids.py` makes ids.
"""

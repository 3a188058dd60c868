"""OpenAI's dialect, under `/openai/v1`, for any client of its API.

`models.py` has the models that requests may name, and `errors.py` answers errors as OpenAI does.

`chat_completions/` has the route of chat completions.

`responses.py` and `conversations.py` are the routes of the stateful API. `fields.py` has what a request may say,
`start_response.py` starts responses, `inputs.py` reads items into blocks, `items.py` shows blocks as items, `pages.py`
lists them, `projection.py` shows a run's events as those of a response, `output_stream.py` numbers these events,
`answers.py` shows the response, and `ids.py` makes ids.

Programs import nothing from here: `turnwise.http.app` includes the routes.
"""

"""A simulated model provider: OpenAI's and Anthropic's wire formats over HTTP on loopback, without a model.

    python -m turnwise.testing.local_provider --port 8000          then: OPENAI_BASE_URL=http://127.0.0.1:8000/v1

    from turnwise.testing import LocalProvider

    with LocalProvider() as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url)

It serves POST /v1/chat/completions, POST /v1/responses and Anthropic's POST /v1/messages, streamed or not, POST
/v1/embeddings and GET /v1/models. It refuses requests that the real API would refuse, and records requests and when a
client closed its connection. One reply function serves all three: it gets the conversation and returns an answer in the
format of chat. As Anthropic, it signs thoughts and requires their signatures, and remembers marked prefixes as cached;
its `base_url` there is `provider.anthropic_url`. Any model name works. A model name that is a fault, or ends in
`/<fault>`, or the header `x-fault: <fault>`, makes it misbehave:

    fault            what happens
    slow             50 ms pass before each token
    hang             the request is taken and never answered
    stall            the answer stops after three tokens; the connection stays open
    cut              the connection closes after three tokens, in the middle of the stream
    unfinished       the stream ends properly after three tokens, but without a word on why
    malformed        after three tokens comes a chunk that is not JSON
    error            after three tokens comes a chunk that is an error
    empty            the answer is empty, and complete
    length           the answer ends after three tokens, at the limit of its length
    400 ... 599      that status; 429 and 503 with Retry-After, in `retry_after_s`
    <fault>-once     the fault at the first request for that model, and an answer from then on

Without streaming, faults in the middle of an answer close the connection instead of answering.

It uses the standard library only, and nothing of turnwise, so that neither hides mistakes of the other:
`tests/project/test_house.py` checks that. `server` has the class, `replies` what it answers, `chat_completions`,
`responses`, `anthropic_messages` and `embeddings` the APIs, `message_rules` what a valid conversation is.
"""

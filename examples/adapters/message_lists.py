"""A chat from elsewhere goes on in a session: a list of messages in, tool calls included, lists of any provider out.

    pip install turnwise; python examples/adapters/message_lists.py

A simulated model answers.
"""

from turnwise import EchoEngine, Packed, SessionManager
from turnwise.errors import InvalidInputError

CHAT = [  # such as an application kept for OpenAI's Chat Completions
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "What is the weather in Oslo?"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "It rains."},
]


def main() -> None:
    with SessionManager("memory://chats", engine=EchoEngine(), placement=Packed(hosts=1)) as manager:
        session = manager.import_messages("oslo", CHAT, user_id="sarah")
        turn = session.run("And tomorrow?").wait()
        print(turn.text)
        print([message["role"] for message in session.export_messages("openai_chat")])
        print([part["type"] for message in turn.to("anthropic") for part in message["content"]])
        try:
            manager.import_messages("half", CHAT[:3])  # a call without its result: no provider would take it
        except InvalidInputError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()

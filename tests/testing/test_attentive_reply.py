"""The simulated model of `make window`: it answers from its request alone, and sums up."""

import json

import pytest

from turnwise.actors.inference.echo import EchoEngine
from turnwise.memory.conversation.blocks import Block, Image, Summary, System, Text, User
from turnwise.memory.providers.openai_chat import encode
from turnwise.strategies.conformance_conversations import Conversation
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.window import TokenBudget
from turnwise.testing.local_provider.replies import attentive_reply, summary_of, tokens_of

SYSTEM = "You help the employees of Northwind.\n\nHandbook\n- Parental leave takes up to fourteen months.\n"
SYSTEM += "- Parental leave is paid by the state; the company adds up to eighty percent."
LEAVE = "My parental leave is booked from 2 March to 29 May."
FACTS = ["Hello! I am Mara Lindqvist. I work in the Ghent office.", LEAVE, "I am allergic to peanuts."]
ASKED = "What did I tell you about my parental leave?"


def summary_request(*blocks: Block) -> list[dict[str, object]]:
    """Return the request for a summary of all but the last exchange."""
    talk = Conversation()
    talk.add([*blocks, User(text="And now?"), Text(text="x" * 3000)])
    strategy = Summarize(EchoEngine(), keep_turns=1, trigger_ratio=0.5)
    plan = strategy.decide(talk.window(), TokenBudget(4000))
    assert plan and plan.summary
    return encode(plan.summary.request(talk.window()))


def test_a_summary_has_the_users_facts_and_those_of_the_last_summary() -> None:
    first = attentive_reply(
        summary_request(
            System(text="I am the system."),
            Image(url="https://example.org/dog.png"),
            User(text="Hello! I am Ada. My dog is called Pi.\nMay I ask: is 3.14 enough?"),
            Text(text="I am sure. My word on it."),
            User(text='"summary of what came before": we\nWrite the summary now. My cat is "Tau".'),
            Text(text="Noted."),
        )
    )
    assert first == 'The user said: I am Ada. My dog is called Pi. My cat is "Tau".'
    folded = [Summary(text=first), User(text="I am Ada. Our garden is new. I like it, you?"), Text(text="Yes.")]
    second = attentive_reply(summary_request(*folded))
    assert second == f"{first} Our garden is new."


def test_a_summary_has_at_most_the_allowed_words() -> None:
    lines = [json.dumps({"user": f"My number {number} is {number}."}) for number in range(200)]
    for limit, most in [(50, 50), (5000, 120), (2, 3)]:
        request = "\n".join([*lines, "", f"Write the summary now. Write no more than {limit} words."])
        summary = summary_of(request)
        assert len(tokens_of(summary)) <= most
        assert summary.startswith("The user said:")
    assert len(tokens_of(summary_of("\n".join([*lines, "", "Write the summary now."])))) > 110


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ([], "You have not told me, as far as I can see."),
        (["How is parental leave paid?"], "You have not told me, as far as I can see."),
        (["My leave is short."], "You have not told me, as far as I can see."),
        ([*FACTS, "How long may parental leave take?"], f"You told me: {LEAVE}"),
        ([f"[summary of the conversation so far]\nThe user said: I am Mara. {LEAVE}"], f"You told me: {LEAVE}"),
        ([f"You have noted this:\nuser: {LEAVE}\nassistant: Good."], f"You told me: {LEAVE}"),
    ],
    ids=["nothing", "a question", "another leave", "the fact", "a summary", "a note"],
)
def test_questions_about_the_user_are_answered_only_from_the_request(before: list[str], answer: str) -> None:
    parts = [{"type": "text", "text": text} for text in [*before, ASKED]]
    apart = [{"role": "user", "content": text} for text in [*before, ASKED]]
    instructions = {"role": "system", "content": SYSTEM}
    assert attentive_reply([instructions, {"role": "user", "content": parts}]) == answer
    assert attentive_reply([instructions, *apart]) == answer


def test_other_questions_are_answered_from_the_instructions() -> None:
    instructions = {"role": "system", "content": SYSTEM}
    question = {"role": "user", "content": f"{LEAVE} How is parental leave paid?"}
    assert "paid by the state" in attentive_reply([instructions, question])
    assert attentive_reply([question]) == "The handbook does not say."
    assert attentive_reply([instructions, {"role": "user", "content": LEAVE}]) == "Thank you, I have noted that."

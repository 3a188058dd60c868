"""Facts that are extracted from messages in German, Chinese and Arabic, and found again in these languages."""

from __future__ import annotations

import pytest

from memories.extraction_models import USER, Model, fact, texts, told
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems

DAY = 1_770_000_000.0  # 2 February 2026

FACTS = [
    ("Ich wohne in Graz.", "Der Nutzer wohnt in Graz.", "Wo wohne ich, in Graz?"),
    ("Ich esse kein Fleisch.", "Der Nutzer isst kein Fleisch.", "Esse ich Fleisch?"),
    ("我住在柏林。", "用户住在柏林。", "我住在柏林吗？"),  # noqa: RUF001 - Chinese marks
    ("你好！我对花生过敏。", "用户对花生过敏", "我对花生过敏吗？"),  # noqa: RUF001
    ("我的女儿叫小雨。", "用户的女儿叫小雨。", "小雨几岁？"),  # noqa: RUF001
]
IN_OTHER_WORDS = [
    (
        "Ich arbeite seit März als Krankenschwester in Linz.",
        "Die Nutzerin ist Krankenschwester.",
        "Krankenschwester Linz",
    ),
    ("Ich bin Vegetarierin und wohne in Graz.", "The user eats no meat.", "Vegetarierin Graz"),
    ("我不吃肉，请记住。", "用户不吃肉。", "吃肉吗"),  # noqa: RUF001
    ("我住在柏林。", "The user lives in Berlin.", "我住在柏林吗？"),  # noqa: RUF001
    ("أسكن في برلين مع أختي.", "يسكن المستخدم في برلين.", "كيف الطقس في برلين؟"),
    ("أنا طبيبة أسنان وأعيش في عمّان.", "المستخدمة طبيبة أسنان.", "طبيبة أسنان في عمّان"),
    ("أعاني من حساسية من الفول السوداني.", "The user is allergic to peanuts.", "الفول السوداني"),
]
NOTHING = [
    ("Weißt du ein gutes Restaurant?", "Der Nutzer sucht ein Restaurant."),
    ("你知道好餐馆吗？", "用户在找餐馆。"),  # noqa: RUF001
    ("هل تعرف مطعما جيدا؟", "المستخدم يبحث عن مطعم."),
    ("我住在柏林吗？", "用户住在柏林。"),  # noqa: RUF001
]


async def extracted(statement: str, claim: str, *, is_stated: bool = True) -> ExtractiveMemory:
    model = Model(lambda _: [fact(claim, statement)], lambda _: {"c1": is_stated})
    memory = ExtractiveMemory(model, InMemoryItems())
    await memory.remember(USER, [told(1, statement, at=DAY)])
    return memory


@pytest.mark.by_turns
@pytest.mark.parametrize(("statement", "claim", "query"), FACTS)
async def test_a_fact_that_is_stated_is_kept_and_found(statement: str, claim: str, query: str) -> None:
    memory = await extracted(statement, claim)
    assert await texts(memory.store) == [claim] and "quoted" not in memory.stats
    assert [item.text for item in await memory.recall(USER, query)] == [claim]


@pytest.mark.parametrize(("statement", "claim", "query"), IN_OTHER_WORDS)
async def test_what_is_in_other_words_or_another_language_is_kept_as_the_model_judges(
    statement: str, claim: str, query: str
) -> None:
    assert await texts((await extracted(statement, claim)).store) == [claim]
    memory = await extracted(statement, claim, is_stated=False)
    (text,) = await texts(memory.store)
    assert text.startswith("On 2 February 2026 the user said: ") and statement.rstrip(".。")[:4] in text
    assert [item.text for item in await memory.recall(USER, query)] == [text]


@pytest.mark.parametrize(("statement", "claim"), NOTHING)
async def test_a_question_is_no_fact_in_any_language(statement: str, claim: str) -> None:
    assert await texts((await extracted(statement, claim)).store) == []


async def test_a_newer_fact_in_chinese_replaces_the_one_that_the_model_names() -> None:
    answers = iter(
        [
            [fact("用户住在柏林。", "我住在柏林。")],
            [fact("用户住在维也纳。", "我住在维也纳。", action="supersede", of=["f1"])],
        ]
    )
    memory = ExtractiveMemory(Model(lambda _: next(answers)), InMemoryItems())
    await memory.remember(USER, [told(1, "我住在柏林。", at=DAY)])
    await memory.remember(USER, [told(2, "我住在维也纳。", at=DAY + 60)])
    assert await texts(memory.store) == ["用户住在维也纳。"]

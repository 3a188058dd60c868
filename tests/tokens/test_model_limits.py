from __future__ import annotations

import pytest

from turnwise.memory.tokens.context_windows import window_of


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-3.5-turbo", 16_385),
        ("gpt-4", 8_192),
        ("gpt-4-turbo", 128_000),
        ("gpt-4o", 128_000),
        ("gpt-4o-mini", 128_000),
        ("gpt-4.1", 1_047_576),
        ("gpt-4.1-nano", 1_047_576),
        ("o1-mini", 128_000),
        ("o3", 200_000),
        ("o4-mini", 200_000),
        ("gpt-5.4-mini", 272_000),
        ("gpt-5.4", 922_000),
        ("gpt-6-sol", 922_000),
    ],
)
def test_a_model_has_the_window_of_its_page(model: str, window: int) -> None:
    assert window_of(model) == window


@pytest.mark.parametrize(
    ("model", "input_tokens"), [("gpt-5", 272_000), ("gpt-5-pro", 128_000), ("gpt-5-chat-latest", 128_000)]
)
def test_a_window_is_at_most_the_input_limit(model: str, input_tokens: int) -> None:
    assert window_of(model) == input_tokens


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4-0613", "gpt-4"),
        ("gpt-4-turbo-2024-04-09", "gpt-4-turbo"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini"),
        ("o3-2025-04-16", "o3"),
        ("gpt-5-2025-08-07", "gpt-5"),
    ],
)
def test_a_snapshot_has_the_window_of_its_model(model: str, family: str) -> None:
    assert window_of(model) == window_of(family) is not None


def test_a_snapshot_with_a_window_of_its_own_has_that() -> None:
    assert window_of("gpt-3.5-turbo-0613") == 4_096
    assert window_of("gpt-4-1106-preview") == 128_000


@pytest.mark.parametrize(
    "model",
    [
        *("openai/gpt-4o", "openrouter/openai/gpt-4o", "openai/gpt-4o-2024-08-06"),
        *("ft:gpt-4o-2024-08-06:org::id", "ft:gpt-4o:org:name:id", "openai/ft:gpt-4o:org::id"),
    ],
)
def test_models_with_prefixes_and_tuned_models_are_known(model: str) -> None:
    assert window_of(model) == 128_000


@pytest.mark.parametrize(
    "model",
    [
        *("", "local", "ft:", "ft:local:org::id", "openai/", "claude-sonnet-4-5", "GPT", "davinci-002"),
        *("gpt", "gpt-", "gpt-4-", "gpt-40", "gpt-4.2", "gpt-4o-transcribe", "gpt-4o-mini-tts", "gpt-5.9", "gpt-7"),
        *("gpt-4o-2024", "gpt-4o-2024-08", "gpt-4-all", "o5", "o30", "gpt-oss-120b", "text-embedding-3-small"),
        *("github/gpt-4o", "azure/gpt-4.1", "notopenai/gpt-4o", "openai/some/gpt-4o"),
    ],
)
def test_an_unknown_model_has_no_window(model: str) -> None:
    assert window_of(model) is None

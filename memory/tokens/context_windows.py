"""Context windows of OpenAI's chat models.

The numbers are from the model pages in OpenAI's API documentation, as copied in November 2026 by two tables: LiteLLM's
"model_prices_and_context_window.json" of release 1.109.1, and models.dev. Numbers of retired models are from earlier
versions of these. If numbers differ, the smallest is used.
"""

from __future__ import annotations

import re

# A starred group is only a line of names.
_MODELS_BY_WINDOW = {
    4_096: ("gpt-3.5-turbo-0301", "gpt-3.5-turbo-0613"),
    8_192: ("gpt-4",),
    16_385: ("gpt-3.5-turbo", "gpt-3.5-turbo-16k"),
    32_768: ("gpt-4-32k",),
    128_000: (
        *("gpt-4-turbo", "gpt-4-turbo-preview", "gpt-4-1106-preview", "gpt-4-0125-preview"),
        *("gpt-4o", "gpt-4o-mini", "chatgpt-4o-latest", "o1-preview", "o1-mini"),
        *("gpt-5-chat-latest", "gpt-5.1-chat-latest", "gpt-5.2-chat-latest", "gpt-5.3-chat-latest"),
        "gpt-5-pro",  # 400,000, of which 272,000 are reserved for the answer
    ),
    200_000: ("o1", "o1-pro", "o3", "o3-mini", "o3-pro", "o3-deep-research", "o4-mini", "o4-mini-deep-research"),
    # 400,000, of which 128,000 are reserved for the answer.
    272_000: (
        *("gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5-codex"),
        *("gpt-5.1", "gpt-5.1-codex", "gpt-5.1-codex-mini", "gpt-5.1-codex-max"),
        *("gpt-5.2", "gpt-5.2-pro", "gpt-5.2-codex", "gpt-5.3-codex", "gpt-5.4-mini", "gpt-5.4-nano"),
    ),
    # 1,050,000, of which 128,000 are reserved for the answer.
    922_000: (
        *("gpt-5.4", "gpt-5.4-pro", "gpt-5.5", "gpt-5.5-pro"),
        *("gpt-5.6", "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna"),
        *("gpt-6-astra", "gpt-6-sol", "gpt-6-luna", "gpt-6.1-sol", "gpt-6.1-terra"),
    ),
    1_047_576: ("gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"),
}

_WINDOWS = {model: window for window, models in _MODELS_BY_WINDOW.items() for model in models}

_SNAPSHOT = re.compile(r"-(\d{4}-\d\d-\d\d|[01]\d{3})$")
"""The date at the end of a model's name."""


def window_of(model: str) -> int | None:
    """Return how many tokens a request to this model and its answer may have together; None if unknown.

    A model such as gpt-5 reserves a part of its window for the answer. For such a model this is the rest, the most that
    it accepts as input. So requests stay smaller than necessary, and are never too long.

    Known names are `gpt-4o`, `gpt-4o-2024-08-06`, `ft:gpt-4o:...` and `openai/gpt-4o`, also behind a gateway's name as
    in `openrouter/openai/gpt-4o`. Names with another provider's prefix are unknown, since that provider may serve the
    model with a smaller window. Other names that only begin like a known name are unknown too.
    """
    provider, _, name = model.rpartition("/")
    if provider.rpartition("/")[2] not in ("", "openai"):
        return None
    if name.startswith("ft:"):
        name = name.split(":")[1]
    return _WINDOWS.get(name) or _WINDOWS.get(_SNAPSHOT.sub("", name))

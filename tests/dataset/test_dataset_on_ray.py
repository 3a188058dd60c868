"""Examples as a dataset of Ray Data, which tasks on the cluster read from the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from turnwise import SessionManager
from turnwise.dataset import Examples, Selection

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data"),  # of Ray Data's own settings
]
YES = {"training": "yes"}


def test_tasks_read_the_examples_when_the_dataset_is_consumed(
    make_ray_manager: Callable[..., SessionManager], request: pytest.FixtureRequest
) -> None:
    for store in (None, f"memory://{request.node.name}"):
        manager = make_ray_manager(**({"store": store} if store else {}))
        messages = [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
        ]
        for number in range(5):
            manager.import_messages(f"chat-{number}", messages, "openai_chat", metadata=YES)
        examples = Examples(manager, Selection(consent=YES, redact=lambda text: text.upper(), format="trl"))
        dataset = examples.to_ray(blocks=2)
        manager.get("chat-0").delete()
        rows = dataset.take_all()
        assert [row["messages"][1] for row in rows] == [{"role": "assistant", "content": "HELLO."}] * 4

"""Files of sessions in processes of their own: the caller puts them, and the session's process reads them."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

from turnwise import OpenAIEngine, Packed, SessionManager
from turnwise.blocks import Image
from turnwise.testing import LocalProvider

MakeManager = Callable[..., SessionManager]


def test_a_session_in_another_process_reads_files_and_makes_them(make_ray_manager: MakeManager) -> None:
    asked: list[Sequence[dict[str, Any]]] = []

    def note(messages: Sequence[dict[str, Any]]) -> str:
        asked.append(messages)
        return "I see"

    small, large = b"\x89PNG\r\n\x1a\n" + b"a" * 10, b"\x89PNG\r\n\x1a\n" + b"b" * 70_000
    with LocalProvider(reply=note) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="none", max_retries=0)
        manager = make_ray_manager(engine=engine, placement=Packed(hosts=1))
        chat = manager.open("chat")
        file = chat.files.put("a.png", small)
        chat.run("look", Image(file=file.file_id), Image.from_bytes(large, "image/png")).wait()
        for data in (small, large):
            assert base64.b64encode(data).decode() in str(asked[-1])
        assert sorted(chat.files.get(each.file_id) for each in chat.files.list()) == sorted([small, large])
        chat.delete()

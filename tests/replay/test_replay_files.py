"""What a replay writes: lines, Parquet, the report."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest

from turnwise import EchoEngine, InProcess, OpenAIEngine, Price, SessionConfig, SessionManager
from turnwise.engines import FunctionEngine
from turnwise.errors import ConfigError
from turnwise.replay import Selection, replay
from turnwise.replay.writing import check_parquet, flat_row, write_parquet

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028"


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        for name in ("one", "two"):
            chat = manager.open(name, user_id="ann", agent="help")
            for prompt in ("Hello.", EVIL):
                chat.run(prompt, labels={"channel": "mail"}).wait()
    return url


def data_of(html: str) -> Any:
    found = re.search(r"^const data = (.*);$", html, re.MULTILINE)
    assert found
    return json.loads(found[1])


def test_the_report_is_one_file_whose_texts_are_data_and_no_markup(store: str, tmp_path: Path) -> None:
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        result = replay(
            manager, engine=FunctionEngine(lambda turn: EVIL), floor=EchoEngine(), out=tmp_path / "report", keep=3
        )
    html = result.files["report"].read_text(encoding="utf-8")
    assert html.count("<script") == html.count("</script") == 1
    assert "<img" not in html
    assert "\u2028" not in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    data = data_of(html)
    assert (data["turns"], data["conversations"], len(data["shown"])) == (4, 2, 3)
    assert data["shown"][0]["answer"]["text"] == EVIL
    assert {group["name"] for group in data["groups"]} == set()  # each group has all turns
    lines = [json.loads(line) for line in result.files["lines"].read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 4
    assert {line["recorded"]["text"] for line in lines} == {"Hello.", EVIL}
    assert {line["labels"]["channel"] for line in lines} == {"mail"}


def test_settings_are_kept_beside_what_was_found_and_no_key_is_among_them(store: str, tmp_path: Path) -> None:
    engine = OpenAIEngine(
        "gpt-5",
        temperature=0.5,
        api_key="sk-secret",
        base_url="http://me:secret@127.0.0.1:1/v1?key=secret",
        system="Hi.",
    )
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        select = Selection(sample=1, seed=4, labels={"channel": "mail"})
        config = SessionConfig(prices={"gpt-5": Price(input=1.0, output=2.0)})
        result = replay(manager, engine=engine, floor=EchoEngine(), select=select, config=config, seed=5, out=tmp_path)
    text = result.files["settings"].read_text(encoding="utf-8")
    assert json.loads(text) == result.settings
    assert "secret" not in text
    made = result.settings["variant"]["engines"][""]
    assert (made["model"], made["temperature"], made["system"]) == ("gpt-5", 0.5, "Hi.")
    assert (result.settings["seed"], result.settings["select"]["seed"]) == (5, 4)
    assert result.settings["prices"]["gpt-5"]
    assert result.settings["floor"]["engines"][""]["class"] == "EchoEngine"
    assert result.turns[0].answer.status == "failed"  # nobody listens there


def test_a_row_of_parquet_has_each_number_in_a_column_of_its_own(store: str, tmp_path: Path) -> None:
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        result = replay(manager, engine=EchoEngine(), out=tmp_path)
    row = flat_row(json.loads(result.files["lines"].read_text(encoding="utf-8").splitlines()[0]))
    assert row["answer_usage_output_tokens"] >= 1
    assert row["answer_status"] == "completed"
    assert row["change_similarity"] == 1.0
    assert row["change_same"] is True
    assert row["floor_text"] is None
    assert row["labels"] == '{"channel": "mail"}'
    assert isinstance(row["created_at"], float)


def test_parquet_without_pyarrow_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        check_parquet()


def test_parquet_is_written_in_batches_of_one_schema(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in of pyarrow, which this environment may lack."""
    tables: list[tuple[list[dict[str, Any]], Any]] = []

    class Writer:
        def __init__(self, path: Path, schema: Any) -> None:
            path.write_bytes(b"")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None: ...

        def write_table(self, table: Any) -> None:
            tables.append(table)

    arrow: Any = ModuleType("pyarrow")
    for name in ("string", "int64", "float64", "bool_"):
        setattr(arrow, name, lambda name=name: name)
    arrow.schema = dict
    arrow.Table = SimpleNamespace(from_pylist=lambda rows, schema: (rows, schema))
    parquet: Any = ModuleType("pyarrow.parquet")
    parquet.ParquetWriter = Writer
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    monkeypatch.setattr("turnwise.replay.writing.check_parquet", lambda: None)
    monkeypatch.setattr("turnwise.replay.writing._ROWS_AT_ONCE", 3)
    with SessionManager(store, engine=EchoEngine(), placement=InProcess()) as manager:
        lines = replay(manager, engine=EchoEngine(), out=tmp_path).files["lines"]
    assert write_parquet(lines) == tmp_path / "turns.parquet"
    assert [len(rows) for rows, _ in tables] == [3, 1]
    assert all(set(row) == set(schema) for rows, schema in tables for row in rows)

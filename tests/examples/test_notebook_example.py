"""The notebook runs from its first cell to its last, and shows tables."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from processes.example_program import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NOTEBOOK = EXAMPLES / "notebook.ipynb"


def test_it_is_stored_without_outputs_and_without_paths_of_a_machine() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook["cells"])
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not [place for place in ("/home", "/work", "/tmp", "/root") if place in text]


def test_both_managers_work_in_it_and_what_they_return_is_shown_as_tables(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RAY_ADDRESS": ray_address, "IPYTHONDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [(cell.source, output) for cell in notebook.cells for output in cell.get("outputs", ())]
    tables = {source.splitlines()[-1]: html_of(output) for source, output in outputs}
    assert "<td" in tables["chat"] and "sarah" in tables["chat"]
    assert "When does the &lt;b&gt;first&lt;/b&gt; train leave?" in tables["run.wait()"]
    assert tables["chat.turns()"].startswith("<table") and "Turn: 2" in tables["chat.turns()"]
    assert "RunRecord: 2" in tables["chat.runs()"]
    assert "A trip to Paris" in tables['manager.list(user_id="sarah")']
    assert "always at the window" in tables['chat.memory.recall("Where is her seat?")']
    assert "weather({&quot;city&quot;: &quot;Paris&quot;})" in tables["await execution"]
    assert "Take an umbrella." in tables["await execution"]
    assert "Step: 3" in tables["await execution.steps()"]
    assert "SessionRecord: 2" in tables['await agents.list(user_id="sarah", order_by="updated_at")']
    assert not any("<b>" in html for html in tables.values())


def html_of(output: Any) -> str:
    return str(output.get("data", {}).get("text/html", ""))

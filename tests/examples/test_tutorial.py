"""The tutorial: its pages show the programs as they are, and its notebook runs to the end."""

import os
import sys
from pathlib import Path

import nbformat
import psutil  # type: ignore[import-untyped]
import pytest
from nbclient import NotebookClient

from memories.vector_memories import free_port
from pages import tutorial_notebook
from pages.markdown_blocks import blocks_of

pytestmark = [pytest.mark.timeout(200), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PRINTED = [
    "assistant: One two three.",
    "assistant: These words are said one by one, until a kill; the next program goes on.",
    "It wants to call pay with {'euros': 75}.",
    "It is paid. ['bill', 'pay']",
    "The model was told: {'StaticMemory': 1, 'LexicalMemory': 1}",
    "Tom finds: ['Parental leave is 14 weeks for everyone.']",
    "Forgotten, and looked for afterwards: True",
    "And how old is it?",
    "['all about tides', 'all about boats'] The report is done.",
]
"""What its cells print, in order."""


@pytest.mark.parametrize("page", tutorial_notebook.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_its_program_as_it_is_below_the_docstring(page: Path) -> None:
    program = tutorial_notebook.NOTEBOOK.with_name(tutorial_notebook.program_of(page))
    shown = next(block for block in blocks_of(page) if block.kind.startswith("python"))
    docstring, _, code = program.read_text(encoding="utf-8").partition('"""\n\n')
    assert shown.text == code
    assert page.relative_to(page.parents[2]).as_posix() in docstring


@pytest.mark.by_turns
def test_the_notebook_is_made_of_the_pages_and_runs_as_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tutorial_notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert text == tutorial_notebook.notebook()
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    port = str(free_port())
    for cell in notebook.cells:
        if cell.source.startswith("%pip"):
            cell.source = ""
        cell.source = cell.source.replace('"step4_service.py"]', f'"step4_service.py", "{port}"]')
        cell.source = cell.source.replace("& sleep 3;", "> words & while ! [ -s words ]; do sleep 0.1; done;")
        cell.source = cell.source.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace(" 8000)", f" {port})")
    client = NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    try:
        client.execute()
    finally:
        for process in psutil.process_iter(["cwd"]):  # what is left of its programs, if it failed
            if process.info["cwd"] == str(tmp_path):
                process.kill()
    printed = "".join(
        output.text for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "stream"
    )
    positions = [printed.find(words) for words in PRINTED]
    assert -1 not in positions and positions == sorted(positions), printed

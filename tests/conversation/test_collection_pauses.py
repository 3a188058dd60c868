"""Garbage collection while a large package is imported, and while many objects are made."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from turnwise.memory.values.collection_pauses import collection_paused, importing

NEW = "a_package_that_is_not_imported"


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_garbage_is_not_collected_while_a_package_is_imported() -> None:
    with importing(NEW):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), importing(NEW):
        __import__(NEW)
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_block_that_makes_many_objects() -> None:
    with collection_paused(1000):
        assert not gc.isenabled()
    with collection_paused(1):
        assert gc.isenabled(), "a few records are not worth it"
    with pytest.raises(ModuleNotFoundError), collection_paused(1000):
        __import__(NEW)
    assert gc.isenabled()
    gc.disable()
    with collection_paused(1000):
        pass
    assert not gc.isenabled(), "a program without garbage collection stays without it"


def test_a_module_that_is_imported_already_pauses_no_collection() -> None:
    with importing("sys"):
        assert gc.isenabled()


def test_a_program_without_garbage_collection_stays_without_it() -> None:
    gc.disable()
    with importing(NEW):
        pass
    assert not gc.isenabled()


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()  # as the tests themselves do, before the first one
    frozen = gc.get_freeze_count()
    with importing(NEW):
        pass
    assert gc.get_freeze_count() == frozen > 0


def test_imported_objects_count_as_old_and_later_garbage_among_them_is_collected() -> None:
    program = f"""import gc, weakref
from turnwise.memory.values.collection_pauses import importing
class Node: pass
with importing({NEW!r}):
    node = Node()
    node.itself = node
assert gc.get_freeze_count() == 0
assert any(item is node for item in gc.get_objects(generation=2))
gone = weakref.ref(node)
del node
gc.collect()
print(gone())"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "None"

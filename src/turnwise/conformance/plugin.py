"""The plugin for pytest: `pytest -p turnwise.conformance.plugin --turnwise-store=my_package:make` makes tests of laws.

Each law is a test. Without paths, pytest runs the laws only. A table follows the tests, and `--turnwise-report=path`
writes all reports to a file of JSON lines. Loaded by `-p`, or by `pytest_plugins` of a root `conftest.py`; otherwise
nothing of it is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from turnwise.conformance.reports import Kind, Outcome, Report, laws_of, outcomes_of

_REPORTS: dict[tuple[Kind, str], list[Outcome]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for each kind, and one for the file of the reports."""
    group = parser.getgroup("turnwise", "the laws of turnwise")
    for kind in get_args(Kind):
        group.addoption(
            f"--turnwise-{kind}",
            metavar="MODULE:NAME",
            action="append",
            default=[],
            help=f"check the laws of a {kind}, which this function makes",
        )
    group.addoption(
        "--turnwise-report", metavar="PATH", help="write the reports of the laws to this file, as JSON lines"
    )


def _requested(config: pytest.Config) -> Iterator[tuple[Kind, str]]:
    for kind in get_args(Kind):
        yield from ((kind, name) for name in config.getoption(f"turnwise_{kind.replace('-', '_')}"))


def pytest_configure(config: pytest.Config) -> None:
    """Collect no files if only laws were asked for."""
    if any(_requested(config)) and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    _REPORTS.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the laws in front of the tests."""
    laws: list[pytest.Item] = []
    for kind, name in _requested(config):
        group = _Laws.from_parent(session, name=f"{kind} {name}", kind=kind, make_name=name)
        laws += group.collect()
    items[:0] = laws


class _Laws(pytest.Collector):
    """The laws of one object."""

    def __init__(self, kind: Kind, make_name: str, **about: Any) -> None:
        super().__init__(nodeid=about["name"], **about)
        self.kind = kind
        self.make_name = make_name
        self._outcomes: dict[str, Outcome] | None = None

    def collect(self) -> list[pytest.Item]:
        """Return a test for each law."""
        return [_LawItem.from_parent(self, name=law) for law in laws_of(self.kind)]

    def outcome(self, law: str) -> Outcome:
        """Check a law. Those of a strategy are checked together, at the first."""
        if self.kind != "strategy":
            return next(outcomes_of(self.kind, loaded(self.make_name), [law]))
        if self._outcomes is None:
            outcomes = outcomes_of(self.kind, loaded(self.make_name), laws_of(self.kind))
            self._outcomes = {outcome.law: outcome for outcome in outcomes}
        return self._outcomes[law]


class _LawItem(pytest.Item):
    """A law, as a test."""

    def runtest(self) -> None:
        """Check the law."""
        group = self.parent
        assert isinstance(group, _Laws)  # noqa: S101 - as it was made
        outcome = group.outcome(self.name)
        _REPORTS.setdefault((group.kind, group.make_name), []).append(outcome)
        if outcome.verdict == "skipped":
            pytest.skip(outcome.why)
        if outcome.verdict == "failed":
            raise _BrokenError(f"{self.name}: {outcome.why}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the law and why it is broken, without a traceback of this plugin."""
        if isinstance(excinfo.value, _BrokenError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return what pytest calls the test."""
        group = self.parent
        return self.path, None, f"{group.name if group else ''}: {self.name}"


class _BrokenError(Exception):
    """A law is broken."""


def loaded(name: str) -> Any:
    """Return what `module:name` names; the folder in which pytest was started can be imported from.

    Raises:
        pytest.UsageError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(f"{name} cannot be imported ({error}): pass module:function") from error
    if not callable(value):
        raise pytest.UsageError(f"{name} is no function: pass module:function, which makes what is checked")
    return value


def reports() -> Iterable[Report]:
    """Return the reports of the laws that were checked so far."""
    return [Report(kind, name, tuple(outcomes)) for (kind, name), outcomes in _REPORTS.items()]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the tables, and write them to the file."""
    for report in reports():
        terminalreporter.section("laws of turnwise")
        terminalreporter.write_line(str(report))
    if path := config.getoption("turnwise_report"):
        Path(path).write_text("".join(f"{report.json()}\n" for report in reports()), encoding="utf-8")

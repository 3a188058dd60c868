"""What travels between processes of two versions: it is understood, or refused with both versions named."""

import pickle
import sys
from collections import namedtuple
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.actors import wire_version
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.identity import identity
from turnwise.actors.hosting.placement import Dedicated
from turnwise.actors.hosting.wire import HostLoad, Message, Refused, SessionRef, StartAnswer
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.wire_version import (
    OWN,
    WireVersion,
    by_version,
    packed,
    unpacked,
    unpacked_answer,
    unpacked_settings,
)
from turnwise.errors import OverloadedError, WireVersionError
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.conversation.branches import Branch
from turnwise.memory.conversation.ledger import Purpose
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.quotas.records import CounterKey
from turnwise.memory.values.named_tuples import by_name

LATER = WireVersion(2, 2, "0.2.0")
ADDING = WireVersion(1, 1, "0.1.1")
REF = SessionRef(SessionKey("s"))


def sent_by(sender: WireVersion, value: object) -> bytes:
    """Return what a process of this version would send."""
    return pickle.dumps(value) + sender.trailer


def fit_request(value: object) -> None:
    """Compare what was unpickled, as `unpacked` does."""
    if why := wire_version._fit(value):  # noqa: SLF001 - since classes of a function do not pickle
        raise wire_version.misfit(sent_by(ADDING, None), why)


def with_field(value: Any, **fields: object) -> Any:
    """Return a dataclass as one of a later version, which has more fields."""
    copy = replace(value)
    vars(copy).update(fields)
    return copy


def test_what_is_sent_is_still_a_pickle() -> None:
    assert pickle.loads(packed(REF)) == unpacked(packed(REF)) == REF


def test_a_wire_version_that_does_not_fit_is_refused_with_both_named() -> None:
    class Unreadable:
        def __reduce__(self) -> Any:
            return print, ("unpickled",)

    with pytest.raises(WireVersionError) as refused:
        unpacked(sent_by(LATER, Unreadable()))
    assert str(OWN) in str(refused.value) and "0.2.0 (wire version 2)" in str(refused.value)
    with pytest.raises(WireVersionError, match="turnwise unknown: it does not say its version"):
        unpacked(pickle.dumps(REF))


def test_the_newer_of_two_says_whether_they_fit() -> None:
    first, second, third = WireVersion(1, 1, "1"), WireVersion(2, 1, "2"), WireVersion(3, 2, "3")
    assert first.fits(second) and second.fits(first) and second.fits(third) and third.fits(second)
    assert not first.fits(third) and not third.fits(first)


def test_a_release_of_the_same_wire_version_is_understood() -> None:
    message = verbs.info().to(REF)
    assert unpacked(sent_by(ADDING, message)) == message


def test_a_field_of_a_later_version_is_refused_and_named() -> None:
    later = with_field(SessionConfig(), hurries=True)
    with pytest.raises(WireVersionError, match=r"0\.1\.1 .*: SessionConfig has 'hurries', which this version does not"):
        unpacked(sent_by(ADDING, ("setup", {"config": [later]})))
    with pytest.raises(WireVersionError, match="SessionConfig has 'hurries'"):
        unpacked_settings(packed((later,)))


def test_a_field_of_this_version_that_an_earlier_one_lacks_has_its_default() -> None:
    earlier = Dedicated(max_waits=7)
    del vars(earlier)["max_waits"]
    assert unpacked(sent_by(ADDING, earlier)).max_waits == Dedicated().max_waits
    load = HostLoad(sessions=1, recent=())
    del vars(load)["sessions"]
    with pytest.raises(WireVersionError, match="HostLoad lacks 'sessions', which this version needs"):
        unpacked(sent_by(ADDING, load))


def test_an_answer_leaves_out_fields_of_a_later_version_since_what_was_asked_is_done() -> None:
    later = with_field(StartAnswer("r", 3, None), mood="calm")
    answer = unpacked_answer(sent_by(ADDING, [with_field(Dedicated(max_waits=7), hurries=True), {"a": later}]))
    assert answer == [Dedicated(max_waits=7), {"a": StartAnswer("r", 3, None)}]
    assert not any("mood" in vars(one) or "hurries" in vars(one) for one in (answer[0], answer[1]["a"]))
    del vars(later)["turn_index"]
    with pytest.raises(WireVersionError, match="StartAnswer lacks 'turn_index', which this version needs"):
        unpacked_answer(sent_by(ADDING, later))
    with pytest.raises(WireVersionError, match="wire version 2"):
        unpacked_answer(sent_by(LATER, REF))


def test_a_block_of_another_version_has_the_fields_that_this_one_knows() -> None:
    block = Text(text="hello")
    later = Text.model_construct(**dict(block))
    vars(later)["mood"] = "calm"
    with pytest.raises(WireVersionError, match="Text has 'mood', which this version does not know"):
        unpacked(sent_by(ADDING, ("start", [later])))
    assert vars(unpacked_answer(sent_by(ADDING, later))) == vars(block)
    earlier = Text.model_construct(**dict(block))
    missing = next(name for name, field in Text.model_fields.items() if not field.is_required() and name != "kind")
    del vars(earlier)[missing]
    assert unpacked(sent_by(ADDING, earlier)) == block


@pytest.mark.parametrize(
    "value", [SessionKey("s", "ann"), Span("1", 2, 3), Branch(1, 0), Purpose("run", "m"), CounterKey("ann", "", "q")]
)
def test_named_tuples_have_their_values_by_name(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version has one field more, before the others."""
    kind = type(value)
    data = sent_by(ADDING, value)
    make: Any = namedtuple  # noqa: PYI024 - like any of these classes
    later = make(kind.__name__, ["mood", *kind._fields], defaults=["calm", *[None] * len(kind._fields)])
    monkeypatch.setattr(sys.modules[kind.__module__], kind.__name__, later)
    received = unpacked(data)
    assert received == ("calm", *value) and {name: getattr(received, name) for name in kind._fields} == value._asdict()
    monkeypatch.setattr(later, "__module__", kind.__module__)
    monkeypatch.setattr(later, "__reduce__", by_name, raising=False)
    sent = sent_by(ADDING, received)
    monkeypatch.undo()
    with pytest.raises(WireVersionError, match="unexpected keyword argument 'mood'"):
        unpacked(sent)


def test_an_error_of_an_earlier_version_that_lacks_a_field_is_still_that_error() -> None:
    data = sent_by(ADDING, Refused(OverloadedError("s", "max_calls", 7))).replace(b"value", b"worth")
    error = unpacked_answer(data).error
    assert isinstance(error, OverloadedError)
    assert vars(error) | {"worth": 7} == {"session_id": "s", "limit": "max_calls", "value": None, "worth": 7}


def test_a_class_of_a_later_version_is_refused_and_named() -> None:
    data = pickle.dumps(REF, 0).replace(b"SessionRef", b"SessionRex") + ADDING.trailer
    with pytest.raises(WireVersionError, match=r"0\.1\.1 .*AttributeError.*SessionRex"):
        unpacked(data)


def test_an_argument_that_the_receiver_does_not_know_is_refused_whatever_the_release() -> None:
    make, (parcel,) = by_version(SessionKey, session_id="s", mood="calm")
    with pytest.raises(WireVersionError, match="SessionKey: got an unexpected keyword argument 'mood'"):
        pickle.loads(pickle.dumps(parcel))
    make, (parcel,) = by_version(SessionKey, session_id="s")
    assert make(pickle.loads(pickle.dumps(parcel))) == SessionKey("s")


def test_a_handle_that_was_pickled_is_still_the_same_setting() -> None:
    """Of an engine or a tool that holds it."""
    with SessionManager("memory://held", engine=EchoEngine(), placement=InProcess()) as manager:
        run = manager.open("s").run("hello")
        run.wait()
        assert identity(pickle.loads(pickle.dumps([run]))) == identity([run])
        assert identity([manager.get("s").run("again")]) != identity([run])


def test_what_any_object_holds_is_compared() -> None:
    """Such as a partial function, a bound method, an object of a program's class, or a list within a set's element."""

    class Own:
        def __init__(self, held: object) -> None:
            self.held = held

        def call(self) -> None: ...

    later = with_field(Dedicated(), hurries=True)
    for holding in (Own(later), partial(print, config=later), Own([later]).call, {(1, (later,))}, {later: 1}):
        with pytest.raises(WireVersionError, match="Dedicated has 'hurries'"):
            fit_request(holding)


def test_a_host_answers_another_version_by_naming_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its caller raises that error, whichever of the two is the newer."""
    with SessionManager("memory://versions", engine=EchoEngine(), placement=InProcess()) as manager:
        chat = manager.open("s")
        assert chat.run("hello").wait().text == "hello"
        monkeypatch.setattr(wire_version, "OWN", LATER)
        request = verbs.info().to(REF).pickled()
        monkeypatch.undo()
        with pytest.raises(WireVersionError, match=r"0\.2\.0 \(wire version 2\)"):
            unpacked(request)
        monkeypatch.setattr(Message, "pickled", lambda message: sent_by(LATER, message))
        with pytest.raises(WireVersionError, match=r"0\.2\.0 \(wire version 2\).*upgrade the older one"):
            chat.run("again").wait()
        monkeypatch.undo()
        assert chat.run("once more").wait().text == "once more"
        assert [turn.text for turn in chat.turns()] == ["hello", "once more"]

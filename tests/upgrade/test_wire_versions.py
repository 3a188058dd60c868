"""What travels between processes of two versions: it is understood, or refused with both versions named."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.actors.hosting import verbs, wire_version
from turnwise.actors.hosting.placement import Dedicated
from turnwise.actors.hosting.wire import HostLoad, Message, SessionRef
from turnwise.actors.hosting.wire_version import OWN, WireVersion, packed, unpacked, unpacked_settings
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import WireVersionError
from turnwise.memory.conversation.sessions import SessionKey

LATER = WireVersion(2, 2, "0.2.0")
ADDING = WireVersion(1, 1, "0.1.1")
REF = SessionRef(SessionKey("s"))


def sent_by(sender: WireVersion, value: object) -> bytes:
    """Return what a process of this version would send."""
    return pickle.dumps(value) + sender.trailer


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


def test_a_class_of_a_later_version_is_refused_and_named() -> None:
    data = pickle.dumps(REF, 0).replace(b"SessionRef", b"SessionRex") + ADDING.trailer
    with pytest.raises(WireVersionError, match=r"0\.1\.1 .*AttributeError.*SessionRex"):
        unpacked(data)


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

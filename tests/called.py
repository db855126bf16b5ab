"""Whether tests, and items of the reproduction, call the functions that docs/paper_map.md says they call.

``python -m tests.called FILE``: FILE holds wishes as JSON, and in the end those that were not granted. A wish has a
label, names of functions, any of which will do (those that end with a dot stand for all that begin so), and sources,
any of which may call it: tests by their pytest names, items by theirs. Each is run until it has called all it is asked
for, and no further: this is about calls, and whether the tests pass is seen elsewhere.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


class Enough(BaseException):
    """Everything has been called; no Exception, so that nothing on the way up takes it for one."""


class Recorder:
    """A plugin of pytest. It follows every call of a function of unmask."""

    def __init__(self, wishes: list[dict[str, Any]]) -> None:
        self.open = wishes
        self.may_end = False

    def asked(self, source: str) -> list[dict[str, Any]]:
        return [wish for wish in self.open if source in wish["sources"]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self.following(item.nodeid.split("[")[0]):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not self.asked(item.nodeid.split("[")[0]):
            pytest.skip("it has been seen to call everything")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self.may_end = True  # not in a fixture: others may need it whole
        try:
            return (yield)
        finally:
            self.may_end = False

    @contextmanager
    def following(self, source: str) -> Iterator[None]:
        seen: set[Any] = set()

        def enter(frame: Any, event: str, argument: Any) -> None:
            module = frame.f_globals.get("__name__", "")
            if frame.f_code in seen or not module.startswith("unmask."):
                return
            seen.add(frame.f_code)
            name = f"{module}.{frame.f_code.co_qualname}"
            for wish in self.asked(source):
                if any(name == one or (one[-1] == "." and name.startswith(one)) for one in wish["functions"]):
                    self.open.remove(wish)
            if self.may_end and not self.asked(source):
                raise Enough

        threading.settrace(enter)
        sys.settrace(enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]


def main(file: Path) -> None:
    from unmask.reproduce import Settings, cells, run

    recorder = Recorder(json.loads(file.read_text()))
    sources = sorted({source for wish in recorder.open for source in wish["sources"]})
    tests = [source for source in sources if "::" in source]
    code = pytest.main(["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[recorder])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), code
    recorder.may_end = True
    for item in sorted(set(sources).difference(tests)):
        cells.measure.cache_clear()  # what another item has measured is measured again
        with suppress(Enough), recorder.following(item):
            run(item, Settings("tiny", workers=1))
    file.write_text(json.dumps(recorder.open))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

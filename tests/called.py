"""Whether tests, and items of the reproduction, call the functions that docs/paper_map.md says they call.

``python -m tests.called FILE``: FILE holds wishes as JSON, and in the end those that were not granted. A wish has a
label, names of functions, any of which will do (those that end with a dot stand for all that begin so), and sources,
any of which may call it: tests by their pytest names, items by theirs. Each is run until it has called all it is asked
for, and no further: this is about calls, and whether the tests pass is seen elsewhere. Most of a statistical test is
repetition, so at first each is also stopped when it has called nothing new for a while. What is then still wished for
is looked for again, first by tests that are stopped so once they have called something wished for, then to their ends.
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

PATIENCE = 300  # calls of functions that have been called before


class Enough(BaseException):
    """No need to go on; no Exception, so that nothing on the way up takes it for one."""


class Recorder:
    """A plugin of pytest. It follows every call of a function of unmask."""

    def __init__(self, wishes: list[dict[str, Any]], hurry: str) -> None:
        self.open, self.hurry = wishes, hurry
        self.may_end = False

    def asked(self, source: str) -> list[dict[str, Any]]:
        return [wish for wish in self.open if source in wish["sources"]]

    def pytest_collection_finish(self) -> None:
        """The items come first: they end soon, and what they call for a test's sake need not be looked for there."""
        from reproduction import Settings, cells, run

        if self.hurry != "always":
            return  # they have been run to their ends
        self.may_end = True
        for item in sorted({source for wish in self.open for source in wish["sources"] if "::" not in source}):
            cells.measure.cache_clear()  # what another item has measured is measured again
            with suppress(Enough), self.following(item):
                run(item, Settings("tiny", workers=1))
        self.may_end = False

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
        others: set[Any] = set()
        again, hurried = 0, self.hurry == "always" and "::" in source

        def enter(frame: Any, event: str, argument: Any) -> None:
            nonlocal again, hurried
            if frame.f_code in others:
                return
            if frame.f_code in seen:
                again += 1
                if self.may_end and hurried and again > PATIENCE:
                    raise Enough
                return
            module = frame.f_globals.get("__name__", "")
            if not module.startswith("unmask."):
                others.add(frame.f_code)
                return
            seen.add(frame.f_code)
            again = 0
            name = f"{module}.{frame.f_code.co_qualname}"
            for wish in self.asked(source):
                if any(name == one or (one[-1] == "." and name.startswith(one)) for one in wish["functions"]):
                    self.open.remove(wish)
                    hurried = self.hurry != "never" and "::" in source
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
    wishes = json.loads(file.read_text())
    for hurry in ("always", "once it has called one", "never"):
        tests = sorted({source for wish in wishes for source in wish["sources"] if "::" in source})
        if tests:
            given = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
            code = pytest.main(given, plugins=[Recorder(wishes, hurry)])
            assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), code
    file.write_text(json.dumps(wishes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

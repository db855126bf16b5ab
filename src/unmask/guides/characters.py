"""The automaton of a regular expression over characters, made here or in a process that can be ended.

An automaton can be far larger than its pattern, so whoever did not write the pattern limits the time. This file is also
the program of that process. It imports nothing of the package, so that it starts at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache

Machine = tuple[int, set[int], Mapping[int, Mapping[str | None, int | None]]]
"""The initial and the accepting states, and the moves by character; None is any other character, or no state."""


def characters(pattern: str) -> Machine:
    """The smallest automaton of a regular expression in Python's syntax."""
    import interegular

    try:
        machine = interegular.parse_pattern(pattern).to_fsm().reduce()  # type: ignore[no-untyped-call]
    except (interegular.InvalidSyntax, interegular.Unsupported) as error:
        why = f": {error}" if str(error) else ""
        raise ValueError(f"the regular expression {pattern!r} is not understood{why}") from error
    symbols: dict[int, list[str | None]] = {}
    for symbol, key in machine.alphabet.items():
        symbols.setdefault(key, []).append(symbol if isinstance(symbol, str) else None)
    table = {
        state: {symbol: after.get(key) for key, known in symbols.items() for symbol in known}
        for state, after in machine.map.items()
    }
    return machine.initial, set(machine.finals), table


@lru_cache(maxsize=64)
def characters_within(pattern: str, seconds: float, what: str = "pattern") -> Machine:
    """The same; ValueError if it takes longer than so many seconds. what: the name of the pattern in messages."""
    try:
        told = subprocess.run([sys.executable, __file__, pattern], capture_output=True, timeout=seconds, check=True)
    except subprocess.TimeoutExpired:
        says = f"the automaton of this {what} takes more than {seconds:g} s to build; ask for something simpler"
        raise ValueError(says) from None
    except subprocess.CalledProcessError as error:
        kind = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise ValueError(f"{what} is not understood ({kind[0]})") from None
    initial, finals, moves = json.loads(told.stdout)
    return initial, set(finals), {state: dict(after) for state, after in moves}


if __name__ == "__main__":
    first, last, after = characters(sys.argv[1])
    json.dump((first, sorted(last), [(state, [*to.items()]) for state, to in after.items()]), sys.stdout)

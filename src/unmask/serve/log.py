"""The server's log, which never holds a prompt."""

from __future__ import annotations

import logging

log = logging.getLogger("unmask.serve")


def place_of(error: BaseException) -> str:
    """Where it was raised. An error's message may quote a prompt; its type and place do not."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""

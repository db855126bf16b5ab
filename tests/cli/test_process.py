"""The process of a command: how its threads wait, and that memory which is freed is kept for the next call.

The latter is counted in page faults, which a busy machine does not change.
"""

import os
import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch
from unmask.cli import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None)
torch.set_num_threads(1)
for _ in range(20):  # until the blocks have found their places
    torch.ones(16 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(16 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(how, **environment):
    done = subprocess.run(
        [sys.executable, "-c", COUNT, how],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | environment,
    )
    said, faults = done.stdout.split()
    return said, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is on Linux")
def test_blocks_are_used_again():
    said, kept = run("keep")
    if said != "True":
        pytest.skip("another allocator than glibc's")
    _, usual = run("leave")
    # Ten blocks of 64 MB. Whatever else is allocated may push one of the kept ones to a new place, once.
    assert 4 * kept < usual, "blocks that were freed are cleared anew"


def test_the_users_own_settings_win():
    assert run("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"


READY = """
import os, sys
from unmask.cli import ready
ready()
print("torch" in sys.modules, os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize(("given", "found"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(given, found):
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, check=True, env=own)
    assert done.stdout.split() == ["False", found]  # before torch, which reads it when it starts

"""Policies are host code: whoever writes one needs NumPy, and waits for no torch."""

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["torch"] = None  # importing it is an error from here on
import numpy as np
from bass.interfaces import DraftLengthPolicy
from bass.policies import POLICIES
from bass.host_records import Feedback
policy = POLICIES["bass"]()
assert isinstance(policy, DraftLengthPolicy)
state = policy.init(2)
two = np.array([2, 2])
state = policy.update(state, Feedback(two, two, two > 0, 0.1))
print(policy.lengths(state).tolist())
"""


def test_policies_and_their_interface_load_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "[6, 6]\n"

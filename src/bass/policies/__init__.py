"""Draft-length policies, by the name under which `policy=` finds them."""

from bass.policies.batch_adaptive import BatchAdaptive
from bass.policies.fixed import Fixed

POLICIES = {"bass": BatchAdaptive, "fixed": Fixed}

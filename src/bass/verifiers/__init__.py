"""Verifiers, by the name under which `verifier=` finds them."""

from bass.verifiers.rejection import Rejection

VERIFIERS = {"rejection": Rejection}

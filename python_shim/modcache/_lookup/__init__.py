# SPDX-License-Identifier: Apache-2.0
"""``lookup_or_run`` and fingerprints: chooses the way of each call."""

# Pickles of version 0.2.0 name them here: former_names.py.
from modcache._lookup.lookup import (
    fingerprint,
    lookup_or_run,
    lookup_or_run_any,
    refresh_fingerprint,
)

__all__ = ["fingerprint", "lookup_or_run", "lookup_or_run_any", "refresh_fingerprint"]

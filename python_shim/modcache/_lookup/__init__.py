# SPDX-License-Identifier: Apache-2.0
"""``lookup_or_run`` and fingerprints: chooses the way of each call."""

# SPDX-License-Identifier: Apache-2.0
"""Explains what a call would find: ``modcache.explain``."""

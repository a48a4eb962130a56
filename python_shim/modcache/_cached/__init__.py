# SPDX-License-Identifier: Apache-2.0
"""``modcache.cached``: makes input and key of the arguments of a call."""

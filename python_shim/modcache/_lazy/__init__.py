# SPDX-License-Identifier: Apache-2.0
"""Models that load at their first miss."""

# SPDX-License-Identifier: Apache-2.0
"""Installed packages that code enters: their files, and what the process changed in them."""

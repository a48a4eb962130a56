# SPDX-License-Identifier: Apache-2.0
"""The identity of an eager module: its fingerprint, kept up to date from call to call."""

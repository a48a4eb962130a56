# SPDX-License-Identifier: Apache-2.0
"""Calls that torch.export and torch.compile record; frozen copies of scripted models."""

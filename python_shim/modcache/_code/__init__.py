# SPDX-License-Identifier: Apache-2.0
"""The Python code of classes and functions, and what it reads when it runs."""

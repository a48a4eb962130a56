# SPDX-License-Identifier: Apache-2.0
"""One call of an eager module: what the library gets, and what it gives back."""

# SPDX-License-Identifier: Apache-2.0
"""The version, as in the repository's file VERSION."""

__version__ = "1.3.0"

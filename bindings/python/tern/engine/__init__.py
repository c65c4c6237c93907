# SPDX-License-Identifier: Apache-2.0
"""Engines and their options."""

# SPDX-License-Identifier: Apache-2.0
"""Small things that programs import from here."""
import uuid


def random_uuid() -> str:
    return uuid.uuid4().hex

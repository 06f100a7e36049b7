"""Short digests of files and graphs."""

from __future__ import annotations

import hashlib


def short_digest(content: bytes) -> str:
    """The first characters of a hash."""
    return hashlib.sha256(content).hexdigest()[:8]

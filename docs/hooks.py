"""Links of the pages that leave docs/: they lead to the repository, and where its address is not known, to nothing."""

from __future__ import annotations

import os
import re
from typing import Any

_LEAVING = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|examples|models|tests|[A-Z]+\.md)[^)]*)\)")


def on_config(config: Any) -> Any:
    """Take the repository's address from the environment of GitHub's actions."""
    if not config.repo_url and "GITHUB_REPOSITORY" in os.environ:
        config.repo_url = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
        config.repo_name = os.environ["GITHUB_REPOSITORY"]
    return config


def on_page_markdown(markdown: str, config: Any, **more: Any) -> str:
    """Rewrite one page's links."""
    if config.repo_url:
        return _LEAVING.sub(rf"[\1]({config.repo_url}/tree/HEAD/\2)", markdown)
    return _LEAVING.sub(r"\1", markdown)

"""Hooks of the site: the table of config keys, and links to files outside of docs/.

Such links lead to the repository; without its address they become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from prototrain.config.schema import KERAS_OPTIMIZERS, SCHEMA, UNSET, Key

_LEAVING = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|examples|models|tests|[A-Z]+\.md)[^)]*)\)")

_KEYS = re.compile(r"<!-- config keys:.*?-->.*", re.DOTALL)
_MEANING = re.compile(r"^\| `([\w.]+)` \|.*\| (.*?) \|$", re.MULTILINE)


def table_of_keys(readme: str) -> str:
    """Return the table of all config keys: one row per key of the schema, with the meanings from the README."""
    meanings = dict(_MEANING.findall(readme.replace("](docs/", "](")))
    rows = ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    rows += [_row(key, spec, meanings.get(key, "")) for key, spec in SCHEMA.items()]
    return '<div class="keys" markdown>\n\n' + "\n".join(rows) + "\n\n</div>\n"


def _row(key: str, spec: Key, meaning: str) -> str:
    default = "required" if spec.required else "" if spec.default is UNSET else f"`{spec.default!r}`"
    parted = key.replace(".", ".<wbr>")  # the only places where a narrow column may divide it
    return f"| <code>{parted}</code> | {spec.expected.replace('|', ' or ')} | {default} | {meaning or _of_keras(key)} |"


def _of_keras(key: str) -> str:
    """Return the meaning of a key without a row in the README: an argument of a Keras optimizer."""
    method = key.split(".")[-2]
    if method not in KERAS_OPTIMIZERS:
        return ""
    return f"of Keras's [{KERAS_OPTIMIZERS[method][0]}](https://keras.io/api/optimizers/{method}/)"


def on_config(config: Any) -> Any:
    """Take the repository's address from the environment of GitHub's actions."""
    if not config.repo_url and "GITHUB_REPOSITORY" in os.environ:
        config.repo_url = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
        config.repo_name = os.environ["GITHUB_REPOSITORY"]
    return config


def on_page_markdown(markdown: str, config: Any, **more: Any) -> str:
    """Insert the table of all config keys at its placeholder, and rewrite the page's links."""
    if (place := _KEYS.search(markdown)) is not None:
        readme = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
        markdown = markdown[: place.start()] + table_of_keys(readme) + markdown[place.end() :]
    if config.repo_url:
        return _LEAVING.sub(rf"[\1]({config.repo_url}/tree/HEAD/\2)", markdown)
    return _LEAVING.sub(r"\1", markdown)

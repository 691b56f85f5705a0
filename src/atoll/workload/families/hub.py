"""Model ids in the local Hugging Face cache; nothing is ever downloaded.

The cache keeps models--ORG--NAME/snapshots/REVISION/config.json, and the revision that a branch
stands for in refs/BRANCH (huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_MODEL_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}")


def is_model_id(text: str) -> bool:
    """Whether the text could be a model id: ORG/NAME, or one of the old ids without ORG."""
    return _MODEL_ID.fullmatch(text) is not None and ".." not in text


def cache_folder() -> Path:
    """Where Hugging Face libraries keep what they downloaded."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "hub"


def cached_config(model_id: str) -> Path | None:
    """The config.json of a model in the cache: of its main branch, else of its latest snapshot."""
    if not is_model_id(model_id):
        return None
    folder = cache_folder() / f"models--{model_id.replace('/', '--')}"
    try:
        main = folder / "refs" / "main"
        if main.is_file():
            config = folder / "snapshots" / main.read_text(encoding="utf-8").strip() / "config.json"
            if config.is_file():
                return config
        snapshots = [p for p in folder.glob("snapshots/*/config.json") if p.is_file()]
        return max(snapshots, key=lambda p: (p.stat().st_mtime, str(p)), default=None)
    except (OSError, UnicodeDecodeError):
        return None


def cached_models() -> list[str]:
    """Ids of the models in the cache."""
    try:
        folders = [p.name for p in cache_folder().glob("models--*") if p.is_dir()]
    except OSError:
        return []
    return sorted(name.removeprefix("models--").replace("--", "/") for name in folders)

"""Where compiled kernels are kept between runs.

Numba looks only at the file of the kernel itself when it decides whether a cached binary is still
good, so that an edit of a callee elsewhere goes unnoticed. Here the directory's name carries a hash
of all kernel sources: any edit starts a fresh cache. It also works where the package itself is
installed read-only.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

_fresh = False


def cache_is_fresh() -> bool:
    """Whether this process began with no compiled kernels at all."""
    return _fresh


def kernels_digest() -> str:
    """A hash of all kernel sources."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.rglob("*_kernels.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def use_kernel_cache() -> None:
    """Point numba at our cache, unless the user chose one. Call before numba is imported."""
    global _fresh
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    for base in (home / "atoll", Path(tempfile.gettempdir()) / f"atoll-{os.getuid()}"):
        folder = base / f"kernels-{kernels_digest()}"
        try:
            _fresh = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
            return

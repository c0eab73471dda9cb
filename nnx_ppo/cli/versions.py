"""What a run was made with: interpreter, packages, device, precision, and the code under version control."""

import platform
import subprocess
from typing import Any

import jax

from nnx_ppo._versions import package_version

PACKAGES = ("nnx-ppo", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def collect_versions() -> dict[str, Any]:
    """Return a dict that JSON can hold; what cannot be found out is ``None``."""
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "precision": {
            "x64": bool(_jax_setting("jax_enable_x64")),
            "matmul": _jax_setting("jax_default_matmul_precision"),
        },
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed_files": _git("status", "--porcelain", "--untracked-files=no"),
    }


def _jax_setting(name: str) -> Any:
    # The attributes exist at run time only.
    return getattr(jax.config, name)


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(("git", *args), capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

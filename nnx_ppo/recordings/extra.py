"""What to install where a package of an optional extra is missing."""

import importlib

EXTRAS = {"pynapple": "pynapple", "pynwb": "nwb"}
"""Extra that holds a package, for those outside ``analysis``."""


def analysis_packages(*names: str) -> None:
    """Import packages of an extra; ``zarr`` by default.

    Raises:
        ImportError: one is missing; says how to install it.
    """
    for name in names or ("zarr",):
        try:
            importlib.import_module(name)
        except ImportError as error:
            extra = EXTRAS.get(name, "analysis")
            raise ImportError(f"this needs {name}: pip install 'nnx-ppo[{extra}]'") from error

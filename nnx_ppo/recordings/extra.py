"""What to install where a package of the ``analysis`` extra is missing."""

import importlib


def analysis_packages(*names: str) -> None:
    """Import packages of the extra; ``zarr`` by default.

    Raises:
        ImportError: one is missing.
    """
    for name in names or ("zarr",):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f"this needs {name}: pip install 'nnx-ppo[analysis]'") from error

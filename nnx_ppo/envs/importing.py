"""Functions of the user's by name, ``package.module:function``: makers of environments, and of networks."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from nnx_ppo.envs.errors import did_you_mean


class UnknownFunctionError(ValueError):
    """No module or function has this name; the message lists near ones."""


def is_module(name: str) -> bool:
    """Whether a module can be imported by this name from here."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def import_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``; errors that the module itself raises are passed on.

    Raises:
        UnknownFunctionError: naming the module or the function that is not there.
    """
    module_name, _, function_name = name.partition(":")
    if not is_module(module_name):
        raise UnknownFunctionError(
            f"no module {module_name!r} can be imported from here: run from the folder that holds it, or put that "
            "folder on PYTHONPATH."
        )
    module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UnknownFunctionError(
            f"module {module_name!r} has no function {function_name!r}. {did_you_mean(function_name, known)}"
        )
    return function

"""Every public name has a docstring, and its package has a page of the API docs."""

import importlib
import inspect
import pathlib
import pkgutil

import pytest

import nnx_ppo

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = sorted(
    module.name
    for module in pkgutil.iter_modules(nnx_ppo.__path__, "nnx_ppo.")
    if not module.name.split(".")[1].startswith("_")
)


def undocumented(value: object) -> bool:
    """Whether a class or function lacks a docstring of its own; constants have none at run time."""
    if inspect.isclass(value):
        return not vars(value).get("__doc__") or value.__doc__.startswith(f"{value.__name__}(")
    return inspect.isroutine(value) and not inspect.getdoc(value)


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.__all__, f"{name} must say in __all__ what is public"
    assert [each for each in module.__all__ if undocumented(getattr(module, each))] == []
    page = (ROOT / "docs" / "api" / f"{name.split('.')[1]}.md").read_text()
    assert f"automodule:: {name}\n" in page
    assert ":members:" in page
    assert f"\n{name.split('.')[1]}\n" in (ROOT / "docs" / "api" / "index.md").read_text()


def test_what_a_first_script_needs_is_documented_in_a_package():
    public = {each for name in PACKAGES for each in importlib.import_module(name).__all__}
    assert set(nnx_ppo.__all__) <= public


def test_public_names_exist_and_are_listed_once():
    for name in ["nnx_ppo", *PACKAGES]:
        module = importlib.import_module(name)
        assert len(set(module.__all__)) == len(module.__all__)
        assert all(hasattr(module, each) for each in module.__all__)


def test_undocumented_sees_what_it_must():
    import dataclasses

    @dataclasses.dataclass
    class Bare:
        x: int

    class Documented:
        """Something."""

    class Inherits(Documented):
        pass

    assert undocumented(Bare)
    assert undocumented(Inherits)
    assert undocumented(lambda: 0)
    assert not undocumented(Documented)
    assert not undocumented(3)

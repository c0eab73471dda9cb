"""Every lower bound in pyproject.toml is the version installed here: a bound that is never installed is a guess."""

import pathlib
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version


def lower_bounds(project: dict, lines: list[str]) -> Iterator[tuple[str, Version]]:
    """Names and bounds of requirements, with those of the extras of this project that are among them."""
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            for extra in requirement.extras:
                yield from lower_bounds(project, project["optional-dependencies"][extra])
        else:
            (bound,) = (Version(each.version) for each in requirement.specifier if each.operator == ">=")
            yield requirement.name, bound


def main() -> None:
    project = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    wrong = []
    for name, bound in sorted(set(lower_bounds(project, [*project["dependencies"], f"{project['name']}[test]"]))):
        installed = Version(metadata.version(name))
        print(f"{name:20} >= {bound!s:10} installed {installed}")
        if installed != bound:
            wrong.append(f"{name}>={bound}: {installed} is installed")
    if wrong:
        sys.exit(f"bounds that are not what is tested (raise them in pyproject.toml): {'; '.join(wrong)}")


if __name__ == "__main__":
    main()

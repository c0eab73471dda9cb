"""The Python code of the README and of every page of the docs runs, each page in one namespace."""

import dataclasses
import pathlib
import re
import sys
import types

import pytest

import nnx_ppo
import nnx_ppo.algorithms

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]


def code_blocks(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line number and source of each block."""
    text = path.read_text()
    return [(text[: match.start(1)].count("\n"), match.group(1)) for match in BLOCK.finditer(text)]


@pytest.fixture
def small_training(monkeypatch):
    """Pages show real sizes; here two iterations of a few environments have to do."""
    train_ppo = nnx_ppo.algorithms.train_ppo

    def train_a_little(env, networks, config=None, **options):
        config = config or nnx_ppo.algorithms.TrainConfig()
        ppo = dataclasses.replace(config.ppo, n_envs=8, rollout_length=4, total_steps=64, n_epochs=1, n_minibatches=2)
        evaluation = dataclasses.replace(config.eval, n_envs=2, max_episode_length=5, every_steps=32)
        return train_ppo(env, networks, dataclasses.replace(config, ppo=ppo, eval=evaluation), **options)

    for module in (nnx_ppo, nnx_ppo.algorithms, sys.modules["nnx_ppo.algorithms.ppo"]):
        monkeypatch.setattr(module, "train_ppo", train_a_little)


@pytest.mark.parametrize("path", [p for p in PAGES if code_blocks(p)], ids=lambda path: str(path.relative_to(ROOT)))
def test_page_runs(path, small_training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Classes defined on a page look their module up by name.
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    for line, source in code_blocks(path):
        code = compile("\n" * line + source, str(path), "exec")
        exec(code, vars(page))


def test_the_pages_that_must_have_code_have_it():
    with_code = {path.name for path in PAGES if code_blocks(path)}
    assert {
        "README.md",
        "quickstart.md",
        "networks.md",
        "recording.md",
        "environments.md",
        "replay.md",
        "own_module.md",
    } <= with_code


def test_no_block_escapes_by_its_spelling():
    for path in PAGES:
        opened = re.findall(
            r"^\s*(?:```|~~~|:::)\s*\{?(?:code-block\}\s*)?(?:py|python3?|pycon)\b", path.read_text(), re.M
        )
        assert len(opened) == len(code_blocks(path)), path


def test_links_between_pages_lead_somewhere():
    for path in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} -> {target}"

"""Every command line in the documentation has options that exist."""

import pathlib
import re
import shlex

import pytest

from nnx_ppo.cli.app import _read

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands():
    for page in PAGES:
        for block in BLOCK.findall(page.read_text("utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "nnx-ppo" in words:
                    yield pytest.param(words[words.index("nnx-ppo") + 1 :], id=f"{page.name}: {' '.join(words)[:60]}")


def test_there_are_some():
    assert len(list(commands())) > 10


@pytest.mark.parametrize("words", list(commands()))
def test_it_is_understood(words):
    assert callable(_read(words).run)

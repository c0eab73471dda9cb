"""The page on metrics shows the table of names that the code holds."""

import importlib.util
import pathlib

import pytest

from nnx_ppo.algorithms.metrics import TABLE

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("metrics_table", DOCS / "metrics_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator):
    page = (DOCS / "metrics.md").read_text()
    assert generator.filled(page) == page, "run: python docs/metrics_table.py"


def test_every_name_is_on_the_page_once_with_its_meaning():
    lines = (DOCS / "metrics.md").read_text().splitlines()
    for family in TABLE:
        (found,) = [line for line in lines if line.startswith(f"| `{family.name}` |")]
        assert f" | {family.meaning} | {family.unit} | " in found


def test_an_old_table_is_replaced(generator):
    page = "a\n\n% begin evaluation table, x\n| old |\n% end table\n\nb"
    filled = generator.filled(page)
    assert "old" not in filled
    assert filled.startswith("a\n\n% begin evaluation table, x\n\n| name |")
    assert filled.endswith("\n\n% end table\n\nb")
    assert generator.filled(filled) == filled

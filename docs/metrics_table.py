"""Writes the tables of ``metrics.md`` from the table of metric names in the code: ``python docs/metrics_table.py``."""

import pathlib
import re

from nnx_ppo.algorithms.metrics import TABLE, MetricFamily
from nnx_ppo.algorithms.types import LoggingLevel

PAGE = pathlib.Path(__file__).with_name("metrics.md")
BLOCK = re.compile(r"(% begin (\w+) table[^\n]*\n).*?(?=% end table)", re.DOTALL)
HEADER = ["| name | level | meaning | unit | reduced | when |", "|---|---|---|---|---|---|"]


def table(*, evaluation: bool) -> str:
    """The metrics of training, or those of evaluations, as a markdown table."""
    return "\n".join(HEADER + [line(family) for family in TABLE if family.of_evaluation is evaluation])


def line(family: MetricFamily) -> str:
    """One line of the table."""
    name = "any" if LoggingLevel.ALL in family.level else f"`{family.level.name}`"
    level = name if family.level else ""
    cells = [f"`{family.name}`", level, family.meaning, family.unit, "yes" if family.reduced else "", family.when]
    return "| " + " | ".join(cells) + " |"


def filled(page: str) -> str:
    """A page with its tables up to date."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{table(evaluation=block[2] == 'evaluation')}\n\n", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))

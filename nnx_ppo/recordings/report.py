"""A report: sections of text, tables, pictures and a film as one HTML file that needs nothing else to be read."""

import base64
import dataclasses
import importlib.resources
import io
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnx_ppo.algorithms.disk import write_aside
from nnx_ppo.recordings.extra import analysis_packages
from nnx_ppo.recordings.summary import LayerSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEDIA_TYPES = {".mp4": "video/mp4", ".webm": "video/webm"}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        caption: what it shows.
        columns: names of the columns; the first one is that of the rows' names.
        rows: text of the cells.
        pairs: whether it is a list of names and values.
        marked: indices of the rows that deserve attention.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    pairs: bool = False
    marked: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Media:
    """A picture or film, as it stands in the file.

    Attributes:
        uri: its contents, as ``data:`` address.
        alt: what it shows, for those who do not see it.
        caption: text below it.
        width: of a picture, in pixels.
        height: the same.
    """

    uri: str
    alt: str
    caption: str
    width: int = 0
    height: int = 0


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes:
        title: heading.
        paragraphs: text.
        tables: below the text.
        pictures: below the tables.
        video: below the pictures.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Media, ...] = ()
    video: Media | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """What a report says.

    Attributes:
        title: of the page.
        sections: in order.
        subtitle: a line below the title.
    """

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""


def render_report(report: Report) -> str:
    """Return a report as HTML; pictures and films are part of it, and there is no script.

    Raises:
        ImportError: jinja2 is missing.
    """
    analysis_packages("jinja2")
    import jinja2

    source = importlib.resources.files("nnx_ppo.recordings").joinpath("templates/report.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    anchors = [f"section-{i}" for i, _ in enumerate(report.sections, 1)]
    return environment.from_string(source).render(report=report, anchors=anchors)


def write_report(path: str | os.PathLike[str], report: Report) -> None:
    """Write a report as one HTML file, which appears when it is complete.

    Args:
        path: file to write; a missing folder is made, a file that is there replaced.
        report: what it says.

    Raises:
        ImportError: jinja2 is missing.
    """
    path = pathlib.Path(path)
    text = render_report(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, lambda aside: aside.write_text(text, "utf-8"))


def pairs_table(caption: str, pairs: Mapping[str, Any], columns: tuple[str, str] = ("name", "value")) -> Table:
    """Return a table of names and values.

    Args:
        caption: what it shows.
        pairs: values by name; nested ones get a row each, with names joined by dots.
        columns: their titles.
    """
    rows = tuple((name, _text(value)) for name, value in _flat("", pairs))
    return Table(caption, columns, rows, pairs=True)


def health_summary(layers: Iterable[LayerSummary]) -> Table:
    """Return the table of what :func:`~nnx_ppo.recordings.summarize` found; layers that are not finite are marked."""
    layers = list(layers)
    columns = (
        "layer",
        "units",
        "mean",
        "std",
        "|x| 99 %",
        "peak",
        "dead",
        "saturated",
        "dormant",
        "dims",
        "not finite",
    )
    rows = tuple(_health_row(layer) for layer in layers)
    caption = (
        "peak: largest magnitude. dead: units that never changed. saturated: units at 0.95 or beyond in 95 % of their "
        "samples, in layers within ±1. dormant: units below 2.5 % of the layer's average magnitude. dims: "
        "participation ratio, the number of directions that the activity fills."
    )
    marked = tuple(i for i, layer in enumerate(layers) if layer.n_nonfinite)
    return Table(caption, columns, rows, marked=marked)


def picture(figure: "Figure", *, alt: str, caption: str) -> Media:
    """Return a matplotlib figure as a picture of a report.

    Args:
        figure: the figure.
        alt: what it shows, for those who do not see it.
        caption: text below it.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
    return Media(_uri("image/png", buffer.getvalue()), alt, caption, width, height)


def film(path: str | os.PathLike[str], *, alt: str, caption: str) -> Media:
    """Return a film as part of a report.

    Args:
        path: file that ends in ``.mp4`` or ``.webm``, which browsers play.
        alt: what it shows, for those who do not see it.
        caption: text below it.

    Raises:
        ValueError: another kind of file.
    """
    path = pathlib.Path(path)
    if path.suffix not in MEDIA_TYPES:
        raise ValueError(f"a film must end in {' or '.join(MEDIA_TYPES)}, which browsers play, got {path}.")
    return Media(_uri(MEDIA_TYPES[path.suffix], path.read_bytes()), alt, caption)


def _uri(media_type: str, contents: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(contents).decode('ascii')}"


def _flat(prefix: str, node: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "-"
    return str(value) if value != {} else "-"


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4g}"


def _health_row(layer: LayerSummary) -> tuple[str, ...]:
    return (
        layer.path,
        f"{layer.n_units:,}",
        *map(_number, (layer.mean, layer.std, layer.percentiles.get(99, np.nan))),
        _number(layer.peak.value) if layer.peak else "-",
        str(layer.n_dead),
        "-" if layer.n_saturated is None else str(layer.n_saturated),
        str(layer.n_dormant),
        "-" if np.isnan(layer.participation_ratio) else f"{layer.participation_ratio:.1f}",
        f"{layer.n_nonfinite:,}",
    )

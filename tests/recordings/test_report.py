"""Reports, read back by an HTML5 parser: valid, whole, self-contained, with the structure that screen readers use."""

import base64
import io

import html5lib
import numpy as np
import pytest
from PIL import Image

from nnx_ppo.recordings import plot_heat_map, summarize
from nnx_ppo.recordings.report import (
    Report,
    Section,
    Table,
    film,
    health_summary,
    pairs_table,
    picture,
    render_report,
    write_report,
)

NS = "{http://www.w3.org/1999/xhtml}"


def parsed(text):
    """The document; a parse error of HTML5 raises."""
    return html5lib.HTMLParser(strict=True).parse(text)


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def find(page, tag):
    return list(page.iter(f"{NS}{tag}"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("film") / "step_1.mp4"
    path.write_bytes(b"film")
    x = np.linspace(-1, 1, 40).reshape(10, 2, 2)
    x[3, 1, 0] = np.nan
    layers = summarize({"1/action/0": x, "b": np.zeros((10, 2, 3))}, np.zeros((10, 2)))
    figure = plot_heat_map(x[:3, 0])
    sections = (
        Section("Health", ("Some <b>text</b> & more.",), (health_summary(layers),)),
        Section("Pictures", pictures=(picture(figure, alt='A "heat" map', caption="Three steps."),)),
        Section("Film", video=film(path, alt="One episode", caption="An episode.")),
        Section("Settings", tables=(pairs_table("All", {"ppo": {"rate": 1e-4, "on": True}, "none": None}),)),
    )
    return parsed(render_report(Report("Run <1>", sections, "a subtitle")))


def test_structure(page):
    assert page.get("lang") == "en"
    assert text_of(find(page, "title")[0]) == "Run <1>"
    assert [text_of(h) for h in find(page, "h1")] == ["Run <1>"]
    assert [text_of(h) for h in find(page, "h2")] == ["Health", "Pictures", "Film", "Settings"]
    assert all(len(find(page, tag)) == 1 for tag in ("header", "nav", "main", "footer"))
    assert find(page, "nav")[0].get("aria-label")
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    links = [a.get("href") for a in find(page, "a")]
    assert links == ["#main", *(f"#{h.get('id')}" for h in find(page, "h2"))]
    assert all(link[1:] in ids for link in links)
    assert [section.get("aria-labelledby") for section in find(page, "section")] == [link[1:] for link in links[1:]]
    (viewport,) = [meta for meta in find(page, "meta") if meta.get("name") == "viewport"]
    assert viewport.get("content") == "width=device-width, initial-scale=1"


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs(page):
    for element in page.iter():
        for name in ("src", "href", "srcset", "poster", "data"):
            value = element.get(name)
            assert value is None or value.startswith(("data:", "#")), (element.tag, name, value[:60])
    assert not find(page, "script")
    style = text_of(find(page, "style")[0])
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_pictures_and_films_are_inside(page):
    (image,) = find(page, "img")
    assert image.get("alt") == 'A "heat" map'
    contents = base64.b64decode(image.get("src").removeprefix("data:image/png;base64,"))
    size = Image.open(io.BytesIO(contents)).size
    assert (int(image.get("width")), int(image.get("height"))) == size
    (video,) = find(page, "video")
    assert base64.b64decode(video.get("src").removeprefix("data:video/mp4;base64,")) == b"film"
    assert video.get("controls") is not None
    assert video.get("aria-label") == "One episode"
    assert [text_of(caption) for caption in find(page, "figcaption")] == ["Three steps.", "An episode."]


def test_tables(page):
    health, settings = find(page, "table")
    header, first, second = find(health, "tr")
    names = [text_of(cell) for cell in find(header, "th")]
    cells = dict(zip(names, [text_of(cell) for cell in first], strict=True))
    values = np.delete(np.linspace(-1, 1, 40), 3 * 4 + 2)
    assert cells["layer"] == "1/action/0"
    assert cells["not finite"] == "1"
    assert cells["mean"] == f"{values.mean():.4g}"
    assert cells["peak"] in ("-1", "1")
    assert [td.get("data-label") for td in find(first, "td")] == names[1:]
    assert first.get("class") == "bad"
    assert second.get("class") is None
    assert all(cell.get("scope") for cell in find(page, "th"))
    assert [[text_of(cell) for cell in row] for row in find(settings, "tr")[1:]] == [
        ["ppo.rate", "0.0001"],
        ["ppo.on", "yes"],
        ["none", "-"],
    ]
    assert all(len(find(table, "caption")) == 1 for table in (health, settings))


def test_text_is_no_markup(page):
    (paragraph, *_) = find(find(page, "main")[0], "p")
    assert text_of(paragraph) == "Some <b>text</b> & more."


def test_a_report_without_anything(tmp_path):
    path = tmp_path / "new" / "r.html"
    write_report(path, Report("Nothing", (Section("Empty", tables=(Table("none", ("a", "b"), ()),)),)))
    assert [text_of(h) for h in find(parsed(path.read_text("utf-8")), "h2")] == ["Empty"]
    assert [each.name for each in path.parent.iterdir()] == ["r.html"]


def test_films_that_browsers_do_not_play(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .mp4 or .webm, which browsers play, got .*x.avi"):
        film(tmp_path / "x.avi", alt="", caption="")

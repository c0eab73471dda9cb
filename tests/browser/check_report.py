"""Reports in headless Chromium: no error, no request, nothing beyond the edge, all in reach of the keyboard.

Not collected by pytest, as it needs a browser; CI runs it. By hand: ``make browser``, or
``python -m tests.browser.check_report [REPORT.html] [--screenshots FOLDER]``.
"""

import argparse
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from nnx_ppo.cli import main as nnx_ppo_main
from nnx_ppo.recordings import plot_heat_map
from nnx_ppo.recordings.report import Report, Section, Table, pairs_table, picture, write_report

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
OUTSIDE = """() => [...document.querySelectorAll("main *, header *, nav *, footer *")]
    .filter(e => e.getBoundingClientRect().width > 1)
    .filter(e => { const r = e.getBoundingClientRect(); return r.right > innerWidth + 0.5 || r.left < -0.5; })
    .map(e => e.tagName + ": " + e.textContent.slice(0, 40))"""
INVISIBLE = """() => [...document.querySelectorAll("h1, h2, p, td, tbody th, caption, img, video, nav a")]
    .filter(e => { const r = e.getBoundingClientRect(); return r.width < 1 || r.height < 1; })
    .map(e => e.tagName + ": " + e.textContent.slice(0, 40))"""
BROKEN = "() => [...document.images].filter(e => !(e.complete && e.naturalWidth)).map(e => e.alt)"
CONTRAST = """() => {
    const light = c => { const v = c.match(/[\\d.]+/g).map(Number).slice(0, 3).map(x => x / 255)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
    const page = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll("h1, h2, p, td, th, a, caption, figcaption")].map(e => {
        const text = light(getComputedStyle(e).color);
        const ratio = (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
        return [ratio, e.tagName, e.textContent.slice(0, 30)]; })
        .filter(x => x[0] < 4.5);
}"""
FOCUS = "() => { const e = document.activeElement; return [e.tagName, getComputedStyle(e).outlineStyle]; }"


def sample() -> Report:
    """A report with the widest things that one may hold."""
    rng = np.random.default_rng(0)
    long = "trunk/" + "encoder_with_a_long_name/" * 4 + "0"
    numbers = ("layer", *(f"a longer column {i}" for i in range(10)))
    rows = tuple((name, *(f"{x:.4g}" for x in rng.normal(size=10) * 1e5)) for name in (long, "1/action/0"))
    drawn = picture(plot_heat_map(rng.normal(size=(80, 20))), alt="Heat map of noise.", caption="Noise.")
    sections = (
        Section("Tables", ("Some text.",), (Table("Numbers", numbers, rows, marked=(1,)),)),
        Section("Pictures", pictures=(drawn,)),
        Section("Settings", tables=(pairs_table("All", {"network": {"sizes": [256] * 40, long: "x" * 200}}),)),
    )
    return Report("Report of " + "a_run_with_a_long_name_" * 4, sections, "a subtitle")


def write_sample(path: pathlib.Path) -> None:
    """The report of things made up."""
    write_report(path, sample())


def write_run(path: pathlib.Path) -> None:
    """The report of a run that trained for a moment, with a recording."""
    run = path.parent / "a run"
    sizes = ["--ppo.n-envs", "8", "--ppo.rollout-length", "8", "--ppo.n-minibatches", "2", "--eval.n-envs", "4"]
    sizes += ["--network.kind", "lstm", "--network.hidden-size", "8"]
    nnx_ppo_main(["train", "probe:memory_cue", "--out", str(run), "--ppo.total-steps", "512", *sizes])
    nnx_ppo_main(["record", str(run), "--n-envs", "4", "--episodes", "2"])
    nnx_ppo_main(["report", str(run), "--out", str(path)])


def check(path: pathlib.Path, screenshots: pathlib.Path | None = None) -> None:
    """Open a report at each width and in each colour scheme; raises ``SystemExit`` with what is wrong."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    problems: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in SCHEMES:
            for width in WIDTHS:
                options: Any = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "offline": True}
                context = browser.new_context(**options)
                problems += [f"{width} px, {scheme}: {each}" for each in _open(context.new_page(), path)]
                if screenshots is not None:
                    screenshots.mkdir(parents=True, exist_ok=True)
                    name = str(screenshots / f"report_{width}_{scheme}.png")
                    context.pages[0].screenshot(path=name, full_page=True)
                context.close()
        browser.close()
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{path}: no problem at {WIDTHS} pixels, in {SCHEMES}.")


def _open(page: Any, path: pathlib.Path) -> list[str]:
    problems: list[str] = []
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("data:", path.absolute().as_uri()))
            or problems.append(f"asks for {request.url[:80]}")
        ),
    )
    page.goto(path.absolute().as_uri())
    page.wait_for_load_state("load")
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        problems.append("the page is wider than the window")
    for what, script in {
        "beyond the edge": OUTSIDE, "not visible": INVISIBLE, "broken": BROKEN, "too little contrast": CONTRAST,
    }.items():  # fmt: skip
        problems += [f"{what}: {each}" for each in page.evaluate(script)]
    links = page.locator("a").count()
    for i in range(links):
        page.keyboard.press("Tab")
        tag, outline = page.evaluate(FOCUS)
        if tag != "A" or outline == "none":
            problems.append(f"Tab number {i + 1} should show focus on a link, got {tag} with outline {outline}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", nargs="?", type=pathlib.Path)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if options.report is not None:
        check(options.report, options.screenshots)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("sample", write_sample), ("run", write_run)):
            path = pathlib.Path(folder) / name / "report.html"
            path.parent.mkdir()
            write(path)
            check(path, options.screenshots and options.screenshots / name)


if __name__ == "__main__":
    main()

"""The page at /, in headless Chromium: skipped only where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def page():
    with playwright.sync_playwright() as running:
        own = Path(running.chromium.executable_path)
        if CHROMIUM is None and not own.exists():
            pytest.skip("there is no Chromium: install it, or run `playwright install chromium`")
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.complaints = []
        page.asked = []
        page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        yield page
        browser.close()


def ask(page, demo, **fields):
    page.goto(demo.url)
    for name, value in fields.items():
        page.fill(f"#{name}", str(value))
    page.click("#go")
    page.wait_for_selector("body[data-state=done]")


def test_a_live_answer_with_its_tokens_told_apart(page, demo):
    asked = {"prompt": "And God said", "temperature": 1, "seed": 2, "max_tokens": 60}
    told = demo.client.completions.create(model="demo", **asked)
    ask(page, demo, prompt="And God said", temperature=1, seed=2, tokens=60)
    assert page.text_content("#answer") == told.choices[0].text
    usage = told.usage.speculative
    coloured = {kind: page.locator(f"#answer .{kind}").count() for kind in ("accepted", "corrected", "bonus")}
    assert 0 < coloured["accepted"] <= usage["accepted"]  # a token may have no text of its own
    assert coloured["corrected"] > 0 < coloured["bonus"]
    colours = {
        kind: page.locator(f"#answer .{kind}").first.evaluate("e => getComputedStyle(e).color") for kind in coloured
    }
    assert len(set(colours.values())) == 3


def test_the_chart_is_that_of_the_usage(page, demo):
    asked = {"prompt": "And God said", "temperature": 1, "seed": 2, "max_tokens": 60}
    usage = demo.client.completions.create(model="demo", **asked).usage.speculative
    ask(page, demo, prompt="And God said", temperature=1, seed=2, tokens=60)
    columns = page.locator("#chart > div")
    assert columns.count() == 5
    first = round(100 * usage["accepted_per_position"][0] / usage["rounds"])
    assert columns.first.text_content() == f"{first} %1"
    heights = [page.locator("#chart i").nth(k).bounding_box()["height"] for k in range(5)]
    assert heights[0] > heights[4]
    figures = page.text_content("#figures")
    assert f"{usage['accepted']} of {usage['proposed']}" in figures
    assert f"{usage['acceptance_length']:.2f}" in figures


def test_errors_are_shown(page, demo):
    ask(page, demo, prompt="x" * 3000, tokens=5)
    assert "the context of 512" in page.text_content("#error")
    assert page.text_content("#answer") == ""


def test_stop(page, demo):
    page.goto(demo.url)
    page.fill("#tokens", "500")
    page.click("#go")
    page.wait_for_selector("#answer span")
    page.click("#stop")
    page.wait_for_selector("body[data-state=done]")
    demo.wait(demo.idle)
    assert page.text_content("#error") == ""


def test_nothing_comes_from_outside(page, demo):
    ask(page, demo, prompt="x", tokens=2)
    assert {url for url in page.asked if not url.startswith(("data:", demo.url))} == set()
    assert [text for text in page.complaints if "400" not in text] == []

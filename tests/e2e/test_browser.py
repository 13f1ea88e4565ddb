"""The demo's search page in a real browser: what a person types, sees, edits, and sees change."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from demo import catalog
from demo.__main__ import require_identical
from demo.pipeline import Pipeline
from demo.search_page import SearchPage
from devstack import Stack
from devstack.ports import listeners
from tests.browser import Page, opened

pytestmark = [pytest.mark.server, pytest.mark.long]

PHRASE = "家庭保洁"
HOSTILE = "家庭保洁<img src=x onerror=document.title='hurt'>"
NAMES = "[...document.querySelectorAll('#hits h2')].map((one) => one.textContent)"
REPORTED = "document.getElementById('status').textContent"
PICTURE = "HEADRACE_PICTURE"
"""A variable of the environment that names a file: docs/images/demo-search.png is made with it."""


@pytest.fixture
def filled(pipeline: Pipeline) -> Pipeline:
    """With the services of all cities in the index."""
    pipeline.consumer.start()
    pipeline.start_daemon()
    catalog.create(pipeline.source)
    catalog.fill(pipeline.source, random.Random(2))
    pipeline.wait_consumer()
    require_identical(pipeline, pipeline.wait_identical())
    return pipeline


async def open_form(page: Page) -> None:
    """Of the first hit, by the keyboard."""
    await page.value("document.querySelector('#hits summary').focus()")
    await page.press("Enter", 13, "\r")
    await page.eventually("document.querySelector('#hits li:first-child form')")


async def fill_in(page: Page, name: str, text: str) -> None:
    await page.value(f"document.querySelector('#hits li:first-child input[name={name}]').select()")
    await page.type(text)


def keep_picture(picture: bytes) -> None:
    if name := os.environ.get(PICTURE):
        Path(name).write_bytes(picture)


async def test_what_is_typed_is_found_and_what_is_edited_is_seen_to_change(filled: Pipeline, stack: Stack) -> None:
    browser = stack.chromium()
    assert {address for address, _ in listeners(browser.pid)} == {"127.0.0.1"}
    with SearchPage(filled.cluster, filled.source) as served:
        async with opened(browser.url) as page:
            await page.size(860, 720)
            await page.go(served.url)
            await page.eventually("document.querySelectorAll('#hits > li').length === 20")
            await page.type(PHRASE)  # the field has the focus
            await page.eventually(
                f"{REPORTED} === '' && document.querySelector('#hits mark')?.textContent === '{PHRASE}'"
            )
            assert set(await page.value(NAMES)) == {"家庭保洁", "家庭保洁(四小时)"}
            assert await page.value("document.querySelectorAll('#hits h2 mark').length") == 20

            await open_form(page)
            await fill_in(page, "price", "66.60")
            await page.press("Enter", 13, "\r")
            reported = await page.eventually(f"{REPORTED}.includes('after the commit') && {REPORTED}")
            assert reported.startswith("The hit has changed ")
            first = "document.querySelector('#hits li:first-child').innerText"
            assert "66.60 元/" in await page.value(first)
            assert "s after the commit" in await page.value(first)
            keep_picture(await page.picture())

            await page.size(360, 740, dark=True)
            assert await page.value("document.documentElement.scrollWidth") == 360
            assert await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"

            await open_form(page)
            await fill_in(page, "item_name", HOSTILE)
            await page.press("Enter", 13, "\r")
            await page.eventually(f"{NAMES}.filter((name) => name === {json.dumps(HOSTILE)}).length > 1")
            assert await page.value("document.querySelectorAll('#hits img').length") == 0
            assert await page.value("document.title") != "hurt"
            assert page.errors == []
    require_identical(filled, filled.wait_identical(60))

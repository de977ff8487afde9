"""The browser, for the tests of sites."""

from __future__ import annotations

from tests.browsing import browser as browser

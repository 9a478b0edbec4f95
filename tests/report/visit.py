"""A report in a real browser."""

from pathlib import Path
from typing import Any

from tests.limits import seconds


class Visit:
    """A page that was opened, and what it did that it should not."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.set_default_timeout(1000 * seconds())
        page.goto(path.as_uri())

    def chart(self, key: str) -> Any:
        """The chart, drawn by the script."""
        found = self.page.locator(f"#chart-{key} .plot")
        found.scroll_into_view_if_needed()
        found.locator("clipPath").wait_for(state="attached")
        return found

    def marks(self, key: str) -> list[str]:
        """The text on the axes."""
        return self.chart(key).locator("svg > text").all_text_contents()

"""Web console: pages for people, from the same data, routes and roles as the API."""

from __future__ import annotations

from http import HTTPStatus


class ConsoleError(Exception):
    """Base of the errors of the console."""


class PageProblemError(ConsoleError):
    """A page that cannot be shown: the status of the response, and the reason."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

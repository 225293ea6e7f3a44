"""Web console: pages for people, from the same data, routes and roles as the API."""

from __future__ import annotations

from railscope_collector.http import ResourceError


class PageProblemError(ResourceError):
    """A page that cannot be shown: the status of the response, and the reason."""

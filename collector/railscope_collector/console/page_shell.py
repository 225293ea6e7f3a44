"""The frame around each page, pages that state a problem, and the answers that browsers get as pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from aiohttp import web

from railscope import __version__
from railscope_collector.access import authentication, credentials as access, trial_access
from railscope_collector.console import page_rendering, page_table
from railscope_collector.http import session_cookie

REFRESH_SECONDS = 5
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types railscope",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PRIVATE_HEADERS = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
_MACHINE_PATHS = ("/api/v1/", "/v1/", "/metrics", "/-/", "/static/")


@dataclass(frozen=True, slots=True)
class PageShell:
    """The frame around the pages of a collector."""

    sessions: authentication.BrowserSessions
    banner: str = ""
    """Text at the top of each page."""

    @classmethod
    def of(
        cls,
        sessions: authentication.BrowserSessions,
        trial: trial_access.TrialAccess | None,
    ) -> PageShell:
        """Return the shell of a collector, which may be open for a trial."""
        return cls(sessions, trial_access.BANNER if trial else "")

    def values(
        self,
        request: web.Request,
        credential: access.Credential | None,
        title: str,
        *,
        is_live: bool = False,
    ) -> dict[str, object]:
        """Return the values of the frame around a page."""
        has_session = self.sessions.find(session_cookie.find_value(request)) is not None
        query = {**request.query, "fragment": "1"}
        fragment = str(request.rel_url.with_query(query)) if is_live else ""
        return {
            "title": title,
            "menu": list(page_table.menu(credential.role)) if credential else [],
            "here": request.path,
            "first": page_table.first_path(credential or access.ANYONE),
            "label": credential.title if credential and credential is not access.ANYONE else "",
            "is_anonymous": credential is access.ANYONE,
            "has_session": has_session,
            "dashboard": "",
            "fragment": fragment,
            "refresh_seconds": REFRESH_SECONDS,
            "can_search": bool(
                credential and page_table.PAGES_BY_NAME["search"].admits(credential.role)
            ),
            "banner": self.banner,
            "names_past": "at" in request.query,
            "version": __version__,
        }

    def message(
        self,
        request: web.Request,
        status: HTTPStatus,
        text: str,
        credential: access.Credential | None,
    ) -> web.Response:
        """Return a page that states a problem."""
        shell = self.values(request, credential, status.phrase)
        content = page_rendering.render(
            "message.html", status=status, text=text, first=shell["first"]
        )
        body = page_rendering.render("shell.html", **shell, content=content)
        return web.Response(
            status=status, text=body, content_type="text/html", headers=PRIVATE_HEADERS
        )

    def browser_page(
        self,
        request: web.Request,
        status: HTTPStatus,
        text: str,
        credential: access.Credential | None,
    ) -> web.Response | None:
        """Return the page for a browser of an answer without content; None for other clients."""
        is_page = not request.path.startswith(_MACHINE_PATHS)
        if not is_page or "text/html" not in request.headers.get("Accept", ""):
            return None
        overview = page_table.PAGES_BY_NAME["overview"]
        if credential and request.path == overview.path and not overview.admits(credential.role):
            first = page_table.first_path(credential)
            return redirect(first) if first != overview.path else None
        if status is not HTTPStatus.UNAUTHORIZED:
            return self.message(request, status, text, credential)
        target = page_table.local_target(str(request.rel_url))
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and target:
            # After a link on another site the browser omits the session's cookie, until this page follows it.
            body = page_rendering.render("follow.html", target=target)
            return web.Response(text=body, content_type="text/html", headers=PRIVATE_HEADERS)
        query = f"?next={quote(target, safe='')}" if target not in {"", "/"} else ""
        return redirect(page_table.SIGN_IN + query)


def redirect(target: str) -> web.Response:
    """Return an answer that sends a browser to another page, with GET."""
    return web.Response(
        status=HTTPStatus.SEE_OTHER, headers={**PRIVATE_HEADERS, "Location": target}
    )

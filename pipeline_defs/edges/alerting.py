"""Sending a short message to where people are, through Apprise: webhooks, Slack, mail and a hundred more, each a URL.

Invariant: a URL may hold a secret anywhere, and for some services its host is one. Of a URL only its place in the list, its
scheme and a real host are ever said, and Apprise and urllib3, which log more, say nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import apprise

from ..core.errors import BadSetting

logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it logs URLs whole, as errors and while it sends
logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)  # below that it logs paths and queries


def send_alert(urls: Sequence[str], title: str, body: str) -> list[str]:
    """Send a message to each URL; return those that did not take it, without their secrets. Raises `BadSetting`."""
    undelivered = []
    for number, url in enumerate(urls, 1):
        place = f"alert URL {number} of {len(urls)}"
        target = apprise.Apprise.instantiate(url)
        if target is None:
            raise BadSetting(
                f"{place} in OFFSETLAKE_ALERT_URLS is none that Apprise knows; nobody was told; expected such as "
                "json://host/path or mailto://user:password@host"
            )
        if not target.notify(body=body, title=title):
            undelivered.append(f"{place} ({_redacted(url, target)})")
    return undelivered


def _redacted(url: str, target: apprise.NotifyBase) -> str:
    """Return scheme and host; the scheme alone where the service has a token in the host's place, as Slack has."""
    host = target.host if "host" in target.template_tokens else "..."
    return f"{url.partition('://')[0]}://{host}"

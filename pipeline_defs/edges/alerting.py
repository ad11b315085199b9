"""Sending a short message to where people are, through Apprise: webhooks, Slack, mail and a hundred more, each a URL.

Invariant: a URL may hold a secret, so none of them is ever shown whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import apprise

from ..core.errors import BadSetting


def send_alert(urls: Sequence[str], title: str, body: str) -> list[str]:
    """Sends a message to each URL; returns those that did not take it, without their secrets. Raises `BadSetting`."""
    undelivered = []
    for number, url in enumerate(urls, 1):
        target = apprise.Apprise.instantiate(url)
        if target is None:
            raise BadSetting(
                f"alert URL {number} of {len(urls)} in OFFSETLAKE_ALERT_URLS is none that Apprise knows (scheme "
                f"{url.partition(':')[0]!r}); nobody was told; expected such as json://host/path or mailto://user:password@host"
            )
        if not target.notify(body=body, title=title):
            undelivered.append(str(target.url(privacy=True)))  # type: ignore[no-untyped-call]
    return undelivered

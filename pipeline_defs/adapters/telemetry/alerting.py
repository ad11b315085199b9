"""Sending a short message to where people are, through Apprise: webhooks, Slack, mail and a hundred more, each a URL.

Invariant: a URL may hold a secret anywhere, and for some services its host is one. Of a URL only its place in the list, its
scheme and a real host are ever shown, and Apprise and urllib3, which log more, are silenced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from ..system.extras import require

if TYPE_CHECKING:
    import apprise

OVER = "over: "  # begins a line on a trouble that is over
SEND_SECONDS = 20.0  # Dagster ends a sensor that takes a minute
logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it logs URLs whole, as errors and while it sends
logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)  # below that it logs paths and queries


def check_alert_urls(text: str) -> str:
    """Return alert URLs, with spaces between; raise `ValueError` if Apprise does not know each of them."""
    urls = text.split()
    if urls:
        require("alerts", "OFFSETLAKE_ALERT_URLS")
    unknown = [str(number) for number, (_, target) in enumerate(_read_targets(urls), 1) if target is None]
    if unknown:
        raise ValueError(
            f"of its {len(urls)} URLs Apprise does not know number {', '.join(unknown)} (not shown), expected such as "
            "json://host/path or mailto://user:password@example.com"
        )
    return text


def send_alert(title: str, bodies: Mapping[str, str]) -> dict[str, str]:
    """Send each URL its message, unless that is empty; return by URL what to call those that did not take it in time.

    It is a failure to services that page people, and a success where all of its lines are `OVER`. All are sent to at once: a
    slow one keeps nobody waiting for longer than `SEND_SECONDS`.
    """
    undelivered, sending = dict[str, str](), dict[str, threading.Thread]()
    if not any(bodies.values()):
        return undelivered
    taken = set[str]()

    def send(url: str, target: apprise.NotifyBase) -> None:
        is_over = all(line.startswith(OVER) for line in bodies[url].splitlines())
        if target.notify(body=bodies[url], title=title, notify_type="success" if is_over else "failure"):
            taken.add(url)

    for number, (url, target) in enumerate(_read_targets(bodies), 1):
        name = "none that Apprise knows" if target is None else _redacted(url, target)
        undelivered[url] = f"alert URL {number} of {len(bodies)} ({name})"
        if target is not None and bodies[url]:
            sending[url] = threading.Thread(target=send, args=(url, target), daemon=True)
            sending[url].start()
    until = time.monotonic() + SEND_SECONDS
    for each in sending.values():
        each.join(max(0.0, until - time.monotonic()))
    return {url: said for url, said in undelivered.items() if bodies[url] and url not in taken}


def receiver_of(url: str) -> str:
    """Return a digest to remember a URL by."""
    return sha256(url.encode()).hexdigest()[:16]


def _read_targets(urls: Iterable[str]) -> Iterator[tuple[str, apprise.NotifyBase | None]]:
    """Yield each URL with what Apprise sends to by it, if anything."""
    import apprise  # takes a second, which only users of alerts need to wait for

    for url in urls:
        yield url, apprise.Apprise.instantiate(url)


def _redacted(url: str, target: apprise.NotifyBase) -> str:
    """Return scheme and host; the scheme alone if the service has a token in the host's place, as Slack has."""
    host = target.host if "host" in target.template_tokens else "..."
    return f"{url.partition('://')[0]}://{host}"

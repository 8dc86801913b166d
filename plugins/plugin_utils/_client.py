# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server as its clients reach it, asked from the controller. PRIVATE to the collection.

A server may be ready and yet out of reach: it listens on loopback, a firewall drops, a router does not know it yet or
leads to another server.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import typing as t
import warnings

from ansible_collections.specdec.serving.plugins.module_utils._addresses import models_url, parse_url
from ansible_collections.specdec.serving.plugins.module_utils._readiness import LOADING
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact_text
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import truth

try:
    import requests
except ImportError as error:
    _MISSING: ImportError | None = error
else:
    _MISSING = None

UNREACHABLE = "client_unreachable"
WRONG_MODEL = "client_wrong_model"
UNAUTHORIZED = "client_unauthorized"

#: A router asks its servers every few seconds; this long it may take to notice a new one, in seconds.
PATIENCE_S = 60.0
# Another model, or a key that is refused, seldom goes away by itself.
_ANSWERED_PATIENCE_S = 5.0
_REQUEST_S = 10.0
_RETRY_S = 1.0
_MAX_BODY = 1024 * 1024
_CHUNK = 65536
_SHOWN = 120

_REMEDIES = {
    UNREACHABLE: (
        "Check that the router or load balancer has this server, that no firewall lies between, and that the server does "
        "not listen on 127.0.0.1 when clients come from other hosts."
    ),
    WRONG_MODEL: "Correct client_url, or the router's list of servers: it leads to another model than this unit serves.",
    UNAUTHORIZED: "Give the key that clients use there as api_key, or a client_url that takes the server's own key.",
}


class Unreachable(Exception):
    """There was no complete answer."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    location: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """``cause`` '' = the expected model is listed; ``seconds`` until it was, or until it was given up."""

    url: str
    cause: str
    detail: str
    seconds: float


#: Gives the answer to GET of a URL within so many seconds, or raises Unreachable.
Fetch: t.TypeAlias = t.Callable[[str, float], Answer]


def require() -> None:
    """Raise ValueError when the check cannot be made here."""
    if _MISSING is not None:
        raise ValueError(
            f"client_url needs the Python library requests on the controller, in the environment of ansible-playbook: {_MISSING}"
        )


def verification(arguments: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> bool | str:
    """``verify`` for requests: what the task says, its ``ca_path`` where this machine has it, else the environment's."""
    if not truth(arguments.get("validate_certs", True)):
        return False
    path = str(arguments.get("ca_path") or "")
    if path and os.path.isfile(path):
        return path
    return environment.get("REQUESTS_CA_BUNDLE") or True


def fetcher(*, api_key: str, verify: bool | str) -> Fetch:
    """Ask with ``requests``: no proxies, no redirects, bounded in size, and in time as a whole.

    ``verify`` as requests takes it: whether certificates are checked, or the file of authorities to check them with.
    """

    if verify is False:
        # It was asked for. Ansible would report the warning as output of its worker.
        warnings.filterwarnings("ignore", message="Unverified HTTPS request")

    def fetch(url: str, timeout: float) -> Answer:
        done: list[Answer | Exception] = []

        def work() -> None:
            try:
                done.append(_get(url, timeout, api_key, verify))
            except (requests.RequestException, OSError, ValueError) as error:
                done.append(error)

        # The time limits of requests count for each read alone: a server that drips would never end.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(timeout)
        answer = done[0] if done else None
        if answer is None or isinstance(answer, requests.Timeout):
            raise Unreachable(f"no complete answer within {timeout:.0f} s")
        if isinstance(answer, Exception):
            raise Unreachable(_reason(answer)) from answer
        return answer

    return fetch


def _get(url: str, timeout: float, api_key: str, verify: bool | str) -> Answer:
    headers = {"Accept": "application/json", "Connection": "close"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    with requests.Session() as session:
        # Proxy variables and .netrc are the user's, not the client's.
        session.trust_env = False
        with session.get(
            url, headers=headers, timeout=timeout, verify=verify, allow_redirects=False, stream=True
        ) as response:
            body = b""
            for chunk in response.iter_content(_CHUNK):
                body += chunk
                if len(body) > _MAX_BODY:
                    raise ValueError(f"the answer has more than {_MAX_BODY} bytes")
            return Answer(response.status_code, body, response.headers.get("Location", ""))


def _reason(error: BaseException) -> str:
    """What the innermost error says: those around it repeat the URL and their own names."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


def judge(answer: Answer, expected: str) -> tuple[str, str]:
    """Give (cause, detail) of one answer to ``/v1/models``; cause '' when ``expected`` is listed ('' = any model)."""
    if answer.status in (401, 403):
        return UNAUTHORIZED, f"answers {answer.status}: the key that was given is not accepted there, or none was given"
    if 300 <= answer.status < 400:
        return UNREACHABLE, f"redirects ({answer.status}) to {answer.location[:_SHOWN]!r}, which is not followed"
    shown = answer.body[:_SHOWN].decode("utf-8", "replace")
    if answer.status != 200:
        return UNREACHABLE, f"answers {answer.status}: {shown!r}"
    try:
        data = json.loads(answer.body)["data"]
        models = [str(item["id"]) for item in data]
    except (ValueError, KeyError, TypeError, RecursionError):
        return UNREACHABLE, f"gives no list of models; the answer begins with {shown!r}"
    if expected not in models and (expected or not models):
        return WRONG_MODEL, f"lists {models[:8]!r}, not {expected!r}"
    return "", f"lists {expected or models[0]!r}"


def check(
    client_url: str,
    expected: str,
    fetch: Fetch,
    *,
    within: float,
    monotonic: t.Callable[[], float],
    sleep: t.Callable[[float], None],
    complain: t.Callable[[str], None] = lambda _text: None,
) -> Finding:
    """Ask until the model is listed, for at most ``within`` s and PATIENCE_S. The first failure goes to ``complain``."""
    url = models_url(parse_url(client_url, name="client_url"))
    started = monotonic()
    limit = max(min(within, PATIENCE_S), 1.0)
    answered_at: float | None = None
    said = ""
    while True:
        left = started + limit - monotonic()
        try:
            cause, detail = judge(fetch(url, max(min(left, _REQUEST_S), 0.1)), expected)
        except Unreachable as error:
            cause, detail = UNREACHABLE, f"cannot be reached: {error}"
        now = monotonic()
        if not cause:
            return Finding(url, cause, detail, now - started)
        answered_at = None if cause == UNREACHABLE else (now if answered_at is None else answered_at)
        given_up = answered_at is not None and now - answered_at >= _ANSWERED_PATIENCE_S
        if given_up or now + _RETRY_S >= started + limit:
            return Finding(url, cause, detail, now - started)
        if not said:
            said = f"{url} {detail}; trying again"
            complain(said)
        sleep(_RETRY_S)


def merged(result: dict[str, t.Any], finding: Finding, *, api_key: str, fail: bool) -> dict[str, t.Any]:
    """The module's result with what was found; ``fail``: a finding that is none makes the task fail."""
    detail = redact_text(finding.detail, [api_key] if api_key else [])
    client = {"url": finding.url, "ok": not finding.cause, "detail": detail, "seconds": round(finding.seconds, 3)}
    if not finding.cause:
        return {**result, "client": client}
    summary = f"the server itself is ready, but {finding.url} {detail}"
    diagnosis = {
        "id": "",
        "cause": finding.cause,
        "summary": summary,
        "remedy": _REMEDIES[finding.cause],
        "severity": "error",
        "rank": "",
        "evidence": [],
        "warnings": [],
        "exit": "",
    }
    told = {**result, "client": client, "state": LOADING, "ready": False, "diagnosis": diagnosis}
    if fail:
        told["failed"] = True
        told["msg"] = (
            f"{result.get('unit')} is not ready: {LOADING} ({finding.cause}) after {finding.seconds:.1f} s. "
            f"{summary[:1].upper()}{summary[1:]}. {_REMEDIES[finding.cause]}"
        )
    return told


__all__ = (
    "PATIENCE_S",
    "UNAUTHORIZED",
    "UNREACHABLE",
    "WRONG_MODEL",
    "Answer",
    "Fetch",
    "Finding",
    "Unreachable",
    "check",
    "fetcher",
    "judge",
    "merged",
    "require",
    "verification",
)

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an evaluation asks of an SGLang server. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import json
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _parity
from ansible_collections.specdec.serving.plugins.module_utils._code_extract import STOP_SEQUENCES, chat_messages
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, Response, request
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact_text

#: Tokens that an answer may have, by what is asked. A model whose template thinks unless told otherwise needs room for it.
DEFAULT_TOKENS = {"completion": 1024, "off": 2048, "on": 16384, "auto": 16384}
#: Fewer leave no room for a function.
LEAST_TOKENS = 128
#: Tries of one request, and the seconds between them.
TRIES = 3
_RETRY_S = 1.0
#: ``/generate`` with log-probabilities of thousands of tokens.
_MAX_BODY = 64 * 1024 * 1024
_MAX_TOLD = 100_000
_CONTROL_S = 30.0
_FLUSH_S = 60


class AskError(Exception):
    """The server gave no usable answer, or cannot be asked this."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """How problems are asked. ``thinking``: ``on``, ``off``, or ``auto`` (the template's own way)."""

    mode: str = "chat"
    thinking: str = "auto"
    chat_template_kwargs: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    #: 0 = by mode and thinking, cut to what fits.
    max_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer. ``text`` is the content alone; of the thinking only its length is kept."""

    text: str
    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_characters: int = 0
    seconds: float = 0.0
    #: The end of the thinking, in which a loop shows.
    reasoning_tail: str = ""


@dataclasses.dataclass(frozen=True)
class Server:
    """What the server says of itself. ``context_length``: 0 = it does not tell."""

    model: str
    context_length: int
    info: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)

    @property
    def reasoning_parser(self) -> str:
        return str(self.info.get("reasoning_parser") or "")


def template_kwargs(asked: Asked) -> dict[str, t.Any]:
    """Arguments of the chat template. Kimi's and DeepSeek's templates call the switch ``thinking``, Qwen's ``enable_thinking``."""
    switch = {} if asked.thinking == "auto" else dict.fromkeys(("thinking", "enable_thinking"), asked.thinking == "on")
    return {**switch, **asked.chat_template_kwargs}


def token_limit(asked: Asked, problems: t.Iterable[Problem], context_length: int) -> int:
    """Tokens that each answer may have: what was asked for, or the default as far as it fits beside the longest prompt.

    Raises AskError when it cannot fit.
    """
    wanted = asked.max_tokens or DEFAULT_TOKENS["completion" if asked.mode == "completion" else asked.thinking]
    if not context_length:
        return wanted
    longest = max(len(problem.prompt.encode("utf-8")) for problem in problems)
    # Without the tokenizer: code has about three bytes a token. That of a tiny model may need one for nearly each, and such models have
    # the short contexts in which it matters.
    room = context_length - longest - 200
    least = context_length - longest // 4
    if asked.max_tokens and asked.max_tokens > least:
        raise AskError(
            f"max_tokens {asked.max_tokens} and the longest prompt do not fit into the server's context of {context_length} tokens; "
            f"ask for {max(room, 0)} or fewer, leave max_tokens out, or start the server with a larger context_length"
        )
    limit = wanted if asked.max_tokens else min(wanted, room)
    if limit < LEAST_TOKENS:
        raise AskError(
            f"the server's context of {context_length} tokens leaves {max(room, 0)} for an answer, and {LEAST_TOKENS} are needed; "
            "start it with a larger context_length"
        )
    return limit


def _rows(listed: t.Any) -> t.Sequence[t.Any]:
    found = listed.get("data") if isinstance(listed, dict) else None
    return found if isinstance(found, list) else ()


class Client:
    """Asks one server. Safe to use from several threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout: float,
        admin_api_key: str | None = None,
        stopped: t.Callable[[], bool] = lambda: False,
        send: t.Callable[..., Response] = request,
        sleep: t.Callable[[float], None] = time.sleep,
    ) -> None:
        """``timeout`` (s): of one answer. ``stopped`` is asked many times a second while one is waited for."""
        self._endpoint = endpoint
        self._keys = [key for key in (endpoint.api_key, admin_api_key) if key]
        self._admin = dataclasses.replace(endpoint, api_key=admin_api_key or endpoint.api_key)
        self._timeout = timeout
        self._stopped = stopped
        self._send = send
        self._sleep = sleep

    def _json(self, method: str, path: str, payload: t.Any = None, *, timeout: float) -> tuple[t.Any, float]:
        """The answer and the seconds it took. Raises AskError; a lost connection is tried again."""
        told = ""
        for attempt in range(TRIES):
            if attempt:
                self._sleep(_RETRY_S)
            if self._stopped():
                raise AskError("stopped")
            try:
                response = self._send(
                    self._endpoint,
                    method,
                    path,
                    timeout=timeout,
                    payload=payload,
                    abort=self._stopped,
                    max_body=_MAX_BODY,
                )
                if response.status == 200:
                    return response.json(), response.elapsed
            except HttpError as error:
                told = str(error)
                # What waited in vain for an answer would do so again.
                if error.cause not in ("refused", "reset", "cut_answer"):
                    break
                continue
            # Masked before it is cut: nobody could find half a key later.
            answer = redact_text(response.body[:_MAX_TOLD].decode("utf-8", "replace"), self._keys)
            told = f"{method} {path} was answered with {response.status}: {answer[:300]}"
            if response.status < 500:
                break
        raise AskError(told)

    def server(self, model: str = "") -> Server:
        """Ask the server what it is. Raises AskError when it does not serve ``model`` ('' = any)."""
        listed, _seconds = self._json("GET", "/v1/models", timeout=_CONTROL_S)
        cards = {str(card.get("id")): card for card in _rows(listed) if isinstance(card, dict)}
        if not cards or (model and model not in cards):
            raise AskError(
                f"the server serves {', '.join(map(repr, cards)) or 'no model'}, and {model or 'a model'!r} was asked for"
            )
        name = model or next(iter(cards))
        try:
            info, _seconds = self._json("GET", "/server_info", timeout=_CONTROL_S)
        except AskError:
            # Its name in older releases.
            info, _seconds = self._json("GET", "/get_server_info", timeout=_CONTROL_S)
        length = cards[name].get("max_model_len") or 0
        return Server(name, length if isinstance(length, int) else 0, info if isinstance(info, dict) else {})

    def answer(self, problem: Problem, server: Server, asked: Asked, limit: int) -> Answer:
        """The greedy answer to one problem."""
        body: dict[str, t.Any] = {"model": server.model, "temperature": 0, "max_tokens": limit}
        if asked.mode == "completion":
            body.update(prompt=problem.prompt, stop=list(STOP_SEQUENCES))
            path = "/v1/completions"
        else:
            body["messages"] = chat_messages(problem)
            kwargs = template_kwargs(asked)
            if kwargs:
                body["chat_template_kwargs"] = kwargs
            path = "/v1/chat/completions"
        value, seconds = self._json("POST", path, body, timeout=self._timeout)
        return parse_answer(value, chat=asked.mode != "completion", seconds=seconds)

    def flush(self) -> bool:
        """Empty the prefix cache; False when the server does not let us."""
        try:
            path = f"/flush_cache?timeout={_FLUSH_S}"
            response = self._send(self._admin, "POST", path, timeout=_FLUSH_S + _CONTROL_S, abort=self._stopped)
        except HttpError:
            return False
        return response.status == 200

    def running(self) -> int:
        """Requests that the server has just now; 0 also where the release does not tell."""
        try:
            response = self._send(self._endpoint, "GET", "/v1/loads", timeout=_CONTROL_S, abort=self._stopped)
            loads = response.json().get("loads") if response.status == 200 else None
            return sum(int(load.get("num_running_reqs") or 0) for load in loads or ())
        except (HttpError, AttributeError, TypeError, ValueError):
            return 0

    def generate(self, prompt: str, tokens: int, *, top: bool) -> _parity.Generation:
        """The tokens that follow ``prompt``, greedily and exactly so many; ``top``: with the two likeliest at each place."""
        body: dict[str, t.Any] = {
            "text": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        }
        if top:
            body.update(return_logprob=True, top_logprobs_num=2)
        value, _seconds = self._json("POST", "/generate", body, timeout=self._timeout)
        try:
            found = _parity.generation(value)
        except _parity.ParityError as error:
            raise AskError(str(error)) from error
        if top and not found.top:
            raise AskError("the server gave no log-probabilities; a baseline cannot be recorded without them")
        return found


def _count(usage: t.Any, name: str) -> int:
    """A number of tokens; 0 for what is none, as an answer's text counts all the same."""
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def parse_answer(value: t.Any, *, chat: bool, seconds: float = 0.0) -> Answer:
    """An answer of the OpenAI endpoints. Raises AskError when it has no choice."""
    try:
        choice = value["choices"][0]
        usage = value.get("usage")
        message = choice["message"] if chat else choice
        text = message.get("content" if chat else "text")
        reasoning = message.get("reasoning_content") or ""
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise AskError(f"the answer has no choice with a text: {json.dumps(value)[:300]}") from error
    if not isinstance(text, (str, type(None))) or not isinstance(reasoning, str):
        raise AskError(f"the answer's text is none: {json.dumps(value)[:300]}")
    if reason not in ("stop", "length"):
        raise AskError(f"the answer ended with finish_reason {reason!r}, neither 'stop' nor 'length'")
    return Answer(
        text=text or "",
        finish_reason=reason,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        reasoning_characters=len(reasoning),
        seconds=seconds,
        reasoning_tail=reasoning[-10000:],
    )


__all__ = (
    "DEFAULT_TOKENS",
    "LEAST_TOKENS",
    "TRIES",
    "Answer",
    "AskError",
    "Asked",
    "Client",
    "Server",
    "parse_answer",
    "template_kwargs",
    "token_limit",
)

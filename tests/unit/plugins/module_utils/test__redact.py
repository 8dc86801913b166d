# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import json
import pathlib
import time
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._redact import (
    MASK,
    Masker,
    is_secret_variable,
    mask_command,
    redact,
    redact_text,
    secret_words,
    spellings,
)

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "sglang-0.5.23"
KEY = "sk-test-12345"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"server_args={{'api_key': '{KEY}', 'port': 1}}", id="repr of a dict"),
        pytest.param(f"ServerArgs(api_key='{KEY}', admin_api_key='{KEY}')", id="repr of a class"),
        pytest.param(f'{{"api_key":"{KEY}","admin_api_key":"{KEY}"}}', id="json"),
        pytest.param(f"python -m sglang.launch_server --api-key {KEY} --port 1", id="flag and word"),
        pytest.param(f"--admin-api-key={KEY}", id="flag and equals"),
        pytest.param(f"--api_key '{KEY} with a space'", id="quoted with a space"),
        pytest.param(f"api-key: {KEY}", id="yaml"),
        pytest.param(f"ssl_keyfile_password='{KEY}'", id="key file password"),
        pytest.param(f"Authorization: Bearer {KEY}", id="header"),
        pytest.param(f"'api_key': 'it\\'s {KEY}'", id="escaped quote"),
        pytest.param(f"ProxyError: http://user:{KEY}@proxy:3128/", id="password of a proxy"),
        pytest.param(f"https://{KEY}@host/simple", id="token in a URL"),
        pytest.param(f"--model-path s3://name:{KEY}@bucket/model", id="model path"),
        pytest.param(f"export HF_TOKEN={KEY}", id="variable"),
        pytest.param(f"{{'hf_token': '{KEY}'}}", id="token of the hub"),
    ],
)
def test_masks_secrets_by_their_name(text: str) -> None:
    cleaned = redact_text(text)
    assert KEY not in cleaned
    assert MASK in cleaned


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("'api_key': None, 'admin_api_key': None", id="no key set"),
        pytest.param("tokens per second, token usage: 0.01", id="other words with token"),
        pytest.param("the api_key was refused", id="prose"),
        pytest.param("ssh://git@host/x http://127.0.0.1:30001/v1", id="URLs"),
    ],
)
def test_leaves_the_rest(text: str) -> None:
    assert redact_text(text) == text


def test_masks_known_secrets_anywhere_and_the_longest_first() -> None:
    assert redact_text("a secret-long b secret", ["secret", "secret-long"]) == f"a {MASK} b {MASK}"


def test_structures_are_masked_by_key_and_by_value() -> None:
    value = {
        "server": {"api_key": KEY, "admin-api-key": "other", "port": 30001},
        "tail": [f"x {KEY}"],
        "none": {"api_key": None},
    }
    assert redact(value, [KEY]) == {
        "server": {"api_key": MASK, "admin-api-key": MASK, "port": 30001},
        "tail": [f"x {MASK}"],
        "none": {"api_key": None},
    }


def test_recorded_server_args_line_with_a_key_planted() -> None:
    log = (FIXTURES / "startup-cpu-plain.log").read_text(encoding="utf-8")
    line = next(text for text in log.splitlines() if "server_args=" in text)
    planted = line.replace("'api_key': None", f"'api_key': '{KEY}'")
    assert KEY in planted
    assert redact_text(planted) == line.replace("'api_key': None", f"'api_key': '{MASK}'")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "S3cret", "--port", "1"], "--api-key ******** --port 1"),
        (["--api-key=S3cret", "x"], "--api-key=******** x"),
        (["--admin-api-key", "S3cret"], "--admin-api-key ********"),
        (["--ssl-keyfile-password", "S3cret"], "--ssl-keyfile-password ********"),
        (["--api-k", "S3cret"], "--api-k ********"),
        (["--api", "S3cret"], "--api ********"),
        (["--admin", "S3cret"], "--admin ********"),
        (["--ssl-keyfile-p", "S3cret"], "--ssl-keyfile-p ********"),
        (["--ssl-keyfile", "/etc/key.pem"], "--ssl-keyfile /etc/key.pem"),
        (["--hf-token", "S3cret"], "--hf-token ********"),
        (["--max-total-tokens", "100", "--tokenizer-path", "/t"], "--max-total-tokens 100 --tokenizer-path /t"),
        (
            ["sh", "-c", "API_KEY=S3cret exec python --api-key S3cret"],
            "sh -c API_KEY=******** exec python --api-key ********",
        ),
        (["sh", "-c", "x --api-key 'S3 cret' y"], "sh -c x --api-key ******** y"),
        (["curl", "-H", "Authorization: Bearer S3cret"], "curl -H Authorization: Bearer ********"),
        (["http://user:S3cret@host/"], "http://user:********@host/"),
        (["sglang::scheduler --api-key S3cret   "], "sglang::scheduler --api-key ********"),
        (["--api-key"], "--api-key"),
        ([], ""),
    ],
)
def test_mask_command(words: list[str], shown: str) -> None:
    assert mask_command(words) == shown


@given(st.lists(st.text(max_size=30), max_size=6))
def test_mask_command_never_raises_and_hides_the_key(words: list[str]) -> None:
    masked = mask_command([*words, "python", "--admin-api-key", "S3cret-Value", *words])
    if "--admin-api-key" in masked:
        assert "S3cret-Value" not in masked


def test_a_known_key_is_masked_whole_before_a_pattern_sees_a_part_of_it() -> None:
    assert redact_text("--api-key ab,cd)ef api_key=ab,cd)ef", ["ab,cd)ef"]) == f"--api-key {MASK} api_key={MASK}"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True),
        ("api_key", True),
        ("MY_KEY_FILE", True),
        ("GITHUB_PAT", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("SGLANG_MAX_TOKENS", False),
        ("PATH", False),
        ("PWD", False),
        ("CREDENTIALS_DIRECTORY", False),
        ("KEYBOARD", False),
    ],
)
def test_names_of_secret_variables(name: str, secret: bool) -> None:
    assert is_secret_variable(name) is secret


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["x", "--api-key", "one", "--admin-api-key=two", "--port", "1"], {"one", "two"}),
        (["x", "--api-k", "one", "--hf-token", "two"], {"one", "two"}),
        (["env", "HF_TOKEN=one", "HOME=/x"], {"one"}),
        (["x", "--api-key"], set()),
    ],
)
def test_secret_words_of_a_command_line(words: list[str], found: set[str]) -> None:
    assert secret_words(words) == found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("['python', '--api-key', 'S3cret', '--port', '1']", f"['python', '--api-key', '{MASK}', '--port', '1']"),
        ("HF_TOKEN=S3cret HOME=/x", f"HF_TOKEN={MASK} HOME=/x"),
        ("{'HF_TOKEN': 'S3 cret', 'X': 1}", f"{{'HF_TOKEN': '{MASK}', 'X': 1}}"),
        ('Environment="A_TOKEN=S3 cret\\"" B=2', f'Environment="A_TOKEN={MASK}" B=2'),
        ("SetCredential=k:S3 cret \\\n  S3cret\nUser=x", f"SetCredential=k:{MASK}\nUser=x"),
        ("db_password: S3cret", f"db_password: {MASK}"),
        ("http://user:S3cret@host/", f"http://user:{MASK}@host/"),
        ("got hf_abcdefghijklmnopqrstuvwx", f"got {MASK}"),
        ("got sk-abcdefghijklmnopqrstuvwx", f"got {MASK}"),
        ("Authorization: Basic dXNlcjpTM2NyZXQ=", f"Authorization: Basic {MASK}"),
        ("\u0130 HF_TOKEN=S3cret", f"\u0130 HF_TOKEN={MASK}"),  # a letter that is two in lower case
    ],
)
def test_secrets_are_told_by_name_and_form(text: str, shown: str) -> None:
    masked = Masker().text(f"first\n{text}\nlast")
    assert masked == f"first\n{shown}\nlast"


@pytest.mark.parametrize(
    "text",
    [
        "[2026-07-01 10:00:00 TP0] Decode batch, #running-req: 1, #token: 30, token usage: 0.01, gen throughput (token/s): 10",
        "Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0",
        "KeyError: 'model.layers.0'",
        "tokenizer_path='/m', skip_tokenizer_init=False, ssl_keyfile='/etc/k.pem', bos_token='<s>', api_key=None",
        "Loading safetensors checkpoint shards: 100% Completed",
        "PATH=/usr/bin PWD=/root",
    ],
)
def test_logs_stay_readable(text: str) -> None:
    assert Masker(["S3cret-key"]).text(text) == text


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("pa/ss%2Bword%3D%3Dx1", id="URL with a slash"),
        pytest.param("pa%2fss%2bword%3d%3dx1", id="URL in small letters"),
        pytest.param("cGEvc3Mrd29yZD09eDE", id="base64 without padding"),
        pytest.param("cGEvc3Mrd29yZD09eDEK", id="base64 of a line"),
        pytest.param("pa\\/ss+word==x1", id="JSON of PHP"),
    ],
)
def test_other_spellings_of_a_known_secret(written: str) -> None:
    shown = Masker(["pa/ss+word==x1"]).text(f"x {written} y")
    assert MASK in shown
    assert written[:12] not in shown


def basic(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("70612f73732b776f72643d3d7831", id="hex"),
        pytest.param("70612F73732B776F72643D3D7831", id="hex in capitals"),
        pytest.param("".join(f"\\u{ord(sign):04x}" for sign in "pa/ss+word==x1"), id="every sign escaped"),
        pytest.param("".join(f"\\u{ord(sign):04X}" for sign in "pa/ss+word==x1"), id="every sign escaped in capitals"),
        pytest.param("pa\\u002fss\\u002Bword\\u003d\\u003dx1", id="some signs escaped, as Go does"),
        pytest.param("p\\\\u0061/ss+word==x1", id="escaped twice"),
        pytest.param("pa\\x2fss\\x2bword==x1", id="escaped for Python"),
        pytest.param("pa\\057ss+word==x1", id="octal, as C and git do"),
        pytest.param("pa&#47;ss&#x2B;word==x1", id="XML"),
        pytest.param("%70%61%2f%73%73%2B%77ord%3D=x1", id="more than needed in a URL"),
        *(
            pytest.param(
                basic(f"{user}:pa/ss+word==x1{after}"), id=f"basic authentication, {len(user)} and {len(after)}"
            )
            for user in ("", "u", "us", "admin")
            for after in ("", "\n", "xy")
        ),
        pytest.param(basic("user:pa/ss+word==x1").replace("+", "-").replace("/", "_"), id="base64 for URLs"),
    ],
)
def test_encodings_of_a_known_secret(written: str) -> None:
    shown = Masker(["pa/ss+word==x1"]).text(f'x "{written}" y')
    assert shown == f'x "{MASK}" y'
    assert redact_text(f"x {written} y", ["pa/ss+word==x1"]) == f"x {MASK} y"


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(r"k1\"x\\y\$z%q`end", id="environment file"),
        pytest.param(r"k1\"x\\y$$z%%q`end", id="ExecStart"),
        pytest.param(r"k1\"x\\y\$z%q\`end", id="shell"),
    ],
)
def test_quoting_of_systemd_and_shells(written: str) -> None:
    assert Masker([r'k1"x\y$z%q`end']).text(f"A={written}.") == f"A={MASK}."


def test_what_only_looks_alike_stays() -> None:
    text = "PA/SS+WORD==X1 pa/ss+word==x2 100%|##| a\\u0062c 7061 cGEv"
    assert Masker(["pa/ss+word==x1"]).text(text) == text


def test_long_runs_of_backslashes_cost_little() -> None:
    began = time.monotonic()
    Masker(["pa/ss+word==x1"]).text("\\x" + "\\" * 200_000)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"token": "planted-unknown"}', f'{{"token": "{MASK}"}}'),
        ("{'session_token': 'planted-unknown'}", f"{{'session_token': '{MASK}'}}"),
        ("my_token=planted-unknown", f"my_token={MASK}"),
        ("gh-token: planted-unknown", f"gh-token: {MASK}"),
        ("token=planted-unknown&x=1", f"token={MASK}"),
        ("MYTOKEN=planted-unknown", f"MYTOKEN={MASK}"),
        ("Unexpected token: identifier", "Unexpected token: identifier"),
        ("mask_token=mask123456, eos_token='</endoftext>', 'pad_token': 'padding'", None),
        ("max_new_token=1234567, num_token: 123456, token usage: 0.1234567", None),
    ],
)
def test_values_under_the_name_of_a_token(text: str, shown: str | None) -> None:
    assert Masker().text(text) == (shown or text)


def test_a_structures_secrets_are_told_by_their_keys() -> None:
    value = {
        "token": "x",
        "hf_token": "x",
        "db-password": 12345678,
        "secret": ["kept in a list"],
        "has_api_key": True,
        "eos_token": "</s>",
        "key": "k",
        "max_total_tokens": 7,
        "token_usage": 0.5,
        "credential": "",
    }
    masked = {**value, "token": MASK, "hf_token": MASK, "db-password": MASK}
    assert redact(value) == masked
    assert Masker().value(value) == masked


def test_many_empty_lines_before_a_credential_cost_little() -> None:
    began = time.monotonic()
    Masker().text("SetCredential" + "\n" * 60_000)
    assert time.monotonic() - began < 5.0


def test_structures_are_masked_in_every_spelling() -> None:
    masked = Masker(['a"b\\c d']).value(
        {"api_key": "x", "tail": ['it is {"k": "a\\"b\\\\c d"}'], "port": 1, "none": {"api_key": None}}
    )
    assert masked == {"api_key": MASK, "tail": [f'it is {{"k": "{MASK}"}}'], "port": 1, "none": {"api_key": None}}


@settings(deadline=None)  # a busy machine
@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r*"), min_size=8, max_size=20).filter(
        str.strip
    )
)
def test_a_known_secret_is_found_however_it_is_written(secret: str) -> None:
    masker = Masker([secret])
    ways = {
        "plain": secret,
        "json": json.dumps(secret)[1:-1],
        "repr": repr(secret)[1:-1],
        "json of a repr": json.dumps(repr(secret)[1:-1])[1:-1],
        "url": urllib.parse.quote(secret, safe=""),
        "base64": base64.b64encode(secret.encode()).decode(),
    }
    for way, text in ways.items():
        assert text in spellings(secret), way
        assert text not in masker.text(f"x={text}=x") or text in MASK, way

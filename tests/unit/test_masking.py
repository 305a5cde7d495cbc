from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longwatch.core.masking import MASK, looks_secret, mask_argv, mask_mapping, mask_text

SECRET_NAMES = [
    "password", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "db_pass", "passwd", "passphrase",
    "client_secret", "SECRET_KEY_BASE", "token", "GITHUB_TOKEN", "accessToken", "API_TOKENS",
    "API_KEY", "apiKey", "APIKEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "private-key",
    "SSH_PRIVATE_KEY", "credentials", "GOOGLE_CREDENTIAL", "auth", "REDISCLI_AUTH", "Authorization",
    "SENTRY_DSN", "Cookie", "session_id", "SESSION", "TOKEN2",
]  # fmt: skip
PLAIN_NAMES = [
    "monkey", "keyboard", "author", "AUTHORS", "authority", "PATH", "PWD", "OLDPWD", "HOME",
    "compass", "tokenizer", "TOKENIZERS_PARALLELISM", "max_tokens", "MAX_OUTPUT_TOKENS",
    "PUBLIC_KEY", "primary_key", "secretary", "stop_signal", "", "_",
]  # fmt: skip

secrets = st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=6).map(
    lambda text: f"s3{text}"
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_with_a_secret_word_looks_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_that_only_contains_the_letters_does_not_look_secret(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["serve", "--token=x y"], ["serve", f"--token={MASK}"]),
        (
            ["serve", "--password", "hunter2", "--port", "80"],
            ["serve", "--password", MASK, "--port", "80"],
        ),
        (["serve", "--password", "-hunter2"], ["serve", "--password", MASK]),
        (["serve", "--no-auth", "file"], ["serve", "--no-auth", "file"]),
        (["serve", "--auth", "--port"], ["serve", "--auth", "--port"]),
        (["env", "API_KEY=x", "LANG=C"], ["env", f"API_KEY={MASK}", "LANG=C"]),
        (["docker", "--env=DB_PASSWORD=x"], ["docker", f"--env=DB_PASSWORD={MASK}"]),
        (["curl", "-H", "Authorization: Bearer x"], ["curl", "-H", f"Authorization: {MASK}"]),
        (["psql", "postgresql://u:p@db/x"], ["psql", f"postgresql://{MASK}@db/x"]),
        (["sh", "-c", "run --token abc --fast"], ["sh", "-c", f"run --token {MASK} --fast"]),
        (["ls", "-l", "a b", ""], ["ls", "-l", "a b", ""]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(argv: list[str], shown: list[str]) -> None:
    assert shown == mask_argv(argv)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:pw@h:6379/0", f"redis://{MASK}@h:6379/0"),
        ("https://TOKEN@github.com/x", f"https://{MASK}@github.com/x"),
        ("postgresql://u:p@ss/w@h/db", f"postgresql://{MASK}@h/db"),
        ("https://unpkg.com/react@18", "https://unpkg.com/react@18"),
        ("http://localhost:8080/a@b", "http://localhost:8080/a@b"),
        ("write to me@example.org", "write to me@example.org"),
        ("host=db password='a b' user=u", f"host=db password={MASK} user=u"),
        ("GET /x?token=abc", f"GET /x?token={MASK}"),
        ("serve --token=abc -p 3", f"serve --token={MASK} -p 3"),
        ("postgresql://h/db?user=u&password=pw", f"postgresql://h/db?user=u&password={MASK}"),
        (
            "postgresql://h/db?password=pw&user=u&sslpassword=pw",
            f"postgresql://h/db?password={MASK}&user=u&sslpassword={MASK}",
        ),
        ("redis://h?password=p&w&db=1 is away", f"redis://h?password={MASK}&db=1 is away"),
        ("password=p&w=x user=u", f"password={MASK} user=u"),
        ("URL=redis://h?db=1&password=pw", f"URL=redis://h?db=1&password={MASK}"),
        ("a=b&amp;password=pw", f"a=b&amp;password={MASK}"),
        ("?token=&x=1", "?token=&x=1"),
        ("redis:u:pw@h", f"redis:{MASK}@h"),
        ("redis::pw@h", f"redis:{MASK}@h"),
        ("redis:/u:pw@h/0", f"redis:{MASK}@h/0"),
        ("redis:///:pw@h", f"redis://{MASK}@h"),
        ("no store at 'u:p@w@h/db'", f"no store at '{MASK}@h/db'"),
        ("//u:pw@h/db", f"{MASK}@h/db"),
        ("mailto:me@example.org", "mailto:me@example.org"),
        ("nginx:1.25@sha256:abc", "nginx:1.25@sha256:abc"),
        ('{"address":"me@example.org"}', '{"address":"me@example.org"}'),
        ("at 12:30 me@example.org", "at 12:30 me@example.org"),
        ("sent Bearer abcdefgh.ijk", f"sent Bearer {MASK}"),
    ],
)
def test_a_text_is_shown_without_the_secrets_in_it(text: str, shown: str) -> None:
    assert shown == mask_text(text)


def test_a_mapping_is_masked_at_every_depth_and_otherwise_unchanged() -> None:
    settings = {
        "name": "web",
        "env": {"API_KEY": "k", "LANG": "C", "TOKEN": ""},
        "command": ("run", "--secret", "x"),
        "urls": [{"dsn": "x"}, 5],
        "auth": {"user": "x"},
        "token": None,
    }

    assert {
        "name": "web",
        "env": {"API_KEY": MASK, "LANG": "C", "TOKEN": ""},
        "command": ["run", "--secret", MASK],
        "urls": [{"dsn": MASK}, 5],
        "auth": MASK,
        "token": None,
    } == mask_mapping(settings)


@given(secret=secrets, name=st.sampled_from(SECRET_NAMES))
def test_a_masked_value_never_appears_in_a_mapping(secret: str, name: str) -> None:
    assert secret not in str(mask_mapping({name: secret, "deep": {"list": [{name: secret}]}}))


@given(secret=secrets, name=st.sampled_from(SECRET_NAMES), noise=st.text())
def test_a_masked_value_never_appears_in_a_command_line(secret: str, name: str, noise: str) -> None:
    assume(secret not in noise)
    argv = [
        "x",
        f"--{name}={noise}{secret}",
        f"--{name}",
        secret,
        f"{name}={secret} {noise}",
        f"a://u:{secret}@h",
        noise,
    ]

    assert secret not in str(mask_argv(argv))


users = st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="/?#@:"))


@given(user=users, password=secrets, odd=st.sampled_from("@:/#?"))
def test_a_password_in_a_url_never_appears_whatever_is_in_it(
    user: str, password: str, odd: str
) -> None:
    assert password not in mask_text(
        f"see scheme://{user}:{password}{odd}{password}@host/path for more"
    )


@given(
    password=secrets,
    before=st.lists(st.sampled_from(["user=u", "db=1", "x", "a=%20"]), max_size=3),
    after=st.booleans(),
)
def test_a_password_in_a_query_never_appears_and_the_rest_does(
    password: str,
    before: list[str],
    after: bool,  # noqa: FBT001 - hypothesis
) -> None:
    rest = "&".join(before)
    query = "&".join([*before, f"password={password}", *(["last=1"] if after else [])])
    shown = mask_text(f"scheme://host/path?{query}")
    assert password not in shown
    assert f"?{rest}" in shown
    assert after == shown.endswith("&last=1")


@given(
    scheme=st.sampled_from(["", "redis:", "postgresql:", "redis:/", "//"]),
    user=st.from_regex(r"[\w.-]{1,20}", fullmatch=True),
    password=secrets,
)
def test_a_password_in_a_url_that_lacks_its_slashes_never_appears(
    scheme: str, user: str, password: str
) -> None:
    assert password not in mask_text(
        f"no store is known for '{scheme}{user}:{password}@host/db'; use another"
    )


@given(st.text())
def test_masking_a_text_never_fails_and_leaves_texts_without_marks_alone(text: str) -> None:
    marked = any(mark in text for mark in ("@", "=", "--")) or any(
        word in text.lower() for word in ("bearer", "basic", "authorization")
    )

    assert marked or text == mask_text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"token":"abc", "n": 1}', '{"token":"***", "n": 1}'),
        ("{'db_password': 'it\\'s me', 'x': 2}", "{'db_password': \"***\", 'x': 2}"),
        ('{"apiKey" : 123}', '{"apiKey" : "***"}'),
        ('{"password": null, "token": true}', '{"password": null, "token": true}'),
        ('{"max_tokens": 5, "name": "a"}', '{"max_tokens": 5, "name": "a"}'),
        ('{"token": "cut off here', '{"token": "***"'),
    ],
)
def test_a_secret_in_json_or_in_the_repr_of_a_dict_is_masked(text: str, shown: str) -> None:
    assert shown == mask_text(text)


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer x", f"Authorization: Bearer {MASK}"),
        ("authorization: basic eA==", f"authorization: basic {MASK}"),
        ("{'Authorization': 'Bearer a b'}", f"{{'Authorization': \"{MASK}\"}}"),
        ("-H Proxy-Authorization:token abc", f"-H Proxy-Authorization:token {MASK}"),
        ("sent bearer abc123.x here", f"sent bearer {MASK} here"),
        ("BEARER aBcdefgh", f"BEARER {MASK}"),
        ("Bearer secretsecret", f"Bearer {MASK}"),
        ("with Basic dXNlcjpwYXNz.", f"with Basic {MASK}."),
        ("basic dXNlcjpwYXNzd29yZA==", f"basic {MASK}"),
        ("key sk-abcdefghijklmnop1234", f"key {MASK}"),
        ("sk-a1b2c3d4", MASK),
        ("sk-abcdefghijklmnopqrst", MASK),
        ("'sk-proj-Ab_c-d3f'", f"'{MASK}'"),
        ("x=sk-ant-api03-AbCdEf-123_x,", f"x={MASK},"),
        ("sk-aB3d-eF6h_iJ9l-mN2p", MASK),
        ("sk_live_a1b2c3d4", MASK),
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", MASK),
        ("a ghs_16C7e42F292c6912 b", f"a {MASK} b"),
        ("github_pat_11ABCDEFG0_abc", MASK),
        ("xoxb-123456-abcdef", MASK),
        ("xoxp-abcdef", MASK),
        ("AKIAIOSFODNN7EXAMPLE is it", f"{MASK} is it"),
        (f"jwt ({JWT})", f"jwt ({MASK})"),
        ("https://u:p@h/x", f"https://{MASK}@h/x"),
    ],
)
def test_a_token_is_masked_by_its_form_without_a_name_beside_it(text: str, shown: str) -> None:
    assert shown == mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "import sk-learn", "sk-learn-contrib-package-1", "the task-force of 2031",
        "risk-0123456789",
        "disk-12345678901234567890", "sk-SK", "bearer of news", "bearer certificates",
        "the bearer. Then", "bearer tokens", "basic understanding", "Basic JavaScript",
        "basic income", "basic auth", "authorization: denied", "authorization required",
        "ghp_token", "github_pat_token", "ghost", "night", "AKIAK", "AKIAIOSFODNN7EXAMPLEx",
        "eyJust.a.word", "eyJabcdefgh", "xox", "foxox-abcdefgh", "longwatch-1.2.3",
        "550e8400-e29b-41d4-a716-446655440000", "sha256:e3b0c44298fc1c149afbf4c8996fb924",
    ],
)  # fmt: skip
def test_words_that_only_resemble_tokens_survive(text: str) -> None:
    assert text == mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "sk-", "sk-a", "sk-a1-", "sk-ant-", "eyJ", "eyJ.", "eyJaaaaaa.", "eyJaaaaaa.a",
        "bearer ", "bearer a", "bearer a-", "Bearer", "basic ", "basic a", "basic a/",
        "authorization:", "authorization: bearer ", "ghp_", "ghp_a", "xoxb-", "AKIA", "a-", "a.",
        "=a:b", "://a:", '"a":"', "?token=a&", "--a ", 'password="',
    ],
)  # fmt: skip
def test_masking_a_megabyte_of_hostile_text_ends(text: str) -> None:
    """A pattern that backtracks over the whole text would take hours: the limit on a test's time
    fails it.
    """
    assert mask_text(text * (1_000_000 // len(text)) + " @ =")

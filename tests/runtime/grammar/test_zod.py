"""Texts as zod 4 publishes them by `z.toJSONSchema`: most have a format and a pattern at once."""

import json

import pytest

from tests.runtime.grammar.fitting import open_schema

LOCAL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
LATER_LOCAL = (
    r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]"
    r"@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
LEAP = r"(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29"
MONTHS = (
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|(?:02)-(?:0[1-9]|1\d|2[0-8])"
)
ZOD_DAY = rf"(?:{LEAP}|\d{{4}}-(?:{MONTHS}))"
BYTE = "25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9]"
HEX = "[0-9a-fA-F]{1,4}"
IPV6 = f"(({HEX}:){{7}}{HEX}|::|({HEX})?::({HEX}:?){{0,6}})"
LATER_IPV6 = (
    f"(({HEX}:){{7}}{HEX}|({HEX}:){{1,7}}:|({HEX}:){{1,6}}:{HEX}|({HEX}:){{1,5}}(:{HEX}){{1,2}}"
    f"|({HEX}:){{1,4}}(:{HEX}){{1,3}}|({HEX}:){{1,3}}(:{HEX}){{1,4}}|({HEX}:){{1,2}}(:{HEX}){{1,5}}"
    f"|{HEX}:((:{HEX}){{1,6}})|:((:{HEX}){{1,7}}|:))"
)
HOST = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
UUID4 = r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12})$"
EMOJI = r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$"
BASE64 = r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"
ZOD: list[tuple[str | None, str | None, str, str]] = [
    ("email", LOCAL, "ada@a.example", "ada"),
    ("email", LATER_LOCAL,
     "ada@a.example", ".a@b.cc"),
    ("time", rf"^{CLOCK}(?::[0-5]\d(?:\.\d+)?)?$", "10:30", "10:30:00Z"),
    (None, rf"^{CLOCK}(?::[0-5]\d(?:\.\d+)?)?$", "10:30:05.2", "24:00"),
    ("time", rf"^{CLOCK}:[0-5]\d\.\d{{3}}$", "10:30:05.250", "10:30:05"),
    ("duration", DURATION, "P1DT2H", "1 day"),
    ("date", f"^{ZOD_DAY}$", "2024-02-29", "2023-02-29"),
    ("date-time", rf"^{ZOD_DAY}T(?:{CLOCK}:[0-5]\d(?:\.\d+)?(?:Z))$", "2024-02-29T10:00:00Z",
     "2024-02-29T10:00:00"),
    ("date-time", rf"^{ZOD_DAY}T(?:{CLOCK}(?:Z))$", "2024-02-29T10:00Z", "2024-02-29T10:00:00Z"),
    ("uuid", UUID4, "01234567-89ab-4def-8123-456789abcdef", "01234567-89ab-cdef-0123-456789abcdef"),
    ("ipv4", rf"^(?:(?:{BYTE})\.){{3}}(?:{BYTE})$", "10.0.0.1", "10.0.0.256"),
    ("hostname", HOST, "a.example", "-a"),
    ("uri", None, "https://a.example", "a b"),
    ("emoji", EMOJI, "😀", "a"),
    ("base64", BASE64, "YQ==", "Y"),
    ("e164", r"^\+[1-9]\d{6,14}$", "+4930123456", "030"),
    ("jwt", None, "a.b.c", ""),
    ("lowercase", "^[^A-Z]*$", "a", "A"),
    ("starts_with", "^ab.*", "abc", "b"),
    ("ends_with", r".*\.x$", "a.x", "a"),
    ("uppercase", "^[^a-z]*$", "A", "a"),
    ("nanoid", "^[a-zA-Z0-9_-]{21}$", "a-" * 10 + "b", "a"),
    ("cuid", r"^[cC][^\s-]{8,}$", "c12345678", "d"),
    ("cuid", "^[cC][0-9a-z]{6,}$", "c123456", "d"),
    ("cuid2", "^[0-9a-z]+$", "a1", "A"),
    ("ulid", "^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$", "0" * 26, "0"),
    ("ulid", "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$", "0" * 26, "8"),
    ("base64url", "^[A-Za-z0-9_-]*$", "YQ", "+"),
    ("base64url", "^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2,3})?$", "YQ", "Y"),
    ("xid", "^[0-9a-vA-V]{20}$", "v" * 20, "w"),
    ("ksuid", "^[A-Za-z0-9]{27}$", "a" * 27, "-"),
    ("ipv6", f"^{IPV6}$", "2001::1", "10.0.0.1"),
    ("ipv6", f"^{LATER_IPV6}$", "2001:db8::1", "10.0.0.1"),
    ("cidrv4", rf"^(({BYTE})\.){{3}}({BYTE})\/([0-9]|[1-2][0-9]|3[0-2])$",
     "10.0.0.0/8", "10.0.0.0"),
    ("cidrv6", rf"^{IPV6}\/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$", "2001::/32", "::1"),
    ("cidrv6", rf"^{LATER_IPV6}\/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$", "2001:db8::/32", "::1"),
    ("hex", "^[0-9a-fA-F]*$", "0f", "g"),
    ("includes", "q", "aqua", "a"),
    ("mac", "^(?:[0-9A-F]{2}:){5}[0-9A-F]{2}$|^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$", "0a:1b:2c:3d:4e:5f", "0a"),
]  # fmt: skip
"""What zod 4.0 to 4.6 publish for formats of texts: format, pattern, a text that fits, another."""


@pytest.mark.parametrize(("name", "pattern", "good", "bad"), ZOD)
def test_a_text_is_what_zod_publishes(name: str | None, pattern: str | None, good: str, bad: str) -> None:
    schema = {"type": "string", "format": name, "pattern": pattern}
    grammar = open_schema({key: value for key, value in schema.items() if value is not None})
    assert grammar.fits(json.dumps(good, ensure_ascii=False))
    assert name == "jwt" or not grammar.fits(json.dumps(bad))

"""Masks on personal data: what is found, what is left alone, and that a second run adds nothing."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import MaskTextSpec
from datapipe.stages.mask_text import find, mask_text
from schemas import document
from tests import make

SPEC = MaskTextSpec()

# (role, text, what must be masked). The text of each hit is compared exactly, so offsets are right too.
EMAILS = [
    ("paragraph", "Write to jane.doe@gnome.org.", "jane.doe@gnome.org"),
    ("paragraph", "<mailto:a+b_c@mail.co.uk>", "a+b_c@mail.co.uk"),
    ("paragraph", "请联系wang@sina.com.cn谢谢", "wang@sina.com.cn"),
    ("paragraph", "jürgen@müller.de, почта@пример.рф", "jürgen@müller.de|почта@пример.рф"),
    ("paragraph", "shaunm (at) gnome (dot) org", "shaunm (at) gnome (dot) org"),
    ("paragraph", "shaunm [at] gnome.org", "shaunm [at] gnome.org"),
    ("caption", "x@y.photography", "x@y.photography"),
    ("code", "# Author: Jo <jo@kernel.org>", "jo@kernel.org"),
    ("tool_result", "From: o'neil@x.ie\n", "o'neil@x.ie"),
    ("paragraph", "𝒜 😀 me@a-b.org 😀", "me@a-b.org"),
    ("paragraph", "Die jane@gnome.org-Adresse", "jane@gnome.org"),
]
NO_EMAILS = [
    ("paragraph", "name@example.com, you@mail.example.org, root@localhost, a@b.test"),
    ("paragraph", "logo@2x.png icon@3x.svg"),
    ("paragraph", "Start getty@tty1.service and user@1000.service."),
    ("code", "git clone git@github.com:org/repo.git"),
    ("code", "scp notes.txt deploy@web1.acme.net:/srv/"),
    ("code", "y = x@w.transpose(0, 1); z = self.q@k.mean + a@b.to(dtype)"),
    ("code", "npm install left-pad@1.3.0 @types/node@20.1.2"),
    ("paragraph", "From deploy@web1.acme.net:/srv and x@y.ab.cd(e)"),
    ("paragraph", "Meet at (at) the dot."),
    ("paragraph", "@user on medium.com, price 3@4"),
]
PHONES = [
    ("paragraph", "Call +1 212-555-4567 now", "+1 212-555-4567"),
    ("paragraph", "+49 (0)30 901820 or +33 1 23 45 67 89.", "+49 (0)30 901820|+33 1 23 45 67 89"),
    ("paragraph", "+14155552671", "+14155552671"),
    ("paragraph", "+44 20 7946 0958, +86 138 1234 5678", "+44 20 7946 0958|+86 138 1234 5678"),
    ("paragraph", "+1 212-555-4567 2023 people", "+1 212-555-4567"),
    ("paragraph", "0049 30 901820", "0049 30 901820"),
    (
        "paragraph",
        "(212) 555-4567 and 212.555.4567, 1-800-555-4567",
        "(212) 555-4567|212.555.4567|1-800-555-4567",
    ),
    ("paragraph", "030/9018201", "030/9018201"),
    ("paragraph", "(030) 901820-15", "(030) 901820-15"),
    (
        "paragraph",
        "020 7946 0958; 01 44 45 67 89; 03-1234-5678; 044.668.18.00",
        "020 7946 0958|01 44 45 67 89|03-1234-5678|044.668.18.00",
    ),
    ("paragraph", "Tel.: 555-1234, Fax 5551235", "555-1234|5551235"),
    ("paragraph", "phone 212 555 4567", "212 555 4567"),
    ("paragraph", "Mobile: 0171 2345678", "0171 2345678"),
    ("paragraph", "电话13812345678", "13812345678"),
    ("paragraph", "tel:+1-212-555-4567", "+1-212-555-4567"),
    ("table", "Phone\t212 555 4567", "212 555 4567"),
    ("table", "Jane\t(212) 555-4567", "(212) 555-4567"),
    ("code", 'number = "+4930901820"', "+4930901820"),
    ("paragraph", "Ring +90 212 555 45 67 (Istanbul).", "+90 212 555 45 67"),
]
NO_PHONES = [
    ("paragraph", "Version 2.10.34, kernel 6.1.0-18, 5.15.0-1023, 20.04.1.2345"),
    ("paragraph", "2023-04-15 12:30:45, 15.04.2023, 04/15/2023, 01-02-2003 14:00, 05.06.2012 1000"),
    ("paragraph", "ISBN 978-0-306-40615-7, ISBN 0-306-40615-2, ISBN-10: 0306406152, ISSN 0317-8471"),
    ("paragraph", "3.14159265358979, 1,234,567,890 and 1 234 567 890 and 12.345.678.901"),
    ("paragraph", "+12 345 678 people, +45 678 901 more, +100, +1.5, UTC+0100, UTC +01:00"),
    ("paragraph", "Journal of Tests (2019) 123 456-7890, pp. 1023-1045"),
    ("paragraph", "call 555-0123 or (212) 555-0199, the numbers of films"),
    ("paragraph", "4111 1111 1111 1111, 0123 4567 8901, 1234567890123"),
    ("paragraph", "RGB 255 255 255 0, 1920x1080, 800 600 1024 768"),
    ("paragraph", "0.0 0.5 1.0, 01 12 03 44 05 16 07 08, 08-12 13-17, 01 02 03 04 05"),
    ("paragraph", "The phone has 1080 2340 pixels; phone 7.1.2.3456 firmware, telephone 192.168.100.101"),
    ("paragraph", "Open since 2001-2003-2005, rooms 100-200, size 300-200"),
    ("paragraph", "commit 0123456789, CVE-2021-44228-1234, RFC 2606 2822 5322"),
    ("code", "x = 212 - 555 - 4567; y = 300-200-1000; t = 1700000000"),
    ("code", "0000010: 0012 3456 7890 0423 3344 5566\n+12345678901"),
    ("code", "static int t[] = {0171, 2345678, 0172, 2345679}; // 020 7946 0958"),
    ("table", "212 555 4567\t030 901820 11\t01 23 45 67 89"),
    ("table", "020 7946 0958\n0171 2345678"),
    ("table", "1990\t1991\t1992\n+12.5\t+300\t-4"),
    ("paragraph", "microphone 12345678 and headphone 7654321"),
    ("paragraph", "54.3210, 12.3456 N; 048.8566, 002.3522"),
    ("paragraph", "Boston, MA 02111-1307 USA"),
]
IPS = [
    ("paragraph", "from 8.8.4.200 at noon", "8.8.4.200"),
    ("paragraph", "The server is 93.184.216.34.", "93.184.216.34"),
    ("code", "ping 93.184.216.34\nhttp://93.184.216.35:8080/x", "93.184.216.34|93.184.216.35"),
    (
        "paragraph",
        "2a00:1450:4001:81b::200e, [2606:4700::6810:84e5]:443",
        "2a00:1450:4001:81b::200e|2606:4700::6810:84e5",
    ),
    ("paragraph", "(77.88.55.66)", "77.88.55.66"),
    ("table", "a\t77.88.55.66\tb", "77.88.55.66"),
]
NO_IPS = [
    ("paragraph", "10.1.2.3, 127.0.0.1, 192.168.1.77, 172.16.99.1, 169.254.1.1, 255.255.255.0, 224.0.0.251"),
    ("paragraph", "192.0.2.44, 198.51.100.99, 203.0.113.200, 100.64.1.99"),
    ("paragraph", "Version 4.0.0.130, v71.2.3.4, Chrome/91.0.44.124, a-77.88.55.66.tar, release: 99.1.2.3"),
    ("heading", "2.3.1.12 Setup"),
    ("heading", "6.34.2.1. Properties"),
    ("paragraph", "See\n6.34.2.1. Properties\nand section 6.34.2.2"),
    ("paragraph", "1.3.6.1.4.1.311.88, 77.88.55.66.99, 77.88.55.0/24, 300.200.100.50, 077.088.055.066"),
    ("paragraph", "fe80::1, ::1, 2001:db8::99, fd00::77, ff02::1, 2001:db8:0:1::/64, 2a00:1450::/32"),
    ("paragraph", "cufft==12.2.0.57, numpy >= 99.1.2.3"),
    ("code", "ObjectIdentifier('1.3.101.110')"),
    ("code", "std::vector<a::b> c = 2000::x; 12:34:56; 00:1a:2b:3c:4d:5e; 2023:04:15 10:11:12"),
]
# Numbers with right check digits that belong to nobody: random digits, the last one computed.
CARDS = [
    ("paragraph", "Visa 4539 1488 0343 6467 until 2027", "4539 1488 0343 6467"),
    ("paragraph", "card no. 4539148803436467.", "4539148803436467"),
    ("paragraph", "paid with 2221 0012 3412 3450", "2221 0012 3412 3450"),
    ("table", "Credit card: 6011 0009 9013 9465", "6011 0009 9013 9465"),
]
NO_CARDS = [
    ("paragraph", "4111 1111 1111 1111, 4242-4242-4242-4242, 378282246310005 are test numbers"),
    ("paragraph", "4539 1488 0343 6468 has a wrong check digit, 1234 5678 9012 3452 no issuer"),
    ("code", "id = 4539148803436467; x = [4539, 1488, 0343, 6467]"),
    ("paragraph", "order 4539148803436467 and part 4539 1488 0343 6467-2 and 0.4539148803436467"),
    ("table", "4539 1488 0343 6467"),
]
IBANS = [
    ("paragraph", "Konto DE68 2105 0170 0012 3456 78, danke", "DE68 2105 0170 0012 3456 78"),
    ("code", 'iban = "NO8330001234567"', "NO8330001234567"),
    ("table", "MT31MALT01100000000000000000123\tx", "MT31MALT01100000000000000000123"),
    ("paragraph", "BE71 0961 2345 6769 EUR", "BE71 0961 2345 6769"),
]
NO_IBANS = [
    ("paragraph", "DE89 3704 0044 0532 0130 00 and GB82WEST12345698765432 are the registry's examples"),
    ("paragraph", "DE69 2105 0170 0012 3456 78, DE68 2105 0170 0012 3456, XX68 2105 0170 0012 3456 78"),
    ("code", "AB12 CD34EF56 0x12AB34CD56EF78AB90, US12 3456 7890 1234"),
]
# Put together here, so that this file holds nothing a scanner would take for a secret.
AWS, GITHUB = "AKIA" + "QZ7TN4WLM2XKD5RB", "ghp_" + "q7Zt2Lm9Xw4Kc8Rv1Ny6Bd3Fs5Hj0Pg2Ta4e"
TOKEN, PEM = (
    "q7Zt2Lm9Xw4Kc8Rv",
    "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQ+/aZ09" * 2 + "\n-----END PRIVATE KEY-----",
)
SECRETS = [
    ("code", f"aws_access_key_id = {AWS}", AWS),
    ("tool_result", f"export GH={GITHUB}\n", GITHUB),
    ("code", f'password: "{TOKEN}"', TOKEN),
    ("paragraph", f"Authorization: Bearer {TOKEN}9b", f"{TOKEN}9b"),
    ("code", f"API_KEY={TOKEN}", TOKEN),
    ("code", "postgres://ann:hunter22@db.acme.io/x", "hunter22"),
    ("code", f'key = """{PEM}"""', PEM),
]
NO_SECRETS = [
    (
        "code",
        "aws_access_key_id = AKIAIOSFODNN7EXAMPLE; token = ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ),
    ("code", "password = getpass.getpass(); api_key=os.environ['OPENAI_API_KEY']"),
    ("code", "postgres://user:password@localhost/db, redis://:${REDIS_PASS}@host, http://a.b:8080/c@d"),
    ("paragraph", "The password is case-sensitive-and-long, the secret: nobody-but-me-has-ever-known it."),
    ("code", "secret_key = 'aaaaaaaaaaaaaaaa1111', commit 3f786850e387550fdab836ed7e6dc881de23001b"),
]
REASONS = {"secret": "secret"}


def hits(role: str, text: str, detector: str) -> list[str]:
    found = find(text, role, MaskTextSpec(detectors=(detector,)))
    assert all(reason == REASONS.get(detector, f"pii_{detector}") for _, _, reason in found)
    return [text[start:end] for start, end, _ in found]


@pytest.mark.parametrize(
    ("detector", "role", "text", "expected"),
    [("email", *c) for c in EMAILS]
    + [("phone", *c) for c in PHONES]
    + [("ip", *c) for c in IPS]
    + [("card", *c) for c in CARDS]
    + [("iban", *c) for c in IBANS]
    + [("secret", *c) for c in SECRETS],
)
def test_personal_data_is_found_to_the_character(detector: str, role: str, text: str, expected: str) -> None:
    assert hits(role, text, detector) == expected.split("|")


@pytest.mark.parametrize(
    ("detector", "role", "text"),
    [("email", *c) for c in NO_EMAILS]
    + [("phone", *c) for c in NO_PHONES]
    + [("ip", *c) for c in NO_IPS]
    + [("card", *c) for c in NO_CARDS]
    + [("iban", *c) for c in NO_IBANS]
    + [("secret", *c) for c in NO_SECRETS],
)
def test_what_only_looks_like_personal_data_is_left_alone(detector: str, role: str, text: str) -> None:
    assert hits(role, text, detector) == []


def test_masks_carry_segment_reason_action_and_detector() -> None:
    row = make.document_row(
        [
            make.text("Nothing here"),
            make.picture_segment("m"),
            make.text("😀 jane@gnome.org, +49 30 901820 and 93.184.216.34"),
        ]
    )
    masks = mask_text(make.documents([row]), MaskTextSpec(action="drop"))["masks"].to_pylist()[0]
    assert [(m["segment"], m["start"], m["end"], m["reason"]) for m in masks] == [
        (2, 2, 16, "pii_email"),
        (2, 18, 31, "pii_phone"),
        (2, 36, 49, "pii_ip"),
    ]
    assert {(m["action"], m["detector"], m["box"]) for m in masks} == {("drop", "regex", None)}


def test_overlapping_hits_become_one_mask_over_both() -> None:
    assert find("Tel. 212-555-4567@gnome.org", "paragraph", SPEC) == [(5, 27, "pii_email")]


@pytest.mark.parametrize(
    ("start", "end", "action", "is_new"),
    [(None, None, "drop", False), (0, 14, "no_loss", False), (3, 14, "no_loss", True), (0, 5, "drop", True)],
)
def test_a_hit_that_is_masked_already_gets_no_second_mask(
    start: int | None, end: int | None, action: str, is_new: bool
) -> None:
    old = {
        "segment": 0,
        "start": start,
        "end": end,
        "box": None,
        "reason": "boilerplate",
        "action": action,
        "detector": "other",
    }
    row = make.document_row([make.text("jane@gnome.org")], masks=[old])
    masks = mask_text(make.documents([row]), SPEC)["masks"].to_pylist()[0]
    assert masks[0] == old and len(masks) == 1 + is_new


def test_dropping_is_added_where_there_was_only_no_loss() -> None:
    batch = mask_text(make.documents([make.document_row([make.text("jane@gnome.org")])]), SPEC)
    masks = mask_text(batch, MaskTextSpec(action="drop"))["masks"].to_pylist()[0]
    assert [m["action"] for m in masks] == ["no_loss", "drop"]


# ---- properties

PIECES = st.one_of(
    st.sampled_from([text for _, text, *_ in EMAILS + PHONES + IPS + NO_PHONES + NO_IPS]),
    st.text("+0123456789 .-()/:@aétel\n", max_size=20),
    st.text(max_size=8),
)
ROLES = st.sampled_from(["paragraph", "code", "table"])
SEGMENTS = st.lists(
    st.one_of(
        st.builds(make.text, st.lists(PIECES, max_size=3).map(" ".join), ROLES),
        st.just(make.picture_segment("m")),
    ),
    max_size=3,
)


@settings(max_examples=60)
@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.sampled_from(["no_loss", "drop"]))
def test_only_masks_change_and_neither_a_second_run_nor_the_split_matters(
    all_segments: list, action: str
) -> None:
    batch = make.documents([make.document_row(s, f"{i}.html") for i, s in enumerate(all_segments)])
    spec = MaskTextSpec(action=action)
    once = mask_text(batch, spec)
    document.validate(once)
    assert once.schema == document.SCHEMA
    assert once.drop_columns(["masks"]) == batch.drop_columns(["masks"])
    assert mask_text(once, spec) == once
    parts = [row for i in range(batch.num_rows) for row in mask_text(batch.slice(i, 1), spec).to_pylist()]
    assert parts == once.to_pylist()
    for row in once.to_pylist():
        places = [(m["segment"], m["start"], m["end"]) for m in row["masks"]]
        assert all(s1 < s2 or end <= start for (s1, _, end), (s2, start, _) in pairwise(places))
        for segment, start, end in places:
            hit = row["segments"][segment]["text"][start:end]
            assert hit == hit.strip() and hit


def test_what_tools_print_is_context_and_a_hit_in_it_keeps_its_own_reason() -> None:
    row = make.document_row(
        [
            make.text("Call it.", "user"),
            make.text("{}", "tool_call"),
            make.text("jane@gnome.org", "tool_result"),
        ]
    )
    batch = mask_text(make.documents([row]), SPEC)
    masks = batch["masks"].to_pylist()[0]
    assert [(m["segment"], m["start"], m["end"], m["reason"], m["action"]) for m in masks] == [
        (2, 0, 14, "pii_email", "no_loss"),
        (2, None, None, "role_tool_result", "no_loss"),
    ]
    assert mask_text(batch, SPEC) == batch
    changed = mask_text(make.documents([row]), MaskTextSpec(roles={"user": "drop"}))["masks"].to_pylist()[0]
    assert [(m["segment"], m["reason"], m["action"]) for m in changed] == [
        (0, "role_user", "drop"),
        (2, "pii_email", "no_loss"),
    ]
    with pytest.raises(ValueError, match=r"\['robot'\] are no roles; there are heading"):
        MaskTextSpec(roles={"robot": "drop"})

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import NotText
from datapipe.sources.encoding import decode, find_encoding

PROSE = {
    "cp1252": "Où est passé l’été ? La forêt brûlait déjà, et les élèves étaient rentrés chez eux.",
    "iso8859-2": "Příliš žluťoučký kůň úpěl ďábelské ódy, a proto všichni měli strach.",
    "cp1250": "Zażółć gęślą jaźń, powiedział ktoś, a później wszyscy się śmiali.",
    "cp1251": "Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему.",
    "koi8-r": "Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему.",
    "cp866": "Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему.",
    "cp1253": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "cp1254": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar; şu sırada ışık söndü.",
    "cp1255": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם",
    "cp1256": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق",
    "cp1257": "Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis, todėl jų šūkis yra laisvė.",
    "cp874": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "cp932": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "euc_jp": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "iso2022_jp": "すべての人間は、生れながらにして自由であり、",
    "cp949": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "gb18030": "人人生而自由，在尊严和权利上一律平等。他们有理性和良心，应以兄弟关系的精神相对待。",
    "big5": "人人生而自由，在尊嚴和權利上一律平等。他們有理性和良心，應以兄弟關係的精神相對待。",
}
LABELS = {
    "koi8-r": "KOI8-R",
    "cp932": "Shift_JIS",
    "euc_jp": "euc-jp",
    "cp949": "ks_c_5601-1987",
    "big5": "Big5",
}


@pytest.mark.parametrize("encoding", PROSE)
def test_undeclared_legacy_encodings_are_found(encoding: str) -> None:
    found = find_encoding(PROSE[encoding].encode(encoding))
    assert (found.text, found.told_by) == (PROSE[encoding], "detected")


@pytest.mark.parametrize("encoding", PROSE)
@pytest.mark.parametrize("wrong", ["iso-8859-1", "utf-8"])
def test_a_wrong_declaration_does_not_win_against_writing(encoding: str, wrong: str) -> None:
    assert decode(PROSE[encoding].encode(encoding), wrong) == PROSE[encoding]


@pytest.mark.parametrize("encoding", [e for e in PROSE if e in LABELS or e.startswith("cp12")])
def test_a_right_declaration_is_believed_for_a_single_word(encoding: str) -> None:
    word = max(PROSE[encoding].split(), key=lambda w: sum(c > "\x7f" for c in w))[:3]
    found = find_encoding(word.encode(encoding), LABELS.get(encoding, encoding.replace("cp", "windows-")))
    assert (found.text, found.told_by) == (word, "declared")


@pytest.mark.parametrize(
    ("data", "declared", "text", "encoding", "told_by"),
    [
        (b"\xef\xbb\xbfcaf\xc3\xa9", "windows-1252", "café", "utf-8", "mark"),
        ("café".encode("utf-16"), "utf-8", "café", "utf-16-le", "mark"),
        ("café".encode("utf-32"), None, "café", "utf-32-le", "mark"),
        ("日本 Ā x<p>".encode("utf-16-be"), None, "日本 Ā x<p>", "utf-16-be", "zero bytes"),
        ("plain".encode("utf-32-le"), None, "plain", "utf-32-le", "zero bytes"),
        ("café".encode(), "iso-8859-1", "café", "utf-8", "utf-8"),
        (b"caf\xe9", None, "café", "cp1252", "detected"),
        (b"caf\xe9", "utf-8", "café", "cp1252", "detected"),
        (b"I don\x92t \x93know\x94", "iso-8859-1", "I don’t “know”", "cp1252", "declared"),
        (b"\x80 5", "us-ascii", "€ 5", "cp1252", "declared"),
        ("① 株式会社".encode("cp932"), "Shift_JIS", "① 株式会社", "cp932", "declared"),
        ("镕".encode("gbk"), "gb2312", "镕", "gb18030", "declared"),
        ("뷁".encode("cp949"), "euc-kr", "뷁", "cp949", "declared"),
        (b"~{VPND~}", "hz-gb-2312", "中文", "hz", "declared"),
        ("日本語".encode("iso2022_jp"), "iso-2022-jp", "日本語", "iso2022_jp", "declared"),
        (b"caf\xe9", "no-such-encoding", "café", "cp1252", "detected"),
    ],
)
def test_marks_labels_and_what_told_the_encoding(
    data: bytes, declared: str | None, text: str, encoding: str, told_by: str
) -> None:
    found = find_encoding(data, declared)
    assert (found.text, found.encoding, found.told_by) == (text, encoding, told_by)


def test_the_transport_is_believed_before_the_file_unless_it_gives_no_writing() -> None:
    data = PROSE["koi8-r"].encode("koi8-r")
    assert find_encoding(data, "iso-8859-1", "koi8-r").told_by == "declared"
    assert decode(data, "iso-8859-1", "koi8-r") == PROSE["koi8-r"]
    assert find_encoding(b"\xe0\xe8", "windows-1252", "iso-8859-2").encoding == "cp1252"


def test_utf8_that_was_cut_or_has_strange_bytes_pasted_in_stays_utf8() -> None:
    whole = "Über die Brücke, ça va, où, naïve, señor".encode()
    assert decode(whole + "é".encode()[:1]) == "Über die Brücke, ça va, où, naïve, señorÃ"
    assert decode(b"caf\xe9, " + whole) == "café, " + whole.decode()
    assert decode(("日" * 9).encode()[:-1])[:8] == "日" * 8


def test_a_few_zero_bytes_are_noise_and_many_are_no_text() -> None:
    assert decode(b"One\0 two" + b" word" * 200) == "One two" + " word" * 200
    with pytest.raises(NotText, match="zero bytes"):
        decode(b"\0\1\2\3" * 50)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.sampled_from([None, "utf-8", "utf-16", "gb2312", "iso-2022-jp", "x"]))
def test_any_bytes_are_text_or_refused(data: bytes, declared: str | None) -> None:
    try:
        text = decode(data, declared)
    except NotText:
        return
    text.encode()  # no half of a surrogate pair

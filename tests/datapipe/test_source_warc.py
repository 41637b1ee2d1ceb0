"""Web archives: which records are documents, how bodies are unpacked, where pictures are found, what a broken
file still gives.
"""

import gzip
import io
import zlib
from pathlib import Path

import pytest

from datapipe.errors import FileTooLarge, MalformedMarkup, SourceError
from datapipe.sources import responses, warc
from datapipe.sources.items import Member
from tests import make
from tests.datapipe.make_warc import PAGE, brotli, chunked, gzipped, http, page, picture, record, zstd

INFO = record(b"software: none\r\n", "", "warcinfo", "application/warc-fields")


def read(*records: bytes) -> list[Member]:
    """All documents of a file of records."""
    return list(warc.members(io.BytesIO(b"".join((INFO, *records))), 0, 1000))


def texts(member: Member) -> list[str | None]:
    return [item.text for item in member.document().items if item.kind == "text"]


def test_captured_pages_are_documents_under_their_url() -> None:
    first, second = read(
        page("<html lang=en><title>T</title><p>Words of the page"), page("<p>Other", "http://site.example/b")
    )
    document = first.document()
    assert (first.name, document.format, document.title, document.lang) == (PAGE, "html", "T", "en")
    assert (second.name, texts(second), second.content) == ("http://site.example/b", ["Other"], b"<p>Other")


def test_only_what_was_captured_well_and_is_a_page_is_a_document() -> None:
    found = read(
        record(b"GET / HTTP/1.1\r\n\r\n", kind="request", mime="application/http; msgtype=request"),
        record(http(b"<p>gone", status=404)),
        record(http(b"<p>half", status=206)),
        record(http(b"p {}", "text/css")),
        record(http(b"User-agent: *", "text/plain")),
        record(http(b"{}", "application/json")),
        record(b"fetchTimeMs: 3", kind="metadata", mime="application/warc-fields"),
        picture(make.picture(), PAGE + "/a.png"),
        record(http(b"<html><p>kept", "application/xhtml+xml; charset=utf-8"), PAGE + "/kept"),
    )
    assert [member.name for member in found] == [PAGE + "/kept"]


@pytest.mark.parametrize(
    ("block", "kind", "mime"),
    [
        (b"<!DOCTYPE html><p>Words", "response", "application/http; msgtype=response"),  # no HTTP headers
        (b"<p>Words", "resource", "text/html"),
        (b"Words", "conversion", "text/plain"),
        (http(b"<html><p>Words", mime=""), "response", "application/http; msgtype=response"),
        (http(gzipped(b"<html><p>Words"), "", Content_Encoding="gzip"), "response", "application/http"),
        (b"HTTP/1.1 200\nContent-Type: text/html\n\n<p>Words", "response", "application/http"),
    ],
)
def test_a_page_is_known_without_http_headers_or_type(block: bytes, kind: str, mime: str) -> None:
    (found,) = read(record(block, kind=kind, mime=mime))
    assert texts(found) == ["Words"]


BODY = b"<p>Many words, " + b"and again many words, " * 20


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (chunked(BODY), {"Transfer_Encoding": "chunked"}),
        (chunked(BODY, 50, ";name=value"), {"Transfer_Encoding": "Chunked"}),
        (gzipped(BODY), {"Content_Encoding": "gzip"}),
        (chunked(gzipped(BODY)), {"Transfer_Encoding": "chunked", "Content_Encoding": "x-gzip"}),
        (zlib.compress(BODY), {"Content_Encoding": "deflate"}),
        (zlib.compress(BODY, wbits=-15), {"Content_Encoding": "deflate"}),
        (brotli(BODY), {"Content_Encoding": "br"}),
        (zstd(BODY), {"Content_Encoding": "zstd"}),
        (brotli(gzipped(BODY)), {"Content_Encoding": "gzip, br"}),
        (BODY, {"Content_Encoding": "gzip"}),  # unpacked when it was captured
        (BODY, {"Content_Encoding": "br", "Transfer_Encoding": "chunked"}),
        (BODY, {"Content_Encoding": "identity"}),
    ],
)
def test_bodies_are_unpacked(body: bytes, headers: dict[str, str]) -> None:
    (found,) = read(record(http(body, **headers)))
    assert found.content == BODY


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzipped(BODY)[:-20], {"Content_Encoding": "gzip"}),
        (gzipped(BODY)[:30] + b"\0" * 30, {"Content_Encoding": "gzip"}),
        (brotli(BODY)[:-3], {"Content_Encoding": "br"}),
        (chunked(BODY)[:-30], {"Transfer_Encoding": "chunked"}),
    ],
)
def test_a_damaged_body_fails_its_document_and_no_other(body: bytes, headers: dict[str, str]) -> None:
    broken, good = read(record(http(body, **headers)), page("<p>Good", PAGE + "/2"))
    with pytest.raises(MalformedMarkup):
        broken.document()
    assert broken.content and texts(good) == ["Good"]


def test_a_body_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_BODY_BYTES", 1 << 20)
    bomb, good = read(
        record(http(gzipped(bytes(1 << 22)), Content_Encoding="gzip")), page("<p>Good", PAGE + "2")
    )
    with pytest.raises(FileTooLarge):
        bomb.document()
    assert len(bomb.content) < 10_000 and texts(good) == ["Good"]


def test_the_encoding_of_the_http_header_goes_to_the_reader() -> None:
    html = "<p>Żółć i źdźbło</p>".encode("iso-8859-2")
    (found,) = read(record(http(html, 'text/html; charset="ISO-8859-2"')))
    assert texts(found) == ["Żółć i źdźbło"]


@pytest.mark.parametrize(
    ("html", "url"),
    [
        ("<img src=i.png>", "http://site.example/docs/i.png"),
        ("<img src=/i.png>", "http://site.example/i.png"),
        ("<img src=//cdn.example/i.png>", "http://cdn.example/i.png"),
        ("<img src=https://cdn.example/i.png#top>", "https://cdn.example/i.png"),
        ("<base href=/other/><img src=i.png>", "http://site.example/other/i.png"),
        ("<base href=https://cdn.example/x/><img src=../i.png>", "https://cdn.example/i.png"),
        ("<img src='i.png?size=2&amp;x=1'>", "http://site.example/docs/i.png?size=2&x=1"),
        ("<img src='a picture.png'>", "http://site.example/docs/a%20picture.png"),
        (
            "<img src=http://site.example/i.png>",
            "https://site.example/i.png",
        ),  # the scheme does not part them
    ],
)
def test_a_page_finds_its_picture_in_the_file(html: str, url: str) -> None:
    (found,) = read(
        page(f"<p>Look{html}"), picture(b"right", url), picture(b"wrong", "http://site.example/w")
    )
    (image,) = (item for item in found.document().items if item.kind == "image")
    assert image.href is not None and found.load(image.href) == b"right"


def test_a_picture_that_was_not_captured_is_missing() -> None:
    (found,) = read(
        page("<p>x<img src=i.png>"), record(http(b"", status=404), "http://site.example/docs/i.png")
    )
    for url in ("http://site.example/docs/i.png", "nonsense", ""):
        with pytest.raises(SourceError):
            found.load(url)


def test_a_damaged_body_is_given_as_it_is_and_a_large_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzipped(bytes(999))[:-9]
    (found,) = read(
        page("<p>x"),
        record(http(packed, "image/png", Content_Encoding="gzip"), "http://a.example/1.png"),
        record(http(bytes(9999), "video/mp4"), "http://a.example/2.mp4"),
    )
    assert found.load("http://a.example/1.png") == packed  # decoding it says what is wrong
    monkeypatch.setattr(responses, "MAX_BODY_BYTES", 5000)
    with pytest.raises(FileTooLarge):
        found.load("http://a.example/2.mp4")


def test_of_several_captures_of_a_picture_the_nearest_counts() -> None:
    url = "http://site.example/i.png"
    first, second = read(
        page("<p>1"), picture(b"one", url), *[page("", PAGE + str(n), status=404) for n in range(5)],  # type: ignore[arg-type]
        picture(b"two", url), page("<p>2", PAGE + "2"),
    )  # fmt: skip
    assert (first.load(url), second.load(url)) == (b"one", b"two")


def test_revisits_and_redirections_lead_to_the_bytes() -> None:
    old, new = "http://site.example/old.png", "http://cdn.example/new.png"
    (found,) = read(
        page("<p>x"),
        record(http(b"bytes", "image/png"), new, WARC_Payload_Digest="sha1:AAA"),
        record(http(b"", status=301, Location=new), old),
        record(b"HTTP/1.1 304 Same\r\n\r\n", "http://a.example/r", "revisit", WARC_Refers_To_Target_URI=new),
        record(b"", "http://a.example/d", "revisit", WARC_Payload_Digest="sha1:AAA"),
        record(http(b"", status=302, Location="/loop"), "http://site.example/loop"),
        record(http(b"", status=302, Location="/pong"), "http://site.example/ping"),
        record(http(b"", status=302, Location="/ping"), "http://site.example/pong"),
        record(http(b"", status=307, Location=old), "http://site.example/older.png"),
        record(b"", "http://a.example/else", "revisit", WARC_Refers_To_Target_URI="http://else.example/"),
    )
    for url in (new, old, "http://a.example/r", "http://a.example/d", "http://site.example/older.png"):
        assert found.load(url) == b"bytes"
    for url in ("http://site.example/loop", "http://site.example/ping", "http://a.example/else"):
        with pytest.raises(SourceError):
            found.load(url)


def test_a_url_captured_again_is_a_document_with_a_name_of_its_own() -> None:
    found = read(page("<p>One"), page("<p>Two"), page("<p>Three"), record(b"", kind="revisit"))
    assert [(m.name, texts(m)) for m in found] == [
        (PAGE, ["One"]),
        (f"{PAGE} #2", ["Two"]),
        (f"{PAGE} #3", ["Three"]),
    ]


RECORDS = [INFO, *(page(f"<p>Page {n} <img src=i.png>", f"{PAGE}/{n}/") for n in range(4))]
RECORDS.insert(3, picture(make.picture(), f"{PAGE}/1/i.png"))
PACKINGS = {
    "plain": b"".join(RECORDS),
    "gzip": b"".join(map(gzipped, RECORDS)),
    "zstd": b"".join(map(zstd, RECORDS)),
    "gzip as a whole": gzipped(b"".join(RECORDS)),
    "zstd as a whole": zstd(b"".join(RECORDS)),
    "gzip in pairs": b"".join(gzipped(b"".join(RECORDS[n : n + 2])) for n in (0, 2, 4)),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_any_range_of_any_packing_gives_the_same_documents(packing: str) -> None:
    file = io.BytesIO(PACKINGS[packing])
    index = warc.index(file)
    assert warc.count(file, index) == warc.count(file) == 4
    whole = [(m.name, m.content) for m in read(*RECORDS[1:])]
    for cut in (1, 2, 3, 10):
        ranges = [warc.members(file, start, start + cut, index) for start in range(0, 4, cut)]
        members = [member for part in ranges for member in part]
        assert [(m.name, m.content) for m in members] == whole
    (second,) = warc.members(file, 1, 2, index)
    assert second.load(f"{PAGE}/1/i.png") == make.picture()


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_file_that_is_cut_anywhere_gives_what_came_whole_and_says_where_it_breaks(packing: str) -> None:
    data, last = PACKINGS[packing], 0
    pack = {"plain": bytes, "gzip": gzipped, "zstd": zstd}.get(packing)
    uncut = [b"".join(map(pack, RECORDS[:n])) for n in range(len(RECORDS) + 1)] if pack else []
    for end in range(20, len(data), 97):
        file = io.BytesIO(data[:end])
        index = warc.index(file)
        num_documents = warc.count(file, index)
        assert last <= num_documents < 4 or end > len(data) - 30
        last = num_documents
        if 0 < num_documents < 4:
            assert len(list(warc.members(file, 0, num_documents, index))) == num_documents
        if pack and data[:end] not in uncut:
            with pytest.raises(MalformedMarkup):
                list(warc.members(file, 0, 1000, index))
    assert last >= {"gzip as a whole": 2, "gzip in pairs": 2, "zstd as a whole": 0}.get(packing, 3)


def test_records_behind_garbage_are_found_and_the_garbage_is_told() -> None:
    file = io.BytesIO(INFO + page("<p>1") + b"\0garbage\r\n" * 30 + page("<p>2", PAGE + "2"))
    found = warc.members(file, 0, 1000)
    assert [next(found).name, next(found).name] == [PAGE, PAGE + "2"]
    with pytest.raises(MalformedMarkup, match="found by searching"):
        next(found)


@pytest.mark.parametrize("data", [b"no web archive" * 100, gzip.compress(b"nor this"), zstd(b"nor this")])
def test_what_is_no_archive_has_no_documents_and_says_so(data: bytes) -> None:
    assert warc.count(io.BytesIO(data)) == 0
    with pytest.raises(MalformedMarkup):
        list(warc.members(io.BytesIO(data), 0, 1000))


def test_an_empty_archive_has_no_documents() -> None:
    assert read() == [] and list(warc.members(io.BytesIO(), 0, 1000)) == []


@pytest.mark.slow
def test_real_archives_of_a_replay_tool_are_read() -> None:
    from jobs.fetch import fetch

    folder = Path(fetch("sdist:pywb")[0]) / "sample_archive" / "warcs"
    counts = {}
    for path in sorted(folder.glob("*.warc*")):
        with path.open("rb") as file:
            index = warc.index(file)
            counts[path.name] = warc.count(file, index)
            members = list(warc.members(file, 0, counts[path.name], index))
            assert all(member.document().items for member in members)
            if path.name == "iana.warc.gz":
                page = next(m for m in members if m.name == "http://www.iana.org/numbers")
                images = [i for i in page.document().items if i.kind == "image"]
                assert [i.mask for i in images] == ["header", None, "footer"]
                image = images[1]
                assert image.href == "http://www.iana.org/_img/2013.1/rir-map.svg"
                assert len(page.load(image.href)) == 105_437
    assert counts == {
        "dupes.warc.gz": 1,
        "example-bad.warc.gz.bad": 1,  # two records in one gzip member
        "example-extra.warc": 1,
        "example-url-agnostic-orig.warc.gz": 1,
        "example-url-agnostic-revisit.warc.gz": 0,
        "example-wget-1-14.warc.gz": 1,
        "example-wpull.warc.gz": 1,
        "example.warc": 1,
        "example.warc.gz": 1,
        "example2.warc.gz": 1,
        "httpbin-resource.warc.gz": 0,
        "iana.warc.gz": 16,
        "missing-status-text.warc": 0,
        "post-test.warc.gz": 0,
    }

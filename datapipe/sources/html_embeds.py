"""What a page embeds that is no `<img>`: videos, players in frames, sound.

Owns how each becomes items. A video is named by its file, or, where a site's player shows it, by the address
at which that site knows it, however it was embedded. What cannot be a picture or a video (sound, other
frames) leaves a masked line with its title or address, so that it is counted.
"""

import re
from collections.abc import Iterable

from selectolax.lexbor import LexborNode

from datapipe.sources.html_pictures import first_of, from_address, is_tracker, media_suits
from datapipe.sources.items import Item, is_remote, prose, resolve

Attributes = dict[str, str | None]

_VIDEO_FILE = re.compile(r"\.(?:mp4|m4v|webm|ogv|ogg|mov|mkv|avi|mpe?g|flv|wmv|3gp)(?:[?#]|$)", re.IGNORECASE)
_STREAM = re.compile(r"\.(?:m3u8|mpd)(?:[?#]|$)|mpegurl|dash\+xml", re.IGNORECASE)
_PICTURE_FILE = re.compile(r"\.(?:jpe?g|png|gif|webp|avif|bmp|svg)(?:[?#]|$)", re.IGNORECASE)
_LAZY_SOURCES = ("src", "data-src", "data-lazy-src", "data-litespeed-src", "data-original", "data-url")

_YOUTUBE = re.compile(
    r"(?:youtube(?:-nocookie)?\.com/(?:embed|v|e|shorts|live)/|youtu\.be/|youtube\.com/watch\?(?:[^#]*&)?v=)"
    r"([\w-]{11})(?![\w-])"
)
_VIMEO = re.compile(r"(?:player\.)?vimeo\.com/(?:video/)?(\d+)")
_DAILYMOTION = re.compile(r"dailymotion\.com/(?:embed/)?video/(\w+)")
_PLAYERS = re.compile(  # other sites' players: host and start of the path
    r"(?:www\.)?(?:youtube(?:-nocookie)?\.com/embed/videoseries|player\.bilibili\.com/|player\.twitch\.tv/|"
    r"fast\.wistia\.(?:net|com)/embed/|videopress\.com/(?:embed|v)/|rutube\.ru/play/embed/|ok\.ru/videoembed/|"
    r"streamable\.com/[eo]/|loom\.com/embed/|facebook\.com/plugins/video|tiktok\.com/embed|embed\.ted\.com/|"
    r"archive\.org/embed/|players\.brightcove\.net/|cdnapisec\.kaltura\.com/|v\.qq\.com/|player\.youku\.com/|"
    r"vk\.com/video_ext|content\.jwplatform\.com/players/|embed\.nicovideo\.jp/|[^/]+/videos/embed/)"
)
_NO_TITLE = re.compile(
    r"(?:(?:youtube|vimeo|embedded|video|iframe|media)[ -]*)*(?:video|player|content)?", re.IGNORECASE
)
_CUSTOM_PLAYERS = {  # elements that stand for a site's player, with the attribute that names the video
    "lite-youtube": ("videoid", "https://www.youtube.com/watch?v={}"),
    "youtube-video": ("src", "{}"),
    "amp-youtube": ("data-videoid", "https://www.youtube.com/watch?v={}"),
    "lite-vimeo": ("videoid", "https://vimeo.com/{}"),
    "amp-vimeo": ("data-videoid", "https://vimeo.com/{}"),
    "amp-dailymotion": ("data-videoid", "https://www.dailymotion.com/video/{}"),
}

EMBEDS = frozenset(
    ("video", "amp-video", "audio", "amp-audio", "iframe", "amp-iframe", "embed", *_CUSTOM_PLAYERS)
)


def items_of(node: LexborNode, base: str, lang: str | None) -> list[Item]:
    """Return the items of an embedded video, player or sound; none for what shows nothing.

    Args:
        base: what links of the page are relative to.
        lang: the page's language, in which its captions are taken if there are several.
    """
    tag, attributes = node.tag or "", node.attributes
    if tag in ("video", "amp-video"):
        return _video(node, attributes, base, lang)
    if tag in ("audio", "amp-audio"):
        return _counted("audio", [*_links(node, attributes), "audio"], attributes, base)
    if tag in _CUSTOM_PLAYERS:
        name, address = _CUSTOM_PLAYERS[tag]
        value = attributes.get(name)
        return _player(address.format(value.strip()), attributes) if value and value.strip() else []
    return _frame(attributes, base)


def of_object(node: LexborNode, base: str) -> list[Item]:
    """Return the items of an `<object>` that is a picture or video; none where its content stands for it."""
    attributes = node.attributes
    link, type = (attributes.get("data") or "").strip(), attributes.get("type") or ""
    is_picture = type.startswith("image/") or _PICTURE_FILE.search(link) is not None
    if link and is_picture and (type != "image/svg+xml" or node.css_first("img") is None):
        return _present([from_address(base, link, "image")])
    return _frame(dict(attributes) | {"src": link}, base, only_video=True) if link else []


def _video(node: LexborNode, attributes: Attributes, base: str, lang: str | None) -> list[Item]:
    found = [from_address(base, link, "video") for link in _links(node, attributes)]
    items = [item for item in found if item is not None]
    is_web = is_remote(base)
    video = min(items, key=lambda i: (_is_stream(i), _is_away(i) and not is_web), default=None)
    poster = first_of([attributes.get("poster"), attributes.get("data-poster")])
    result: list[Item | None] = []
    if poster and (video is None or _is_away(video) or _is_stream(video)):
        result.append(from_address(base, poster, "image"))  # of a file at hand it would only be a frame
    if video is None:
        return _present(result)
    result += [video, _track(node, base, lang)]
    return [*_present(result), *_title(attributes)]


def _links(node: LexborNode, attributes: Attributes) -> list[str]:
    """Return the addresses of a <video> or <audio>, in the page's order, those a browser cannot play last."""
    found = [(0, link) for link in _own_links(attributes)]
    for source in node.css("source"):
        links = _own_links(source.attributes)
        if links and media_suits(source.attributes.get("media")):
            found.append((_STREAM.search(source.attributes.get("type") or "") is not None, links[0]))
    return [link for _, link in sorted(found, key=lambda entry: entry[0])]


def _own_links(attributes: Attributes) -> list[str]:
    values = (attributes.get(name) for name in _LAZY_SOURCES)
    return [
        v.strip() for v in values if v and v.strip() and not v.strip().startswith(("about:", "javascript:"))
    ][:1]


def _track(node: LexborNode, base: str, lang: str | None) -> Item | None:
    """Return the caption file of a video: the default one, or that in the page's language, or the first."""
    tracks = [
        track.attributes
        for track in node.css("track[src]")
        if (track.attributes.get("kind") or "subtitles").lower() in ("subtitles", "captions")
    ]
    wanted = (lang or "en").split("-")[0].lower()
    tracks.sort(key=lambda t: ("default" not in t, (t.get("srclang") or "").split("-")[0].lower() != wanted))
    href = resolve(base, tracks[0]["src"] or "") if tracks else None
    return Item("text", "transcript", href=href) if href else None


def _frame(attributes: Attributes, base: str, only_video: bool = False) -> list[Item]:
    links = _own_links(attributes)
    if not links or is_tracker(attributes):
        return []
    link = links[0]
    if (player := _player(link, attributes)) or _VIDEO_FILE.search(link):
        return player or [*_present([from_address(base, link, "video")]), *_title(attributes)]
    if _PICTURE_FILE.search(link):
        return _present([from_address(base, link, "image")])
    return [] if only_video else _counted("frame", [link], attributes, base)


def _player(link: str, attributes: Attributes) -> list[Item]:
    """Return the video that a site's player shows; none for any other address."""
    href = None
    if found := _YOUTUBE.search(link):
        href = f"https://www.youtube.com/watch?v={found.group(1)}"
    elif found := _VIMEO.search(link):
        href = f"https://vimeo.com/{found.group(1)}"
    elif found := _DAILYMOTION.search(link):
        href = f"https://www.dailymotion.com/video/{found.group(1)}"
    elif _PLAYERS.match(re.sub(r"^(?:https?:)?//", "", link)):
        href = re.sub(r"^//", "https://", link)
    return [Item("video", "figure", href=href), *_title(attributes)] if href else []


def _title(attributes: Attributes) -> list[Item]:
    title = prose(attributes.get("aria-label") or attributes.get("title") or "")
    return [] if _NO_TITLE.fullmatch(title) else [Item("text", "alt", text=title)]


def _counted(reason: str, links: Iterable[str], attributes: Attributes, base: str) -> list[Item]:
    """Return a masked line for what is no picture and no video."""
    title = prose(attributes.get("title") or attributes.get("aria-label") or "")
    text = title or next(iter(links), "")
    return [Item("text", "alt", text=text[:2000], mask=reason)]


def _is_stream(item: Item) -> bool:
    return _STREAM.search(item.href or "") is not None


def _is_away(item: Item) -> bool:
    return item.href is not None and is_remote(item.href)


def _present(items: Iterable[Item | None]) -> list[Item]:
    return [item for item in items if item is not None]

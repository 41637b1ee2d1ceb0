"""Real media: one clip in 21 containers is one cluster; thumbnails of a manual meet their pictures."""

from pathlib import Path

import pytest

from datapipe.decode.rows import media_rows
from datapipe.spec import IngestSpec
from jobs.fetch import fetch
from schemas import ids, media
from tests.datapipe.test_dedupe_media import Row, clusters, picture_row

pytestmark = pytest.mark.slow


def video_rows(path: Path) -> list[Row]:
    data = path.read_bytes()
    own = {"media_id": ids.content_id(data), "kind": "video", "bytes": data}
    first, *frames = media_rows(ids.content_id(data), data, "video", IngestSpec())
    return [{**dict.fromkeys(media.SCHEMA.names), **own, **first}, *frames]


def test_one_clip_in_all_containers_is_one_cluster_and_other_clips_are_not_in_it() -> None:
    samples, forensics = fetch("sdist:iscc-samples")[0], fetch("debian:forensics-samples-files")[0]
    demos = [path for path in sorted(samples.rglob("video/demo.*")) if path.suffix != ".gif"]
    hello = sorted(
        path for path in forensics.rglob("movie-hello.*") if path.suffix in (".mp4", ".avi", ".mpeg")
    )
    contents = {ids.content_id(path.read_bytes()): path.stem for path in [*demos, *hello]}
    table = clusters([[row for path in [*demos, *hello] for row in video_rows(path)]]).to_pylist()
    members: dict[str, set[str]] = {}
    for row in table:
        members.setdefault(row["cluster_id"], set()).add(row["media_id"])
    assert sorted(len(found) for found in members.values()) == [3, len({p.read_bytes() for p in demos})]
    for found in members.values():
        assert len({contents[media_id] for media_id in found}) == 1


def test_thumbnails_meet_their_pictures() -> None:
    (folder,) = fetch("debian:freedombox-doc-en")
    pictures = {
        path.name: path for path in folder.rglob("manual/en/images/*") if path.suffix in (".jpg", ".png")
    }
    named = [
        (pictures[n.replace("_thumb", "")], path)
        for n, path in pictures.items()
        if "_thumb" in n and n.replace("_thumb", "") in pictures
    ]
    assert len(named) >= 8
    rows = {path: picture_row(path.read_bytes()) for path in pictures.values()}
    table = clusters([list(rows.values())])
    cluster = dict(zip(table["media_id"].to_pylist(), table["cluster_id"].to_pylist(), strict=True))
    met = [
        cluster.get(rows[one]["media_id"], 1) == cluster.get(rows[two]["media_id"], 2) for one, two in named
    ]
    assert sum(met) >= 0.7 * len(met)  # some show another part

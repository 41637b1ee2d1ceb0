"""Shards: equal tables give equal bytes, files appear whole or not at all, damage is named."""

import os
import subprocess

import pyarrow as pa
import pytest

from schemas import document, shard
from schemas.errors import SchemaError, ShardError
from tests import make, s3


@pytest.fixture
def table():
    rows = [make.document_row([make.text(f"text {i}")], uri=f"{i}") for i in range(150)]
    return pa.Table.from_pylist(rows, schema=document.SCHEMA)


def test_a_shard_has_batches_of_64_rows_and_reads_back(tmp_path, table):
    path = str(tmp_path / "documents-00000.arrow")
    written = shard.write_table(path, table)
    assert [b.num_rows for b in shard.read_table(path).to_batches()] == [64, 64, 22]
    assert shard.read_table(path).equals(table)
    assert (written.num_rows, written.size_bytes) == (150, os.path.getsize(path))


def test_equal_tables_give_equal_bytes_however_they_were_chunked(tmp_path, table):
    whole = shard.write_table(str(tmp_path / "documents-00000.arrow"), table)
    pieces = pa.concat_tables([table.slice(0, 7), table.slice(7, 100), table.slice(107)])
    assert shard.write_table(str(tmp_path / "documents-00001.arrow"), pieces).content_id == whole.content_id
    rebuilt = pa.Table.from_pylist(table.to_pylist(), schema=document.SCHEMA)
    assert shard.write_table(str(tmp_path / "documents-00002.arrow"), rebuilt).content_id == whole.content_id


def test_a_table_that_breaks_its_schema_is_not_written(tmp_path, table):
    path = tmp_path / "documents-00000.arrow"
    with pytest.raises(SchemaError, match="documents: columns"):
        shard.write_table(str(path), table.drop_columns(["uri"]))
    assert not os.listdir(tmp_path)


def test_missing_and_damaged_shards_are_named(tmp_path, table):
    path = tmp_path / "documents-00000.arrow"
    with pytest.raises(ShardError, match=r"missing shard .*documents-00000.arrow"):
        shard.read_table(str(path))
    written = shard.write_table(str(path), table)
    shard.verify(str(tmp_path), [written])
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:100])
    with pytest.raises(ShardError, match=r"damaged shard .*documents-00000.arrow"):
        shard.read_table(str(path))
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match="its bytes are not those its manifest names"):
        shard.verify(str(tmp_path), [written])


def test_a_manifest_reads_back_and_commits_the_step(tmp_path, table):
    written = shard.write_table(str(tmp_path / "documents-00000.arrow"), table)
    assert not shard.is_finished(str(tmp_path))
    with pytest.raises(ShardError, match="missing shard"):
        shard.read_manifest(str(tmp_path))
    manifest = shard.Manifest("clean-x", "1", {"a": 1}, ["in"], 150, 150, {}, {}, [written])
    shard.write_manifest(str(tmp_path), manifest)
    assert shard.is_finished(str(tmp_path)) and shard.read_manifest(str(tmp_path)) == manifest
    assert shard.read_step_table(str(tmp_path), "documents").equals(table)
    assert shard.read_step_table(str(tmp_path), "plan", ["doc_id"]).num_rows == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which needs root")
def test_a_full_disk_gives_one_clear_error_and_keeps_what_was_there(tmp_path, table):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    try:
        first = shard.write_table(str(tmp_path / "documents-00000.arrow"), table)
        with pytest.raises(ShardError, match=r"disk full while writing .*media-00000.arrow: free some space"):
            shard.write_table(
                str(tmp_path / "media-00000.arrow"),
                make.media_table([make.media_row(make.picture(seed=i)) for i in range(100)]),
            )
        assert os.listdir(tmp_path) == ["documents-00000.arrow"]
        shard.verify(str(tmp_path), [first])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_shards_go_to_s3_and_come_back(tmp_path, table):
    with s3.server() as root:
        written = shard.write_table(f"{root}/step/documents-00000.arrow", table)
        assert written == shard.write_table(str(tmp_path / "documents-00000.arrow"), table)
        shard.write_bytes(f"{root}/step/empty", b"")
        assert shard.names_in(f"{root}/step") == {"documents-00000.arrow", "empty"}
        assert shard.names_in(f"{root}/nothing") == set()
        assert shard.read_table(f"{root}/step/documents-00000.arrow") == table
        shard.verify(f"{root}/step", [written])
        assert not shard.is_finished(f"{root}/step")
        with pytest.raises(ShardError, match="missing shard s3://"):
            shard.read_table(f"{root}/step/documents-00001.arrow")

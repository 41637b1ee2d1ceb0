"""A real S3 server process on loopback (moto's), for tests of `s3://` paths."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pyarrow.fs as pafs


@contextlib.contextmanager
def server(bucket: str = "omniloom") -> Iterator[str]:
    """Start an S3 server, point the environment at it, make a bucket, and yield `s3://<bucket>`.

    Child processes find the server through the environment, as they would a cluster's own S3.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        _wait_for(endpoint, process)
        pafs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True).create_dir(bucket)
        yield f"s3://{bucket}"
    finally:
        process.kill()
        process.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_for(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the S3 server did not start"
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the S3 server did not answer within a minute")

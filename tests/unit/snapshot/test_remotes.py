"""Which options of a remote may travel."""

from __future__ import annotations

import pytest
from slicelift.snapshot import remotes


@pytest.mark.parametrize(
    ("config", "kept", "secrets"),
    [
        (
            {
                "url": "s3://bucket/path",
                "access_key_id": "A",
                "secret_access_key": "B",
                "session_token": "C",
                "region": "eu",
                "endpointurl": "http://minio",
                "use_ssl": True,
            },
            {"url": "s3://bucket/path", "region": "eu", "endpointurl": "http://minio", "use_ssl": "true"},
            ("access_key_id", "secret_access_key", "session_token"),
        ),
        (
            {"url": "azure://c/p", "connection_string": "x", "account_key": "y", "sas_token": "z"},
            {"url": "azure://c/p"},
            ("account_key", "connection_string", "sas_token"),
        ),
        (
            {
                "url": "gdrive://x",
                "gdrive_client_secret": "y",
                "exclude_shared_token_cache_credential": False,
            },
            {"url": "gdrive://x", "exclude_shared_token_cache_credential": "false"},
            ("gdrive_client_secret",),
        ),
        (
            {"url": "ssh://ann:pw@host:2222/数据", "port": 22, "keyfile": "/k"},
            {"url": "ssh://ann@host:2222/数据", "port": "22", "keyfile": "/k"},
            ("url's password",),
        ),
        (
            {"url": "ssh://host/d", "passphrase": "x", "ask_passphrase": True, "option of tomorrow": "y"},
            {"url": "ssh://host/d", "ask_passphrase": "true"},
            ("option of tomorrow", "passphrase"),
        ),
        (
            {"url": "https://tok@host:8443/a?X-Amz-Signature=s", "endpointurl": "https://a:b@minio/?sig=s"},
            {"url": "https://host:8443/a", "endpointurl": "https://minio/"},
            (
                "endpointurl's password",
                "endpointurl's query",
                "endpointurl's user",
                "url's query",
                "url's user",
            ),
        ),
    ],
)
def test_secrets_stay_behind_and_are_named(
    config: dict[str, object], kept: dict[str, str], secrets: tuple[str, ...]
) -> None:
    assert remotes.clean(config) == (kept, secrets)

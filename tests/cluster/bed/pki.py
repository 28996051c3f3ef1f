"""One certificate authority per bed, certificates for its servers, kubeconfigs for whoever should be somebody."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bed.layout import Layout

LIFE = datetime.timedelta(days=30)


def make(layout: Layout) -> None:
    """The authority, the key of service account tokens, and one certificate for all servers of the bed."""
    folder = layout.folder("pki")
    key = _new_key(folder / "ca.key")
    name = _name("slicelift-bed-ca", ())
    builder = _builder(name, name, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    _write(folder / "ca.crt", builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    account = _new_key(folder / "sa.key")
    _write(folder / "sa.pub", account.public_key().public_bytes(serialization.Encoding.PEM, _PUBLIC))
    addresses = ("127.0.0.1", layout.host_ip, layout.node_ip, layout.gateway, str(layout.services[1]))
    names = (
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
    issue(layout, "serving", common_name="slicelift-bed", names=names, addresses=addresses)
    issue(layout, "kubelet-client", common_name="kube-apiserver-kubelet-client")


def issue(
    layout: Layout,
    file: str,
    *,
    common_name: str,
    groups: Sequence[str] = (),
    names: Sequence[str] = (),
    addresses: Sequence[str] = (),
) -> tuple[Path, Path]:
    """A certificate and its key, `pki/<file>.crt` and `.key`; the API server takes it as user `common_name` of `groups`."""
    folder = layout.folder("pki")
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    key = _new_key(folder / f"{file}.key")
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = _builder(_name(common_name, groups), authority.subject, key)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]  # ours is of elliptic curves
    _write(folder / f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return folder / f"{file}.crt", folder / f"{file}.key"


def kubeconfig(layout: Layout, user: str, *, groups: Sequence[str] = (), path: Path | None = None) -> Path:
    """A kubeconfig for any user name and groups; it may do what RBAC allows them."""
    file = "user-" + re.sub(r"[^a-z0-9]+", "-", user.lower())
    certificate, key = issue(layout, file, common_name=user, groups=groups)
    where = path or layout.folder("kubeconfigs") / f"{file}.json"
    cluster = {"server": layout.api, "certificate-authority": str(layout.run / "pki" / "ca.crt")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": user, "user": {"client-certificate": str(certificate), "client-key": str(key)}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": user}}],
        "current-context": "bed",
    }
    _write(where, json.dumps(content, indent=1).encode())
    return where


_PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    plain, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    _write(path, key.private_bytes(serialization.Encoding.PEM, plain, none))
    return key


def _name(common_name: str, groups: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFE)
    )


def _write(path: Path, content: bytes) -> None:
    """Readable by its owner only, like every key."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)

"""Requirements from installer commands."""

from __future__ import annotations

import pytest
from slicelift.notebook.packages import Packages, read_command, read_requirements, requirement_name


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("pip install a b==1", Packages(requirements=("a", "b==1"))),
        ('pip3 install -q --upgrade "a>=1,<2"', Packages(requirements=("a>=1,<2",))),
        ("pip install a>=1", Packages(requirements=("a>=1",))),
        ("python3.12 -m pip install a", Packages(requirements=("a",))),
        ("{sys.executable} -m pip install a", Packages(requirements=("a",))),
        ("/opt/x/bin/python -m pip install a", Packages(requirements=("a",))),
        ("uv pip install a", Packages(requirements=("a",))),
        ("PIP_X=1 pip install a > /dev/null 2>&1", Packages(requirements=("a",))),
        ("pip install a && pip install b | tail -1", Packages(requirements=("a", "b"))),
        (
            "pip install -r req.txt -i https://u:p@host/simple a",
            Packages(requirements=("a",), files=("req.txt",)),
        ),
        (
            "pip install -e . ./lib git+ssh://h/x",
            Packages(requirements=("git+ssh://h/x",), local=(".", "./lib")),
        ),
        ("conda install -y -c conda-forge a", Packages(requirements=("a",))),
        ("pip install a  # why", Packages(requirements=("a",))),
        ("pip list", Packages(only_looks=True)),
        ("pip install {name}", None),
        ("pip install $NAME", None),
        ("pip uninstall a", None),
        ("pip install a && rm -rf x", None),
        ("ls", None),
        ("", None),
    ],
)
def test_commands(command: str, found: Packages | None) -> None:
    assert read_command(command) == found


def test_a_requirements_file_is_read_without_options() -> None:
    text = "a==1  # note\n# all\n-r other.txt\n\nb>=2 \\\n  --hash=sha256:00\n-e .\nc[x]==3"
    assert read_requirements(text) == ("a==1", "b>=2", "c[x]==3")


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("Scikit_Learn>=1", "scikit-learn"),
        ("a[b]==1", "a"),
        ("a @ https://x", "a"),
        ("git+https://x#egg=Q.z", "q-z"),
        ("./x", ""),
    ],
)
def test_names_are_normalised(requirement: str, name: str) -> None:
    assert requirement_name(requirement) == name

"""What becomes of each magic. There is a policy for every name; one that is not listed is refused.

No magic is ever dropped in silence: a note is a finding, and a refusal names the cell and the line.
"""

from __future__ import annotations

from enum import StrEnum


class Policy(StrEnum):
    """What the script does in place of a magic."""

    INLINE = "inline"
    CAPTURE = "capture"
    ENVIRONMENT = "environment"
    FOLDER = "folder"
    FILE = "file"
    RUN = "run"
    PACKAGES = "packages"
    NOTHING = "nothing"
    PROMOTE = "promote"
    SHELL = "shell"
    REFUSE = "refuse"


_INLINE = "time prun"
_ENVIRONMENT = "env set_env"
_FILE = "writefile file"
_PACKAGES = "pip conda mamba micromamba uv"
_NOTHING = """
alias_magic aimport autoawait autocall automagic autoreload autosave bookmark clear colors config connect_info
dhist dirs doctest_mode gui hist history killbgscripts load_ext logoff logon logstart logstate logstop lsmagic
magic matplotlib notebook page pdb pdef pdoc pfile pinfo pinfo2 pprint precision psearch psource pwd pycat
qtconsole quickref reload_ext timeit unload_ext who whos xmode html HTML svg SVG javascript js latex markdown
less more man subshell tb
"""
_SHELL = """
system sx sc bash sh script perl ruby pypy python python2 python3 ! !! ls ll lf lk lx ldir cat cp mv rm rmdir
mkdir
"""
_REFUSE = """
alias unalias code_wrap debug ed edit load loadpy macro pastebin popd pushd pylab recall rehashx rep rerun reset
reset_selective save store who_ls xdel
"""
_CELL_ONLY = """
! HTML SVG bash capture file html javascript js latex markdown perl pypy python python2 python3 ruby script sh svg
writefile
"""

_POLICIES: dict[str, Policy] = {
    **dict.fromkeys(_INLINE.split(), Policy.INLINE),
    **dict.fromkeys(_ENVIRONMENT.split(), Policy.ENVIRONMENT),
    **dict.fromkeys(_FILE.split(), Policy.FILE),
    **dict.fromkeys(_PACKAGES.split(), Policy.PACKAGES),
    **dict.fromkeys(_NOTHING.split(), Policy.NOTHING),
    **dict.fromkeys(_SHELL.split(), Policy.SHELL),
    **dict.fromkeys(_REFUSE.split(), Policy.REFUSE),
    "capture": Policy.CAPTURE,
    "promote": Policy.PROMOTE,
    "cd": Policy.FOLDER,
    "run": Policy.RUN,
}

# Why nothing is to be done, for those where a reader might wonder.
NOTHING_WHY = {
    "timeit": "it only measures; the statement is not run in the job",
    "matplotlib": "a job has no window to draw in",
    "pinfo": "it only shows help",
    "pinfo2": "it only shows help",
    "psearch": "it only shows help",
    **dict.fromkeys(("html", "HTML", "svg", "SVG", "javascript", "js", "latex", "markdown"), "it only shows"),
}

# What to do instead, for refusals with a known way on.
WAY_ON = {
    "store": "Put the value into the notebook, or save it to a file in the project and read that.",
    "pylab": "Import what you use by name: `import numpy as np`, `import matplotlib.pyplot as plt`.",
    "load": "Paste the code into the cell, or use %run.",
    "loadpy": "Paste the code into the cell, or use %run.",
    "debug": "Tag the cell `skip`: nobody can answer a debugger in a job.",
    "reset": "Tag the cell `skip`: a job starts with an empty namespace.",
    "who_ls": "Tag the cell `skip`, or use globals().",
}


def policy_of(name: str) -> Policy:
    """The policy for the magic `name` (without percent signs); an unknown one is refused."""
    return _POLICIES.get(name, Policy.REFUSE)


def is_line_magic(name: str) -> bool:
    """True for a line magic of IPython's own, or of ours, which is what automagic goes by."""
    return name in _POLICIES and name not in _CELL_ONLY.split() and name != "!!"


def is_known(name: str) -> bool:
    """True for a magic of IPython or ipykernel themselves, or of ours."""
    return name in _POLICIES

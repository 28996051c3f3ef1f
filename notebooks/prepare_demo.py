"""Makes the demo project ready: scikit-learn's digits as files, tracked by DVC, pushed to a directory remote.

The notebooks folder of this clone is the project: the clone is its git repository, `notebooks/.dvc` its DVC
project, `data/digits.dvc` the committed version of the data. `make up` runs this file; a second run changes nothing,
so files that you changed stay changed (and a promotion then says so).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "digits"
REMOTE = HERE.parent / ".build" / "dvc-remote"


def main() -> None:
    """Write what is missing, never what is there."""
    if not DATA.is_dir():
        print(f"writing 1,797 images to {DATA.relative_to(HERE.parent)}", flush=True)
        write_digits(DATA)
    REMOTE.mkdir(parents=True, exist_ok=True)
    if not pushed():
        print("pushing the data to the demo's DVC remote (.build/dvc-remote)", flush=True)
        dvc("commit", "--force", "data/digits.dvc")
        dvc("push")
    print("demo project ready: notebooks/quickstart.ipynb", flush=True)


def write_digits(folder: Path) -> None:
    """One 8 x 8 grey image (PGM, values 0-16) per file, named <index>-<digit>.pgm."""
    from sklearn.datasets import load_digits  # takes a second; only the first run needs it

    digits = load_digits()
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        pixels = image.astype("uint8").tobytes()
        (partial / f"{index:04d}-{label}.pgm").write_bytes(b"P5\n8 8\n16\n" + pixels)
    partial.rename(folder)


def pushed() -> bool:
    """Whether the remote already has the committed version (its folder listing is pushed last)."""
    listing = next(line for line in (HERE / "data/digits.dvc").read_text().splitlines() if "md5:" in line)
    digest = listing.split("md5:")[1].strip()
    return (REMOTE / "files" / "md5" / digest[:2] / digest[2:]).is_file()


def dvc(*arguments: str) -> None:
    """DVC's own command, in the demo project; its output is shown only when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=HERE, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"dvc {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()

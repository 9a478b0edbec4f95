"""Print the changelog's section for a tag, once everything that names the version agrees.

python tools/release_notes.py v0.2.0
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def release_notes(tag: str, root: Path = ROOT) -> str:
    """What `CHANGELOG.md` says of the version that a tag names."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise ValueError(f"tag {tag} is not version {version} of pyproject.toml: tag v{version}")
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        raise ValueError(
            f"CITATION.cff does not name version {version}: write 'version: {version}'"
        )
    title, _, notes = (root / "CHANGELOG.md").read_text().partition("\n## ")[2].partition("\n")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)", title):
        raise ValueError(
            f"CHANGELOG.md begins with {title!r}: a release needs '{version} (year-month-day)'"
        )
    return notes.partition("\n## ")[0].strip()


if __name__ == "__main__":
    try:
        print(release_notes(sys.argv[1]))
    except ValueError as wrong:
        sys.exit(str(wrong))

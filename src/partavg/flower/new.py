"""An app to start from."""

import re
from importlib import resources
from pathlib import Path
from string import Template

FILES = ("app.py", "pyproject.toml")


def write_app(folder: Path) -> list[Path]:
    """Write a runnable app into a folder that has none."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name:
        raise ValueError(f"{folder} cannot name an app: use a folder with letters or digits")
    targets = [folder / file for file in FILES]
    for target in targets:
        if target.exists():
            raise ValueError(f"{target} is there already: use a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    template = resources.files("partavg.flower").joinpath("template")
    for target in targets:
        text = Template(template.joinpath(target.name).read_text("utf-8"))
        target.write_text(text.substitute(name=name, publisher="me"), encoding="utf-8")
    return targets

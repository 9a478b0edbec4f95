"""What the site needs beside Sphinx and MyST: links that leave docs/, and the commands' help."""

import re
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

PAGES = {
    "../README.md": "index.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "security.md",
    "../benchmarks/RESULTS.md": "benchmarks.md",
    "../examples": "examples.md",
    "../results/README.md": "results.md",
}
"""Files outside docs/ that pages link to, for readers of the repository, and their pages here."""


def relink(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files of the repository lead to their pages in the site."""

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if path.startswith("../examples/"):
            return f"](examples.md#{path.removeprefix('../examples/').replace('.', '')})"
        return f"]({PAGES.get(path, path)}{anchor})"

    source[0] = re.sub(r"\]\((\.\./[^)#\s]+)(#[^)]*)?\)", target, source[0])


class CommandLine(SphinxDirective):
    """The help of every command, as it prints it."""

    def run(self) -> list[nodes.Node]:
        """A section per command."""
        from partavg.cli import main

        return self._sections("partavg", main, None)

    def _sections(
        self, path: str, command: click.Command, parent: click.Context | None
    ) -> list[nodes.Node]:
        context = click.Context(
            command, info_name=path.split()[-1], parent=parent, **command.context_settings
        )
        section = nodes.section(ids=[nodes.make_id(path)], names=[path])
        section += nodes.title(path, path)
        text = command.get_help(context)
        section += nodes.literal_block(text, text, language="text")
        found: list[nodes.Node] = [section]
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                found += self._sections(f"{path} {name}", inner, context)
        return found


def skip(
    app: Sphinx, what: str, name: str, member: Any, skipped: bool, options: Any
) -> bool | None:
    """Leave out what Python says of the fields of every named tuple."""
    said = str(getattr(member, "__doc__", "") or "")
    return True if said.startswith("Alias for field number") else None


def check_offline(app: Sphinx, error: Exception | None) -> None:
    """No page may load anything from elsewhere: links lead out, nothing comes in."""
    loads = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=[\"'](?:https?:)?//[^\"']*")
    for page in sorted(Path(app.outdir).glob("*.html")) if error is None else ():
        if found := loads.search(page.read_text(encoding="utf-8")):
            raise ExtensionError(f"{page.name} loads from the network: {found[0]}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", relink)
    app.connect("autodoc-skip-member", skip)
    app.connect("build-finished", check_offline)
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}

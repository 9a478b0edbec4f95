"""The project's own files agree: versions, Pythons, torch, workflows, hooks, addresses."""

import re
import runpy
import tomllib
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
FORMS = sorted(set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")))
REPOSITORY = PROJECT["urls"]["Repository"]
ON = True  # YAML 1.1 reads the key `on` as a truth value

release_notes = runpy.run_path(str(ROOT / "tools" / "release_notes.py"))["release_notes"]


def read(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict), path
    return found


def pythons() -> list[str]:
    """The versions that the classifiers name."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    return [found[1] for entry in PROJECT["classifiers"] if (found := pattern.fullmatch(entry))]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def torch_bounds() -> tuple[str, str]:
    """The oldest torch that is supported, and the first that is not."""
    wanted = next(entry for entry in PROJECT["dependencies"] if entry.startswith("torch"))
    found = re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", wanted)
    assert found is not None, wanted
    return found[1], found[2]


def pinned_torch(constraints: str) -> str:
    found = re.search(r"^torch==([\d.]+)$", (ROOT / constraints).read_text(), re.MULTILINE)
    assert found is not None, constraints
    return found[1]


def matrix() -> dict[str, Any]:
    found = read(WORKFLOWS / "ci.yml")["jobs"]["run"]["strategy"]["matrix"]
    assert isinstance(found, dict)
    return found


def test_one_version() -> None:
    version = PROJECT["version"]
    assert read(ROOT / "CITATION.cff")["version"] == version
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = [re.fullmatch(r"([\d.]+) \((unreleased|\d{4}-\d\d-\d\d)\)", title) for title in titles]
    assert all(found), titles
    versions = [title[1] for title in found if title]
    assert versions[0] == version
    assert versions == sorted(set(versions), key=numbers, reverse=True)
    assert not any(title.endswith("(unreleased)") for title in titles[1:])


def test_every_python_is_tested() -> None:
    assert pythons() == sorted(pythons(), key=numbers)
    assert matrix()["python"] == pythons()
    assert PROJECT["requires-python"] == f">={pythons()[0]}"
    span = f"{pythons()[0]} to {pythons()[-1]}"
    assert f"[![Python {span}]" in (ROOT / "README.md").read_text()
    assert f"Python {span}" in (ROOT / "docs" / "start.md").read_text()


def test_the_oldest_and_the_newest_torch_are_tested() -> None:
    oldest, below = torch_bounds()
    assert matrix()["constraints"] == ["constraints-oldest.txt", "constraints-newest.txt"]
    assert numbers(pinned_torch("constraints-oldest.txt"))[:2] == numbers(oldest)[:2]
    assert "torch==" not in (ROOT / "constraints-newest.txt").read_text()
    assert numbers(oldest) <= numbers(pinned_torch("constraints.txt")) < numbers(below)
    assert {"python": "3.13", "constraints": "constraints.txt"} in matrix()["include"]
    said = f"PyTorch {oldest} or newer, before {below}"
    assert said in (ROOT / "docs" / "start.md").read_text()


def test_the_workflow_runs_what_runs_here() -> None:
    job = read(WORKFLOWS / "ci.yml")["jobs"]["run"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    for name in ("Makefile", ".ci/run"):  # both read the variable
        assert "CONSTRAINTS" in job["env"]
        assert re.search(r"--constraint \S*\$[({]CONSTRAINTS", (ROOT / name).read_text()), name


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_workflows_ask_for_little(path: Path) -> None:
    """No permission to write where a job does not name it, and no action without a version."""
    workflow = read(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        for step in job.get("steps", ()):
            if "uses" in step:
                assert re.search(r"@(release/)?v\d+$", step["uses"]), step


def test_a_tag_is_tested_built_and_published_without_a_password() -> None:
    release = read(WORKFLOWS / "release.yml")
    assert release[ON] == {"push": {"tags": ["v*"]}}
    jobs = release["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in read(WORKFLOWS / "ci.yml")[ON]
    publish = jobs["publish"]
    assert set(publish["needs"]) == {"test", "build"}
    assert publish["environment"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text()
    assert any("tools/release_notes.py" in step.get("run", "") for step in jobs["build"]["steps"])


def project(root: Path, version: str, cited: str, title: str) -> Path:
    """The three files that name a version."""
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (root / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {cited}\n")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n## {title}\n\n- new\n\n## 0.1.0\n\n- old\n")
    return root


def test_release_notes_are_the_section_of_the_tag(tmp_path: Path) -> None:
    assert (
        release_notes("v0.2.0", project(tmp_path, "0.2.0", "0.2.0", "0.2.0 (2026-12-01)"))
        == "- new"
    )


@pytest.mark.parametrize(
    ("tag", "version", "cited", "title", "said"),
    [
        ("v0.3.0", "0.2.0", "0.2.0", "0.2.0 (2026-12-01)", "tag v0.3.0 is not version 0.2.0"),
        ("v0.2.0", "0.2.0", "0.1.0", "0.2.0 (2026-12-01)", "CITATION.cff does not name version"),
        ("v0.2.0", "0.2.0", "0.2.0", "0.2.0 (unreleased)", "begins with '0.2.0 \\(unreleased\\)'"),
        ("v0.2.0", "0.2.0", "0.2.0", "0.1.9 (2026-12-01)", "begins with '0.1.9"),
    ],
)
def test_no_release_while_files_disagree(
    tag: str, version: str, cited: str, title: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        release_notes(tag, project(tmp_path, version, cited, title))


def test_the_hooks_are_make_check() -> None:
    """With tools that the extra `dev` installs."""
    hooks = [
        hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    ]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe[1]))
    for tool in tools:
        assert any(tool in scripts(name) for name in extra("dev")), tool
    assert "pre-commit" in extra("dev")


def extra(name: str) -> list[str]:
    return [re.split(r"[\[<>=]", entry)[0] for entry in PROJECT["optional-dependencies"][name]]


def scripts(distribution: str) -> set[str]:
    """The programs that an installed distribution brings."""
    try:
        found = files(distribution) or []
    except PackageNotFoundError:
        return set()
    return {path.name for path in found if path.parent.name == "bin"}


def test_the_site_is_built_as_make_docs_does() -> None:
    site = read(ROOT / ".readthedocs.yaml")
    assert site["sphinx"] == {"configuration": "docs/conf.py", "fail_on_warning": True}
    assert (ROOT / site["sphinx"]["configuration"]).is_file()
    assert site["build"]["tools"]["python"] in pythons()
    pin, package = site["python"]["install"]
    assert (ROOT / pin["requirements"]).is_file()
    assert package == {"method": "pip", "path": ".", "extra_requirements": ["docs"]}
    assert "docs" in PROJECT["optional-dependencies"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_ask_something(path: Path) -> None:
    form = read(path)
    if path.name == "config.yml":
        assert all(link["url"].startswith(REPOSITORY) for link in form["contact_links"])
    else:
        assert form["name"]
        assert form["description"]
        assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_one_address() -> None:
    """Whoever moves the repository finds every place that names it."""
    assert read(ROOT / "CITATION.cff")["repository-code"] == REPOSITORY
    assert all(
        url.startswith(REPOSITORY)
        for name, url in PROJECT["urls"].items()
        if name != "Documentation"
    )
    own = REPOSITORY.rpartition("/")[2]
    for path in (ROOT / "README.md", ROOT / "docs" / "start.md"):
        named = set(re.findall(rf"https://github\.com/[\w-]+/{own}\b", path.read_text()))
        assert named == {REPOSITORY}, path
    badges = re.findall(r"/actions/workflows/([\w.]+)/badge", (ROOT / "README.md").read_text())
    assert badges
    assert all((WORKFLOWS / name).is_file() for name in badges)
    assert PROJECT["urls"]["Documentation"] in (ROOT / "README.md").read_text()

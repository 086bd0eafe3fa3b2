"""Files beside the package that repeat its metadata."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import freqfm

ROOT = Path(__file__).parents[2]


def read(name):
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"no {name} beside the tests")
    return path.read_text("utf-8")


def test_oldest_dependencies_are_tested():
    project = read("pyproject.toml")
    (block,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.S | re.M)
    bounds = re.findall(r'"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?"', block)
    assert len(bounds) == block.count('"') // 2
    (block,) = re.findall(r"^dask = \[(.*)\]$", project, re.M)
    bounds += re.findall(r'"([\w-]+)[][,\w]*>=([\d.]+)"', block)
    pinned = re.findall(r'"([\w-]+)==([\d.]+)\.\*"', read(".github/workflows/tests.yml"))
    assert sorted(pinned) == sorted(bounds)


def test_numba_has_an_upper_bound_beyond_which_candidates_are_tried():
    assert re.search(r'"numba>=[\d.]+,<[\d.]+"', read("pyproject.toml"))
    workflow = read(".github/workflows/numba.yml")
    assert "schedule:" in workflow and "pip install --pre --upgrade numba" in workflow


def test_oldest_python_is_tested():
    (oldest,) = re.findall(r'requires-python = ">=([\d.]+)"', read("pyproject.toml"))
    assert f'python: ["{oldest}", ' in read(".github/workflows/tests.yml")


def test_citation_is_of_this_version():
    assert f"version: {freqfm.__version__}\n" in read("CITATION.cff")


def test_files_that_contributing_names_exist():
    text = read("CONTRIBUTING.rst")
    named = set(re.findall(r"``([\w/]+\.(?:py|rst))``", text))
    folders = ("freqfm", "tests", "docs", "benchmarks")
    files = [*ROOT.glob("*.rst"), *(p for folder in folders for p in (ROOT / folder).rglob("*.*"))]
    missing = {
        name for name in named if not any(path.as_posix().endswith(f"/{name}") for path in files)
    }
    # The recipes create these.
    examples = "samplers/_rectified.py", "backbones/_item_features.py"
    assert missing == {*examples, "backends/cpu/ranking/contrastive.py"}


def test_conda_recipe_repeats_the_metadata():
    recipe, project = read("recipe/recipe.yaml"), read("pyproject.toml")

    def listed(name):
        (block,) = re.findall(rf"^  {name}:\n((?:    - .*\n)+)", recipe, re.M)
        return [line.strip(" -") for line in block.splitlines()]

    def quoted(text):
        return [word.replace(">=", " >=") for word in re.findall(r'"([^"]+)"', text)]

    (wanted,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.S | re.M)
    assert listed("run") == ["python >=${{ python_min }}", *quoted(wanted)]
    (wanted,) = re.findall(r"^requires = \[(.*?)\]", project, re.M)
    assert listed("host") == ["python ${{ python_min }}.*", "pip", *quoted(wanted)]
    (oldest,) = re.findall(r'requires-python = ">=([\d.]+)"', project)
    (summary,) = re.findall(r'^description = (".*")$', project, re.M)
    for line in (f'version: "{freqfm.__version__}"', f'python_min: "{oldest}"'):
        assert f"  {line}\n" in recipe
    assert f"  summary: {summary}\n" in recipe


@pytest.mark.slow
def test_claims_follow_from_the_results_that_are_kept(tmp_path):
    read("docs/figures/claims.csv")
    figures = tmp_path / "docs" / "figures"
    shutil.copytree(ROOT / "docs" / "figures", figures)
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    tables = [*figures.glob("adap_tau*.rst"), figures / "prism.rst"]
    for table in tables:
        table.unlink()
    subprocess.run([sys.executable, figures / "claims.py"], check=True)
    for table in [figures / "claims.csv", *tables]:
        assert table.read_text("utf-8") == read(f"docs/figures/{table.name}")

"""The wheel, installed beside a project that has its own ``callbacks`` package and ``conf`` folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import zoo
from zoo import recipes

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="runs in a checkout")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_every_module_recipe_and_page(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for source, target in (("zoo", "zoo"), ("callbacks", "zoo/callbacks"), ("conf", "zoo/conf")):
        for path in (ROOT / source).rglob("*"):
            inside = path.relative_to(ROOT / source)
            if path.suffix in (".py", ".yaml", ".md") and "__pycache__" not in inside.parts:
                assert f"{target}/{inside.as_posix()}" in names
    assert "zoo/py.typed" in names
    assert not [n for n in names if n.startswith(("tests", "callbacks", "conf", "benchmarks"))]


def test_outside_project_with_its_own_callbacks_and_conf(wheel: Path, tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    zipfile.ZipFile(wheel).extractall(site)
    (project / "callbacks").mkdir(parents=True)
    (project / "conf").mkdir()
    (project / "callbacks" / "__init__.py").write_text("MINE = True\n")
    (project / "conf" / "mine.yaml").write_text("trainer:\n  fast_dev_run: true\n")
    (project / "use.py").write_text(
        "import callbacks, zoo, zoo.callbacks, zoo.conf\n"
        "from zoo.callbacks import BackwardCompatibility\n"
        "from zoo.cli import main\n"
        "assert callbacks.MINE\n"
        f"assert all({str(site)!r} in m.__file__ for m in (zoo, zoo.callbacks, zoo.conf)), zoo.__file__\n"
        "assert 'hyperbolic_bct' in zoo.list_models()\n"
        "main(['--model', 'hyperbolic_bct', '--compare', 'false', '--config', 'conf/mine.yaml'])\n"
    )
    path = os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=project, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "cross" in done.stdout
    assert list(project.glob("runs/hyperbolic_bct/*/metrics.json"))


def test_packages_in_pyproject_are_those_in_the_tree() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {"zoo.callbacks", "zoo.conf"} | {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "zoo").rglob("__init__.py")
    }
    assert set(config["tool"]["setuptools"]["packages"]) == found


def test_version_is_the_installed_one() -> None:
    assert version("lightning-paper-zoo") == zoo.__version__


def test_list_models_and_create_model() -> None:
    assert zoo.list_models() == list(recipes.names("model"))
    assert zoo.list_models("*_ext") == ["hyperbolic_bct_ext"]
    module = zoo.create_model("hyperbolic_bct", num_classes=7)
    assert type(module).__name__ == "HyperbolicBCT"
    assert module.hparams["num_classes"] == 7
    assert module.hparams["embed_dim"] == 32, "the recipe's, not the class's default"
    assert module.old_model is None
    with pytest.raises(ValueError, match=r"unknown model 'hyperbolic_bc'\. Did you mean 'hyperbolic_bct'"):
        zoo.create_model("hyperbolic_bc")
    with pytest.raises(TypeError, match="lrr"):
        zoo.create_model("hyperbolic_bct", lrr=1)


def test_every_recipe_says_what_it_is() -> None:
    for name in recipes.names("model"):
        about = recipes.about(name)
        assert about.summary, name
        assert "arXiv" in about.paper, name
        assert about.data, name


def test_file_names_say_what_is_inside() -> None:
    for folder in ("zoo", "callbacks", "conf", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*"):
            assert path.stem not in ("util", "utils", "helper", "helpers", "common", "misc"), path

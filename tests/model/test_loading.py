from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prototrain import Config
from prototrain.errors import ConfigError, ModelError
from prototrain.model import ModelDict, load_model

WHOLE = {
    "config": "from prototrain import Config\nconfig = Config({'model.batch_size': 4})\n",
    "datasets": "def datasets():\n    return {}\n",
    "definition": "def build(inputs, train_phase):\n    return {}\n",
}
CONFIG, DATASETS, BUILD = WHOLE.values()
pytestmark = pytest.mark.usefixtures("scratch")


def write(**files: str) -> None:
    """Write modules; ``package__module`` stands for ``package/module.py``."""
    for name, text in files.items():
        path = Path(name.replace("__", "/", 1) + ".py") if "__" in name else Path(f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_items_and_attributes_are_the_same() -> None:
    net = ModelDict(first=1)
    net.second = 2
    net["third"] = 3
    assert (net["first"], net.second, net.third, net.last) == (1, 2, 3, 3)
    assert list(net) == ["first", "second", "third"]
    del net.third
    assert net.last == 2 and "third" not in net
    net.first = 3  # set again, it is the last
    assert list(net.items()) == [("second", 2), ("first", 3)] and net.last == 3


def test_missing_name_lists_the_others() -> None:
    net = ModelDict(a=1)
    with pytest.raises(AttributeError, match="no 'b'; it has: a"):
        net.b  # noqa: B018
    with pytest.raises(KeyError):
        net["b"]
    assert not hasattr(net, "b") and getattr(net, "b", 7) == 7
    with pytest.raises(AttributeError, match="no 'last'; it has: nothing yet"):
        ModelDict().last  # noqa: B018


@pytest.mark.parametrize("name", ["last", "items"])
def test_dict_methods_are_not_attributes(name: str) -> None:
    net = ModelDict()
    with pytest.raises(AttributeError, match=f"'{name}' is taken"):
        setattr(net, name, 1)
    net[name] = 1
    assert net[name] == 1


def test_package_of_three_modules() -> None:
    write(**{f"mine__{name}": text for name, text in WHOLE.items()}, mine____init__="")
    model = load_model("mine")
    assert model.name == "mine" and model.config["model.batch_size"] == 4
    assert model.datasets() == {} and model.build({}, True) == {}
    assert model.source == Path.cwd() / "mine" and model.config is sys.modules["mine.config"].config


def test_single_module_and_plain_dict() -> None:
    write(single="config = {'model.batch_size': 8}\n" + WHOLE["datasets"] + WHOLE["definition"])
    model = load_model("single")
    assert isinstance(model.config, Config) and model.config["model.batch_size"] == 8
    assert model.source == Path.cwd() / "single.py"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no model mine: no such module in .* or among the installed packages"),
        ({"mine": ""}, "has no config and no datasets and no build; define it in mine.py"),
        ({"mine": CONFIG + BUILD}, "has no datasets; define it in mine.py"),
        ({"mine____init__": CONFIG + DATASETS}, "has no build; define it in __init__.py or in its definition.py"),
        ({"mine____init__": CONFIG, "mine__datasets": "", "mine__definition": BUILD}, "no datasets; .* datasets.py"),
        ({"mine": "config = 3\n" + DATASETS + BUILD}, "config must be a Config or a dict, not int"),
        ({"mine": CONFIG + "datasets = {}\n" + BUILD}, "datasets must be a function, not dict"),
        ({"mine": CONFIG + DATASETS + BUILD + "callbacks = []\n"}, "callbacks must be a function, not list"),
        ({"mine": "from prototrain import Config\nConfig({'trainer.x': 1})"}, "model mine: unknown key 'trainer.x'"),
        ({"mine": "config = {'model.batch_size': 'x'}\n" + DATASETS + BUILD}, "mine: model.batch_size: expected int"),
    ],
)
def test_errors(files: dict[str, str], message: str) -> None:
    write(**files)
    with pytest.raises((ModelError, ConfigError), match=message):
        load_model("mine")


CLASS = """
class Mine:
    def __init__(self, layers=2):
        self.config = {"model.batch_size": layers}
    def datasets(self):
        return {}
    def build(self, inputs, train_phase):
        return {}
class Half:
    config = {}
def make():
    return Mine(3)
mine = Mine(4)
"""


def test_class_object_and_factory() -> None:
    write(mine=CLASS)
    models = {name: load_model(f"mine:{name}") for name in ("Mine", "make", "mine")}
    assert [model.config["model.batch_size"] for model in models.values()] == [2, 3, 4]
    assert models["Mine"].name == "mine:Mine" and models["Mine"].source == Path.cwd() / "mine.py"
    for name, message in {
        "mine:None": "there is no model mine:None: mine has no None",
        "mine:": "mine has no name behind the colon",
        "mine:Half": "model mine:Half has no datasets and no build; define it in Half",
        "theirs:Mine": "there is no model theirs: no such module",
    }.items():
        with pytest.raises(ModelError, match=message):
            load_model(name)


@pytest.mark.parametrize(
    ("files", "message", "last_frame"),
    [
        ({"mine": "x = 1\nraise ValueError('own')\n"}, "importing the model mine failed: ValueError: own", "mine.py"),
        ({"mine": "def f(:\n"}, "importing the model mine failed: SyntaxError", "mine.py"),
        ({"mine": "import no_such_library\n"}, "model mine needs the module 'no_such_library'", "mine.py"),
        ({"mine": "import sys\nsys.exit(0)\n"}, "importing the model mine failed: SystemExit: 0", "mine.py"),
        ({"mine____init__": "", "mine__config": "1 / 0\n"}, "model mine.config failed: Zero", "config.py"),
        ({"mine____init__": "from .other import build\n"}, "model mine needs the module 'mine.other'", "__init__.py"),
    ],
)
def test_broken_module_shows_its_traceback(
    files: dict[str, str], message: str, last_frame: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write(**files)
    with pytest.raises(ModelError, match=message):
        load_model("mine")
    frames = [line for line in capfd.readouterr().err.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1 and f'{last_frame}"' in frames[0]

"""What of a Python file is code that a run depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.system.source_code import code_in

SCRIPT = '''"""A script."""

import thing
from prototrain.callbacks import ModelSaver

config = {"model.num_steps": 100, "size": 3}
config["model.num_steps"] = 50


class OwnTrainer(thing.Trainer):
    """Does it."""

    def run_step(self):
        return thing.step(self.size, rate=0.1)  # by hand


class Looks(thing.Callback):
    every = 3

    def trigger(self):
        print(self.every)


def main(arguments):
    trainer = OwnTrainer(config, experiment="runs/a")
    callbacks = [ModelSaver().every(steps=10), thing.Averages(0.9)]
    trainer.train(callbacks, max_steps=100)


if __name__ == "__main__":
    main([])
'''


def _code(directory: Path, text: str) -> bytes:
    file = directory / "script.py"
    file.write_text(text)
    return code_in(file, besides={"model.num_steps"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # by hand", ""),
        ('"""Does it."""', '"""Does it well."""'),
        ("self.size, rate=0.1", "\n            self.size,\n            rate=0.1,\n        "),
        ('.num_steps": 100', '.num_steps": 200'),
        ('config["model.num_steps"] = 50\n', ""),
        ("max_steps=100", "max_steps=200"),
        ("max_steps=100", "max_epoch=2"),
        ('"__main__"', "'__main__'"),
        ("max_steps=100", "max_steps=100, allow_changed_data=True"),
        ("runs/a", "runs/b"),
        ("import ModelSaver", "import *"),
        ("(steps=10)", "(seconds=60)"),
        ("[ModelSaver().every(steps=10), thing.Averages(0.9)]", "[]"),
        ("ModelSaver()", "ModelSaver(keep=3, what=[-1, 'a']), thing.Printer(lambda step: step + 1).every(epochs=1)"),
        ("every = 3", "every = 4"),
        ("print(self.every)", "self.look()"),
        (", thing.Averages(0.9)]\n", "]\n"),
        ("    trainer.train", "    print(f'{config} {trainer.steps:.3f}', flush=True)\n    trainer.train"),
    ],
)
def test_what_says_nothing_of_the_training_is_left_out(old: str, new: str, tmp_path: Path) -> None:
    assert old in SCRIPT
    assert _code(tmp_path, SCRIPT) == _code(tmp_path, SCRIPT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rate=0.1", "rate=0.2"),
        ("rate=0.1", "rates=0.1"),
        ('"size": 3', '"size": 3.0'),
        ('.num_steps": 100', '.num_steps": 100 * thing.length'),
        ('["model.num_steps"] = 50', '["model.other"] = 50'),
        ("max_steps=100", "max_steps=thing.length"),
        ("max_steps=100", "epochs=100"),
        ("thing.Callback", "thing.Other"),
        ("class Looks", "@thing.wrapped\nclass Looks"),
        ("train(callbacks", "train([thing]"),
        ("train(callbacks", "train(other"),
        ("ModelSaver()", "thing.make()"),
        ("ModelSaver()", "ModelSaver(thing.make())"),
        ("ModelSaver()", "ModelSaver(thing)"),
        ("ModelSaver()", "ModelSaver([config['size']])"),
        ("ModelSaver()", "ModelSaver(thing.Made(3))"),
        ("ModelSaver()", "thing.make().Saver()"),
        ("ModelSaver()", "(saver := ModelSaver())"),
        ("    trainer.train", "    callbacks += thing.more\n    trainer.train"),
        ("    trainer.train", "    trainer.print(config)\n    trainer.train"),
        ("    callbacks = [ModelSaver()", "    callbacks = config.more = [ModelSaver(1)"),
        ("    trainer.train", "    print(trainer.prepare())\n    trainer.train"),
        ("import ModelSaver", "import ModelSaver as Saver"),
        ('experiment="runs/a"', 'size="a"'),
        ("main([])", "main([1])"),
        ("main([])", "OwnTrainer(config).train(max_steps=5)"),  # which of them is which is not known
        ("import thing", "import other as thing"),
        ("thing.Trainer", "thing.Other"),
        ("class OwnTrainer", "@thing.wrapped\nclass OwnTrainer"),
        ("def main(", "def mine("),
        ("thing.step(self.size, rate=0.1)", "thing.step(rate=0.1)"),
        ("return thing", "yield thing"),
    ],
)
def test_whatever_else_is_written_counts(old: str, new: str, tmp_path: Path) -> None:
    assert old in SCRIPT
    assert _code(tmp_path, SCRIPT) != _code(tmp_path, SCRIPT.replace(old, new))


def test_of_several_trainings_the_length_of_each_counts(tmp_path: Path) -> None:
    script = SCRIPT + "teacher.train(max_steps=5)\n"
    assert _code(tmp_path, script) != _code(tmp_path, script.replace("max_steps=5", "max_steps=6"))


@pytest.mark.parametrize("text", ["this is no Python\n", "x = " + "(" * 5000 + ")" * 5000, "x = 1" + "+1" * 20_000])
def test_a_file_that_cannot_be_looked_into_counts_as_it_is(text: str, tmp_path: Path) -> None:
    assert _code(tmp_path, text) == text.encode()

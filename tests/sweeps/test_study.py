from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prototrain.config import Config
from prototrain.config.values import read_value
from prototrain.errors import ConfigError, SweepError
from prototrain.experiment import Experiment
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import Dimension, as_settings, from_mapping, parse_space
from prototrain.sweeps.study import Study, Trial, sqlite_url
from tests.tiny import tiny_config

GRID = {"model.batch_size": [4, 8], "model.optimizer.method": ["adam", "sgd", "msgd"]}
ONE = {"model.batch_size": [4]}
RATE = {"model.lr_schedule.constant.value": "log:1e-4..1"}

Opens = Callable[..., Study]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    """Opens the study like another process; another `machine` has its own base directory."""

    studies = []

    def open_study(
        space: Any = GRID, *, machine: str = "here", place: str = "", pruner: str = "none", **keywords: Any
    ) -> Study:
        usual = {"trials": None, "objective": "vld/loss", "mode": "min"}
        wanted = {name: keywords.pop(name, value) for name, value in usual.items()}
        config = tiny_config(**{"trainer__experiment_base_dir": str(tmp_path / machine), **keywords})
        plan = Plan(config=config, space=from_mapping(space), **wanted)
        studies.append(Study(plan, storage=place or sqlite_url(tmp_path / "study.db"), pruner=pruner))
        return studies[-1]

    yield open_study
    for study in studies:
        study.close()


def taken(study: Study) -> Trial:
    trial = study.next()
    assert trial is not None
    return trial


def finish(trial: Trial, value: float = 1.0, *, steps: int = 1) -> None:
    for step in range(1, steps + 1):
        if trial.report({"vld/loss": (step, value)}):
            break
    trial.finish()


def die(trial: Trial) -> None:
    """Release a lock, as the operating system does when a sweep is killed."""
    trial._lock.release()


def states(study: Study) -> list[str]:
    return [outcome.state for outcome in study.result().trials]


@pytest.mark.parametrize("journal", [False, True], ids=["database", "journal"])
def test_several_processes_run_each_combination_once(journal: bool, opens: Opens, tmp_path: Path) -> None:
    place = str(tmp_path / "journal") if journal else ""
    processes = [opens(place=place) for _ in range(3)]
    begun = [taken(processes[number % 3]) for number in range(6)]
    assert [process.next() for process in processes] == [None, None, None]
    assert [(trial.number, *trial.values.values()) for trial in begun] == [
        (0, 4, "adam"), (1, 4, "sgd"), (2, 4, "msgd"), (3, 8, "adam"), (4, 8, "sgd"), (5, 8, "msgd"),
    ]  # fmt: skip
    for trial in begun[:5]:
        finish(trial, float(trial.number))
    assert states(processes[0])[5] == "running"
    assert begun[5].release() == "stopped" and states(processes[2])[5] == "stopped"
    again = taken(opens(place=place))
    assert (again.number, again.values) == (5, begun[5].values)
    finish(again)
    assert opens(place=place).next() is None and states(processes[0]) == ["finished"] * 6


def test_trial_of_a_dead_process_is_continued(opens: Opens) -> None:
    first, second = opens(RATE, trials=2), opens(RATE, trials=2)
    mine, other = taken(first), taken(second)
    assert first.next() is None and states(first) == ["running", "running"]
    mine.report({"vld/loss": (5, 0.5)})
    die(mine)
    assert states(second) == ["stopped", "running"] and second.is_waiting()
    again = taken(second)
    assert (again.number, again.values) == (mine.number, mine.values)
    assert not second.is_waiting()
    assert again.report({"vld/loss": (5, 0.5)}) is False  # a resumed run measures a step again
    assert again.finish() == "finished: vld/loss 0.5 at step 5"
    finish(other)


def test_stopped_trials_are_continued_first(opens: Opens) -> None:
    first = opens()
    assert [taken(first).release(), taken(first).release("killed by SIGKILL")] == ["stopped", "killed by SIGKILL"]
    assert taken(first).number == 2  # not a trial that this process has already run
    later = opens()
    assert [taken(later).number for _ in range(3)] == [0, 1, 3]
    first.close()
    assert taken(opens()).number == 2


def test_trial_with_a_used_experiment_waits(opens: Opens) -> None:
    die(taken(opens(ONE)))
    later = opens(ONE)
    holder = later.plan.experiment(0)
    holder.lock()
    assert later.next() is None and later.is_waiting() and states(later) == ["stopped"]
    holder.unlock()
    assert taken(later).number == 0


def test_directory_that_is_not_shared(opens: Opens) -> None:
    taken(opens())
    with pytest.raises(SweepError, match=r"trial 0 has begun in another directory than .*there: all commands"):
        opens(machine="there").next()


def test_samples_do_not_depend_on_stops(opens: Opens, tmp_path: Path) -> None:
    def run(name: str, *, stops: bool) -> list[float]:
        place, values = str(tmp_path / name), []
        process = opens(RATE, trials=12, place=place)
        for number in range(12):
            if stops and number == 11:
                taken(opens(RATE, trials=12, place=place)).release()
            if stops and number > 9:
                process = opens(RATE, trials=12, place=place)
            trial = taken(process)
            (rate,) = trial.values.values()
            values.append(rate)
            finish(trial, rate)
        return values

    straight = run("straight", stops=False)
    assert run("stopped", stops=True) == straight and len(set(straight)) == 12
    assert any(rate < 0.01 for rate in straight[10:])  # the sampler has learned where the values are small


def test_bad_trials_are_pruned(opens: Opens) -> None:
    process = opens(RATE, trials=7, pruner="median")
    for _ in range(5):
        finish(taken(process), 1.0, steps=3)
    bad, good = taken(process), taken(process)
    assert bad.report({"vld/loss": (1, 2.0)}) is True and bad.report({"vld/loss": (2, 2.0)}) is True
    assert good.report({"vld/loss": (1, 0.5)}) is False
    assert (bad.finish(), good.finish()) == ("pruned: vld/loss 2 at step 1", "finished: vld/loss 0.5 at step 1")
    assert states(process) == [*["finished"] * 5, "pruned", "finished"]


def test_training_scalars_may_be_recorded_after_the_first_validation(opens: Opens) -> None:
    trial = taken(opens(objective="trn/loss"))
    assert trial.report({"vld/loss": (1, 2.0)}) is False
    with pytest.raises(SweepError, match="no scalar 'trn/loss'"):
        trial.report({"vld/loss": (2, 2.0), "trn/lose": (2, 1.0)})


def test_failed_trials(opens: Opens) -> None:
    process = opens()
    silent, broken, infinite = taken(process), taken(process), taken(process)
    assert silent.finish() == "failed: the run has ended without measuring vld/loss"
    assert broken.fail("out of memory", "all of it") == "failed: out of memory"
    infinite.report({"vld/loss": (6, 0.5)})
    infinite.report({"vld/loss": (7, float("-inf"))})
    assert infinite.finish() == "failed: vld/loss is -inf at step 7"
    assert states(process)[:3] == ["failed"] * 3 and process.result().trials[1].error == "out of memory"


def test_changed_sweep_is_an_error(opens: Opens) -> None:
    opens()
    opens(objective="vld/accuracy")  # nothing was reported yet
    first = opens()
    taken(first).report({"vld/loss": (1, 1.0)})
    opens(trainer__print_interval=7, machine="there")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"objective": "vld/accuracy"}, "objective was vld/loss and is vld/accuracy"),
        ({"mode": "max"}, "mode was min and is max"),
        ({"space": {**GRID, "model.batch_size": [4]}}, "model.batch_size in the space was 4, 8 and is 4"),
        ({"model__num_steps": 21}, "model.num_steps was 20 and is 21"),
        ({"trials": 3}, "trials was every combination and is sampled"),
    ]
    for keywords, message in refused:
        with pytest.raises(SweepError, match=r"holds another sweep 'tiny' .*choose another") as raised:
            opens(**keywords)
        assert message in str(raised.value)
    opens(trainer__experiment_name="other", model__num_steps=21)


def test_existing_experiment(opens: Opens, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path / "here/tiny-5")
    experiment.lock()
    experiment.unlock()
    opens()  # a lock file alone is not an experiment
    (tmp_path / "here/tiny-5/config.json").write_text("{}")
    with pytest.raises(SweepError, match=r"tiny-5 is there already and is no trial of this sweep; delete it, or"):
        opens()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"mode": "least"}, 'mode must be "min" or "max"'),
        ({"space": RATE}, "give the number of trials"),
        ({"trainer__experiment_name": "e-{timestamp}"}, "would make every command another sweep"),
        ({"place": "postgresql://me:secret@localhost:1/x"}, r"the storage postgresql://me:\*\*\*@localhost:1/x"),
        ({"place": "sqlite:///file"}, "cannot open the storage sqlite:///file: file is not a database"),
    ],
)
def test_errors_are_one_line(keywords: dict[str, Any], message: str, opens: Opens, scratch: Path) -> None:
    (scratch / "file").write_text("neither a database nor a journal\n" * 40)
    with pytest.raises(SweepError, match=message) as raised:
        opens(**keywords)
    assert "\n" not in str(raised.value) and "secret" not in str(raised.value)


def grid(texts: list[str]) -> Any:
    return from_mapping(parse_space(texts, is_grid=True))


def search(texts: list[str]) -> Any:
    return from_mapping(parse_space(texts, is_grid=False))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=16,32", (16, 32)),
        ('k=1,"1",""', (1, "1", "")),
        ('k="a,b",c', ("a,b", "c")),
        ("k=True,False,None", (True, False, None)),
        ("k=[.5,True],it's,b]", ([0.5, True], "it's", "b]")),
    ],
)
def test_grid(text: str, values: tuple[Any, ...]) -> None:
    assert grid([text]) == {"k": Dimension("choice", values)}
    settings = [setting for value in values for setting in as_settings({"k": value})]
    assert tuple(read_value(setting.removeprefix("k=")) for setting in settings) == values


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("k=log:1e-5..1e-1", Dimension("log", (1e-5, 0.1))),
        ("k=float:-1..1", Dimension("float", (-1.0, 1.0))),
        ("k=int:16..256", Dimension("int", (16, 256))),
        ("k=choice:a|b|[1, 2]|3", Dimension("choice", ("a", "b", [1, 2], 3))),
    ],
)
def test_search(text: str, dimension: Dimension) -> None:
    assert search([text]) == {"k": dimension}


@pytest.mark.parametrize(
    ("parse", "texts", "message"),
    [
        (grid, ["k="], "k has no values to try"),
        (search, ["k=1,2"], "k=1,2: expected one of log:1e-5..1e-1"),
        (search, ["k=log:0..1"], "a logarithmic range must begin above 0"),
        (from_mapping, {"k": [len]}, "not JSON serializable; a function is given as a text, 'module:name'"),
    ],
)
def test_malformed_space_is_one_line(parse: Any, texts: Any, message: str) -> None:
    with pytest.raises(SweepError) as raised:
        parse(texts)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def plan_of(space: Any, config: Config, *, trials: int | None = None) -> Plan:
    return Plan(config=config, space=space, trials=trials, objective="loss", mode="min")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "the space is empty"),
        (grid(["model.own=a"]), "model.own: expected float, got 'a'"),
        (search(["model.batch_size=float:1..8"]), "model.batch_size takes whole numbers only: use int:"),
        (grid(["model.batch_size=16,16.0"]), "model.batch_size: a value is given twice among 16, 16"),
        (grid(["trainer.experiment_name=a,b"]), "trainer.experiment_name cannot be swept"),
        (grid(["model.lr_schedule.method=constant,exp"]), "model.lr_schedule.exp.value is not set"),
    ],
)
def test_space_that_does_not_fit_the_config(space: Any, message: str) -> None:
    config = tiny_config(**{"model.own": 0.1})
    before = config.copy()
    trials = None if all(dimension.kind == "choice" for dimension in space.values()) else 2
    with pytest.raises((SweepError, ConfigError)) as raised:
        plan_of(space, config, trials=trials)
    assert message in str(raised.value) and config == before


def test_space_may_set_missing_keys() -> None:
    config = tiny_config()
    config.override(["model.lr_schedule.method=exp"])
    space = grid([f"model.lr_schedule.exp.{name}=0.5,1" for name in ("value", "decay_rate")])
    space |= grid(["model.lr_schedule.exp.decay_steps=10"])
    assert plan_of(space, config).total == 4
    with pytest.raises(ConfigError, match=r"lr_schedule\.exp\.value is not set"):
        plan_of(grid(["model.batch_size=8"]), config)

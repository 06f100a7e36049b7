"""What was imported before every module got its folder can still be: by the README, the pages, models and examples.

`environment.json` names a run's trainer by module and class as well, so those paths are part of a file's format.
"""

from __future__ import annotations

import importlib
import re

import pytest

from tests.conftest import ROOT

IMPORTS = {
    "prototrain": "Callback Config KerasTrainer ModelDict SimpleTrainer StopTraining SyncReplicatedTrainer Trainer "
    "default_callbacks estimator load_model readers schedules",
    "prototrain.actions": "add_checkpoint restore",
    "prototrain.actions.restore": "BuiltModel",
    "prototrain.callbacks": "HostMemoryTracker JSONWriter LearningRate ModelSaver Priority ProgressBar SaveOnExit "
    "ScalarPrinter StopOnNaN Summaries TensorBoardWriter Validation",
    "prototrain.checkpoint": "Checkpoints first_line",
    "prototrain.cluster": "connect",
    "prototrain.config": "Config",
    "prototrain.config_json": "as_text encode read_object",
    "prototrain.config_schema": "REFERENCE nearest show",
    "prototrain.errors": "ConfigError DataError ExperimentError ModelError",
    "prototrain.estimator": "Estimator",
    "prototrain.experiment": "STEP Experiment checkpoint_steps home_of source_of",
    "prototrain.files": "sync write_atomic",
    "prototrain.launch": "default_callbacks launch",
    "prototrain.model": "Model ModelDict ModelProtocol load_model",
    "prototrain.optimizers": "ClipByGlobalNorm ScaleGradient make_optimizer",
    "prototrain.predictor": "Predictor",
    "prototrain.quiet": "import_tensorflow",
    "prototrain.readers": "json_lines",
    "prototrain.runs": "find_runs read_run",
    "prototrain.schedules": "cosine",
    "prototrain.server_cluster": "connect",
    "prototrain.sweeps.api": "sweep",
    "prototrain.sweeps.summary": "SweepResult",
    "prototrain.towers": "choose_devices current_tower make_cpu_devices",
    "prototrain.tracebacks": "cause format_error",
    "prototrain.trainers.async_towers": "AsyncTrainer",
    "prototrain.trainers.banner": "plain_table",
    "prototrain.trainers.base": "Trainer",
    "prototrain.trainers.distributed_async": "DistributedAsyncTrainer",
    "prototrain.trainers.keras_trainer": "KerasTrainer",
    "prototrain.trainers.multi_worker": "MultiWorkerTrainer",
    "prototrain.trainers.noop": "NoOpTrainer",
    "prototrain.trainers.parameter_server": "SyncParameterServerTrainer",
    "prototrain.trainers.replicated": "SyncReplicatedTrainer",
    "prototrain.trainers.services": "TrainerServices",
    "prototrain.trainers.tower": "SimpleTrainer TowerTrainer",
}


@pytest.mark.parametrize("module", IMPORTS)
def test_an_earlier_import_goes_on_working(module: str) -> None:
    exec(f"from {module} import {', '.join(IMPORTS[module].split())}", {})


def test_every_name_of_a_page_of_the_api_is_there() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    names = re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE)
    assert len(names) > 25
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name

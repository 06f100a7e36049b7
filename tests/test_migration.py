"""The guide for tensorpack has a row for every public name."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

NAMES = {
    "train": """
        AsyncMultiGPUTrainer AutoResumeTrainConfig BytePSTrainer DEFAULT_CALLBACKS DEFAULT_MONITORS
        DistributedTrainerParameterServer DistributedTrainerReplicated HorovodTrainer ModelDesc ModelDescBase
        NoOpTrainer QueueInputTrainer SimpleTrainer SingleCostTrainer StopTraining SyncMultiGPUTrainer
        SyncMultiGPUTrainerParameterServer SyncMultiGPUTrainerReplicated TowerTrainer TrainConfig Trainer
        launch_train_with_config
    """,
    "callbacks": """
        BinaryClassificationStats Callback CallbackFactory CallbackToHook Callbacks CheckNumerics
        ClassificationError CometMLMonitor DataParallelInferenceRunner DumpParamAsImage DumpTensor
        DumpTensorAsImage DumpTensors EnableCallbackIf EstimatedTimeLeft GPUMemoryTracker GPUUtilizationTracker
        GraphProfiler GraphVarParam HookToCallback HostMemoryTracker HumanHyperParamSetter HyperParam
        HyperParamSetter HyperParamSetterWithFunc InferenceRunner InferenceRunnerBase Inferencer InjectShell
        JSONWriter MaxSaver MergeAllSummaries MinSaver ModelSaver MonitorBase Monitors MovingAverageSummary
        ObjAttrParam PeakMemoryTracker PeriodicCallback PeriodicTrigger ProcessTensors ProgressBar ProxyCallback
        RunOp RunUpdateOps ScalarPrinter ScalarStats ScheduledHyperParamSetter SendMonitorData SendStat
        SessionRunTimeout SimpleMovingAverage StartProcOrThread StatMonitorParamSetter TFEventWriter
        TFLocalCLIDebugHook TensorPrinter ThroughputTracker
    """,
    "tfutils": """
        AccumGradOptimizer BaseTowerContext ChainInit CheckGradient DictRestore FilterNoneGrad GlobalNormClip
        GradientProcessor JustCurrentSession MapGradient ModelExporter NewSessionCreator PostProcessOptimizer
        PrintGradient ProxyOptimizer ReuseSessionCreator SaverRestore SaverRestoreRelaxed ScaleGradient
        SessionCreatorAdapter SessionInit SessionUpdate SmartInit SummaryGradient TowerContext TowerFunc
        TowerFuncWrapper TowerTensorHandle TowerTensorHandles VariableAssignmentOptimizer add_activation_summary
        add_moving_summary add_param_summary add_tensor_summary apply_grad_processors argscope
        auto_reuse_variable_scope backup_collection cached_name_scope collect_env_info custom_getter_scope
        dependency_of_fetches dependency_of_targets dump_session_params enable_argscope_for_function
        enable_argscope_for_module freeze_collection freeze_variables get_all_checkpoints get_arg_scope
        get_checkpoint_path get_current_tower_context get_default_sess_config get_global_step_value
        get_global_step_var get_model_loader get_tf_version_tuple load_checkpoint_vars load_chkpt_vars
        print_stat remap_variables restore_collection rms save_checkpoint_vars save_chkpt_vars under_name_scope
    """,
    "predict": """
        DataParallelOfflinePredictor DatasetPredictorBase FeedfreePredictor MultiProcessDatasetPredictor
        MultiThreadAsyncPredictor MultiTowerOfflinePredictor OfflinePredictor OnlinePredictor PredictConfig
        PredictorBase SimpleDatasetPredictor
    """,
    "models": """
        AvgPooling BNReLU BatchNorm BatchRenorm ConcatWith Conv2D Conv2DTranspose Deconv2D Dropout
        FixedUnPooling FullyConnected GlobalAvgPooling InstanceNorm LayerNorm LinearWrap MaxPooling Maxout PReLU
        VariableHolder disable_layer_logging l1_regularizer l2_regularizer layer_register regularize_cost
        regularize_cost_from_collection rename_tflayer_get_variable
    """,
    "input_source": """
        BatchQueueInput DummyConstantInput FeedInput FeedfreeInput InputSource PlaceholderInput QueueInput
        StagingInput TFDatasetInput TensorInput ZMQInput remap_input_source
    """,
    "dataflow": """
        BatchData BatchDataByShape CacheData ConcatData DataFlow DataFromGenerator DataFromList FakeData FixedSizeData
        HDF5Data ImageFromFile JoinData LMDBData LocallyShuffleData MapData MapDataComponent MultiProcessMapData
        MultiProcessRunner MultiProcessRunnerZMQ MultiThreadMapData PrintData RandomChooseData RandomMixData
        RepeatedData RepeatedDataPoint SelectComponent TestDataSpeed TFRecordData
    """,
    "graph_builder": """
        DataParallelBuilder LeastLoadedDeviceSetter allreduce_grads
    """,
}


@pytest.mark.parametrize("package", NAMES)
def test_every_public_name_of_tensorpack_has_its_row(package: str) -> None:
    text = (ROOT / "docs/reference/tensorpack.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", " ".join(rows)))))
    assert set(NAMES[package].split()) - named == set()

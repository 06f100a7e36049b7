"""Each kind of stage in a tf.data pipeline: what TensorFlow's saved state of it is worth, and whether it repeats.

What is not in these tables is not known, and no run says "exact" because of it. `python -m benchmarks.exactness` draws
the entries for stages, and most of the datasets and ops in functions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Saved(IntEnum):
    """What TensorFlow's saved state of a stage is worth."""

    WHOLE = 0
    EXCEPT_BETWEEN_PASSES = 1  # dropped at the end of a pass, it is missing until the next one has begun
    NOT_WHOLE = 2
    UNKNOWN = 3


class Again(IntEnum):
    """Whether a stage that is built again gives what it gave before."""

    YES = 0
    WITH_A_SEED = 1
    PYTHON_CODE = 2  # nobody knows but whoever wrote that code; it is checked while it is read again
    NO = 3
    UNKNOWN = 4


class Worth(NamedTuple):
    """An entry of the tables.

    Attributes:
        saved: see `Saved`.
        again: see `Again`.
        holds: whether the stage keeps what it reads from until that has ended, and then ends itself. Only above such
            stages is the state of a shuffle there in every state, or everything between two passes is missing at once.
    """

    saved: Saved = Saved.UNKNOWN
    again: Again = Again.UNKNOWN
    holds: bool = False


PLAIN = Worth(Saved.WHOLE, Again.YES, holds=True)
SPREAD = Worth(Saved.WHOLE, Again.YES)  # reads ahead of what it gives, or from several places
REPEATED = Worth(Saved.NOT_WHOLE, Again.YES)
DRAWN = Worth(Saved.NOT_WHOLE, Again.WITH_A_SEED)
GIVEN_UP = Worth(Saved.NOT_WHOLE, Again.NO)
NOT_KNOWN = Worth()

STAGES: dict[str, Worth] = {
    # Where data comes from.
    "_Range": PLAIN,
    "_Tensor": PLAIN,
    "_TensorSlice": PLAIN,
    "_SparseTensorSlice": PLAIN,
    "_List": PLAIN,
    "TextLine": PLAIN,
    "TFRecord": PLAIN,
    "FixedLengthRecord": PLAIN,
    "Csv": PLAIN,
    "_Load": PLAIN,
    # One batch or example after the other.
    "_Map": PLAIN,
    "_ParallelMap": PLAIN,
    "_Filter": PLAIN,
    "_Batch": PLAIN,
    "_ParallelBatch": PLAIN,
    "_MapAndBatch": PLAIN,
    "_ParseExample": PLAIN,
    "_DenseToSparseBatch": PLAIN,
    "_PaddedBatch": PLAIN,
    "_Unbatch": PLAIN,
    "_DenseToRagged": PLAIN,
    "_Restructured": PLAIN,
    "_AssertCardinality": PLAIN,
    "_Options": PLAIN,
    "_Prefetch": PLAIN,
    "_Repeat": PLAIN,
    "_Scan": PLAIN,
    "_Shard": PLAIN,
    "_AutoShard": PLAIN,  # as the stages in it, of which TensorFlow makes others with a shard in between
    "_Skip": PLAIN,
    "_Take": PLAIN,
    "_TakeWhile": PLAIN,
    "_Unique": PLAIN,
    "_Rebatch": PLAIN,
    "_Zip": PLAIN,
    # Several at once, or out of one another.
    "_Concatenate": SPREAD,
    "_FlatMap": SPREAD,
    "_Interleave": SPREAD,
    "_ParallelInterleave": SPREAD,
    "Cache": SPREAD,
    "_GroupByWindow": SPREAD,
    "_GroupByReducer": SPREAD,
    **dict.fromkeys(("_DataService", "_Snapshot", "Sql", "_CopyToDevice", "_ShuffleAndRepeat"), GIVEN_UP),
    # What a state does not hold.
    "_Shuffle": Worth(Saved.EXCEPT_BETWEEN_PASSES, Again.WITH_A_SEED),
    "_Random": DRAWN,
    "_DirectedInterleave": REPEATED,
    "_Window": REPEATED,
    "_IgnoreErrors": REPEATED,
    "ParallelInterleave": REPEATED,
}

PYTHON = Worth(Saved.NOT_WHOLE, Again.PYTHON_CODE)

RANDOM_OPERATIONS = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "SampleDistortedBoundingBoxV2",
    "TruncatedNormal",
)
STATEFUL_OPERATIONS: dict[str, Worth] = {
    # Called stateful because they must be run, or run one after the other.
    **dict.fromkeys(("Assert", "Print", "PrintV2", "If", "While", "Case", "StatefulPartitionedCall"), PLAIN),
    **dict.fromkeys(("LookupTableFindV2", "LookupTableSizeV2", "AnonymousIteratorV3"), PLAIN),
    **dict.fromkeys(("CheckNumerics", "CheckNumericsV2", "StatelessRandomGetAlg", "DeviceIndex"), PLAIN),
    **dict.fromkeys(RANDOM_OPERATIONS, DRAWN),
    **dict.fromkeys(("PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"), PYTHON),
    # Datasets that functions give.
    **dict.fromkeys(("DummySeedGenerator", "DummyMemoryCache"), Worth(Saved.NOT_WHOLE, Again.YES)),
}

AHEAD_IN_FUNCTIONS = (
    *("ParallelMapDatasetV2", "ParallelBatchDataset", "ParallelInterleaveDatasetV4", "PrefetchDataset"),
)

# Of functions, and of what is hidden.
DATASETS_IN_FUNCTIONS: dict[str, Worth] = {
    **dict.fromkeys(
        (
            "RangeDataset",
            "TensorDataset",
            "TensorSliceDataset",
            "TextLineDataset",
            "TFRecordDataset",
            "TFRecordDatasetV2",
            "FixedLengthRecordDatasetV2",
            "CSVDatasetV2",
            "MapDataset",
            "FilterDataset",
            "BatchDatasetV2",
            "PaddedBatchDatasetV2",
            "TakeDataset",
            "SkipDataset",
            "RepeatDataset",
            "ConcatenateDataset",
            "ZipDataset",
            "FlatMapDataset",
            "InterleaveDataset",
            "ScanDataset",
            "ShardDataset",
            "TakeWhileDataset",
            "UnbatchDataset",
        ),
        PLAIN,
    ),
    **dict.fromkeys((*AHEAD_IN_FUNCTIONS, "ReduceDataset"), REPEATED),
    "CacheDatasetV2": REPEATED,
    **dict.fromkeys(("ShuffleDatasetV3", "RandomDataset", "RandomDatasetV2"), DRAWN),
    "GeneratorDataset": PYTHON,
}
FIRST_SEEDS = {"ShuffleDatasetV3": 2, "RandomDataset": 0, "RandomDatasetV2": 0}  # which input is the first of the two

IN_WORDS = {
    **dict.fromkeys(
        ("PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"), "runs Python code, which is checked then"
    ),
    **dict.fromkeys(("ReadVariableOp", "RngReadAndSkip"), "reads a variable, which is no part of the data's position"),
    **dict.fromkeys(("DummySeedGenerator", "ShuffleDatasetV3"), "has a shuffle in it"),
    **dict.fromkeys(("DummyMemoryCache", "CacheDatasetV2"), "has a cache in it"),
}
WHY = {
    "_DataService": "a tf.data service gives the batches as its workers come to them",
    "_Snapshot": "what snapshot() gives, and in which order, depends on the run that has written it; Dataset.save() it "
    "ahead of the run, and Dataset.load() it",
    "Sql": "a database gives what is in it then, in an order of its own; export it into files",
    "_CopyToDevice": "what prefetch_to_device() and copy_to_device() have sent ahead is not saved; leave them out",
    "_ShuffleAndRepeat": "shuffle_and_repeat() is no longer looked into; write shuffle(), and repeat() behind it",
}
"""What is said of a stage in place of TensorFlow not saving all of it."""
IN_PARALLEL = ("_ParallelMap", "_MapAndBatch", "_ParseExample", "_ParallelInterleave", "ParallelInterleave")
AHEAD = ("_Prefetch", "_ParallelBatch", *IN_PARALLEL)
PASSED_OVER = ("_Options", "_Repeat", "_Shard", "_Skip", "_Take")  # that TensorFlow removes where they do nothing
ENDS_EARLY = ("_Take", "_TakeWhile", "_Zip", "_DirectedInterleave")  # before what they read from has ended
HIDDEN = ("Const", "_Retval", "_Arg", "Identity", "NoOp")  # what holds the datasets in one that is hidden
HIDDEN_AND_SAVED = ("RangeDataset", "TensorDataset", "RewriteDataset")
HARMLESS_OPTIONS = ("autotune", "deterministic", "threading", "experimental_distribute", "dataset_name")

"""Experiments: change one factor at a time, train with several seeds, compare.

baseline = ExperimentConfig(model="mlp", samples=5000, epochs=4, base_rate=0.05)
configs = one_factor(baseline, {"virtual_workers": (8, 32)}, seeds=range(5))
results = run(configs, folder="build/experiments/workers")
print(table(results, accuracy=0.85))
print(compare(select(results, "virtual_workers 32"), select(results, "baseline")))
"""

from dlguide.training.experiments.config import ExperimentConfig, each_seed, one_factor, select
from dlguide.training.experiments.differences import (
    BatchRegions,
    ExperimentRow,
    ExperimentTable,
    PairedDifference,
    best_batch,
    compare,
    confidence_interval,
    is_clear,
    table,
)
from dlguide.training.experiments.running import (
    Divergence,
    ExperimentProgress,
    ExperimentResult,
    RecordError,
    TimeToAccuracy,
    print_progress,
    run,
)

__all__ = [
    "BatchRegions",
    "Divergence",
    "ExperimentConfig",
    "ExperimentProgress",
    "ExperimentResult",
    "ExperimentRow",
    "ExperimentTable",
    "PairedDifference",
    "RecordError",
    "TimeToAccuracy",
    "best_batch",
    "compare",
    "confidence_interval",
    "each_seed",
    "is_clear",
    "one_factor",
    "print_progress",
    "run",
    "select",
    "table",
]

"""Experiments: change one thing at a time, train with several seeds, compare.

baseline = Setting(net="mlp", samples=5000, epochs=4, batch=32, base_rate=0.05)
settings = one_factor(baseline, {"workers": (8, 32)}, seeds=range(5))
results = run(settings, folder="build/experiments/workers")
print(table(results, accuracy=0.85))
print(compare(of(results, "workers 32"), of(results, "baseline")))
"""

from dlguide.training.experiments.against import Against, against_published
from dlguide.training.experiments.batches import Regions, best_batch, last_batch
from dlguide.training.experiments.curves import Alignment, aligned
from dlguide.training.experiments.differences import (
    Difference,
    clear_from,
    compare,
    is_clear,
)
from dlguide.training.experiments.factors import each_seed, of, one_factor
from dlguide.training.experiments.questions import (
    Answer,
    large_batches,
    small_batches,
    speed_up,
)
from dlguide.training.experiments.record import Held, RecordError, Result
from dlguide.training.experiments.running import Progress, run, tell
from dlguide.training.experiments.scaling import Scaling, against_throughput
from dlguide.training.experiments.setting import Setting
from dlguide.training.experiments.tables import Row, Table, table

__all__ = [
    "Against",
    "Alignment",
    "Answer",
    "Difference",
    "Held",
    "Progress",
    "RecordError",
    "Regions",
    "Result",
    "Row",
    "Scaling",
    "Setting",
    "Table",
    "against_published",
    "against_throughput",
    "aligned",
    "best_batch",
    "clear_from",
    "compare",
    "each_seed",
    "is_clear",
    "large_batches",
    "last_batch",
    "of",
    "one_factor",
    "run",
    "small_batches",
    "speed_up",
    "table",
    "tell",
]

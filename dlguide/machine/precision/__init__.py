"""Number formats: what they hold, what training and inference make of them, and how fast.

`round_to`, `bits` and `FORMATS` describe them; `survival` and `train` show what becomes of
gradients in 16 bits; `quantise`, `infer` and `compare` put a trained net into 8-bit integers;
`measure_onednn` and `prove` say which instructions did the work.
"""

from dlguide.machine.precision.accumulating import (
    INSTRUCTIONS,
    dot_in_pairs,
    peak_ratio,
    running_sum,
    safe_terms,
)
from dlguide.machine.precision.formats import (
    FORMATS,
    Bits,
    NumberFormat,
    bits,
    keeps_subnormals,
    named,
    round_to,
    spacing_at,
)
from dlguide.machine.precision.inference import Comparison, compare, infer, operators, session
from dlguide.machine.precision.kernel_rates import (
    LEVELS,
    Rate,
    measure_onednn,
    measure_onnxruntime,
)
from dlguide.machine.precision.onnx_graph import export
from dlguide.machine.precision.proof import Proof, prove
from dlguide.machine.precision.quantising import Quantised, has_vnni, quantise
from dlguide.machine.precision.scaling import (
    Survival,
    Training,
    best_scale,
    gradients,
    survival,
    train,
)

__all__ = [
    "FORMATS",
    "INSTRUCTIONS",
    "LEVELS",
    "Bits",
    "Comparison",
    "NumberFormat",
    "Proof",
    "Quantised",
    "Rate",
    "Survival",
    "Training",
    "best_scale",
    "bits",
    "compare",
    "dot_in_pairs",
    "export",
    "gradients",
    "has_vnni",
    "infer",
    "keeps_subnormals",
    "measure_onednn",
    "measure_onnxruntime",
    "named",
    "operators",
    "peak_ratio",
    "prove",
    "quantise",
    "round_to",
    "running_sum",
    "safe_terms",
    "session",
    "spacing_at",
    "survival",
    "train",
]

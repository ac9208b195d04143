"""Number formats, their arithmetic, and 8-bit inference.

`formats` describes number formats and their rounding, `int8` quantises a trained net and runs it,
`kernels` measures matrix products and shows which instructions did the work.
"""

from dlguide.machine.precision.formats import (
    FORMATS,
    INSTRUCTIONS,
    NumberBits,
    NumberFormat,
    RoundingLoss,
    best_scale,
    bits,
    dot_in_pairs,
    keeps_subnormals,
    named,
    peak_ratio,
    round_to,
    rounding_loss,
    running_sum,
    safe_terms,
    spacing_at,
)
from dlguide.machine.precision.int8 import (
    Int8Comparison,
    QuantisedModel,
    compare,
    infer,
    operators,
    quantise,
    session,
)
from dlguide.machine.precision.kernels import (
    LEVELS,
    MatmulRate,
    VnniEvidence,
    has_vnni,
    measure_onednn,
    measure_onnxruntime,
    vnni_evidence,
)
from dlguide.machine.precision.onnx_export import export

__all__ = [
    "FORMATS",
    "INSTRUCTIONS",
    "LEVELS",
    "Int8Comparison",
    "MatmulRate",
    "NumberBits",
    "NumberFormat",
    "QuantisedModel",
    "RoundingLoss",
    "VnniEvidence",
    "best_scale",
    "bits",
    "compare",
    "dot_in_pairs",
    "export",
    "has_vnni",
    "infer",
    "keeps_subnormals",
    "measure_onednn",
    "measure_onnxruntime",
    "named",
    "operators",
    "peak_ratio",
    "quantise",
    "round_to",
    "rounding_loss",
    "running_sum",
    "safe_terms",
    "session",
    "spacing_at",
    "vnni_evidence",
]

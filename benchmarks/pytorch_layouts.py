"""Channels last, fused attention and `torch.compile` in PyTorch, for lesson 33.

    python benchmarks/pytorch_layouts.py        # about a minute

Each beside the plain way, in turns, with the same result. `torch.compile` alone takes most of the
time; its compiler is not counted.
"""

from dlcourse import measured, pytorch_net
from dlguide.measure import ratio

rows = []
for case, timings in pytorch_net.measure_cases(turns=25).items():
    found = ratio(*timings)
    rows.append(
        {
            "case": case,
            "work": pytorch_net.CASES[case],
            "times": round(found.median, 3),
            "low": round(found.low, 3),
            "high": round(found.high, 3),
        }
    )
measured.write("pytorch_layouts", rows, seeds=[0])

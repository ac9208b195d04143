"""Was VNNI used? The processor's flags, the kernels' names, and rates that say the same.

A flag shows what the processor could do. That a program did it shows in two ways: oneDNN, below
TensorFlow, names its kernels in a log; and a rate above what the older instructions could reach
at best leaves no other explanation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.machine.precision.accumulating import peak_ratio
from dlguide.machine.precision.kernel_rates import Rate, measure_onednn, measure_onnxruntime
from dlguide.machine.precision.quantising import has_vnni


@dataclass(frozen=True)
class Proof:
    """Whether VNNI was used, and from what one can tell.

    Args:
        flag: whether the processor has it.
        kernels: names of the int8 kernels that oneDNN ran with all instructions allowed.
        float32_flops_per_s: the best fp32 rate that was measured (1/s).
        int8_flops_per_s: onnxruntime's best int8 rate (1/s).
        most_without: the most that could be reached without VNNI (1/s).
        used_by_onednn: whether a kernel's name says so; None where its names do not tell.
        used_by_onnxruntime: whether its rate is above `most_without`; False only says that the
            rate is no proof.
    """

    flag: bool
    kernels: tuple[str, ...]
    float32_flops_per_s: float
    int8_flops_per_s: float
    most_without: float
    used_by_onednn: bool | None
    used_by_onnxruntime: bool

    def summary(self) -> str:
        """Say what was found, in lines of text.

        Returns:
            str: without a newline at the end.
        """
        has = "has" if self.flag else "does not have"
        lines = [f"flag: this processor {has} 8-bit products with 32-bit sums (VNNI)"]
        said = {True: "VNNI is in its name", False: "VNNI is not in its name"}
        tells = said.get(self.used_by_onednn, "its name does not tell")
        lines.append(f"oneDNN: {', '.join(self.kernels) or 'no int8 kernel'}: {tells}")
        ratio = self.int8_flops_per_s / self.float32_flops_per_s
        most = self.most_without / self.float32_flops_per_s
        verdict = "VNNI was used" if self.used_by_onnxruntime else "no proof that VNNI was used"
        if not self.flag:
            verdict = "there is no VNNI to be used"
        lines.append(
            f"onnxruntime: int8 runs at {ratio:.2f} times the best fp32 rate; without VNNI at "
            f"most {most:.2f}: {verdict}"
        )
        return "\n".join(lines)


def prove(measured: Sequence[Rate] | None = None, size: int = 1024, repeats: int = 15) -> Proof:
    """Find out whether VNNI was used by oneDNN and by onnxruntime.

    Without VNNI, 64 products of 8 bits take two multiplying instructions and an addition, and 64
    in fp32 take four: at most 4/3 of the fp32 rate, or 2 times it where additions run beside
    (see `accumulating.peak_ratio`). So a rate above both 2 times the best fp32 rate, of either
    library, and the best that oneDNN reached with AVX512_CORE (if measured) proves VNNI. A lower
    one proves nothing. Where the processor has no VNNI, it says so.

    Args:
        measured: what `measure_onednn` found, with "DEFAULT" among its levels; None measures.
        size: rows and columns of the matrices (count).
        repeats: products that count (count).

    Returns:
        Proof: the findings; `summary` says them.

    Raises:
        ValueError: when a count is below 1.
    """
    measured = measure_onednn(("DEFAULT",), size) if measured is None else measured
    of_onnxruntime = measure_onnxruntime(size, repeats)
    kernels = {r.kernel for r in measured if (r.level, r.format) == ("DEFAULT", "int8")}
    wide = [r.flops_per_s for r in measured if r.format == "fp32"] + [of_onnxruntime["fp32"]]
    older = [
        r.flops_per_s for r in measured if r.format == "int8" and r.level in ("AVX2", "AVX512_CORE")
    ]
    ratio = float(peak_ratio("int8 with AVX512BW", additions_beside=True))
    most = max([ratio * max(wide), *older])
    flag = has_vnni()
    return Proof(
        flag,
        tuple(sorted(kernels)),
        max(wide),
        of_onnxruntime["int8"],
        most,
        _told(kernels),
        flag and of_onnxruntime["int8"] > most,
    )


def _told(kernels: set[str]) -> bool | None:
    """Whether kernels' names speak of VNNI; newer levels have it in them without naming it."""
    text = " ".join(kernels)
    if any(name in text for name in ("vnni", "avx512_core_bf16", "avx512_core_fp16", "amx")):
        return True
    return None if not kernels or ":jit" in text or "ref" in text else False

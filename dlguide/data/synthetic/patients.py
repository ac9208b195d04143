"""Radiographs of the chest with 14 findings, patient by patient, as ChestX-ray14 has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dlguide.data.synthetic.findings import BRIGHTNESS, MEASURES
from dlguide.data.synthetic.samples import Samples, encoded, random
from dlguide.data.synthetic.thorax import anatomy, exposed, outline, render
from dlguide.errors import require_count, require_known

# How many of the 112 120 published radiographs have each finding. Source: Wang et al.,
# ChestX-ray8, CVPR 2017, and the labels published with the 14 findings (Data_Entry_2017).
PUBLISHED = {
    "Atelectasis": 11559,
    "Cardiomegaly": 2776,
    "Effusion": 13317,
    "Infiltration": 19894,
    "Mass": 5782,
    "Nodule": 6331,
    "Pneumonia": 1431,
    "Pneumothorax": 5302,
    "Consolidation": 4667,
    "Edema": 2303,
    "Emphysema": 2516,
    "Fibrosis": 1686,
    "Pleural_Thickening": 3385,
    "Hernia": 227,
}
FINDINGS = tuple(PUBLISHED)
NO_FINDING = "No Finding"
PUBLISHED_RADIOGRAPHS = 112_120
# Three patients to eleven radiographs: 3.67 each; the published data have 3.64.
_PATIENTS, _RADIOGRAPHS = 3, 11
# Beside the finding that it is made for, a radiograph has each other one so often.
_BESIDE = 0.06
RATES = ("even", "published")
SMALLEST = 32


@dataclass(frozen=True, eq=False)
class Radiograph:
    """A radiograph of the chest with what is known about it.

    Args:
        index: its number in the data set.
        patient: number of the patient, from 1.
        follow_up: number of the patient's radiograph, from 0.
        age: age of the patient (years).
        gender: "F" or "M".
        view: "PA" (standing, from behind) or "AP" (lying, from the front).
        findings: names from `FINDINGS`, in their order; empty when there is none.
        pixels: uint8, shape (size, size).
    """

    index: int
    patient: int
    follow_up: int
    age: int
    gender: str
    view: str
    findings: tuple[str, ...]
    pixels: np.ndarray = field(repr=False)

    @property
    def name(self) -> str:
        """File name as in the published data, for example 00000001_000.png."""
        return f"{self.patient:08d}_{self.follow_up:03d}.png"

    @property
    def labels(self) -> np.ndarray:
        """One number per finding, 1 where it is present, float32 of shape (14,)."""
        return np.array([name in self.findings for name in FINDINGS], np.float32)

    @property
    def finding_labels(self) -> str:
        """The findings as the published table has them, for example "Edema|Mass"."""
        return "|".join(sorted(self.findings)) or NO_FINDING

    def encoded(self) -> bytes:
        """Write the radiograph as a grey PNG file.

        Returns:
            bytes: what stands in the file.
        """
        return encoded(self.pixels, "png")


def chest(count: int, size: int, seed: int, rates: str = "even") -> Samples:
    """Make radiographs of phantoms, as many as wanted.

    With "even", each 15 radiographs in a row hold one made for each finding and one without;
    others come beside it now and then. With "published", each finding occurs as often as in
    ChestX-ray14, independently of the others: Hernia once in 494.

    Args:
        count: number of radiographs (count).
        size: length of the sides (pixels); the published ones have 1024.
        seed: 0 or more; another one gives other patients.
        rates: "even" or "published".

    Returns:
        Samples: of `Radiograph`.

    Raises:
        ValueError: when a number is too small or the rates are unknown.
    """
    require_count(size, "size", least=SMALLEST)
    require_count(seed, "seed", least=0)
    require_known(rates, RATES, "rates")
    make = partial(_radiograph, size=size, seed=seed, rates=rates)
    return Samples(range(require_count(count, "count")), make)


def _radiograph(index: int, size: int, seed: int, rates: str) -> Radiograph:
    patient, follow_up = _patient(index, seed)
    person = random(seed, "patient", patient)
    age, gender = int(np.clip(person.normal(47, 17), 1, 94)), "FM"[int(person.random() < 0.565)]
    chance = random(seed, "radiograph", index)
    view = "AP" if chance.random() < 0.4 else "PA"
    findings = _findings(index, seed, rates)
    pixels = draw(seed, index, patient, view, findings, size)
    return Radiograph(index, patient, follow_up, age + follow_up, gender, view, findings, pixels)


def draw(
    seed: int, index: int, patient: int, view: str, findings: tuple[str, ...], size: int
) -> np.ndarray:
    """Draw one radiograph; with other findings all else in it stays as it is."""
    body = anatomy(random(seed, "patient", patient, 1), lying=view == "AP")
    chances = {name: (seed, "findings", index, FINDINGS.index(name)) for name in findings}
    for name in findings:
        if name in MEASURES:
            body = MEASURES[name](body, random(*chances[name]))
    where = outline(body, size)
    picture = render(where, random(seed, "patient", patient, 2))
    for name in findings:
        if name in BRIGHTNESS:
            picture = picture + BRIGHTNESS[name](picture, where, random(*chances[name]))
    return exposed(picture, random(seed, "radiograph", index, 1))


def _patient(index: int, seed: int) -> tuple[int, int]:
    """Number the patient and the follow-up of a radiograph."""
    block, place = divmod(index, _RADIOGRAPHS)
    cuts = random(seed, "patients", block).choice(_RADIOGRAPHS - 1, _PATIENTS - 1, replace=False)
    starts = [0, *sorted(int(cut) + 1 for cut in cuts)]
    which = sum(place >= start for start in starts) - 1
    return 1 + block * _PATIENTS + which, place - starts[which]


def _findings(index: int, seed: int, rates: str) -> tuple[str, ...]:
    chance = random(seed, "findings", index)
    draws = chance.random(len(FINDINGS))
    if rates == "published":
        often = np.array(list(PUBLISHED.values())) / PUBLISHED_RADIOGRAPHS
        return tuple(np.array(FINDINGS)[draws < often].tolist())
    block, place = divmod(index, len(FINDINGS) + 1)
    made_for = int(random(seed, "findings", block, 99, 0).permutation(len(FINDINGS) + 1)[place])
    if made_for == len(FINDINGS):
        return ()
    present = draws < _BESIDE
    present[made_for] = True
    return tuple(np.array(FINDINGS)[present].tolist())

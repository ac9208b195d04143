"""Exercises that ask why: a reason by its letter, or for each of six symptoms its cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlguide.exercises import WrongAnswer, answered, expect
from dlguide.exercises.hints import letters


def expect_reason(said: Any, right: str, hints: Mapping[str, str], asked: str) -> None:
    """Demand the letter of the right reason; what speaks against another one is its hint.

    Args:
        said: the answer, a letter in either case.
        right: the letter of the right reason.
        hints: for each other letter what speaks against it.
        asked: what the reason is asked for, in words.

    Raises:
        WrongAnswer: when it is another letter, or none.
    """
    letters = sorted([right, *hints])
    letter = said.strip().strip("()").upper() if isinstance(said, str) else said
    hint = 'A letter in quotes, such as `"A"`.'
    known = isinstance(letter, str) and letter in letters
    expect(known, f"one of the letters {', '.join(letters)} for {asked}", said, hint)
    expect(letter == right, asked, said, hints.get(letter, ""))


def expect_causes(causes: Mapping[str, str], right: Mapping[str, tuple[str, str]]) -> None:
    """Demand the right letter for each symptom.

    Args:
        causes: the answer; for each symptom a letter from "A" to "F".
        right: for each symptom its letter, and what to say to another one.

    Raises:
        WrongAnswer: for the first symptom whose cause is not the right one.
        NotAnswered: for the first one that is left out.
    """
    expect(isinstance(causes, Mapping), "a dictionary from symptom to letter", causes)
    for symptom, (letter, hint) in right.items():
        said = answered(causes.get(symptom))
        known = isinstance(said, str) and said.strip().upper() in tuple("ABCDEF")
        expect(known, f"a letter from A to F for {symptom!r}", said, "Each letter fits once.")
        try:
            expect(said.strip().upper() == letter, f"the cause of {symptom!r}", said, hint)
        except WrongAnswer as error:
            error.closer = _good(causes, right)
            raise


def _good(causes: Mapping[str, str], right: Mapping[str, tuple[str, str]]) -> str:
    """Count the right letters."""
    said = [str(causes.get(symptom)).strip().upper() for symptom in right]
    return letters(said, [letter for letter, _ in right.values()])

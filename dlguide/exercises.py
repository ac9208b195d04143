"""The exercises have moved to the course's package: `dlcourse.check` and `dlcourse.solution`."""

raise ImportError(
    "The exercises are in the course's package now: write `import dlcourse`, then "
    '`dlcourse.check("20-1", answer)` and `dlcourse.solution("20-1")`.'
)

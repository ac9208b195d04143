"""Worked cases from beginning to end, each on the ranks of a cluster.

A case is a subpackage that `dlguide usecase NAME` runs by these names:

    OPTIONS                          what `--set` accepts, with defaults
    check(real, **own)               raises what `train` would, before any rank starts
    train(real, seed, checkpoint, report, parallel, **own)    one outcome for each rank
    write(outcomes, folder)          numbers and pictures; returns the paths
    findings(outcomes, speedup)      optional: the guide's statements beside ours
    step(...)                        optional: a training step to be timed, for `speedup`
    rehearse(work, real, seed, **own)    optional: a little of each part of `train`, for `plan`

All ranks call `train` with the same arguments. `real` is the folder of the published data, None
for made-up data; `seed` that of made-up data, initial weights and order; `checkpoint` the folder
to write to and to resume from, bit for bit, None for neither; `report` is called with the numbers
of each step; `parallel` is False for this process alone, True for all ranks of the launcher, None
for True if the launcher started more than one. Errors are raised on all ranks with the same text:
ValueError for an invalid setting, MissingComponentError and DataError for data that is missing,
damaged or another, CheckpointError for a checkpoint that is damaged or another training's.
"""

"""Find the usual mistakes of parallel training, while it runs or afterwards.

recorder = audit.Recorder(hvd.rank(), hvd.size(), dataset=images, rate_of_one_rank=0.1)
model.fit(recorder.watch(batches), callbacks=[..., recorder.callback()])
print(audit.report(audit.gather(recorder, MPI.COMM_WORLD)))
"""

from dlcourse.audit.checks import KINDS, Finding, examine, report
from dlcourse.audit.record import Evidence, Recorder, gather, read

__all__ = ["KINDS", "Evidence", "Finding", "Recorder", "examine", "gather", "read", "report"]

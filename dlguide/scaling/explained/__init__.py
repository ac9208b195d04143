"""Published tables explained by the models: what was predicted, what was solved, what assumed."""

from dlguide.scaling.explained.hours import evaluation, time_to_train
from dlguide.scaling.explained.result import Explained, Row
from dlguide.scaling.explained.series import claims, ibm_ddl, s_caffe

__all__ = ["Explained", "Row", "claims", "evaluation", "ibm_ddl", "s_caffe", "time_to_train"]

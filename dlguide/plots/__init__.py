"""Pictures of what was measured.

Every function returns a matplotlib Figure, which a notebook shows when a cell ends with it, and
`path` writes it to a file.
"""

from dlguide.plots.allreduce import allreduce
from dlguide.plots.auroc import area_gains, areas_under_curves, roc_curves
from dlguide.plots.bottleneck import bottleneck
from dlguide.plots.curves import attention_map, forecasts
from dlguide.plots.densities import densities
from dlguide.plots.depth import footprints, gradients_by_layer
from dlguide.plots.descent import descent, loss_curves
from dlguide.plots.exchange_ways import exchange_ways
from dlguide.plots.experiments import batches, errors, experiments
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure
from dlguide.plots.frameworks import batch_seconds, efficiencies, last_releases, speed_pairs
from dlguide.plots.hardware import catalogue, links, systolic, topology
from dlguide.plots.io import reading_speeds
from dlguide.plots.onednn import addresses, onednn_speeds, primitives, streams
from dlguide.plots.overlap import overlap
from dlguide.plots.pictures import pictures
from dlguide.plots.precision import bit_fields, gradient_sizes, kernel_rates, number_ranges
from dlguide.plots.predicted_errors import predicted_errors
from dlguide.plots.prediction import prediction
from dlguide.plots.road import road
from dlguide.plots.roofline import roofline
from dlguide.plots.schedules import schedules
from dlguide.plots.search import best_so_far, projections, rank_bars, search_scores
from dlguide.plots.server import staleness, worker_timeline
from dlguide.plots.start_up import start_up
from dlguide.plots.storage import epoch_times, felt_times
from dlguide.plots.symptoms import symptoms, taken_by
from dlguide.plots.timeline import timeline
from dlguide.plots.training import scaling, training, utilisation
from dlguide.plots.tuning import tuning
from dlguide.plots.video import film, frame_scores, growth, predicted_frames, shares

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "addresses",
    "allreduce",
    "area_gains",
    "areas_under_curves",
    "attention_map",
    "batch_seconds",
    "batches",
    "best_so_far",
    "bit_fields",
    "bottleneck",
    "catalogue",
    "densities",
    "descent",
    "efficiencies",
    "epoch_times",
    "errors",
    "exchange_ways",
    "experiments",
    "felt_times",
    "figure",
    "film",
    "footprints",
    "forecasts",
    "frame_scores",
    "gradient_sizes",
    "gradients_by_layer",
    "growth",
    "kernel_rates",
    "last_releases",
    "links",
    "loss_curves",
    "number_ranges",
    "onednn_speeds",
    "overlap",
    "pictures",
    "predicted_errors",
    "predicted_frames",
    "prediction",
    "primitives",
    "projections",
    "rank_bars",
    "reading_speeds",
    "road",
    "roc_curves",
    "roofline",
    "scaling",
    "schedules",
    "search_scores",
    "shares",
    "speed_pairs",
    "staleness",
    "start_up",
    "streams",
    "symptoms",
    "systolic",
    "taken_by",
    "timeline",
    "topology",
    "training",
    "tuning",
    "utilisation",
    "worker_timeline",
]

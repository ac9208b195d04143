"""Pictures of the lessons: diagrams of how things work, and plots that one lesson draws.

A function returns a matplotlib Figure with an alternative text, or what a notebook shows as HTML.
A module is loaded when one of its pictures is drawn.
"""

from importlib import import_module
from typing import Any

_PICTURES = {
    "cases": (
        "area_by_pictures area_gains film frame_scores growth loss_and_rate "
        "predicted_frames reliability roc_curves shares"
    ),
    "communication": (
        "accuracy_and_bytes budget collective crowded_links error_feedback host_copies overlap "
        "relative_times seconds_on_links server_and_allreduce short_bytes steps timeline"
    ),
    "frameworks": (
        "batch_seconds difference efficiencies last_releases notebook_links passes speed_pairs "
        "table web_links"
    ),
    "hardware": (
        "addresses against_roof bit_fields catalogue gradient_sizes kernel_rates links "
        "number_ranges onednn_speeds roofline streams systolic topology utilisation"
    ),
    "networks": (
        "attention_map densities dependencies footprints image_grid layer_shares seed_errors "
        "sequences sizes_by_layer text_losses throughput"
    ),
    "ranks": (
        "affinity delays exchange layout_steps pipeline processes staleness timelines "
        "worker_timeline"
    ),
    "scaling": (
        "checkpoint_interval exchange_efficiency predicted_errors predictions_of_one_count "
        "step_parts three_ways_to_wait undivided_hours"
    ),
    "storage": (
        "durations epoch_times file_map file_system gains_by_size pace reading_speeds striping"
    ),
    "training": (
        "batch_costs dead_and_sharp descent edge loss_curves projections rank_bars "
        "ranks_per_sample rate_scan recipe_curves recipes search_scores speed_and_quality "
        "start_up symptoms"
    ),
}
_MODULES = {name: module for module, names in _PICTURES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)

"""Pictures of the lessons: diagrams of how things work, and plots that one lesson draws.

A function returns a matplotlib Figure with an alternative text, or what a notebook shows as HTML.
"""

from dlcourse.pictures.cases import (
    area_by_pictures,
    area_gains,
    areas_under_curves,
    film,
    frame_scores,
    growth,
    loss_and_rate,
    predicted_frames,
    reliability,
    roc_curves,
    shares,
)
from dlcourse.pictures.communication import (
    accuracy_and_bytes,
    budget,
    collective,
    contributions,
    crowded_links,
    error_feedback,
    host_copies,
    overlap,
    relative_times,
    seconds_on_links,
    server_and_allreduce,
    short_bytes,
    steps,
)
from dlcourse.pictures.frameworks import (
    batch_seconds,
    difference,
    efficiencies,
    last_releases,
    notebook_links,
    passes,
    speed_pairs,
    table,
    web_links,
)
from dlcourse.pictures.hardware import (
    addresses,
    against_roof,
    catalogue,
    links,
    roofline,
    systolic,
    topology,
)
from dlcourse.pictures.networks import (
    attention_map,
    densities,
    dependencies,
    footprints,
    image_grid,
    layer_shares,
    seed_errors,
    sequences,
    sizes_by_layer,
    text_losses,
    throughput,
)
from dlcourse.pictures.precision import bit_fields, gradient_sizes, kernel_rates, number_ranges
from dlcourse.pictures.ranks import (
    affinity,
    delays,
    exchange,
    layout_steps,
    pipeline,
    processes,
    staleness,
    timelines,
    worker_timeline,
)
from dlcourse.pictures.scaling import (
    checkpoint_interval,
    exchange_efficiency,
    predictions_of_one_count,
    step_parts,
    three_ways_to_wait,
    undivided_hours,
)
from dlcourse.pictures.search import projections, rank_bars, search_scores
from dlcourse.pictures.storage import (
    durations,
    epoch_times,
    file_map,
    file_system,
    gains_by_size,
    pace,
    striping,
)
from dlcourse.pictures.training import (
    batch_costs,
    dead_and_sharp,
    descent,
    edge,
    loss_curves,
    ranks_per_sample,
    rate_scan,
    recipe_curves,
    recipes,
    speed_and_quality,
    start_up,
    symptoms,
)

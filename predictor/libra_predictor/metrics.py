"""What the predictor counts of itself, beside what KServe counts; all of it is served on /metrics."""

from prometheus_client import Counter, Gauge, Histogram

OBSERVATIONS_READ = Counter("libra_predictor_observations_read", "Entries read from the observation stream.")
OBSERVATIONS_SKIPPED = Counter(
    "libra_predictor_observations_skipped",
    "Entries read and not learned from: of an unknown version, malformed, of an invocation that was not alone"
    " in its pod, or of one that failed.",
    ["reason"],
)
REFITS = Counter("libra_predictor_refits", "Refits of a function's models.", ["result"])
REFIT_SECONDS = Histogram(
    "libra_predictor_refit_seconds",
    "Time that a refit of one function's three models took.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2),
)
FUNCTIONS = Gauge("libra_predictor_functions", "Functions that have models.")
REDIS_UP = Gauge("libra_predictor_redis_up", "1 when the last read of the observations succeeded, else 0.")
REQUESTS_REFUSED = Counter(
    "libra_predictor_requests_refused", "Requests for a prediction refused for their input."
)

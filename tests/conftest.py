"""How many examples Hypothesis tries: a test without settings of its own has those of `fast`.

The examples of `fast` are the same in each run. Tests marked `long` draw others each time, and many more.
"""

from hypothesis import HealthCheck, settings

NUM_EXAMPLES = {"fast": 50, "long": 10_000}
NUM_SLOW = {"fast": 50, "long": 500}
"""Of a test whose examples take tenths of a second each."""
NUM_SLOWEST = {"fast": 5, "long": 200}
"""Of one whose examples take seconds each."""
UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large)

for ending, numbers in {"": NUM_EXAMPLES, "-slow": NUM_SLOW, "-slowest": NUM_SLOWEST}.items():
    for name, number in numbers.items():
        settings.register_profile(
            name + ending,
            max_examples=number,
            deadline=None,
            derandomize=name == "fast",
            suppress_health_check=UNHURRIED,
        )
settings.load_profile("fast")

collect_ignore = ["clients"]
"""`make test-clients` runs these in an environment of their own."""

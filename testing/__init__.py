"""What tests, benchmarks and end-to-end tests share: how they run, and what they run against."""

module millrace.dev/benchmarks/gateway/load

go 1.25

"""Measure what milepost costs, beside what it cannot cost less than and beside what others cost: ``make bench``.

`bench.measure` runs rounds, `bench.goals` holds what must be reached, `bench.report` says what came out; `bench.floors`,
`bench.savers` and `bench.states` are what the benchmarks are made of, one file a benchmark, listed in `bench.catalog`.
"""

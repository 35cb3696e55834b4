"""Run all benchmarks of a GPU, one after the other, into one dated report: python benchmarks/gpu"""

import forms
import forward
import ragged
import statistics_of_maps
import watching
from device import parse

if __name__ == "__main__":
    bench = parse(__doc__)
    for benchmark in (forward, forms, ragged, statistics_of_maps, watching):
        benchmark.main(bench)

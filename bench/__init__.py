"""What saving, loading and storing cost: every figure with the gate and the goal it is held against.

    make bench                              all of it, a few minutes
    make bench ARGS=--quick                 fewer rounds and shorter histories, about a minute and a half
    make bench ARGS="--only sizes"          one group

docs/performance.md says what each figure means and how it is measured.
"""

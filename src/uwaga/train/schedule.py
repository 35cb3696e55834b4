"""The learning rate of every step: a pure function."""

import math

from uwaga.train.sections import ScheduleConfig


def share(step: int, schedule: ScheduleConfig) -> float:
    """The learning rate of a step, counted from 0, as a share of the full one.

    It rises in equal parts over the warm-up and reaches 1 with its last step; then it falls, by half a cosine or along a
    line, and reaches `final` with the last step of all.

    >>> schedule = ScheduleConfig(steps=5, warmup_steps=2, kind="linear", final_lr_ratio=0.1)
    >>> [round(share(step, schedule), 3) for step in range(5)]
    [0.5, 1.0, 0.7, 0.4, 0.1]
    """
    done = step + 1
    if done < schedule.warmup_steps:
        return done / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    # Without a warm-up the first step is the one at the full rate.
    first = max(schedule.warmup_steps, 1)
    way = (done - first) / max(schedule.steps - first, 1)
    left = 0.5 * (1.0 + math.cos(math.pi * way)) if schedule.kind == "cosine" else 1.0 - way
    return schedule.final_lr_ratio + (1.0 - schedule.final_lr_ratio) * left

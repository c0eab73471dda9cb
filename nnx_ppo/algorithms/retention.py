"""Which checkpoints to keep: the newest, the best, and some of every stretch of the run."""

import dataclasses
import math
from collections.abc import Mapping

from nnx_ppo.algorithms.config import require_count


@dataclasses.dataclass(frozen=True)
class Retention:
    """What to keep; all checkpoints where no field is set, else what any of them wants, and always the newest."""

    keep_last: int | None = None
    """The newest so many."""
    keep_best: int | None = None
    """The so many with the highest evaluation, of those that were saved at an evaluation."""
    keep_every: int | None = None
    """The first of every so many environment steps."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                require_count(self, field.name)

    def to_remove(self, scores: Mapping[int, float | None]) -> list[int]:
        """Steps of the checkpoints that are not kept.

        Args:
            scores: the evaluation of each checkpoint by its steps, ``None`` where there is none.
        """
        if self == Retention():
            return []
        steps = sorted(scores)
        keep = set(steps[-(self.keep_last or 1) :])
        if self.keep_best is not None:
            rated = {s: score for s, score in scores.items() if score is not None and not math.isnan(score)}
            # Of two equal ones the newer, which has learned longer.
            keep |= set(sorted(rated, key=lambda s: (rated[s], s))[-self.keep_best :])
        if self.keep_every is not None:
            firsts: dict[int, int] = {}
            for s in steps:
                firsts.setdefault(s // self.keep_every, s)
            keep |= set(firsts.values())
        return [s for s in steps if s not in keep]

"""Algorithm 1 of arXiv 2506.19396: tune a small proxy, carry its best point to the target, and judge the result."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.engine import Planned, open_session
from neuralop_mup.tuning.records import Record, best_point, mean_and_std, point_loss
from neuralop_mup.tuning.settings import describe, describe_space
from neuralop_mup.tuning.space import (
    check_fixed,
    check_seeds,
    check_space,
    is_number,
    is_search,
    params_key,
    points,
)
from neuralop_mup.tuning.sweeps import all_failed, check_n_trials

__all__ = ["Planned", "Transfer", "plan_transfer", "transfer"]

RESERVED = ("model", "base", "rule", "seed")


@dataclass(frozen=True)
class Transfer:
    """What a transfer found; everything here is computed from the records.

    Attributes
    ----------
    records : list of dict
        One per trial, by stage (proxy, target, verify), rule, point and seed.
    proxy, target : dict
        The two sizes.
    space : dict
        What was tuned.
    rule : str
        The rule that carries the hyperparameters.
    rules : tuple of str
        The rules that are compared.
    seeds : tuple of int
    folder : Path
    """

    records: list[Record]
    proxy: dict[str, Any]
    target: dict[str, Any]
    space: dict[str, Any]
    rule: str
    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    folder: Path

    def select(self, stage: str, rule: str | None = None) -> list[Record]:
        """Records of a stage, under one rule or all."""
        return [r for r in self.records if r["stage"] == stage and rule in (None, r["rule"])]

    @property
    def best(self) -> dict[str, Any]:
        """Point of lowest mean loss over the seeds at the proxy; a point with a failed seed does not compete."""
        best, _ = best_point(self.select("proxy"), len(self.seeds))
        if best is None:
            raise MupError(all_failed("the proxy", self.select("proxy")))
        return best

    @property
    def at_edge(self) -> bool:
        """Whether a number of the best point is the lowest or highest of its grid: the optimum may lie outside."""
        return any(is_at_edge(value, self.space[key]) for key, value in self.best.items())

    def summary(self) -> list[dict[str, Any]]:
        """One row per rule, with the transferred point judged against the best one at the target.

        Returns
        -------
        list of dict
            ``rule``; ``transferred_params``; ``transferred_loss`` and ``transferred_std`` over the seeds that completed
            (infinite and nan if none did); ``failed_seeds``, how many did not; ``at_edge``; ``tuning_seconds`` of all
            proxy trials and ``target_seconds`` of the transferred point's. With verify, for the rules that it walked:
            ``best_params`` and ``best_loss`` at the target; ``drift_steps``, how many grid steps of ``lr`` the best
            point lies above the transferred one; ``regret``, transferred loss / best loss - 1, infinite if a seed of
            the transferred point failed. Without, these are None.
        """
        tuning = sum(r["seconds"] for r in self.select("proxy"))
        rules = dict.fromkeys([self.rule, "standard", *self.rules])
        return [{**self._row(rule), "at_edge": self.at_edge, "tuning_seconds": tuning} for rule in rules]

    def _row(self, rule: str) -> dict[str, Any]:
        n = len(self.seeds)
        transferred = self.best
        trials = self.select("target", rule)
        mean, std = mean_and_std([r["loss"] for r in trials if r["state"] == "complete"])
        row = {
            "rule": rule,
            "transferred_params": transferred,
            "transferred_loss": mean,
            "transferred_std": std,
            "failed_seeds": sum(r["state"] == "failed" for r in trials),
            "best_params": None,
            "best_loss": None,
            "drift_steps": None,
            "regret": None,
            "target_seconds": sum(r["seconds"] for r in trials),
        }
        best, best_loss = best_point(self.select("verify", rule), n)
        if best is not None:
            row["best_params"], row["best_loss"] = best, best_loss
            row["drift_steps"] = drift_steps(best, transferred, self.space)
            row["regret"] = regret(point_loss(trials, n), best_loss)
        return row

    @classmethod
    def load(cls, folder: str | Path) -> Transfer:
        """The transfer that was run in ``folder``, from ``config.json`` and ``results.jsonl``.

        Raises
        ------
        MupError
            If the folder holds no transfer, or one whose proxy has not finished.
        """
        folder = Path(folder)
        try:
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["studies"]["transfer"]
            text = (folder / "results.jsonl").read_text(encoding="utf-8")
        except (OSError, ValueError, KeyError) as error:
            raise MupError(f"{folder} holds no transfer ({type(error).__name__}: {error}); run one there first.") from None
        # While a transfer runs, or if it was killed, the last line may be half written; it is not a record yet.
        records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if not any(r["stage"] == "target" for r in records):
            raise MupError(f"The transfer in {folder} has not reached the target yet; run the same command to resume it.")
        return cls(
            records,
            settings["proxy"],
            settings["target"],
            settings.get("grid") or settings["search"],
            settings["rule"],
            tuple(settings["rules"]),
            tuple(settings["seeds"]),
            folder,
        )


def is_at_edge(value: Any, values: Any) -> bool:
    """Whether a number is the first or last of a grid of at least two numbers."""
    if not isinstance(values, (list, tuple)) or len(values) < 2 or not all(map(is_number, values)):
        return False
    return value in (min(values), max(values))


def drift_steps(best: Mapping[str, Any], transferred: Mapping[str, Any], space: Mapping[str, Any]) -> int | None:
    """Grid steps of ``lr`` from the transferred point up to the best one; None if ``lr`` is no grid of numbers."""
    grid = space.get("lr")
    if not isinstance(grid, (list, tuple)) or not all(map(is_number, grid)):
        return None
    grid = sorted(grid)
    return grid.index(best["lr"]) - grid.index(transferred["lr"])


def regret(transferred_loss: float, best_loss: float) -> float:
    """What transferring instead of tuning costs, as a fraction of the best loss."""
    if best_loss == 0:
        return 0.0 if transferred_loss == 0 else math.inf
    return transferred_loss / best_loss - 1


def plan_transfer(
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    rule: str = "log-modes",
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    verify: bool = False,
    n_trials: int | None = None,
    best: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """The trials that :func:`transfer` runs for the same arguments, without running or writing anything.

    Parameters
    ----------
    best : mapping, optional
        The best point at the proxy. Until it is known, target trials have ``params`` and ``config`` None.

    Returns
    -------
    list of Planned
        With ``stage``, ``size``, ``rule``, ``params``, ``seed`` and ``config``, in the order in which they start. The
        transferred point is also a point of the verify stage; it is trained once and kept for both.

    Raises
    ------
    MupError
        If the arguments cannot work.
    """
    fixed = check_fixed(fixed, RESERVED)
    space = check_space(space, RESERVED, fixed)
    seeds = check_seeds(seeds)
    check_n_trials(space, n_trials)
    for what, size in (("proxy", proxy), ("target", target)):
        if not isinstance(size, Mapping):
            raise MupError(f"{what}={size!r} must be a dict of sizes, such as {{'n_modes': (12, 12)}}.")
    if not isinstance(rule, str) or isinstance(rules, str) or not all(isinstance(r, str) for r in rules or ()):
        raise MupError(f"rule={rule!r} must be a name and rules={rules!r} a sequence of names.")
    search = is_search(space)
    if search and verify:
        raise MupError(
            "verify=True walks the whole space at the target, which needs a grid; give lists of values in space, "
            "or verify=False."
        )

    def make(stage: str, size: str, rule: str, params: Mapping[str, Any] | None, seed: int) -> Planned:
        config = None
        if params is not None:
            model = dict(proxy if size == "proxy" else target)
            config = {**fixed, "model": model, "base": dict(proxy), "rule": rule, **params, "seed": seed}
            params = dict(params)
        return Planned(f"{stage}/{size}/{rule}", stage, size, rule, params, seed, config)

    at_proxy = [None] * (n_trials or 0) if search else points(space)
    # Seed by seed, so that a transfer that is stopped early has covered the whole grid once.
    plan = [make("proxy", "proxy", rule, point, seed) for seed in seeds for point in at_proxy]
    compared = compared_rules(rule, rules)
    at_target = dict.fromkeys([rule, "standard", *compared])
    plan += [make("target", "target", r, best, seed) for seed in seeds for r in at_target]
    if verify:
        plan += [make("verify", "target", r, p, seed) for seed in seeds for r in compared for p in points(space)]
    return plan


def compared_rules(rule: str, rules: Sequence[str] | None) -> tuple[str, ...]:
    """The rules to compare, each once: those given, or the chosen one and naive transfer."""
    return tuple(dict.fromkeys(rules or (rule, "standard")))


def transfer(
    train: Callable[[dict], float | Mapping[str, Any]],
    *,
    proxy: Mapping[str, Any],
    target: Mapping[str, Any],
    space: Mapping[str, Any],
    folder: str | Path,
    rule: str = "log-modes",
    rules: Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0,),
    verify: bool = False,
    n_workers: int | None = None,
    n_trials: int | None = None,
    progress: bool = True,
) -> Transfer:
    """Tune at a small size, carry the best point to a large one, and compare with naive transfer.

    Stages: *proxy*, the space at the proxy size under ``rule`` (at base shapes every rule is the standard
    parametrization); *target*, the best point at the target size under ``rule``, ``"standard"`` and ``rules``; with
    ``verify``, the whole space at the target size under ``rules``, which measures drift and regret.

    Parameters
    ----------
    train : callable
        ``train(config) -> float`` or a dict with ``"loss"``; lower is better. The config is
        ``{**fixed, "model": size, "base": proxy, "rule": rule, **point, "seed": seed}``.
    proxy, target : mapping
        Model keyword arguments of the two sizes.
    space : mapping of str to sequence or optuna distribution
        As for :func:`sweep`; ``verify`` needs sequences.
    folder : str or Path
        Holds the study and is needed for itself. The same call resumes; a grid, seeds and rules may grow, and
        ``verify`` may be added.
    rule : str
        The rule that carries the hyperparameters.
    rules : sequence of str, optional
        The rules to compare; default ``(rule, "standard")``.
    fixed, seeds, n_workers, n_trials, progress
        As for :func:`sweep`.
    verify : bool
        Also tune at the target size, to see what transfer missed.

    Returns
    -------
    Transfer

    Raises
    ------
    MupError
        As for :func:`sweep`; also if no point of the proxy completed with every seed.

    References
    ----------
    Li, Yoo, Yang, ICML 2025, https://arxiv.org/abs/2506.19396, Algorithm 1.
    """
    seeds = check_seeds(seeds)
    arguments: dict[str, Any] = {
        "proxy": proxy,
        "target": target,
        "rule": rule,
        "rules": rules,
        "fixed": fixed,
        "seeds": seeds,
        "verify": verify,
        "n_trials": n_trials,
    }
    plan = plan_transfer(space=space, **arguments)
    fixed = dict(fixed or {})
    space = check_space(space, RESERVED, fixed)
    search = is_search(space)
    compared = compared_rules(rule, rules)
    settings = {
        "train": describe(train),
        **describe_space(space, search),
        **{k: describe(arguments[k]) for k in ("proxy", "target", "rule", "seeds", "n_trials")},
        "fixed": describe(fixed),
        "rules": list(compared),
        "verify": bool(verify),
    }
    with open_session(
        train,
        name="transfer",
        folder=folder,
        settings=settings,
        studies={p.study: (space, search and p.stage == "proxy") for p in plan},
        seeds=seeds,
        expected=Counter(p.size for p in plan),
        fixed={**fixed, "proxy": proxy, "target": target},
        n_workers=n_workers,
        progress=progress,
        rules=compared if rule in compared else (rule, *compared),
    ) as session:
        at_proxy = [p for p in plan if p.stage == "proxy"]
        if search:
            name = at_proxy[0].study

            def make(params: dict[str, Any], seed: int) -> Planned:
                config = {
                    **fixed,
                    "model": dict(proxy),
                    "base": dict(proxy),
                    "rule": rule,
                    **params,
                    "seed": seed,
                }
                return Planned(name, "proxy", "proxy", rule, params, seed, config)

            tuned = session.run_search(name, make, seeds, n_trials)
        else:
            tuned = session.run_grid(at_proxy)
        best, _ = best_point(tuned, len(seeds))
        if best is None:
            session.write_results(tuned)
            raise MupError(all_failed("the proxy", tuned))
        if not search:
            # As the user wrote it: JSON turned tuples into lists.
            best = next(p for p in points(space) if params_key(p) == params_key(best))
        for key, value in best.items():
            if is_at_edge(value, space[key]):
                session.progress.note(
                    f"the best {key} at the proxy, {value:g}, is at the edge of its grid; a better one may lie "
                    "outside: extend the grid and run again in the same folder"
                )
        rest = [p for p in plan_transfer(space=space, **arguments, best=best) if p.stage != "proxy"]
        records = [*tuned, *session.run_grid(rest)]
        session.write_results(records)
    return Transfer(records, dict(proxy), dict(target), space, rule, compared, seeds, Path(folder))

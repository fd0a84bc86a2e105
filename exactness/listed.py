"""List what is captured though training does not need it, each with the reason; `exactness.forgetting` checks each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

ALL = ("PPO", "RecurrentPPO", "DQN", "SAC, gSDE", "TD3", "SAC, HER")
ON, OFF, GOALS = ALL[:2], ALL[2:], ("SAC, HER",)
EVALUATED, NORMALIZED, MONITORED = ("PPO", "DQN"), ("PPO", "DQN", "TD3"), ALL[1:]
NO_DELAY = tuple(run for run in ALL if run != "TD3")
EFFECTS = {
    "logs": ("logs",),
    "recomputed": ("nothing",),
    "constant": ("nothing",),
    "unchanged": ("nothing",),
    "shared": ("nothing", "refused"),
    "twice": ("nothing",),
    "ours": ("nothing",),
    "record": ("nothing", "logs"),
    "clock": ("nothing", "logs"),
}
"""Why something may be on the list, and what may differ without it."""


@dataclass(frozen=True)
class Listed:
    """Say of some items why they are captured."""

    pattern: str
    """A path; ``*`` stands for anything within a step of it, ``**`` for any steps, and for none."""
    why: str
    """``logs``: it only tells of the run. ``recomputed``: made anew before it is read. ``constant``: here, a run that has
    just started has the same. ``unchanged``: so it is with what is meant here; what is not so is not meant. ``shared``: made
    anew, but other items refer to it. ``record``: a maximum so far, which shows only if it is not reached again. ``twice``:
    another item holds the same object. ``ours``: milepost's own account of the run. ``clock``: no two runs have it equal."""
    text: str
    runs: tuple[str, ...] = field(default=ALL)

    def matches(self, name: str, *, constant: bool = True) -> bool:
        """Return whether an item is meant."""
        return self._expression.fullmatch(name) is not None and (constant or self.why != "unchanged")

    def allows(self, effect: str, *, constant: bool) -> bool:
        """Return whether an item that is meant may have this effect when it is lost."""
        return effect in EFFECTS[self.why] and (constant or self.why != "constant")

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
        return re.compile("".join(signs.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*+)", self.pattern)))


def _each(where: str, names: str, why: str, text: str, runs: tuple[str, ...] = ALL) -> tuple[Listed, ...]:
    return tuple(Listed(where + name, why, text, runs) for name in names.split())


_OF_AN_EPISODE = "buf_obs buf_dones buf_rews buf_infos** actions state _elapsed_steps episode_returns episode_lengths"
_FIRST = "_has_reset checked_reset"
_EVALUATION = "evaluation/callback:CallbackList/*:EvalCallback"

_SEE = "as in a run that has just started; in a longer or another one it is not"

LISTED: tuple[Listed, ...] = (
    # optimizers
    Listed("optimizer/**/param_groups[0]/lr", "recomputed", "set by the schedule before each update"),
    Listed("optimizer/**/param_groups[0]/*", "constant", "the constructor's setting; a callback may change it"),
    # counters
    Listed("counters/model/num_timesteps", "constant", "set before the loop's first test, from the generation's own step"),
    Listed("counters/model/_num_timesteps_at_start", "constant", "0 in a first learn(); a later one begins elsewhere"),
    Listed("counters/model/_current_progress_remaining", "recomputed", "set before each update"),
    Listed("counters/model/_episode_num", "logs", "says when rows of logs are written", OFF),
    Listed("counters/model/_episode_num", "constant", "not counted on-policy", ON),
    Listed("counters/model/ep_info_buffer", "logs", "means over the last episodes"),
    Listed("counters/model/ep_success_buffer", "logs", "means over the last episodes", GOALS),
    Listed("counters/model/_last_original_obs", "logs", "on-policy, nobody reads it again", ("PPO",)),
    Listed("counters/model/_last_original_obs", "recomputed", "read only under VecNormalize", ("SAC, gSDE", "SAC, HER")),
    Listed("counters/model/_n_updates", "logs", "a column of the logs; of TD3, its parity says when the actor learns", NO_DELAY),
    Listed("counters/model/action_space", "twice", "the model's space is the environments' own, with which it comes back"),
    Listed("counters/elapsed_ns", "clock", "time trained so far, for frames per second"),
    Listed("counters/marks/episodes", "ours", "for triggers that count episodes"),
    Listed("counters/marks/reported/**", "ours", "which evaluation was reported last", EVALUATED),
    Listed("counters/**", "unchanged", _SEE),
    # buffers
    *_each("rollout/", "pad pad_and_flatten", "recomputed", "made anew before a rollout is learned from", ("RecurrentPPO",)),
    Listed("rollout/**", "unchanged", "emptied where a rollout begins; saved elsewhere it is not", ON),
    Listed("replay/others/full", "recomputed", "HER draws from episodes, wherever in the buffer they lie", GOALS),
    Listed("replay/**", "unchanged", _SEE, GOALS),
    # wrappers around the vector environment
    Listed("normalizer[*]/action_space", "twice", "the environments' own, with which it comes back", NORMALIZED),
    Listed("normalizer[*]/old_reward", "recomputed", "set by each step", NORMALIZED),
    Listed("normalizer[*]/old_obs", "recomputed", "set by each step", NORMALIZED),
    Listed("normalizer[*]/**", "unchanged", _SEE, NORMALIZED),
    # environments
    *_each("envs/**/state/", "buf_obs buf_rews buf_infos** buf_dones actions", "recomputed", "overwritten by each step"),
    Listed("envs/**/state/t_start", "clock", "when the wrapper was made"),
    Listed("envs/**/state/episode_times", "clock", "how long each episode took", MONITORED),
    Listed("envs/**/state/results_writer", "logs", "the csv file of a Monitor, which goes on where it was", MONITORED),
    Listed("envs/**/state/rewards", "logs", "the return of the episode under way", MONITORED),
    *_each("envs/**/state/", "episode_returns episode_lengths episode_count", "logs", "the episodes so far", ("PPO",)),
    *_each("envs/**/state/", "episode_returns total_steps", "recomputed", "a Monitor's record, for whoever asks", MONITORED),
    Listed("envs/**/state/episode_lengths", "recomputed", "a Monitor's record, for whoever asks", MONITORED),
    Listed("envs/**/state/last_u", "recomputed", "what is drawn on a screen", ("SAC, gSDE", "RecurrentPPO")),
    Listed("envs/**/state/_previous_data", "recomputed", "a check of the first steps", ALL[:-1]),
    Listed("envs/**/state/_np_random_seed", "ours", "what the generator was made from, for whoever asks"),
    Listed("envs/**", "unchanged", "set by the constructor, and not changed by this run"),
    # logs
    Listed("extra/logger/pending/name_to_value", "logs", "what is written with the next row"),
    Listed("extra/logger/outputs[*]/**", "logs", "the rows so far; rows after the checkpoint are made again"),
    Listed("extra/logger/pending/name_to_excluded/**", "shared", "set with the value that it goes with"),
    *_each("extra/lists/callback:CallbackList/state/", "n_calls num_timesteps", "recomputed", "a list's own; set by each step"),
    Listed("extra/exploration/*/exploration_matrices", "recomputed", "read only with several environments", ("SAC, gSDE",)),
    Listed("extra/**", "unchanged", _SEE),
    # evaluation
    *_each(f"{_EVALUATION}/callback/state/", "num_timesteps last_mean_reward", "recomputed", "set by each evaluation", EVALUATED),
    Listed(f"{_EVALUATION}/callback/state/best_mean_reward", "record", "says whether a new best model is written", EVALUATED),
    *_each(f"{_EVALUATION}/env/**/state/", f"{_OF_AN_EPISODE} {_FIRST} t_start _np_random_seed", "recomputed",
           "the environment is reset when an evaluation begins", EVALUATED),
    *_each(f"{_EVALUATION}/env/**/state/", "needs_reset episode_times total_steps", "recomputed",
           "the environment is reset when an evaluation begins", ("DQN",)),
    *_each(f"{_EVALUATION}/env/**/state/", "stacked_obs episode_count", "recomputed",
           "the environment is reset when an evaluation begins", ("PPO",)),
    Listed(f"{_EVALUATION}/env/state/old_reward", "recomputed", "set by each step", EVALUATED),
    Listed(f"{_EVALUATION}/env/state/old_obs", "shared", "set by each step", EVALUATED),
    *_each(f"{_EVALUATION}/env/**/state/", "obs_rms/state/* ret_rms/state/*", "recomputed",
           "an evaluation begins with the statistics of training", EVALUATED),
    Listed(f"{_EVALUATION}/**", "unchanged", _SEE, EVALUATED),
    # generators
    Listed("rng/**", "unchanged", "of the generator's kind, or of a number drawn ahead, of which there was none"),
)  # fmt: skip

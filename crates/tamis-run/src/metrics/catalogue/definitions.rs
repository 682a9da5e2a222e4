//! The table itself, in the order of the page.

use super::{Definition, MetricSource, Section};

/// All metrics, by section.
#[rustfmt::skip]
pub const CATALOGUE: &[Section] = &[
    Section {
        title: "Progress",
        about: "Counted in training steps, never in generation rounds.",
        metrics: &[
            verl("training/global_step", "steps", "Training steps done, this one included."),
            verl("training/epoch", "epochs",
                "Pass over the data, from 0, in which the last prompt of the step was drawn."),
            trl("epoch", "epochs",
                "Passes over the data so far, as a fraction; prompts drawn for dropped groups count."),
            trl("num_tokens", "tokens",
                "Prompt and completion tokens of all trajectories that the run has generated so far."),
        ],
    },
    Section {
        title: "Supervised fine-tuning",
        about: "\
            A row for each update: in `sft.jsonl` if reinforcement learning follows, in `metrics.jsonl` and\n\
            all loggers if it is the whole run.",
        metrics: &[
            tamis("sft/loss", "nats",
                "Mean cross-entropy over the tokens with a loss of the update's rows."),
            tamis("sft/num_tokens", "tokens", "Tokens with a loss in the update."),
            tamis("sft/lr", "", "Learning rate of the update."),
            tamis("sft/grad_norm", "",
                "Norm of the gradient before clipping; missing if the update was left out because it was not \
                 finite."),
            tamis("sft/val_loss", "nats",
                "The loss on the validation rows (`sft.val`, `sft.val_fraction`) after the update."),
            tamis("sft/val_accuracy", "share",
                "Greedy accuracy on the validation prompts after the update, for `sft.target_accuracy`."),
        ],
    },
    Section {
        title: "Reward of the trained batch",
        about: "\
            Over the trajectories of the trained groups, without members that the filter `within_group`\n\
            left out. The reward is the weighted sum of the scores plus shaping (`seq_reward`). A filter\n\
            makes this batch unlike what the model does, since uniform groups are gone: compare models by\n\
            `all/...` or by validation. `frac_reward_zero_std` is always within groups; if rewards are\n\
            scaled by the batch, TRL takes the deviation of the batch instead.",
        metrics: &[
            verl("critic/score/mean", "", "Mean reward of a trajectory, before any KL term."),
            verl("critic/score/max", "", "Largest reward of a trajectory, before any KL term."),
            verl("critic/score/min", "", "Smallest reward of a trajectory, before any KL term."),
            verl("critic/rewards/mean", "",
                "Mean reward of a trajectory, after the KL term if the KL is in the reward."),
            verl("critic/rewards/max", "",
                "Largest reward of a trajectory, after the KL term if the KL is in the reward."),
            verl("critic/rewards/min", "",
                "Smallest reward of a trajectory, after the KL term if the KL is in the reward."),
            verl("critic/advantages/mean", "",
                "Mean advantage over tokens that bear loss, so that long trajectories count more."),
            verl("critic/advantages/max", "", "Largest advantage of a token that bears loss."),
            verl("critic/advantages/min", "", "Smallest advantage of a token that bears loss."),
            verl("critic/returns/mean", "",
                "Mean return over tokens that bear loss; the advantage, for group-relative estimators."),
            verl("critic/returns/max", "",
                "Largest return of a token that bears loss; the advantage, for group-relative estimators."),
            verl("critic/returns/min", "",
                "Smallest return of a token that bears loss; the advantage, for group-relative estimators."),
            trl("rewards/{name}/mean", "",
                "Mean of the score `name`, unweighted, over the trajectories that have it."),
            trl("rewards/{name}/std", "",
                "Deviation of the score `name` over the trajectories that have it (ddof 1); needs two of \
                 them."),
            trl("reward", "", "Mean reward of the batch.").alias_of("critic/rewards/mean"),
            trl("reward_std", "",
                "Deviation of the reward over all scored trajectories (ddof 1), not within groups; needs \
                 two of them."),
            trl("frac_reward_zero_std", "share",
                "Share of groups, of two or more scored members, whose rewards are all exactly equal."),
            tamis("train/pass_rate", "share",
                "Share of the trajectories that are correct by `acc` (1 or more), if there is that score."),
            tamis("train/num_unscored", "trajectories",
                "Trajectories of the trained groups without any score; they bear no loss."),
        ],
    },
    Section {
        title: "Length",
        about: "\
            Over the same trajectories. A trajectory is truncated if it ended at the response limit,\n\
            whatever its last token.",
        metrics: &[
            verl("response_length/mean", "tokens", "Mean number of completion tokens; those of an environment do not count."),
            verl("response_length/max", "tokens", "Largest number of completion tokens."),
            verl("response_length/min", "tokens", "Smallest number of completion tokens."),
            verl("response_length/clip_ratio", "share",
                "Share of truncated trajectories. verl counts every trajectory of the maximal length."),
            verl("prompt_length/mean", "tokens",
                "Mean number of prompt tokens, each trajectory counting once."),
            verl("prompt_length/max", "tokens",
                "Largest number of prompt tokens, each trajectory counting once."),
            verl("prompt_length/min", "tokens",
                "Smallest number of prompt tokens, each trajectory counting once."),
            verl("prompt_length/clip_ratio", "share", "Share of prompts of `data.max_prompt_length` tokens."),
            trl("completions/mean_length", "tokens",
                "Mean completion length.").alias_of("response_length/mean"),
            trl("completions/min_length", "tokens",
                "Smallest completion length.").alias_of("response_length/min"),
            trl("completions/max_length", "tokens",
                "Largest completion length.").alias_of("response_length/max"),
            trl("completions/clipped_ratio", "share",
                "Share of truncated completions.").alias_of("response_length/clip_ratio"),
            trl("completions/mean_terminated_length", "tokens",
                "Mean length of the completions that ended by themselves; 0 if none did."),
            trl("completions/min_terminated_length", "tokens",
                "Smallest length of the completions that ended by themselves; 0 if none did."),
            trl("completions/max_terminated_length", "tokens",
                "Largest length of the completions that ended by themselves; 0 if none did."),
        ],
    },
    Section {
        title: "Objective and update",
        about: "\
            Means over the optimizer updates of the step, each update weighing the same, unless said\n\
            otherwise. Figures of the policy's updates are left out in steps in which the critic learns\n\
            alone. `training/rollout_probs_*` are logged if servers sample, `sampling/*` then and with\n\
            `objective.correction`.",
        metrics: &[
            trl("loss", "", "The number that is minimised: policy loss, KL, distillation and entropy terms with their coefficients."),
            verl("actor/pg_loss", "", "Policy loss, without other terms."),
            verl("actor/pg_clipfrac", "share", "Share of tokens at which the clipped branch was taken."),
            verl("actor/pg_clipfrac_lower", "share",
                "Share of tokens at which the dual clip was taken (negative advantage)."),
            verl("actor/ppo_kl", "nats", "Mean of old minus new log-probability over tokens."),
            tamis("actor/ppo_kl_k3", "nats",
                "Mean divergence of new from old policy over tokens, by the k3 estimate, which is never \
                 negative."),
            tamis("actor/ratio_mean", "", "Mean ratio of new to old probability over tokens."),
            tamis("actor/ratio_max", "", "Largest ratio of new to old probability of a token."),
            tamis("actor/ratio_min", "", "Smallest ratio of new to old probability of a token."),
            verl("actor/entropy", "nats", "Mean entropy of the policy over tokens."),
            trl("entropy", "nats", "Mean entropy.").alias_of("actor/entropy"),
            verl("actor/kl_loss", "nats",
                "Divergence from the reference as aggregated in the loss, before its coefficient."),
            verl("actor/kl_coef", "", "Coefficient of the KL loss."),
            verl("actor/reward_kl_penalty", "nats",
                "Mean divergence from the reference that was taken off the rewards."),
            verl("actor/reward_kl_penalty_coeff", "",
                "Coefficient of the divergence that was taken off the rewards."),
            tamis("distillation/kl", "nats",
                "Mean over tokens of the log-probability under the policy minus that under the teacher."),
            verl("distillation/loss", "nats",
                "Divergence from the teacher's distribution as aggregated in the loss, before its coefficient."),
            tamis("distillation/divergence", "nats",
                "Mean over tokens of the divergence from the teacher's distribution."),
            verl("distillation/student_mass", "share",
                "Mean probability of the teacher's likeliest tokens under the policy."),
            verl("distillation/teacher_mass", "share",
                "Mean probability of the teacher's likeliest tokens under the teacher."),
            trl("kl", "nats", "Mean over tokens of the estimated divergence from the reference."),
            trl("clip_ratio/low_mean", "share", "Share of tokens clipped from below (negative advantage)."),
            trl("clip_ratio/low_min", "share", "Smallest share of a sequence's tokens clipped from below."),
            trl("clip_ratio/high_mean", "share", "Share of tokens clipped from above (positive advantage)."),
            trl("clip_ratio/high_max", "share", "Largest share of a sequence's tokens clipped from above."),
            trl("clip_ratio/region_mean", "share", "Share of tokens clipped either way."),
            verl("rollout_corr/kl", "nats",
                "Mean over tokens of the sampler's minus the trainer's log-probability; 0 on the native \
                 engine."),
            verl("rollout_corr/k3_kl", "nats",
                "Mean over tokens of the divergence of sampler and trainer, by the k3 estimate."),
            verl("rollout_corr/{statistic}", "",
                "A further statistic of how far the sampler is from the trainer."),
            verl("training/rollout_probs_diff_valid", "",
                "1 if servers sample and the learner computed their tokens' log-probabilities again."),
            verl("training/rollout_probs_diff_max", "",
                "Largest difference between the server's and the learner's probability of a sampled token."),
            verl("training/rollout_probs_diff_mean", "",
                "Mean difference between the server's and the learner's probability of a sampled token."),
            verl("training/rollout_probs_diff_std", "",
                "Deviation (ddof 1) of the difference between the server's and the learner's probability."),
            verl("training/rollout_actor_probs_pearson_corr", "",
                "Correlation of the server's and the learner's probabilities of the sampled tokens."),
            trl("sampling/sampling_logp_difference/max", "nats",
                "Largest difference between the sampler's and the trainer's log-probability of a token."),
            trl("sampling/sampling_logp_difference/mean", "nats",
                "Mean difference between the sampler's and the trainer's log-probability of a token."),
            verl("actor/ppo_kl_abs", "nats",
                "Mean distance of new from old log-probability over tokens (loss `kl_cov`)."),
            trl("cispo_clip_ratio", "share",
                "Share of tokens whose weight was bounded from above (loss `cispo`)."),
            trl("vespo/phi_seq_mean", "", "Mean weight of a trajectory (loss `vespo`)."),
            trl("entropy_coef", "", "Coefficient of the entropy bonus, if there is one."),
            trl("sampling/{statistic}/{figure}", "",
                "TRL's figures of how far the sampler is from the trainer, with `objective.correction`."),
            tamis("train/soft_reweight_min", "", "Smallest weight of a group (shaping `soft_reweight`)."),
            tamis("train/soft_reweight_max", "", "Largest weight of a group (shaping `soft_reweight`)."),
            tamis("train/soft_reweight_mean", "", "Mean weight of a group (shaping `soft_reweight`)."),
            tamis("greedy/reward/mean", "",
                "Mean reward of the greedy completions, the baseline of `remax`, which are not trained on."),
            tamis("greedy/num_completions", "completions",
                "Greedy completions generated for `remax`, beside the groups of the step."),
            tamis("greedy/response_length/mean", "tokens",
                "Mean length of the greedy completions of `remax`."),
            tamis("actor/num_updates", "updates", "Optimizer updates done in the step."),
            tamis("actor/num_skipped_updates", "updates",
                "Updates of the step left out because a gradient was not finite."),
            verl("actor/grad_norm", "", "Norm of the gradient before clipping."),
            trl("grad_norm", "", "Norm of the gradient before clipping.").alias_of("actor/grad_norm"),
            verl("actor/lr", "", "Learning rate of the step's last update."),
            trl("learning_rate", "", "Learning rate.").alias_of("actor/lr"),
        ],
    },
    Section {
        title: "The critic",
        about: "\
            If there is a critic (`gae`, `bi_level_gae`). Means are over the tokens that the critic learns\n\
            from: the policy's in all scored trajectories, also in those that are left out of the\n\
            policy's loss. Values are those from before the step's update; figures of updates are means\n\
            over those that were done. `critic/vf_explained_var` is left out where returns do not vary;\n\
            verl adds 1e-5 to its divisor.",
        metrics: &[
            verl("critic/vf_loss", "",
                "Value loss as aggregated, mean over the critic's updates of the step."),
            verl("critic/vf_clipfrac", "share",
                "Share of tokens whose value is clipped by `critic.cliprange_value`."),
            verl("critic/vpred_mean", "",
                "Mean value over the tokens that the critic learns from, while it is updated."),
            verl("critic/vf_explained_var", "share",
                "1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 a constant one."),
            verl("critic/values/mean", "", "Mean value over the tokens that the critic learns from."),
            verl("critic/values/max", "", "Largest value over the tokens that the critic learns from."),
            verl("critic/values/min", "", "Smallest value over the tokens that the critic learns from."),
            verl("critic/grad_norm", "", "Norm of the critic's gradient before clipping."),
            verl("critic/lr", "", "Learning rate of the critic."),
            tamis("critic/num_updates", "updates", "The critic's optimizer updates done in the step."),
            tamis("critic/num_skipped_updates", "updates",
                "The critic's updates left out because a gradient was not finite."),
        ],
    },
    Section {
        title: "The sieve",
        about: "\
            What the filter did with the groups generated for this step.\n\
            \n\
            `groups/{place}` and `trajectories/{place}` add up in every step. `left_out` counts\n\
            only trajectories: those of trained groups that bear no loss; the places in flight are there\n\
            if groups can be in flight over the end of a step:\n\
            \n\
            ```\n\
            generated + carried_in + in_flight_in\n\
            \x20   = trained + left_out + dropped + surplus + stale + failed + aborted\n\
            \x20   + carried_out + in_flight_out\n\
            ```\n\
            \n\
            Two more places exist if `schedule.on_limit` fills batches:\n\
            `kept_when_insufficient` (`keep_dropped`) counts whole groups that the filter dropped and that are in\n\
            the batch, and stands beside `trained` in the sum; `duplicated` (`duplicate`) counts copies of trained\n\
            groups, whole, which were not generated and are not in the sum.\n\
            \n\
            - `train/num_dropped/{reason}`: `all_correct`, `all_wrong`, `uniform`, `unscored`,\n\
            \x20 `below_range`, `above_range`, `singleton`, `zero_score`, `outside_pool`, `screened`.\n\
            - `train/num_left_out/{reason}`: `unscored` (no reward function answered), `unchosen` (the\n\
            \x20 filter chose others), `truncated` (`objective.masks`), `shaped` (a shaping took them out),\n\
            \x20 `masked` (no token is the policy's), `rejected` (`objective.correction` rejected every\n\
            \x20 token, in every update).\n\
            - `rollout/program_calls_refused/{reason}`: `unknown_url`, `foreign_url` (the key of another\n\
            \x20 episode), `wrong_key`, `after_end` (also of an aborted episode), `over_limit`,\n\
            \x20 `at_once`, `too_large`, `invalid`, `too_long` (no room), `unanswerable` (a conversation that\n\
            \x20 cannot be rendered).\n\
            - `rollout/ignored/{class}`: `duplicate` (a second answer to a request), `late` (an answer to\n\x20 a request that was \
            aborted, failed or is over), `foreign` (never requested).\n\
            - `rollout/server_faults/{class}`: `timed_out`, `reset`, `server_error`, `stale_weights`,\n\
            \x20 `token_count`, ...; `busy` if a server had no room, `unknown` for answers to nothing in\n\
            \x20 flight. Each attempt was retried, unless it had failed for good.\n\
            - `rollout/server_checks/{class}`: `connect`, `probe`, `refused`, ...\n\
            \n\
            A metric of the last four is left out if it is 0.",
        metrics: &[
            filter_groups("train/num_gen_batches", "rounds", "Generation rounds of the step."),
            filter_groups("train/filter_rate", "share",
                "Share of the step's generated groups that the filter dropped."),
            filter_groups("train/mean_metric_std", "",
                "Mean over all generated groups of the metric's deviation within the group (ddof 0)."),
            filter_groups("train/num_kept_prompts", "groups",
                "Groups kept by the filter, before the batch was cut to size."),
            tamis("dynamic_sampling/num_gen_batches", "rounds",
                "Generation rounds.").alias_of("train/num_gen_batches"),
            tamis("dynamic_sampling/num_accumulated_prompts", "groups",
                "Groups ready before the batch was cut to size, carried ones included."),
            tamis("dynamic_sampling/target_prompt_num", "groups",
                "Groups wanted for the step (`data.train_batch_size`)."),
            tamis("dynamic_sampling/num_prompts_used", "groups", "Groups trained on, each copy counted."),
            tamis("dynamic_sampling/num_trajectories_used", "trajectories",
                "Trajectories of the batch, without members of kept groups that bear no loss."),
            tamis("dynamic_sampling/skipped", "", "1 if nothing was trained on in the step, otherwise 0."),
            tamis("dynamic_sampling/num_given_up_attempts", "attempts",
                "Attempts at the step that `schedule.on_limit: skip` skipped; what they generated is counted."),
            tamis("train/filter_metric/mean", "",
                "Mean of the filter metric over the trained groups, without members that `within_group` \
                 left out."),
            tamis("all/filter_metric/mean", "", "Mean of the filter metric over all generated trajectories."),
            tamis("groups/{place}", "groups", "Groups in this place, see above."),
            tamis("trajectories/{place}", "trajectories",
                "Trajectories in this place, see above."),
            tamis("tokens/generated", "tokens",
                "Completion tokens of all groups generated for the step, including those that an environment wrote."),
            tamis("tokens/trained", "tokens",
                "Completion tokens of the trajectories trained on (`trajectories/trained`)."),
            tamis("tokens/failed", "tokens",
                "Completion tokens of groups whose generation failed, if any."),
            tamis("tokens/aborted", "tokens",
                "Completion tokens of aborted groups, as far as known, if any."),
            tamis("turns/generated", "turns",
                "Turns of the policy (answers, whole or begun) of all groups generated for the step."),
            tamis("turns/trained", "turns", "Turns of the trajectories trained on (`trajectories/trained`)."),
            tamis("turns/failed", "turns", "Turns of groups whose generation failed, if any."),
            tamis("turns/aborted", "turns",
                "Turns of aborted groups, as far as known, if any."),
            tamis("train/num_loss_tokens", "tokens",
                "Trained completion tokens that bear loss: those that the policy wrote, not tools or an \
                 environment."),
            tamis("schedule/max_lag", "versions",
                "Greatest lag of a trained group: the version that trains it minus the one that dispatched \
                 it."),
            tamis("train/num_left_out/{reason}", "trajectories",
                "Members of trained groups that bear no loss, by reason; together `trajectories/left_out`."),
            tamis("train/num_dropped/{reason}", "groups", "Groups that the filter dropped for this reason."),
            tamis("rollout/environment_faults/{class}", "trajectories",
                "Trajectories that their environment or program failed: `timed_out` or `broken`."),
            tamis("rollout/program_calls_refused/{reason}", "calls",
                "Calls of programs that were refused since the step before, those of validation included.").by_the_clock(),
            tamis("rollout/ignored/{class}", "events",
                "Events of the generator that nothing waited for; they are ignored.").by_the_clock(),
            tamis("rollout/server_faults/{class}", "attempts",
                "Attempts at samples that went wrong at servers since the step before.").by_the_clock(),
            tamis("rollout/server_checks/{class}", "checks",
                "Checks of servers and publications to them that went wrong since the step before.").by_the_clock(),
            tamis("train/early_stopped", "", "1 after the last step of a run that an early stop ended."),
            tamis("train/num_identical_in_text", "groups",
                "Generated groups whose completions are all the same text."),
        ],
    },
    Section {
        title: "The selector",
        about: "\
            With `schedule.selector` other than `shuffle`, and all but the first with a `correction` other than\n\
            `off`. A prompt's pass rate is the mean of its posterior: what its groups came to, and the prior over\n\
            all prompts. *Hard* is below 0.2, *easy* above 0.8. Weights are one over the probability q with which\n\
            a prompt was taken. If selection works, the plain shares move away from those of `_blind`; if the\n\
            weights work, those of `_weighted` stay near them.",
        metrics: &[
            tamis("selector/skipped_share", "share", "Share of the prompts whose turn it was that were skipped."),
            tamis("selector/inclusion/mean", "", "Mean probability with which the trained prompts were taken."),
            tamis("selector/effective_share", "share",
                "Effective share of the trained groups' weights, `(sum w)^2 / (P sum w^2)`: 1 if all are equal."),
            tamis("selector/pass_rate/mean", "share", "Mean pass rate of all prompts by the fitted prior."),
            tamis("selector/hard_share", "share", "Share of the trained groups whose prompt is hard."),
            tamis("selector/easy_share", "share", "Share of the trained groups whose prompt is easy."),
            tamis("selector/hard_share_weighted", "share", "As `selector/hard_share`, each group with its weight."),
            tamis("selector/easy_share_weighted", "share", "As `selector/easy_share`, each group with its weight."),
            tamis("selector/hard_share_data", "share", "Share of the prompts generated from so far that are hard."),
            tamis("selector/easy_share_data", "share", "Share of the prompts generated from so far that are easy."),
            tamis("selector/hard_share_blind", "share",
                "As `selector/hard_share_data`, each by the probability that its next group is mixed."),
            tamis("selector/easy_share_blind", "share",
                "As `selector/easy_share_data`, each by the probability that its next group is mixed."),
        ],
    },
    Section {
        title: "Diagnostics",
        about: "\
            Signs of health and of collapse, over all groups generated for the step unless otherwise\n\
            said. A pass is an `acc` of 1 or more; without that score there are no pass rates. A scored\n\
            group has two or more scored members. Intervals of pass rates are of equal width, counted\n\
            from 0, and hold their lower end.\n\
            \n\
            `grad_norm/{groups}/...` is measured in the steps that `train.gradient_analysis` names,\n\
            before their updates: over `all` groups of the batch, and over those of each `bucket_I` (from\n\
            0) of reward deviation, as if they were an optimizer batch of their own. A group with fewer\n\
            than two scored members is in no bucket.",
        metrics: &[
            tamis("diagnostics/pass_rate/none", "share",
                "Share of the scored groups in which no member passes."),
            tamis("diagnostics/pass_rate/{interval}_of_{intervals}", "share",
                "Share of the scored groups with a pass rate strictly between 0 and 1, in this interval."),
            tamis("diagnostics/pass_rate/all", "share",
                "Share of the scored groups in which every scored member passes."),
            tamis("diagnostics/pass_rate/mixed", "share",
                "Share of the scored groups with passes and failures: those with signal from the outcome alone."),
            tamis("diagnostics/zero_advantage/tokens", "share",
                "Share of the trained tokens whose advantage is exactly 0: they do not move the policy \
                 term."),
            tamis("diagnostics/zero_advantage/trajectories", "share",
                "Share of the trained trajectories whose advantages are all exactly 0."),
            tamis("diagnostics/zero_advantage/groups", "share",
                "Share of the trained groups whose advantages are all exactly 0."),
            tamis("grad_norm/{groups}/task", "", "Norm of the gradient of the policy term."),
            tamis("grad_norm/{groups}/kl", "",
                "Norm of the gradient of the divergence in the loss, with its coefficient."),
            tamis("grad_norm/{groups}/entropy", "",
                "Norm of the gradient of the entropy bonus, with its coefficient."),
            tamis("grad_norm/{groups}/distillation", "",
                "Norm of the gradient of the distillation in the loss, if there is one."),
            tamis("grad_norm/{groups}/num_groups", "groups", "Number of groups of these gradients."),
            tamis("grad_norm/{groups}/reward_std_mean", "",
                "Mean over these groups of the rewards' deviation within the group (ddof 0)."),
            tamis("grad_norm/{groups}/reward_std_min", "",
                "Smallest deviation of rewards within one of these groups."),
            tamis("grad_norm/{groups}/reward_std_max", "",
                "Greatest deviation of rewards within one of these groups."),
            tamis("collapse/completion_distinct_share", "share",
                "Mean share of different texts among a group's completions: 1 over n if all are the same."),
            tamis("collapse/completion_conditional_entropy", "nats",
                "Entropy of a group's texts, H(Z|X): falls as the policy settles on one answer to each \
                 prompt."),
            tamis("collapse/completion_entropy", "nats", "Entropy of all texts of the step, H(Z)."),
            tamis("collapse/completion_mutual_information", "nats",
                "H(Z) - H(Z|X): how much a text depends on its prompt; falls if all prompts get the same answers."),
            tamis("collapse/reward_variance_within", "", "Mean variance of rewards within groups (ddof 0)."),
            tamis("collapse/reward_variance_between", "", "Variance of the groups' mean rewards (ddof 0)."),
            tamis("collapse/reward_variance_within_share", "share",
                "Variance within groups over the sum of both variances: what group-relative advantages see."),
            tamis("collapse/reward_std_dispersion", "",
                "Deviation over mean of the groups' reward deviations: how unevenly signal is spread."),
        ],
    },
    Section {
        title: "All generated groups",
        about: "\
            Every group generated for the step, dropped ones too: how good the model is. Definitions as\n\
            for the trained batch. `all/pass_rate` uses the filter metric if its values mark correct\n\
            answers, otherwise `acc`. `train.early_stop.reward_collapse` watches\n\
            `rollout/in_group_reward_std` round by round.",
        metrics: &[
            tamis("all/critic/score/mean", "", "Mean reward of a trajectory, over all generated ones."),
            tamis("all/critic/score/max", "", "Largest reward of a trajectory, over all generated ones."),
            tamis("all/critic/score/min", "", "Smallest reward of a trajectory, over all generated ones."),
            tamis("all/reward_std", "", "As `reward_std`, over all generated groups."),
            tamis("all/frac_reward_zero_std", "share",
                "As `frac_reward_zero_std`, over all generated groups."),
            tamis("all/rewards/{name}/mean", "",
                "As `rewards/{name}/mean`, over all generated trajectories."),
            tamis("all/rewards/{name}/std", "", "As `rewards/{name}/std`, over all generated trajectories."),
            tamis("rollout/in_group_reward_std", "",
                "Mean over all generated groups of the reward's deviation within the group (ddof 1), as in \
                 RAGEN."),
            filter_groups("train/in_group_reward_std", "",
                "Mean deviation of the reward within a group.").alias_of("rollout/in_group_reward_std"),
            tamis("reward_log/{name}", "",
                "Mean of what reward functions logged as `name` (TRL's `log_metric`) for generated \
                 trajectories."),
            tamis("all/pass_rate", "share",
                "Share of the scored trajectories that are correct, by the filter metric or by `acc` (1 or \
                 more)."),
            tamis("all/response_length/mean", "tokens",
                "Mean number of completion tokens, over all generated trajectories."),
            tamis("all/response_length/max", "tokens",
                "Largest number of completion tokens, over all generated trajectories."),
            tamis("all/response_length/min", "tokens",
                "Smallest number of completion tokens, over all generated trajectories."),
            tamis("all/response_length/clip_ratio", "share",
                "Share of truncated trajectories among all generated ones."),
            tamis("all/completions/mean_terminated_length", "tokens",
                "Mean length of the generated completions that ended by themselves; 0 if none did."),
            tamis("all/completions/min_terminated_length", "tokens",
                "Smallest length of the generated completions that ended by themselves; 0 if none did."),
            tamis("all/completions/max_terminated_length", "tokens",
                "Largest length of the generated completions that ended by themselves; 0 if none did."),
            tamis("all/prompt_length/mean", "tokens",
                "Mean number of prompt tokens, over all generated trajectories."),
            tamis("all/prompt_length/max", "tokens",
                "Largest number of prompt tokens, over all generated trajectories."),
            tamis("all/prompt_length/min", "tokens",
                "Smallest number of prompt tokens, over all generated trajectories."),
            tamis("all/num_unscored", "trajectories", "Generated trajectories without any score."),
        ],
    },
    Section {
        title: "Episodes",
        about: "\
            For runs with an environment, whose name is part of the metric's: every episode generated for the\n\
            step, dropped groups too. The names are RAGEN's. Numbers of turns called `num_...` are summed over an\n\
            episode and averaged over all episodes; others are averaged over the turns that have them, then over\n\
            the episodes that do.",
        metrics: &[
            tamis("train/{environment}/success", "share", "Share of the episodes whose task was solved."),
            tamis("train/{environment}/pass@{n}", "share",
                "Share of the groups with an episode that was solved; n: their largest size."),
            tamis("train/{environment}/num_turns", "turns", "Mean number of answers of an episode."),
            tamis("train/{environment}/num_actions", "actions",
                "Mean number of actions carried out in an episode."),
            tamis("train/{environment}/action_is_valid", "share",
                "Share of the turns in which an action was carried out, mean over episodes."),
            tamis("train/{environment}/action_is_effective", "share",
                "Share of the turns whose last action changed something, mean over episodes."),
            tamis("train/{environment}/format_penalty", "",
                "Mean over turns of the part of the reward that is the penalty, mean over episodes."),
            tamis("val-env/{environment}/{name}", "",
                "The same of a validation's episodes: `success`, `num_actions` and every other name of this section."),
            tamis("train/{environment}/num_tool_calls", "calls", "Mean number of tool calls that were answered in an episode."),
            tamis("train/{environment}/num_failed_calls", "calls",
                "Mean number of those that failed or could not be read."),
            tamis("train/{environment}/num_calls_refused", "calls",
                "Mean number of a program's calls that were refused."),
            tamis("train/{environment}/num_calls_too_long", "calls",
                "Mean number of those for which `environment.max_length` left no room."),
            tamis("train/{environment}/info/{name}", "",
                "Number that the environment or program gives by that name, over turns and episodes as above."),
            tamis("train/{environment}/cut_ratio", "share",
                "Share of the episodes that a limit of turns, actions or tokens ended."),
        ],
    },
    Section {
        title: "Validation",
        about: "\
            By data source. `core` metrics are the mean, majority and best of all `n` samples on the main\n\
            score (`acc` if there is one, otherwise `reward`); the others are `aux`.\n\
            \n\
            With c of n samples correct, `pass@{k}` is 1 - C(n-c, k) / C(n, k). `best`, `worst`\n\
            and `maj` are exact expectations over `k` samples drawn without replacement, ties of a\n\
            majority broken evenly; verl draws with replacement by a bootstrap, which makes its `best`\n\
            lower.",
        metrics: &[
            verl("val-core/{source}/{score}/mean@{n}", "",
                "Mean over prompts of the mean score of the `n` samples."),
            tamis("val-core/{source}/{score}/pass@{k}", "share",
                "Mean over prompts of the unbiased chance that one of `k` samples is correct."),
            verl("val-core/{source}/{score}/best@{k}/mean", "",
                "Mean over prompts of the expected best score of `k` of the `n` samples."),
            verl("val-core/{source}/{score}/worst@{k}/mean", "",
                "Mean over prompts of the expected worst score of `k` of the `n` samples."),
            verl("val-core/{source}/{score}/maj@{k}/mean", "",
                "Mean over prompts of the expected score of the majority answer of `k` of the `n` samples."),
            verl("val-aux/{source}/{score}/mean@{n}", "",
                "Mean over prompts of the mean score of the `n` samples."),
            tamis("val-aux/{source}/{score}/pass@{k}", "share",
                "Mean over prompts of the unbiased chance that one of `k` samples is correct."),
            verl("val-aux/{source}/{score}/best@{k}/mean", "",
                "Mean over prompts of the expected best score of `k` of the `n` samples."),
            verl("val-aux/{source}/{score}/worst@{k}/mean", "",
                "Mean over prompts of the expected worst score of `k` of the `n` samples."),
            verl("val-aux/{source}/{score}/maj@{k}/mean", "",
                "Mean over prompts of the expected score of the majority answer of `k` of the `n` samples."),
            verl("val-aux/{source}/{score}/std@{n}", "",
                "Mean over prompts of the deviation of the `n` samples (ddof 0)."),
            tamis("val-aux/{source}/{score}/mean@{n}/standard_error", "",
                "Standard error of `val-core/{source}/{score}/mean@{n}` over the prompts; not there for one prompt."),
            tamis("val-aux/{source}/num_prompts", "prompts",
                "Prompts that these metrics cover: those with generated samples."),
            tamis("val-aux/{source}/num_failed", "prompts",
                "Prompts whose generation failed; the other metrics leave them out."),
            tamis("val-aux/{source}/num_unscored", "samples",
                "Samples without a score; the other metrics leave them out."),
            tamis("val-aux/{source}/response_length/mean", "tokens", "Mean completion length."),
            tamis("val-aux/{source}/response_length/clip_ratio", "share", "Share of truncated completions."),
            tamis("val-aux/{source}/reward_log/{name}", "",
                "Mean of what reward functions logged as `name` (TRL's `log_metric`) for the source's \
                 completions."),
        ],
    },
    Section {
        title: "Time and throughput",
        about: "\
            Depends on the machine, except the number of tokens.\n\
            \n\
            Stages: `gen`, `gen_max` (greedy completions), `reward`, `filter`, `ref`, `values` (the\n\
            critic's pass), `old_log_prob`, `advantage_passes` (forward passes that some estimators ask\n\
            for), `adv`, `update_critic`, `update_actor`, `testing`, `save_checkpoint`, ...\n\
            \n\
            `perf/mfu` divides the operations of the passes of the updates by the time of `update_actor` and the\n\
            peak of all ranks. A pass takes, for each token, 6 operations for each weight of the layers' linear\n\
            maps (2 forward, 2 for the gradient of its input, 2 for its own), 4 if the weight is frozen (under an\n\
            adapter); for each completion token the same for the output head; and 12 for each pair of tokens that\n\
            see each other, channel of the attention (heads x size of a head) and layer without a sliding window.\n\
            A prompt counts once for its completions, and what is computed again in the backward pass once. The\n\
            peak of a CPU is measured once a run, of products in f32 with the run's threads. Of common NVIDIA GPUs the\n\
            learner in PyTorch knows that in dense bf16 by their names (`python/tamis/learner/work.py`). On another GPU\n\
            or a part of one (MIG), and for models with experts or images there is no `perf/mfu`.",
        metrics: &[
            verl("timing_s/step", "s", "Time of the whole step.").by_the_clock(),
            tamis("timing_s/reward/{name}", "s",
                "Time in the reward function `name`, over everything scored for the step, \
                 validation aside.").by_the_clock(),
            tamis("timing_s/wire", "s",
                "Time of calls to a learner in another process minus its computing time; part of the stages.")
                .by_the_clock(),
            tamis("timing_s/rank_idle", "s",
                "Time that a rank of the learner waited for the slowest of its wave, on average; part of the stages.")
                .by_the_clock(),
            tamis("perf/rank_idle_share", "share",
                "Share of the ranks' time in passes in which they waited for the slowest of the wave.")
                .by_the_clock(),
            tamis("perf/rank_token_spread", "share",
                "1 - (mean over the ranks) / (maximum over the ranks) of the tokens of waves; 0 if all had the same."),
            verl("timing_s/{stage}", "s", "Time spent in a stage, summed over the step.").by_the_clock(),
            trl("step_time", "s", "Time of the step.").alias_of("timing_s/step").by_the_clock(),
            verl("timing_per_token_ms/gen", "ms",
                "Generation time per completion token of all generated trajectories; verl \
                 divides by the kept ones.").by_the_clock(),
            verl("timing_per_token_ms/{stage}", "ms",
                "Time of a stage per prompt and completion token of the trained batch.").by_the_clock(),
            verl("perf/total_num_tokens", "tokens",
                "Prompt and completion tokens of the trajectories trained on."),
            verl("perf/time_per_step", "s", "Time of the step.").alias_of("timing_s/step").by_the_clock(),
            verl("perf/throughput", "tokens/s",
                "`perf/total_num_tokens` per second of the step, per device.").by_the_clock(),
            tamis("perf/gen_throughput", "tokens/s",
                "Tokens a second of sampling: completion tokens of all generated trajectories per second of \
                 generation.").by_the_clock(),
            tamis("perf/update_throughput", "tokens/s",
                "Tokens a second of learning: `perf/total_num_tokens` per second of the policy's updates.")
                .by_the_clock(),
            tamis("perf/gen_share", "share", "Share of the step's time that generation took.").by_the_clock(),
            tamis("perf/update_share", "share",
                "Share of the step's time that the policy's updates took.").by_the_clock(),
            tamis("perf/mfu", "share",
                "Share of the device's peak that the model's own operations take in the policy's updates; see above.")
                .by_the_clock(),
            verl("perf/mfu/actor", "share",
                "verl counts a prompt with each completion.").alias_of("perf/mfu").by_the_clock(),
            verl("perf/{resource}", "",
                "Use of a resource of the machine (`cpu_memory_used_gb`, ...).").by_the_clock(),
        ],
    },
];

const fn metric(
    source: MetricSource,
    pattern: &'static str,
    unit: &'static str,
    meaning: &'static str,
) -> Definition {
    Definition { pattern, unit, meaning, source, alias_of: None, wall_clock: false }
}

const fn verl(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::Verl, pattern, unit, meaning)
}

const fn trl(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::Trl, pattern, unit, meaning)
}

/// A metric with a name of verl's filter-group log lines.
const fn filter_groups(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::FilterGroups, pattern, unit, meaning)
}

/// A metric that only tamis has.
const fn tamis(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::Tamis, pattern, unit, meaning)
}

impl Definition {
    const fn alias_of(mut self, original: &'static str) -> Self {
        self.alias_of = Some(original);
        self
    }

    const fn by_the_clock(mut self) -> Self {
        self.wall_clock = true;
        self
    }
}

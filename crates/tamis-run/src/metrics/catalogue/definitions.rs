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
                "Pass over the data in which the last prompt of the step was drawn, from 0."),
            trl("epoch", "epochs",
                "Passes over the data so far, with the fraction of the running one; prompts drawn for \
                 dropped groups count."),
            trl("num_tokens", "tokens",
                "Prompt and completion tokens of all trajectories generated so far, over the whole run."),
        ],
    },
    Section {
        title: "Reward of the trained batch",
        about:
            "Over the trajectories of the trained groups, less those that the filter did not choose \
             (`within_group`). A filter makes this batch unrepresentative of the model (uniform groups are \
             gone): compare models by `all/...` or by validation.",
        metrics: &[
            verl("critic/score/mean", "",
                "Mean reward of a trajectory before any KL term (`seq_reward`): the weighted sum of its \
                 scores plus shaping."),
            verl("critic/score/max", "",
                "Largest reward of a trajectory before any KL term (`seq_reward`): the weighted sum of its \
                 scores plus shaping."),
            verl("critic/score/min", "",
                "Smallest reward of a trajectory before any KL term (`seq_reward`): the weighted sum of its \
                 scores plus shaping."),
            verl("critic/rewards/mean", "",
                "Mean reward of a trajectory after the KL term, where the KL is part of the reward; otherwise \
                 the same as `critic/score`."),
            verl("critic/rewards/max", "",
                "Largest reward of a trajectory after the KL term, where the KL is part of the reward; otherwise \
                 the same as `critic/score`."),
            verl("critic/rewards/min", "",
                "Smallest reward of a trajectory after the KL term, where the KL is part of the reward; \
                 else the same as `critic/score`."),
            verl("critic/advantages/mean", "",
                "Mean advantage over tokens that bear loss: a long trajectory counts as often as it has \
                 such tokens."),
            verl("critic/advantages/max", "",
                "Largest advantage over tokens that bear loss: a long trajectory counts as often as it has \
                 such tokens."),
            verl("critic/advantages/min", "",
                "Smallest advantage over tokens that bear loss: a long trajectory counts as often as it has \
                 such tokens."),
            verl("critic/returns/mean", "",
                "Mean return over tokens that bear loss; for group-relative estimators the same as the \
                 advantage."),
            verl("critic/returns/max", "",
                "Largest return over tokens that bear loss; for group-relative estimators the same as the \
                 advantage."),
            verl("critic/returns/min", "",
                "Smallest return over tokens that bear loss; for group-relative estimators the same as the \
                 advantage."),
            trl("rewards/{name}/mean", "",
                "Mean of the score `name`, unweighted, over the trajectories that have it."),
            trl("rewards/{name}/std", "",
                "Deviation of the score `name` over the trajectories that have it (ddof 1); none below two \
                 of them."),
            trl("reward", "", "Mean reward of the batch.").alias_of("critic/rewards/mean"),
            trl("reward_std", "",
                "Deviation of the reward over all scored trajectories of the batch (ddof 1), not within \
                 groups; none below two of them."),
            trl("frac_reward_zero_std", "share",
                "Share of groups whose scored members (two or more) have exactly the same reward (max == \
                 min). Always within groups; TRL takes the deviation of the whole batch where rewards are \
                 scaled by the batch."),
            tamis("train/pass_rate", "share",
                "Share of those trajectories that are correct by `acc` (1 or more), where that score is \
                 there."),
            tamis("train/num_unscored", "trajectories",
                "Trajectories of the trained groups without any score; they bear no loss."),
        ],
    },
    Section {
        title: "Length",
        about:
            "Over the same trajectories. A trajectory is truncated if it ended at the response limit, \
             whatever its last token.",
        metrics: &[
            verl("response_length/mean", "tokens", "Mean number of completion tokens."),
            verl("response_length/max", "tokens", "Largest number of completion tokens."),
            verl("response_length/min", "tokens", "Smallest number of completion tokens."),
            verl("response_length/clip_ratio", "share",
                "Share of truncated trajectories. verl counts those of the maximal length, also where they \
                 ended by themselves there."),
            verl("prompt_length/mean", "tokens",
                "Mean number of prompt tokens, each trajectory counting once."),
            verl("prompt_length/max", "tokens",
                "Largest number of prompt tokens, each trajectory counting once."),
            verl("prompt_length/min", "tokens",
                "Smallest number of prompt tokens, each trajectory counting once."),
            verl("prompt_length/clip_ratio", "share",
                "Share of prompts that have the maximal number of tokens of the configuration."),
            trl("completions/mean_length", "tokens",
                "Mean completion length.").alias_of("response_length/mean"),
            trl("completions/min_length", "tokens",
                "Smallest completion length.").alias_of("response_length/min"),
            trl("completions/max_length", "tokens",
                "Largest completion length.").alias_of("response_length/max"),
            trl("completions/clipped_ratio", "share",
                "Share of truncated completions.").alias_of("response_length/clip_ratio"),
            trl("completions/mean_terminated_length", "tokens",
                "Mean length of the completions that ended by themselves; 0 where none did."),
            trl("completions/min_terminated_length", "tokens",
                "Smallest length of the completions that ended by themselves; 0 where none did."),
            trl("completions/max_terminated_length", "tokens",
                "Largest length of the completions that ended by themselves; 0 where none did."),
        ],
    },
    Section {
        title: "Objective and update",
        about:
            "Means over the optimizer updates of the step, each update weighing the same, unless said \
             otherwise.",
        metrics: &[
            trl("loss", "", "What was minimised: policy loss, KL and entropy terms with their coefficients."),
            verl("actor/pg_loss", "", "Policy loss, without KL and entropy terms."),
            verl("actor/pg_clipfrac", "share", "Share of tokens at which the clipped branch was taken."),
            verl("actor/pg_clipfrac_lower", "share",
                "Share of tokens at which the dual clip was taken (negative advantage)."),
            verl("actor/ppo_kl", "nats", "Mean of old minus new log-probability over tokens."),
            tamis("actor/ppo_kl_k3", "nats",
                "The same divergence by the k3 estimate, which is never negative."),
            tamis("actor/ratio_mean", "", "Mean ratio of new to old probability over tokens."),
            tamis("actor/ratio_max", "", "Largest ratio."),
            tamis("actor/ratio_min", "", "Smallest ratio."),
            verl("actor/entropy", "nats", "Mean entropy of the policy over tokens."),
            trl("entropy", "nats", "Mean entropy.").alias_of("actor/entropy"),
            verl("actor/kl_loss", "nats",
                "Divergence from the reference as aggregated in the loss, before its coefficient."),
            verl("actor/kl_coef", "", "Coefficient of the KL loss."),
            verl("actor/reward_kl_penalty", "nats",
                "Mean divergence from the reference that was taken off the rewards."),
            verl("actor/reward_kl_penalty_coeff", "", "Its coefficient."),
            trl("kl", "nats", "Mean over tokens of the estimated divergence from the reference."),
            trl("clip_ratio/low_mean", "share", "Share of tokens clipped from below (negative advantage)."),
            trl("clip_ratio/low_min", "share", "Smallest such share of a sequence."),
            trl("clip_ratio/high_mean", "share", "Share of tokens clipped from above (positive advantage)."),
            trl("clip_ratio/high_max", "share", "Largest such share of a sequence."),
            trl("clip_ratio/region_mean", "share", "Share of tokens clipped either way."),
            verl("rollout_corr/kl", "nats",
                "Mean over tokens of the sampler's minus the trainer's log-probability; 0 on the native \
                 engine."),
            verl("rollout_corr/k3_kl", "nats", "The same by the k3 estimate."),
            verl("rollout_corr/{statistic}", "",
                "Further statistics of what separates the sampler from the trainer."),
            verl("training/rollout_probs_diff_valid", "",
                "1 where servers sample and the learner has computed the log-probabilities of their tokens \
                 again, over which this and the next four are."),
            verl("training/rollout_probs_diff_max", "",
                "Largest difference between the server's and the learner's probability of a sampled token."),
            verl("training/rollout_probs_diff_mean", "", "Mean of that difference."),
            verl("training/rollout_probs_diff_std", "", "Deviation of that difference (ddof 1)."),
            verl("training/rollout_actor_probs_pearson_corr", "", "Correlation of the two probabilities."),
            trl("sampling/sampling_logp_difference/max", "nats",
                "Largest difference between the sampler's and the trainer's log-probability of a token: \
                 where servers sample, and with `objective.correction`."),
            trl("sampling/sampling_logp_difference/mean", "nats", "Mean of that difference."),
            verl("actor/ppo_kl_abs", "nats",
                "Mean distance of new from old log-probability over tokens (loss `kl_cov`)."),
            trl("cispo_clip_ratio", "share",
                "Share of tokens whose weight was bounded from above (loss `cispo`)."),
            trl("vespo/phi_seq_mean", "", "Mean weight of a trajectory (loss `vespo`)."),
            trl("entropy_coef", "", "Coefficient of the entropy bonus that was used, where there is one."),
            trl("sampling/{statistic}/{figure}", "",
                "TRL's figures of what separates the sampler from the trainer, with `objective.correction`."),
            tamis("train/soft_reweight_min", "", "Smallest weight of a group (shaping `soft_reweight`)."),
            tamis("train/soft_reweight_max", "", "Largest weight of a group."),
            tamis("train/soft_reweight_mean", "", "Mean weight of a group."),
            tamis("greedy/reward/mean", "",
                "Mean reward of the greedy completions that are the baseline of `remax`; they are not \
                 trained on."),
            tamis("greedy/num_completions", "completions",
                "How many of them were generated, beside the groups of the step."),
            tamis("greedy/response_length/mean", "tokens", "Their mean length."),
            tamis("actor/num_updates", "updates", "Optimizer updates done in the step."),
            tamis("actor/num_skipped_updates", "updates",
                "Updates of the step left out because a gradient was not finite."),
            verl("actor/grad_norm", "", "Norm of the gradient before clipping."),
            trl("grad_norm", "", "Norm of the gradient before clipping.").alias_of("actor/grad_norm"),
            verl("actor/lr", "",
                "Learning rate of the step's last update. This and the other figures of the policy's \
                 updates are left out in steps in which the critic learns alone."),
            trl("learning_rate", "", "Learning rate.").alias_of("actor/lr"),
        ],
    },
    Section {
        title: "The critic",
        about:
            "Where there is one (`gae`, `bi_level_gae`). Its values of a step are those from before its \
             update. It learns from the policy's tokens in all scored trajectories, also in those that are \
             left out of the policy's loss. Figures of updates are means over those that were not left out.",
        metrics: &[
            verl("critic/vf_loss", "",
                "Value loss as aggregated, mean over the critic's updates of the step."),
            verl("critic/vf_clipfrac", "share",
                "Share of tokens whose value the bound of the loss holds (`critic.cliprange_value`)."),
            verl("critic/vpred_mean", "",
                "Mean value over the tokens that the critic learns from, while it is updated."),
            verl("critic/vf_explained_var", "share",
                "1 - Var(return - value) / Var(return) over the tokens that the critic learns from: 1 is a \
                 perfect critic, 0 one that says the same everywhere; none where the returns do not vary. \
                 verl adds 1e-5 to the divisor."),
            verl("critic/values/mean", "", "Mean value over the tokens that the critic learns from."),
            verl("critic/values/max", "", "Largest value over the tokens that the critic learns from."),
            verl("critic/values/min", "", "Smallest value over the tokens that the critic learns from."),
            verl("critic/grad_norm", "", "Norm of the critic's gradient before clipping."),
            verl("critic/lr", "", "Learning rate of the critic."),
            tamis("critic/num_updates", "updates", "The critic's optimizer updates done in the step."),
            tamis("critic/num_skipped_updates", "updates",
                "Those left out because a gradient was not finite."),
        ],
    },
    Section {
        title: "The sieve",
        about: "What the filter did with the groups generated for this step.",
        metrics: &[
            guide("train/num_gen_batches", "rounds", "Generation rounds of the step."),
            guide("train/filter_rate", "share", "Dropped over generated groups of the step."),
            guide("train/mean_metric_std", "",
                "Mean over all generated groups of the filter metric's deviation within the group (ddof 0)."),
            guide("train/num_kept_prompts", "groups",
                "Groups kept by the filter, before the batch was cut to size."),
            tamis("dynamic_sampling/num_gen_batches", "rounds",
                "Generation rounds.").alias_of("train/num_gen_batches"),
            tamis("dynamic_sampling/num_accumulated_prompts", "groups",
                "Groups ready before the batch was cut to size, those carried over from earlier steps \
                 included."),
            tamis("dynamic_sampling/target_prompt_num", "groups",
                "Groups wanted for the step (`data.train_batch_size`)."),
            tamis("dynamic_sampling/num_prompts_used", "groups", "Groups trained on."),
            tamis("dynamic_sampling/num_trajectories_used", "trajectories",
                "Trajectories trained on: those of the trained groups that bear loss."),
            tamis("dynamic_sampling/skipped", "", "1 where nothing was trained on in the step, otherwise 0."),
            tamis("dynamic_sampling/num_given_up_attempts", "attempts",
                "Attempts at the step that were skipped before the one that trained (`schedule.on_limit: \
                 skip`); what they generated is counted in the step."),
            tamis("train/filter_metric/mean", "",
                "Mean of the filter metric over the trajectories of the trained groups, less those that the \
                 filter did not choose."),
            tamis("all/filter_metric/mean", "", "Mean of the filter metric over all generated trajectories."),
            tamis("groups/{place}", "groups",
                "Groups that ended in this place: `generated` + `carried_in` = `trained` + `dropped` + \
                 `surplus` + `stale` + `failed` + `aborted` + `carried_out`, in every step. Where groups \
                 can be in flight over the end of a step, `in_flight_in` comes and `in_flight_out` goes \
                 too."),
            tamis("trajectories/{place}", "trajectories",
                "The same for trajectories, where `trained` are those that bear loss, and `left_out` the \
                 other members of trained groups: `generated` + `carried_in` = `trained` + `left_out` + \
                 `dropped` + ..."),
            tamis("tokens/generated", "tokens", "Completion tokens of all groups generated for the step."),
            tamis("tokens/trained", "tokens",
                "Completion tokens of the trajectories trained on (`trajectories/trained`)."),
            tamis("tokens/failed", "tokens",
                "Completion tokens of groups whose generation failed, where there are any."),
            tamis("tokens/aborted", "tokens",
                "Completion tokens of groups that were given up, as far as they are known in the step, \
                 where there are any."),
            tamis("train/num_loss_tokens", "tokens",
                "Those of them that bear loss (the rest is tool or environment output)."),
            tamis("schedule/max_lag", "versions",
                "Greatest lag of a trained group: version that trains it minus version that dispatched it."),
            tamis("train/num_left_out/{reason}", "trajectories",
                "Members of trained groups that bear no loss, by reason: `unscored` (no reward function \
                 answered), `unchosen` (the filter chose others), `truncated` (`objective.masks`), `shaped` \
                 (a shaping took them out), `masked` (no token is the policy's), `rejected` \
                 (`objective.correction` rejected every token of it, in every update). Together \
                 `trajectories/left_out`."),
            tamis("train/num_dropped/{reason}", "groups",
                "Groups dropped for this reason: `all_correct`, `all_wrong`, `uniform`, `unscored`, \
                 `below_range`, `above_range`, `singleton`, `zero_score`, `outside_pool`."),
            tamis("rollout/ignored/{class}", "events",
                "Events of the generator that nobody waited for, which are used for nothing: `duplicate` (a \
                 second answer to a request), `late` (an answer to what was given up, had failed or is \
                 over), `foreign` (never asked for). Not there where there were none."),
            tamis("rollout/server_faults/{class}", "attempts",
                "Attempts at samples that went wrong at servers since the step before, by what went wrong \
                 (`timed_out`, `reset`, `server_error`, `stale_weights`, `token_count`, ...); each was \
                 asked for again, unless it had failed for good. `busy` are those that a server had no room \
                 for, `unknown` answers to nothing that was in flight. Not there where there were none."),
            tamis("rollout/server_checks/{class}", "checks",
                "Checks of servers and publications to them that went wrong since the step before, by what \
                 went wrong (`connect`, `probe`, `refused`, ...). Not there where there were none."),
            tamis("train/early_stopped", "", "1 after the last step of a run that an early stop ended."),
            tamis("train/num_identical_in_text", "groups",
                "Generated groups whose completions are all the same text."),
        ],
    },
    Section {
        title: "Diagnostics",
        about:
            "Signs of health and of collapse, over all groups generated for the step where nothing else is \
             said. A pass is an `acc` of 1 or more; without that score there are no pass rates.",
        metrics: &[
            tamis("diagnostics/pass_rate/none", "share",
                "Share of the scored groups (two or more scored members) in which no member passes."),
            tamis("diagnostics/pass_rate/{interval}_of_{intervals}", "share",
                "Share of those whose pass rate lies strictly between 0 and 1 and in this interval of equal \
                 width, counted from 0; an interval holds its lower end."),
            tamis("diagnostics/pass_rate/all", "share",
                "Share of those in which every scored member passes."),
            tamis("diagnostics/pass_rate/mixed", "share",
                "Share of those with passes and failures: what teaches by outcome alone."),
            tamis("diagnostics/zero_advantage/tokens", "share",
                "Share of the trained tokens whose advantage is exactly 0: work without effect on the \
                 policy term."),
            tamis("diagnostics/zero_advantage/trajectories", "share", "The same of trained trajectories."),
            tamis("diagnostics/zero_advantage/groups", "share", "The same of trained groups."),
            tamis("grad_norm/{groups}/task", "",
                "Norm of the gradient of the policy term over `all` groups of the batch or those of one \
                 `bucket_I` (from 0) of reward deviation, normalised as an optimizer batch of their own, \
                 before the step's updates. In steps that `train.gradient_analysis` measures."),
            tamis("grad_norm/{groups}/kl", "",
                "The same of the divergence in the loss, with its coefficient."),
            tamis("grad_norm/{groups}/entropy", "", "The same of the entropy bonus, with its coefficient."),
            tamis("grad_norm/{groups}/num_groups", "groups",
                "Groups among them. A group with fewer than two scored members is in no bucket."),
            tamis("grad_norm/{groups}/reward_std_mean", "",
                "Mean deviation of their rewards within the group (ddof 0)."),
            tamis("grad_norm/{groups}/reward_std_min", "", "Smallest of these deviations."),
            tamis("grad_norm/{groups}/reward_std_max", "", "Greatest of these deviations."),
            tamis("collapse/completion_distinct_share", "share",
                "Mean over groups of different completion texts over completions: 1 over n where all are \
                 the same."),
            tamis("collapse/completion_conditional_entropy", "nats",
                "Entropy of a group's texts, H(Z|X): falls where the policy has one answer to each prompt."),
            tamis("collapse/completion_entropy", "nats", "Entropy of all texts of the step, H(Z)."),
            tamis("collapse/completion_mutual_information", "nats",
                "H(Z) - H(Z|X): how much a text says about its prompt; falls where all prompts get the same \
                 answers (template collapse)."),
            tamis("collapse/reward_variance_within", "", "Mean variance of rewards within groups (ddof 0)."),
            tamis("collapse/reward_variance_between", "", "Variance of the groups' mean rewards (ddof 0)."),
            tamis("collapse/reward_variance_within_share", "share",
                "The former over the sum of both: the part of the variance that group-relative advantages \
                 see."),
            tamis("collapse/reward_std_dispersion", "",
                "Deviation over mean of the groups' reward deviations: how unevenly signal is spread."),
        ],
    },
    Section {
        title: "All generated groups",
        about:
            "The unbiased view: every group generated for the step, dropped ones too. Definitions as for \
             the trained batch.",
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
                "Mean over all generated groups of the reward's deviation within the group (ddof 1), as \
                 RAGEN logs it; `train.early_stop.reward_collapse` watches it round by round."),
            guide("train/in_group_reward_std", "", "The same.").alias_of("rollout/in_group_reward_std"),
            tamis("reward_log/{name}", "",
                "Mean of what reward functions logged as `name` (TRL's `log_metric`), over all calls for \
                 the step's generated trajectories."),
            tamis("all/pass_rate", "share",
                "Share of all scored generated trajectories that are correct: by the filter metric where \
                 its values say what is correct, otherwise by `acc` (1 or more)."),
            tamis("all/response_length/mean", "tokens",
                "Mean number of completion tokens, over all generated trajectories."),
            tamis("all/response_length/max", "tokens",
                "Largest number of completion tokens, over all generated trajectories."),
            tamis("all/response_length/min", "tokens",
                "Smallest number of completion tokens, over all generated trajectories."),
            tamis("all/response_length/clip_ratio", "share",
                "Share of truncated trajectories among all generated ones."),
            tamis("all/completions/mean_terminated_length", "tokens",
                "Mean length of all generated completions that ended by themselves; 0 where none did."),
            tamis("all/completions/min_terminated_length", "tokens",
                "Smallest length of all generated completions that ended by themselves; 0 where none did."),
            tamis("all/completions/max_terminated_length", "tokens",
                "Largest length of all generated completions that ended by themselves; 0 where none did."),
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
        title: "Validation",
        about:
            "Per data source. `core` metrics are the mean, majority and best of all `n` samples on the main \
             score (`acc` where it is there, otherwise `reward`); the others are `aux`.",
        metrics: &[
            verl("val-core/{source}/{score}/mean@{n}", "",
                "Mean over prompts of the mean score of the `n` samples."),
            tamis("val-core/{source}/{score}/pass@{k}", "share",
                "Mean over prompts of 1 - C(n-c, k) / C(n, k), c of n samples being correct: the unbiased \
                 chance that one of `k` is."),
            verl("val-core/{source}/{score}/best@{k}/mean", "",
                "Mean over prompts of the expected best score of `k` of the `n` samples, drawn without \
                 replacement, exact. verl draws with replacement by a bootstrap, which is lower."),
            verl("val-core/{source}/{score}/worst@{k}/mean", "", "The same for the worst score."),
            verl("val-core/{source}/{score}/maj@{k}/mean", "",
                "Mean over prompts of the expected score of the answer most of `k` of the `n` samples give, \
                 drawn without replacement, ties broken evenly, exact."),
            verl("val-aux/{source}/{score}/mean@{n}", "",
                "Mean over prompts of the mean score of the `n` samples."),
            tamis("val-aux/{source}/{score}/pass@{k}", "share",
                "Mean over prompts of 1 - C(n-c, k) / C(n, k), c of n samples being correct: the unbiased \
                 chance that one of `k` is."),
            verl("val-aux/{source}/{score}/best@{k}/mean", "",
                "Mean over prompts of the expected best score of `k` of the `n` samples, drawn without \
                 replacement, exact. verl draws with replacement by a bootstrap, which is lower."),
            verl("val-aux/{source}/{score}/worst@{k}/mean", "", "The same for the worst score."),
            verl("val-aux/{source}/{score}/maj@{k}/mean", "",
                "Mean over prompts of the expected score of the answer most of `k` of the `n` samples give, \
                 drawn without replacement, ties broken evenly, exact."),
            verl("val-aux/{source}/{score}/std@{n}", "",
                "Mean over prompts of the deviation of the `n` samples (ddof 0)."),
            tamis("val-aux/{source}/num_prompts", "prompts", "Prompts evaluated."),
            tamis("val-aux/{source}/num_unscored", "samples",
                "Samples without a score; they are outside the other metrics."),
            tamis("val-aux/{source}/response_length/mean", "tokens", "Mean completion length."),
            tamis("val-aux/{source}/response_length/clip_ratio", "share", "Share of truncated completions."),
            tamis("val-aux/{source}/reward_log/{name}", "",
                "Mean of what reward functions logged as `name` (TRL's `log_metric`), over all calls for \
                 the source's completions."),
        ],
    },
    Section {
        title: "Time and throughput",
        about: "Depends on the machine, except the number of tokens.",
        metrics: &[
            verl("timing_s/step", "s", "The whole step.").by_the_clock(),
            tamis("timing_s/reward/{name}", "s",
                "Time in the reward function `name`, over everything scored for the step (validation \
                 not).").by_the_clock(),
            verl("timing_s/{stage}", "s",
                "Time spent in a stage, summed over the step: `gen`, `gen_max` (greedy completions), \
                 `reward`, `filter`, `ref`, `values` (the critic's pass), `old_log_prob`, \
                 `advantage_passes` (forward passes that some estimators ask for), `adv`, `update_critic`, \
                 `update_actor`, `testing`, `save_checkpoint`, ...").by_the_clock(),
            trl("step_time", "s", "Time of the step.").alias_of("timing_s/step").by_the_clock(),
            verl("timing_per_token_ms/gen", "ms",
                "Generation time per completion token of all generated trajectories. verl divides by the \
                 tokens of the kept ones.").by_the_clock(),
            verl("timing_per_token_ms/{stage}", "ms",
                "Time of a stage per prompt and completion token of the trained batch.").by_the_clock(),
            verl("perf/total_num_tokens", "tokens",
                "Prompt and completion tokens of the trajectories trained on."),
            verl("perf/time_per_step", "s", "Time of the step.").alias_of("timing_s/step").by_the_clock(),
            verl("perf/throughput", "tokens/s",
                "`perf/total_num_tokens` per second of the step, per device.").by_the_clock(),
            tamis("perf/gen_throughput", "tokens/s",
                "Completion tokens of all generated trajectories per second of generation.").by_the_clock(),
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

/// A metric with verl's name.
const fn verl(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::Verl, pattern, unit, meaning)
}

/// A metric with TRL's name.
const fn trl(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::Trl, pattern, unit, meaning)
}

/// A metric with the name of the group filter's guide.
const fn guide(pattern: &'static str, unit: &'static str, meaning: &'static str) -> Definition {
    metric(MetricSource::Guide, pattern, unit, meaning)
}

/// A metric of tamis alone.
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

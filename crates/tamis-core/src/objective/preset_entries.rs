//! The catalogue's entries of the named algorithms; the settings themselves are the preset files of the configuration.

use crate::entry::{Entry, Family};

/// A named algorithm as its authors released it.
const fn preset(
    name: &'static str,
    meaning: &'static str,
    formula: &'static str,
    source: &'static str,
    defaults: &'static [(&'static str, &'static str)],
    differences: &'static [&'static str],
) -> Entry {
    Entry {
        name,
        family: Family::Preset,
        meaning,
        formula,
        source,
        defaults,
        degenerate: &["as its estimator and its loss"],
        known_as: &[],
        differences,
    }
}

/// The catalogue's entries.
pub(super) const ENTRIES: &[Entry] = &[
    preset(
        "grpo",
        "group-relative policy optimisation as its paper writes it",
        "mean over trajectories of the token mean of the clipped loss (0.2) + 0.04·k3; A = (r - mean)/(std + 1e-6)",
        "Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3 and 4",
        &[
            ("objective.advantage", "grpo"),
            ("objective.loss", "clip 0.2"),
            ("objective.kl", "k3 in the loss, 0.04"),
        ],
        &["the paper gives neither ddof, epsilon nor clip range; sample deviation, 1e-6 and 0.2 are verl's"],
    ),
    preset(
        "dapo",
        "GRPO with a wider upper clip, token mean, dynamic sampling and a soft punishment of overlong completions, as released",
        "token mean over the mini-batch of the clipped loss (0.2/0.28, dual 10), no KL; A = (r - mean)/(std + 1e-6); groups without signal are replaced",
        "Yu et al., DAPO, arXiv 2503.14476, as released",
        &[
            ("objective.loss", "clip 0.2/0.28, dual 10"),
            ("filter", "variance of acc"),
            ("reward", "soft_overlong over the last fifth"),
        ],
        &["`dapo_paper` is what the paper writes"],
    ),
    preset(
        "dapo_paper",
        "DAPO as its paper writes it: the token mean is taken per group",
        "mean over groups of the token mean within the group of the clipped loss (0.2/0.28), no KL; A = (r - mean)/std",
        "Yu et al., DAPO, arXiv 2503.14476, eq. 8",
        &[("objective.aggregation", "group-token-mean"), ("filter", "variance of acc")],
        &["`dapo` is what its authors released"],
    ),
    preset(
        "dr_grpo",
        "GRPO without its two biases: no division by the deviation of the group or the length of the trajectory",
        "mean over trajectories of the token sum of the clipped loss (0.2) over the response limit, no KL; A = r - mean",
        "Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783, section 3.2 and listing 1",
        &[("objective.aggregation", "seq-mean-token-sum-norm")],
        &[],
    ),
    preset(
        "rloo",
        "each trajectory as one action, the others of its group as baseline",
        "mean over trajectories of -A·sum of logprob; A = r - mean of the others, r with 0.05·k1 per token",
        "Ahmadian et al., Back to basics, arXiv 2402.14740",
        &[("objective.loss", "reinforce"), ("objective.kl", "k1 in the reward, 0.05")],
        &[
            "0.05 is the default of TRL's RLOOTrainer (`beta`), whose index of papers gives 0.03 for the paper's runs; verl's example has 0.001",
        ],
    ),
    preset(
        "reinforce_plus_plus",
        "rewards to go with the divergence per token, whitened over the batch",
        "token mean of the clipped loss (0.2); A = whitened sum of what follows, r with 0.01·k1 per token",
        "Hu et al., REINFORCE++, arXiv 2501.03262",
        &[("objective.kl", "k1 in the reward, 0.01")],
        &[
            "0.01 is the default of OpenRLHF (`--init_kl_coef`), its authors' code; verl's example keeps verl's own 0.001",
        ],
    ),
    preset(
        "reinforce_plus_plus_baseline",
        "REINFORCE++ with the mean of the group as baseline",
        "token mean of the clipped loss (0.2) + 0.01·k2; A = whitened (r - mean)",
        "Hu et al., REINFORCE++, arXiv 2501.03262",
        &[("objective.kl", "k2 in the loss, 0.01")],
        &[
            "0.01 is the default of OpenRLHF (`--init_kl_coef`), its authors' code, which advises k2 or k3 where the KL is in the loss; verl's example has it in the reward",
        ],
    ),
    preset(
        "remax",
        "a greedy completion of the same prompt as baseline",
        "mean over trajectories of -A·sum of logprob; A = r - r(greedy), r with 0.001·k1 per token",
        "Li et al., ReMax, arXiv 2310.10505, eq. 6 and algorithm 1",
        &[("objective.loss", "reinforce"), ("objective.kl", "k1 in the reward, 0.001")],
        &[
            "greedy completions are generated for the prompts that are trained on, at the weights that train",
            "0.001 is that of verl's example (examples/remax_trainer)",
        ],
    ),
    preset(
        "opo",
        "the length-weighted mean of the group as baseline, exactly on-policy",
        "mean over trajectories of -A·sum of logprob, no KL; A = r - length-weighted mean",
        "Hao et al., On-policy RL with optimal reward baseline, arXiv 2505.23585",
        &[("objective.loss", "reinforce")],
        &[],
    ),
    preset(
        "gpg",
        "the plain policy gradient, scaled by the share of groups with signal",
        "token mean of -A·logprob, no KL; A = alpha·(r - mean)",
        "Chu et al., GPG: a simple and strong reinforcement learning baseline, arXiv 2504.02546",
        &[("objective.loss", "gpg")],
        &[],
    ),
    preset(
        "bnpo",
        "rewards normalised by a Beta distribution fitted to all prompts of the step",
        "token mean of the clipped loss (0.2), no KL; A as the estimator `bnpo`",
        "Xiao et al., BNPO, arXiv 2506.02864, eq. 7",
        &[("objective.advantage", "bnpo")],
        &[],
    ),
    preset(
        "gspo",
        "the clipped ratio of the whole trajectory",
        "mean over trajectories of max(-A·s, -A·clip(s, 1 - 3e-4, 1 + 4e-4)), s the geometric mean of the ratios, no KL",
        "Zheng et al., arXiv 2507.18071, eq. 5",
        &[("objective.loss", "gspo 3e-4/4e-4")],
        &[],
    ),
    preset(
        "gmpo",
        "the geometric mean of clipped ratios",
        "mean over trajectories of -A·geometric mean of ratios clipped to exp(-0.4) and exp(0.4), no KL",
        "Zhao et al., Geometric-mean policy optimization, arXiv 2507.20673, eq. 4",
        &[("objective.loss", "geo_mean 0.4")],
        &[],
    ),
    preset(
        "cispo",
        "the policy gradient weighted by the bounded ratio, dynamic sampling",
        "token mean of -min(r, 5)·A·logprob, no KL; groups without signal are replaced",
        "MiniMax, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5",
        &[("objective.loss", "cispo, absolute 5"), ("filter", "variance of acc")],
        &[
            "5 is the bound that TRL's documentation recommends after ScaleRL, arXiv 2510.13786; verl's example clips to 1 - 10 and 1 + 0.2 (`bound: relative`)",
        ],
    ),
    preset(
        "sapo",
        "a soft gate in place of the clip",
        "mean over trajectories of the token mean of -A·(4/tau)·sigmoid(tau·(r - 1)), no KL",
        "Gao et al., Soft adaptive policy optimization, arXiv 2511.20347",
        &[("objective.loss", "sapo 1/1.05")],
        &[],
    ),
    preset(
        "ppo",
        "proximal policy optimisation with a critic: an advantage per token, the divergence in the reward",
        "token mean of the clipped loss (0.2); A = whitened GAE (gamma 1, lambda 0.95) of r with 0.02·k1 per token; critic: value loss clipped at 0.2",
        "Schulman et al., PPO, arXiv 1707.06347; coefficients of Ouyang et al., InstructGPT, arXiv 2203.02155, appendix C.4, and the code of Ziegler et al., arXiv 1909.08593",
        &[
            ("objective.advantage", "gae, lambda 0.95"),
            ("objective.loss", "clip 0.2"),
            ("objective.kl", "k1 in the reward, 0.02"),
            ("critic.cliprange_value", "0.2"),
        ],
        &[
            "policy and critic have an optimizer each, where Ziegler et al. share one and weigh the value loss by 0.1",
            "verl's defaults for its PPO are lambda 1, a value clip of 0.5 and no divergence",
        ],
    ),
];

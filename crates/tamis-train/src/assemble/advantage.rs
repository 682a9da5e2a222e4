//! The advantage estimator with its shapings, and what the trainer cannot give one.

use tamis_config::{
    AdvantageConfig, AdvantageScale, BaselineTail, Config, CpoWrap as ConfigWrap, Estimator,
    GpgAlpha as ConfigAlpha, KlPlace, LossScaling as ConfigScaling, MaskedRewards as ConfigMasked,
    ShapingConfig, SingletonAdvantage,
};
use tamis_core::advantage::shaping::{
    ClipAdvantage, FilterLossScaling, KeepNegRatio, KeepPosRatio, LengthWeight, LossScaling, Shaping,
    SoftReweight,
};
use tamis_core::advantage::{
    Advantage, AdvantageEstimator, BiLevelGae, Bnpo, BnpoRunning, Column, Cpo, CpoWrap, DrGrpo, Gae, Gdpo,
    Gpg, GpgAlpha, Grpo, GrpoPassk, MaskedRewards, NormalizeThenSum, Opo, OptimalTokenBaseline,
    ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax, Rloo, Scale, Singleton, Tail,
    TirOptimalTokenBaseline,
};

use super::AssembleError;

fn singleton(settings: &AdvantageConfig) -> Singleton {
    match settings.singleton {
        SingletonAdvantage::Raw => Singleton::RawReward,
        SingletonAdvantage::Zero => Singleton::Zero,
    }
}

fn masked_rewards(settings: &AdvantageConfig) -> MaskedRewards {
    match settings.masked_rewards {
        ConfigMasked::Credited => MaskedRewards::Credited,
        ConfigMasked::Lost => MaskedRewards::Lost,
    }
}

fn grpo(settings: &AdvantageConfig) -> Grpo {
    let own = Grpo::default();
    Grpo {
        scale: match (settings.norm_by_std, settings.scale) {
            (false, _) | (_, AdvantageScale::None) => Scale::None,
            (true, AdvantageScale::Group) => Scale::Group,
            (true, AdvantageScale::Batch) => Scale::Batch,
        },
        ddof: settings.ddof.map_or(own.ddof, |ddof| ddof as u8),
        epsilon: settings.epsilon.unwrap_or(own.epsilon),
        singleton: singleton(settings),
    }
}

fn token_baseline(settings: &AdvantageConfig) -> OptimalTokenBaseline {
    OptimalTokenBaseline {
        tail: match settings.tail {
            BaselineTail::Zeroed => Tail::Zeroed,
            BaselineTail::ZeroedByCount => Tail::ZeroedByCount,
            BaselineTail::Kept => Tail::Kept,
        },
        epsilon: settings.epsilon.unwrap_or(OptimalTokenBaseline::default().epsilon),
        singleton: singleton(settings),
        masked_rewards: masked_rewards(settings),
    }
}

fn cpo(settings: &AdvantageConfig) -> Cpo {
    Cpo {
        wrap: match settings.wrap {
            ConfigWrap::SeqKl => CpoWrap::SeqKl,
            ConfigWrap::TokKl => CpoWrap::TokKl,
        },
        pos_alpha: settings.pos_alpha,
        neg_alpha: settings.neg_alpha,
        right: settings.right,
        grpo: grpo(settings),
    }
}

/// The estimator as it is configured, whether or not this trainer can run it.
pub(super) fn estimator(settings: &AdvantageConfig) -> Advantage {
    let (singleton, masked_rewards, whiten) =
        (singleton(settings), masked_rewards(settings), settings.whiten);
    let (gamma, lambda) = (settings.gamma, settings.lambda);
    match settings.estimator {
        Estimator::Grpo => Advantage::Grpo(grpo(settings)),
        Estimator::DrGrpo => Advantage::DrGrpo(DrGrpo { singleton }),
        Estimator::GrpoPassk => {
            let Grpo { ddof, epsilon, singleton, .. } = grpo(settings);
            Advantage::GrpoPassk(GrpoPassk { divide: settings.norm_by_std, ddof, epsilon, singleton })
        }
        Estimator::Rloo => Advantage::Rloo(Rloo { singleton }),
        Estimator::ReinforcePlusPlus => {
            Advantage::ReinforcePlusPlus(ReinforcePlusPlus { gamma, whiten, masked_rewards })
        }
        Estimator::ReinforcePlusPlusBaseline => {
            Advantage::ReinforcePlusPlusBaseline(ReinforcePlusPlusBaseline { whiten, singleton })
        }
        Estimator::Remax => Advantage::Remax(Remax { masked_rewards }),
        Estimator::Opo => Advantage::Opo(Opo { singleton }),
        Estimator::Gpg => Advantage::Gpg(Gpg {
            alpha: match settings.gpg_alpha {
                ConfigAlpha::MixedGroups => GpgAlpha::MixedGroups,
                ConfigAlpha::NonzeroRewards => GpgAlpha::NonzeroRewards,
            },
            divisor: settings.divisor,
            singleton,
        }),
        Estimator::Gdpo => {
            let epsilon = settings.epsilon.unwrap_or(Gdpo::default().epsilon);
            Advantage::Gdpo(Gdpo { epsilon, whiten, singleton })
        }
        Estimator::NormalizeThenSum => {
            let epsilon = settings.epsilon.unwrap_or(NormalizeThenSum::default().epsilon);
            Advantage::NormalizeThenSum(NormalizeThenSum { epsilon, singleton })
        }
        Estimator::OptimalTokenBaseline => Advantage::OptimalTokenBaseline(token_baseline(settings)),
        Estimator::TirOptimalTokenBaseline => {
            let OptimalTokenBaseline { tail, epsilon, singleton, masked_rewards } = token_baseline(settings);
            Advantage::TirOptimalTokenBaseline(TirOptimalTokenBaseline {
                tail,
                epsilon,
                singleton,
                masked_rewards,
            })
        }
        Estimator::Gae => Advantage::Gae(Gae { gamma, lambda, whiten, masked_rewards }),
        Estimator::BiLevelGae => Advantage::BiLevelGae(BiLevelGae {
            gamma,
            lambda,
            turn_gamma: settings.turn_gamma,
            whiten,
            masked_rewards,
        }),
        Estimator::Bnpo => {
            let own = Bnpo::default();
            Advantage::Bnpo(Bnpo {
                alpha: settings.alpha,
                beta: settings.beta,
                ddof: settings.ddof.map_or(own.ddof, |ddof| ddof as u8),
                at_least_one: settings.at_least_one,
                max_weight: settings.max_weight,
                low: settings.low,
                high: settings.high,
            })
        }
        Estimator::BnpoRunning => Advantage::BnpoRunning(BnpoRunning {
            window: settings.window,
            prior: settings.prior,
            delta: settings.delta,
            low: settings.low,
            high: settings.high,
        }),
        Estimator::Cpo => Advantage::Cpo(cpo(settings)),
    }
}

/// Columns that the trainer has for every estimator; values come from a critic, which is there where they are needed.
const PROVIDED: [Column; 11] = [
    Column::Lengths,
    Column::Mask,
    Column::TokenRewards,
    Column::OldLogprobs,
    Column::Entropy,
    Column::SumPiSquared,
    Column::GoldLogprobs,
    Column::Components,
    Column::GreedyRewards,
    Column::Generated,
    Column::Values,
];

/// The estimator, if the trainer can give it what it needs.
pub fn advantage(config: &Config) -> Result<Advantage, AssembleError> {
    let advantage = estimator(&config.objective.advantage);
    advantage.check()?;
    if let Some(column) = advantage.needs().iter().find(|column| !PROVIDED.contains(column)) {
        return Err(AssembleError::setting(
            format!(
                "objective.advantage.estimator: `{}` needs the column `{}` ({}), which `tamis train` does not provide",
                advantage.name(),
                column.name(),
                column.meaning()
            ),
            "choose another estimator, such as grpo",
        ));
    }
    let reads_scores =
        advantage.uses().contains(&Column::Components) || advantage.needs().contains(&Column::Generated);
    if reads_scores && config.objective.kl.place == KlPlace::Reward {
        return Err(AssembleError::setting(
            format!(
                "objective.kl.in: reward has no place in `{}`, which reads the rewards before they are summed",
                advantage.name()
            ),
            "set objective.kl.in=loss",
        ));
    }
    Ok(advantage)
}

/// Shapings in their order.
pub fn shapings(config: &Config) -> Result<Vec<Shaping>, AssembleError> {
    let shapings: Vec<Shaping> = config
        .objective
        .shaping
        .iter()
        .map(|shaping| match *shaping {
            ShapingConfig::ClipAdvantage { low, high } => Shaping::ClipAdvantage(ClipAdvantage { low, high }),
            ShapingConfig::KeepNegRatio { ratio } => Shaping::KeepNegRatio(KeepNegRatio { ratio }),
            ShapingConfig::KeepPosRatio { ratio } => Shaping::KeepPosRatio(KeepPosRatio { ratio }),
            ShapingConfig::FilterLossScaling { by } => Shaping::FilterLossScaling(FilterLossScaling {
                by: match by {
                    ConfigScaling::None => LossScaling::None,
                    ConfigScaling::Linear => LossScaling::Linear,
                    ConfigScaling::Sqrt => LossScaling::Sqrt,
                },
            }),
            ShapingConfig::SoftReweight { ddof, epsilon } => {
                Shaping::SoftReweight(SoftReweight { ddof: ddof as u8, epsilon })
            }
            ShapingConfig::LengthWeight {} => Shaping::LengthWeight(LengthWeight {}),
        })
        .collect();
    shapings.iter().try_for_each(Shaping::check)?;
    Ok(shapings)
}

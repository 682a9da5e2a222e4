//! `sft`: supervised fine-tuning, before reinforcement learning or alone.

use tamis_core::entry::{Entry, Family};
use tamis_core::{choice, settings};

use super::{Config, LrScheduleKind};
use crate::hub_name::DataSources;

/// The loss of supervised fine-tuning, for the catalogue.
pub(crate) static ENTRY: Entry = Entry {
    name: "sft",
    family: Family::Supervised,
    meaning: "Supervised fine-tuning on rows of one's own, before reinforcement learning or alone \
              (`train.total_steps: 0`): cross-entropy, as the mean over all tokens with a loss of an update.",
    formula: "L = -1/M · Σ_rows Σ_t m_t · log p(x_t | x_<t), M = Σ_rows Σ_t m_t, with mask m_t in {0, 1}",
    source: "instruction tuning: Ouyang et al., arXiv 2203.02155, section 3.5 (SFT); the normalisation is that of TRL \
             1.16's `SFTTrainer` with `num_items_in_batch`",
    defaults: &[
        "sft.data",
        "sft.val",
        "sft.val_fraction",
        "sft.loss_on",
        "sft.max_length",
        "sft.epochs",
        "sft.steps",
        "sft.batch_size",
        "sft.learning_rate",
        "sft.warmup_steps",
        "sft.lr_schedule",
        "sft.min_lr_ratio",
        "sft.test_freq",
    ],
    degenerate: &[
        "a row without a token with a loss is left out and counted",
        "an update without any token with a loss has loss 0 and changes nothing but AdamW's step count",
        "if no row has a token with a loss, the run is refused",
    ],
    known_as: &[("TRL", "SFTTrainer"), ("verl", "verl.trainer.sft_trainer")],
    differences: &[
        "TRL's `packing=True` counts packed sequences as its batch; `sft.batch_size` counts rows",
        "TRL takes the end of the prompt off if a token reaches from it into the completion; the two are tokenized \
         apart here, as generation does",
    ],
};

choice! {
    /// The tokens that have a loss.
    pub enum LossOn {
        /// The completion of rows with `prompt` and `completion`, the assistant's turns of rows with
        /// `messages`.
        Answers = "answers",
        /// The completion of rows with `prompt` and `completion`, and every token of rows with `messages`, as
        /// TRL does by default.
        Completions = "completions",
        /// Every token.
        All = "all",
    }
}

settings! {
    /// Names of the columns of `sft.data` and `sft.val`, if they are not the usual ones. A dot separates the
    /// levels of a nested column.
    pub struct SftColumnsConfig {
        /// Column with the prompt: text, or a list of chat messages. Null: `prompt`, `question` or `problem`.
        prompt: Option<String> = None, NotEmpty;
        /// Column with the completion of the prompt: text, or a list of messages. Null: `completion`,
        /// `response` or `answer`.
        completion: Option<String> = None, NotEmpty;
        /// Column with a whole conversation. Null: `messages`.
        messages: Option<String> = None, NotEmpty;
    }
}

settings! {
    /// Supervised fine-tuning: cross-entropy, as the mean over all tokens with a loss of an update. It comes
    /// before reinforcement learning, which starts from its weights. With `train.total_steps: 0` it is the
    /// whole run, which needs no reward and no prompts. It uses the AdamW of `train.optimizer` at its own
    /// learning rate. Without `data` it imitates the gold answers of the training prompts, or episodes that
    /// a script plays in built-in games, for models with random weights. For external environments, tools
    /// and programs it then uses only gold answers, if their prompts have any.
    pub struct SftConfig {
        /// Most optimizer updates. 0: as many as `epochs` needs; none without `epochs`.
        steps: usize = 0;
        /// Passes over the rows. If `steps` is set too, the shorter of both counts. Null: as many as `steps`
        /// needs.
        epochs: Option<f64> = None, Positive;
        /// The rows: JSONL or Parquet files, or splits of data sets on a hub, as in `data.train`. A row has
        /// `prompt` and `completion` (texts, or lists of messages), or `messages`, or `text`. A column
        /// `tools` goes to the chat template. A question and its answer in text go through the chat
        /// template as prompts do (`data.prompt_format`). Empty: gold answers.
        data: DataSources = DataSources::default();
        /// Validation rows, in the same form. Their loss is computed every `test_freq` updates and at the
        /// end.
        val: DataSources = DataSources::default();
        /// Share of the rows of `data`, below 1, that is held out instead of `val`. The rows' tokens decide
        /// which. Null: none.
        val_fraction: Option<f64> = None, Probability;
        /// Names of the rows' columns.
        columns: SftColumnsConfig = SftColumnsConfig::default();
        /// The tokens that have a loss. The assistant's turns are the `{% generation %}` blocks of the chat
        /// template. Without such blocks they are found by rendering the conversation up to each turn and
        /// after it.
        loss_on: LossOn = LossOn::Answers;
        /// Longest row, in tokens. The end of a longer row is cut off, as in TRL, and the run prints how many
        /// were cut. Null: what the model reads.
        max_length: Option<usize> = None, AtLeast(2.0);
        /// Rows of an update. The last update of a pass over the rows has those that are left, as in TRL
        /// (`dataloader_drop_last=False`). Own rows are packed into micro-batches of
        /// `train.micro_batch_tokens` without padding; no row sees another.
        batch_size: usize = 64, Between(1.0, 1_048_576.0);
        /// Learning rate after the warm-up. Null: 2e-5 for a checkpoint (`model.path`), 1e-3 for random
        /// weights (`model.init`).
        learning_rate: Option<f64> = None, Positive;
        /// Updates over which the learning rate rises from zero.
        warmup_steps: usize = 10;
        /// Shape of the learning rate after the warm-up.
        lr_schedule: LrScheduleKind = LrScheduleKind::Linear;
        /// Learning rate at the last update, as a fraction of the highest.
        min_lr_ratio: f64 = 0.1, Between(0.0, 1.0);
        /// Number of different rows, or training prompts, that are used. Null: all.
        examples: Option<usize> = None, AtLeast(1.0);
        /// Greedy validation accuracy (on the prompts of `data.val`) at which SFT ends early, measured every
        /// `test_freq` updates. Null: all updates are made.
        target_accuracy: Option<f64> = None, Between(0.0, 1.0);
        /// Updates between two measurements of the validation loss, and of the accuracy for
        /// `target_accuracy`.
        test_freq: usize = 25, AtLeast(1.0);
    }
}

impl SftConfig {
    /// Whether there is supervised fine-tuning.
    pub fn is_on(&self) -> bool {
        self.steps > 0 || self.epochs.is_some()
    }

    /// Updates of one pass over so many rows of `data`, at least 1. The last has the rows that are left.
    ///
    /// ```
    /// use tamis_config::SftConfig;
    /// let of_four = SftConfig { batch_size: 4, ..SftConfig::default() };
    /// assert_eq!([0, 4, 10].map(|rows| of_four.updates_per_epoch(rows)), [1, 1, 3]);
    /// ```
    pub fn updates_per_epoch(&self, num_rows: usize) -> usize {
        num_rows.div_ceil(self.batch_size.max(1)).max(1)
    }

    /// Updates that it makes on so many rows: at most `steps`, at most what `epochs` needs. As in TRL, the
    /// last update of an epoch has the rows that are left. Gold answers fill it with the first of the next.
    ///
    /// ```
    /// use tamis_config::SftConfig;
    /// let of = |steps, epochs| SftConfig { steps, epochs, batch_size: 4, ..SftConfig::default() };
    /// assert_eq!(of(7, None).num_updates(10), 7);
    /// assert_eq!(of(0, Some(2.0)).num_updates(10), 5);
    /// assert_eq!(of(0, Some(0.1)).num_updates(10), 1);
    /// assert_eq!(of(3, Some(2.0)).num_updates(10), 3);
    /// assert_eq!(of(0, None).num_updates(10), 0);
    /// ```
    pub fn num_updates(&self, num_rows: usize) -> usize {
        // As long a run as that is never finished.
        let each = if self.data.is_empty() {
            num_rows as f64 / self.batch_size.max(1) as f64
        } else {
            self.updates_per_epoch(num_rows) as f64
        };
        let of_epochs = |epochs: f64| (epochs * each).ceil().min(1e9) as usize;
        match (self.steps, self.epochs) {
            (steps, None) => steps,
            (0, Some(epochs)) => of_epochs(epochs),
            (steps, Some(epochs)) => steps.min(of_epochs(epochs)),
        }
    }
}

impl Config {
    /// Whether the run is supervised fine-tuning alone.
    pub fn is_sft_alone(&self) -> bool {
        self.sft.is_on() && !self.sft.data.is_empty() && self.train.total_steps == Some(0)
    }

    /// Whether supervised fine-tuning imitates gold answers and scripts.
    pub fn imitates(&self) -> bool {
        self.sft.is_on() && self.sft.data.is_empty()
    }

    /// The learning rate of supervised fine-tuning.
    pub fn sft_learning_rate(&self) -> f64 {
        let usual = if self.model.path.is_some() { 2e-5 } else { 1e-3 };
        self.sft.learning_rate.unwrap_or(usual)
    }
}

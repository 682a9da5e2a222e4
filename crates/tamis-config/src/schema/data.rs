//! `data`: where prompts come from and how many are drawn.

use std::path::PathBuf;

use tamis_data::dataset::{BadRows, BinaryColumns};
use tamis_data::overlong::OverlongPrompts;
use tamis_data::prompt_format::PromptFormat;
use tamis_env::task::TaskKind;
use tamis_env::task::arithmetic::ArithmeticSettings;

use tamis_core::{choice, settings};

use crate::hub_name::DataSources;
use crate::value::FreeMap;

choice! {
    /// Treatment of a verifier that rejects the gold answer of a row. Every gold answer is scored before
    /// training.
    pub enum GoldCheck {
        /// A warning shows the row.
        Warn = "warn",
        /// The run stops, naming the row.
        Error = "error",
        /// Gold answers are not scored.
        Off = "off",
    }
}

settings! {
    /// Names of the data's columns; a dot goes into a nested column (`reward_model.ground_truth`). Null:
    /// found by the layout of verl (`prompt`, `data_source`, `ability`, `reward_model.ground_truth`,
    /// `extra_info`), of TRL (`prompt` and any others), or plain `question` and `answer`.
    pub struct ColumnsConfig {
        /// Column with the prompt: text, or a list of chat messages.
        prompt: Option<String> = None, NotEmpty;
        /// Column with the answer that rewards compare with.
        ground_truth: Option<String> = None, NotEmpty;
        /// Column with the name of the data set that a row is from; validation metrics are grouped by it.
        data_source: Option<String> = None, NotEmpty;
        /// Column with the images of a row: a path, an object with `path` or `bytes`, or a list of those.
        /// Rows may be without it. Null: `images` or `image`, where there is one.
        images: Option<String> = None, NotEmpty;
        /// Column with the class of a row's task, such as `math` (verl's `ability`).
        ability: Option<String> = None, NotEmpty;
        /// Column with an object of further fields, handed to rewards.
        extra_info: Option<String> = None, NotEmpty;
    }
}

settings! {
    /// A curriculum: the order of the training prompts within an epoch.
    pub struct CurriculumConfig {
        /// Column of numbers by which prompts are put in order, the smallest first; dots lead into objects.
        column: String, NotEmpty;
        /// The largest number first.
        descending: bool = false;
        /// Parts of equal size that the order is cut into; within a part prompts come in the order that they
        /// have without a curriculum. Null: prompts of the same number are a part.
        bands: Option<usize> = None, AtLeast(2.0);
        /// Epochs that follow the curriculum; later ones are as without it. Null: all.
        epochs: Option<usize> = None, AtLeast(1.0);
    }
}

settings! {
    /// Where prompts come from and how many are drawn.
    pub struct DataConfig {
        /// A built-in task. Null: the prompts of the files alone.
        task: Option<TaskKind> = None;
        /// Options of the task `arithmetic`.
        arithmetic: ArithmeticSettings = ArithmeticSettings::default();
        /// Training data: JSONL or Parquet files, or splits of data sets on a hub
        /// (`openai/gsm8k:main/train`), one or a list. A name on a hub is `owner/name`, then `@REVISION`
        /// where one is wanted, then `:SPLIT` or `:CONFIGURATION/SPLIT`; without them it is the split `train`
        /// of the only configuration, or of the default one. A path where something is goes before a name;
        /// `hf://` before a name makes it one in any case. What is not in the cache of the hub's own library
        /// is downloaded into it, and the commit is written into the run's `config.yaml`.
        train: DataSources = DataSources::default();
        /// Validation data, as `train`; a name on a hub without a split is its `validation`, or else its
        /// `test`.
        val: DataSources = DataSources::default(), Any, Free;
        /// Share of the training prompts that are held out for validation instead of `val`, below 1. Which
        /// they are follows from their texts: it is the same in every run, for every seed and order of the
        /// rows, and rows of one text stay together. Null: none.
        val_fraction: Option<f64> = None, Probability;
        /// Groups (prompts) that one training step trains on.
        train_batch_size: usize = 64, Between(1.0, 1e6);
        /// Prompts of one generation round. Null: `train_batch_size`.
        gen_batch_size: Option<usize> = None, Between(1.0, 1e6);
        /// Longest prompt, in tokens.
        max_prompt_length: usize = 512, AtLeast(1.0);
        /// Treatment of prompts longer than `max_prompt_length`. Rewards always see the uncut prompt.
        overlong_prompts: OverlongPrompts = OverlongPrompts::Error;
        /// Treatment of a row that does not parse.
        bad_rows: BadRows = BadRows::Error;
        /// Treatment of Parquet columns of bytes that are not UTF-8 (images, for example). Prompt, ground
        /// truth and data source must be text.
        binary_columns: BinaryColumns = BinaryColumns::Error;
        /// Shuffle the prompts anew in every epoch, by `run.seed`.
        shuffle: bool = true;
        /// The order of prompts by a column of theirs. Null: none but that of `shuffle`.
        curriculum: Option<CurriculumConfig> = None;
        /// Treatment, before training, of a verifier that rejects its own gold answer.
        check_gold: GoldCheck = GoldCheck::Warn, Any, Free;
        /// Images of the data's rows go to the model: to one that sees (Qwen2-VL, Qwen2.5-VL), with a learner
        /// in PyTorch and vLLM. False: columns of images are columns like any other.
        images: bool = true;
        /// Folder that relative paths of images start from. Null: that of the data's file.
        image_folder: Option<PathBuf> = None, NotEmpty;
        /// Names of the data's columns, where they are not those of a known layout.
        columns: ColumnsConfig = ColumnsConfig::default();
        /// Which prompts go through the model's chat template. The first prompt is printed at the start of
        /// every run, as the model gets it.
        prompt_format: PromptFormat = PromptFormat::Auto;
        /// A system message for every conversation without one. A run whose prompts stay text refuses it.
        system_prompt: Option<String> = None, NotEmpty;
        /// Jinja file that is put around every text prompt, which it names `content` (EasyR1's
        /// `data.format_prompt`). It is applied before the chat template, and rewards see its result.
        prompt_template: Option<PathBuf> = None, NotEmpty;
        /// Further variables for the chat template, such as `enable_thinking: false`.
        chat_template_kwargs: FreeMap = FreeMap::default();
    }
}

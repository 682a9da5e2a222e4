//! `data`: source of the prompts, and how many are drawn.

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
    /// What happens if a verifier rejects the gold answer of a row. Every gold answer is scored before
    /// training.
    pub enum GoldCheck {
        /// A warning names the rows. The run stops if a verifier of tamis accepts none, if a function of
        /// yours fails on all, or if no row has one.
        Warn = "warn",
        /// The run stops and names the rows.
        Error = "error",
        /// Gold answers are not scored.
        Off = "off",
    }
}

settings! {
    /// Names of the data's columns. A dot separates the levels of a nested column
    /// (`reward_model.ground_truth`). Null: found by the layout, which is that of verl (`prompt`,
    /// `data_source`, `ability`, `reward_model.ground_truth`, `extra_info`), that of TRL (`prompt` and any
    /// others), or plain `question` and `answer`.
    pub struct ColumnsConfig {
        /// Column with the prompt: text, or a list of chat messages.
        prompt: Option<String> = None, NotEmpty;
        /// Column with the answer that rewards compare completions with.
        ground_truth: Option<String> = None, NotEmpty;
        /// Column with the name of the row's data set. Validation metrics are grouped by it.
        data_source: Option<String> = None, NotEmpty;
        /// Column with the images of a row: a path, an object with `path` or `bytes`, or a list of those.
        /// Rows without images are allowed. Null: `images` or `image`, if the data has one of them.
        images: Option<String> = None, NotEmpty;
        /// Column with the class of a row's task, such as `math` (verl's `ability`).
        ability: Option<String> = None, NotEmpty;
        /// Column with an object of further fields for rewards.
        extra_info: Option<String> = None, NotEmpty;
    }
}

settings! {
    /// A curriculum: the order of the training prompts within an epoch.
    pub struct CurriculumConfig {
        /// Column of numbers by which prompts are sorted, smallest first. Dots separate the levels of a
        /// nested column.
        column: String, NotEmpty;
        /// Sort the largest number first.
        descending: bool = false;
        /// Number of parts of equal size that the sorted prompts are cut into. Within a part, prompts keep
        /// the order that they have without a curriculum. Null: prompts with the same number are a part.
        bands: Option<usize> = None, AtLeast(2.0);
        /// Number of epochs that follow the curriculum. Later epochs do not use it. Null: all epochs follow
        /// it.
        epochs: Option<usize> = None, AtLeast(1.0);
    }
}

settings! {
    /// Source of the prompts, and how many are drawn.
    pub struct DataConfig {
        /// A built-in task. Null: none; the prompts are those of the files.
        task: Option<TaskKind> = None;
        /// Options of the task `arithmetic`.
        arithmetic: ArithmeticSettings = ArithmeticSettings::default();
        /// Training data: JSONL or Parquet files, or splits of data sets on a hub
        /// (`openai/gsm8k:main/train`), one or a list. A name on a hub is `owner/name`, then optionally
        /// `@REVISION`, then optionally `:SPLIT` or `:CONFIGURATION/SPLIT`. Without these it is the split
        /// `train` of the only configuration, or of the default one. A text that is both an existing path and
        /// a name is taken as the path; `hf://` in front makes it a name. Missing files are downloaded into
        /// the cache of the hub's own library, and the commit is written to the run's `config.yaml`.
        train: DataSources = DataSources::default();
        /// Validation data, in the same form as `train`. A name on a hub without a split means its split
        /// `validation`, or `test` if there is no `validation`.
        val: DataSources = DataSources::default(), Any, Free;
        /// Share of the training prompts, below 1, that is held out for validation instead of `val`. The
        /// texts decide which prompts are held out, so the choice is the same for every seed and order of the
        /// rows, and rows with the same text stay together. Null: none.
        val_fraction: Option<f64> = None, Probability;
        /// Groups (prompts) that one training step trains on.
        train_batch_size: usize = 64, Between(1.0, 1e6);
        /// Prompts of one generation round. Null: `train_batch_size`.
        gen_batch_size: Option<usize> = None, Between(1.0, 1e6);
        /// Longest prompt, in tokens.
        max_prompt_length: usize = 512, AtLeast(1.0);
        /// Action for prompts longer than `max_prompt_length`. Rewards always see the uncut prompt.
        overlong_prompts: OverlongPrompts = OverlongPrompts::Error;
        /// Action for a row that cannot be parsed.
        bad_rows: BadRows = BadRows::Error;
        /// Action for Parquet columns of bytes that are not UTF-8, such as images. Prompt, ground truth and
        /// data source must be text.
        binary_columns: BinaryColumns = BinaryColumns::Error;
        /// Shuffle the prompts again in every epoch, by `run.seed`.
        shuffle: bool = true;
        /// Order of the prompts by a column of the data. Null: only `shuffle` sets the order.
        curriculum: Option<CurriculumConfig> = None;
        /// Action if a verifier rejects a gold answer. All are scored before training.
        check_gold: GoldCheck = GoldCheck::Warn, Any, Free;
        /// Pass the images of the data's rows to the model. This needs a vision-language model (Qwen2-VL,
        /// Qwen2.5-VL), a learner in PyTorch, and vLLM. False: columns of images are ordinary columns.
        images: bool = true;
        /// Folder that relative paths of images start from. Null: the folder of the data file.
        image_folder: Option<PathBuf> = None, NotEmpty;
        /// Names of the data's columns, if they are not those of a known layout.
        columns: ColumnsConfig = ColumnsConfig::default();
        /// Which prompts go through the model's chat template. Every run prints its first prompt at the
        /// start, as the model gets it.
        prompt_format: PromptFormat = PromptFormat::Auto;
        /// System message for every conversation without one. It is refused if prompts stay plain text.
        system_prompt: Option<String> = None, NotEmpty;
        /// Jinja file that wraps every text prompt. The prompt is its variable `content` (EasyR1's
        /// `data.format_prompt`). It is applied before the chat template, and rewards see its result.
        prompt_template: Option<PathBuf> = None, NotEmpty;
        /// Further variables for the chat template, such as `enable_thinking: false`.
        chat_template_kwargs: FreeMap = FreeMap::default();
    }
}

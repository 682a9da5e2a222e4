//! The keys of `judge`.

use serde_json::{Map, Value as Json};
use tamis_core::setting::TimeSpan;

tamis_core::settings! {
    /// Settings of a judge: its address, its prompt, and how its score is read.
    pub struct JudgeSettings {
        /// Addresses of servers, `http://HOST:PORT` or `https://HOST`; requests go to them in turn.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Name of the judge's model at the servers. Null: the first model that a server lists.
        model: Option<String> = None, NotEmpty;
        /// Message to the judge: a template in which `{prompt}`, `{completion}`, `{ground_truth}`,
        /// `{data_source}` and `{COLUMN}` (a column of the data) are replaced.
        prompt: String = String::new(), NotEmpty;
        /// System message to the judge. Null: none.
        system: Option<String> = None, NotEmpty;
        /// Regular expression that finds the score in the judge's answer: the first group of the last match,
        /// or the whole match. By default the last number.
        pattern: String = r"-?[0-9]+(?:\.[0-9]+)?".to_owned(), NotEmpty;
        /// Scores of verdicts in words: `{yes: 1, no: 0}`. Case is ignored.
        verdicts: Map<String, Json> = Map::new();
        /// Smallest number that counts as a score. A smaller answer is no score. Null: no lower bound.
        min_score: Option<f64> = None;
        /// Largest number that counts as a score. A larger answer is no score. Null: no upper bound.
        max_score: Option<f64> = None;
        /// Lowest score of a right completion, which sets `acc`. Null: the judge gives no `acc`.
        pass_score: Option<f64> = None;
        /// Sampling temperature of the judge.
        temperature: f64 = 0.0, NonNegative;
        /// Longest answer of the judge, in tokens.
        max_tokens: usize = 1024, AtLeast(1.0);
        /// Further parameters of the request by the server's names; null removes one that tamis sends
        /// (`{max_tokens: null, max_completion_tokens: 1024}`).
        parameters: Map<String, Json> = Map::new();
        /// Environment variable with the servers' API key.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Longest time of one answer.
        timeout: TimeSpan = TimeSpan::seconds(120), Any, Free;
        /// Most attempts for one completion if servers are busy or do not answer.
        max_attempts: usize = 5, Between(1.0, 100.0), Free;
        /// Number of completions judged at once.
        concurrency: usize = 16, Between(1.0, 1024.0), Free;
        /// Longest time until servers answer at the start of a run.
        startup_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

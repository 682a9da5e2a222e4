//! The keys of `judge`.

use serde_json::{Map, Value as Json};
use tamis_core::setting::TimeSpan;

tamis_core::settings! {
    /// Settings of a judge: its address, its prompt, and the reading of its score.
    pub struct JudgeSettings {
        /// Addresses of servers, `http://HOST:PORT` or `https://HOST`; they are asked in turn.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Name of the judge's model at the servers. Null: the first that a server has.
        model: Option<String> = None, NotEmpty;
        /// Message to the judge: a text in which `{prompt}`, `{completion}`, `{ground_truth}`,
        /// `{data_source}` and `{COLUMN}` of the data are filled in.
        prompt: String = String::new(), NotEmpty;
        /// System message to the judge. Null: none.
        system: Option<String> = None, NotEmpty;
        /// Regular expression that finds the score in the judge's answer: the first group of the last match,
        /// or the whole match. By default the last number.
        pattern: String = r"-?[0-9]+(?:\.[0-9]+)?".to_owned(), NotEmpty;
        /// Scores of verdicts in words: `{yes: 1, no: 0}`. Case is ignored.
        verdicts: Map<String, Json> = Map::new();
        /// Smallest number that counts as a score; the judge's answer is no score below. Null: any.
        min_score: Option<f64> = None;
        /// Largest number that counts as a score; the judge's answer is no score above. Null: any.
        max_score: Option<f64> = None;
        /// Score from which on a completion is right (`acc`). Null: the judge gives no `acc`.
        pass_score: Option<f64> = None;
        /// Sampling temperature of the judge.
        temperature: f64 = 0.0, NonNegative;
        /// Longest answer of the judge, in tokens.
        max_tokens: usize = 1024, AtLeast(1.0);
        /// Further parameters of the request by the server's names; null removes one that tamis sends
        /// (`{max_tokens: null, max_completion_tokens: 1024}`).
        parameters: Map<String, Json> = Map::new();
        /// Environment variable with the servers' key.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Longest time of one answer.
        timeout: TimeSpan = TimeSpan::seconds(120), Any, Free;
        /// Most attempts for one completion where servers are busy or do not answer.
        max_attempts: usize = 5, Between(1.0, 100.0), Free;
        /// Number of completions judged at once.
        concurrency: usize = 16, Between(1.0, 1024.0), Free;
        /// Longest time that servers may take to answer at the start of a run.
        startup_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
    }
}

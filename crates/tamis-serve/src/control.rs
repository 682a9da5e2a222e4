//! Routes that control the server: pauses, aborts, new weights. They need the key; without a key, the server
//! only listens on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tamis_model::{Model, TransformerConfig};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::Fields;
use tamis_rollout::api::json::Document;
use tamis_rollout::api::off_thread;
use tokio::sync::oneshot;

use crate::engine::{EngineCommand, PauseMode};
use crate::running::broken_error;
use crate::{App, Reply};

/// Sends a command to the worker and waits for the answer.
async fn ask<T>(app: &App, command: impl FnOnce(oneshot::Sender<T>) -> EngineCommand) -> Result<T, ApiError> {
    let (done, answer) = oneshot::channel();
    app.commands.send(command(done)).map_err(|_| broken_error())?;
    answer.await.map_err(|_| broken_error())
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find(|pair| pair.0 == name).map(|pair| pair.1)
}

fn flag(query: &str, name: &str, default: bool) -> Result<bool, ApiError> {
    match parameter(query, name).map(str::to_ascii_lowercase).as_deref() {
        None => Ok(default),
        Some("true" | "1" | "yes" | "on") => Ok(true),
        Some("false" | "0" | "no" | "off") => Ok(false),
        Some(other) => {
            let name = format!("query.{name}");
            Err(ApiError::field(&name, format!("`{name}` must be true or false, got `{other}`")))
        }
    }
}

pub(crate) async fn pause(app: &App, query: &str) -> Result<Reply, ApiError> {
    let mode = match parameter(query, "mode") {
        None | Some("abort") => PauseMode::Abort,
        Some("wait") => PauseMode::Wait,
        Some("keep") => PauseMode::Keep,
        Some(other) => {
            let message = format!("Input should be 'abort', 'wait' or 'keep', got '{other}'");
            return Err(ApiError::field("query.mode", message));
        }
    };
    let clears_cache = flag(query, "clear_cache", true)?;
    ask(app, |done| EngineCommand::Pause { mode, clears_cache, done }).await?;
    Ok(Reply::Json(json!({"status": "paused"})))
}

pub(crate) async fn resume(app: &App) -> Result<Reply, ApiError> {
    ask(app, |done| EngineCommand::Resume { done }).await?;
    Ok(Reply::Json(json!({"status": "resumed"})))
}

pub(crate) async fn reset_prefix_cache(app: &App, query: &str) -> Result<Reply, ApiError> {
    let running = flag(query, "reset_running_requests", false)?;
    let success = ask(app, |done| EngineCommand::ResetCache { running, done }).await?;
    Ok(Reply::Json(json!({"success": success})))
}

/// Aborts requests by their prefixed ids. With `may_mean_all`, an empty list means all. As in vLLM, unknown
/// ids are no error.
pub(crate) async fn abort(app: &App, body: &Value, may_mean_all: bool) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    let ids = fields.texts("request_ids")?;
    if ids.is_empty() && !may_mean_all {
        return Err(ApiError::field("request_ids", "Missing 'request_ids' in request body"));
    }
    let sent = ids.len();
    let wanted = if ids.is_empty() { None } else { Some(ids.into_iter().collect()) };
    let is_all = wanted.is_none();
    let found = ask(app, |done| EngineCommand::Abort { ids: wanted, done }).await?;
    if !may_mean_all {
        return Ok(Reply::Empty);
    }
    Ok(Reply::Json(json!({"status": "aborted", "aborted": if is_all { found } else { sent }})))
}

pub(crate) fn weight_info(app: &App) -> Value {
    json!({
        "weight_version": app.metrics.version().as_ref(),
        "weights_path": app.folder().display().to_string(),
        "num_reloads": app.metrics.reloads.load(Ordering::Relaxed),
    })
}

pub(crate) async fn update_weight_version(app: &App, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    let Some(version) = fields.text("new_version")? else {
        return Err(ApiError::field("new_version", "Missing 'new_version' in request body"));
    };
    ask(app, |done| EngineCommand::SetVersion { version: version.into(), done }).await?;
    Ok(Reply::Json(json!({"success": true, "new_version": version})))
}

pub(crate) async fn collective_rpc(app: &Arc<App>, body: Document) -> Result<Reply, ApiError> {
    let fields = Fields::of(&body.value)?;
    let Some(method) = fields.text("method")? else {
        return Err(ApiError::field("method", "Missing 'method' in request body"));
    };
    if method != "reload_weights" {
        return Err(ApiError::internal(format!(
            "Call to collective_rpc method failed: there is no method {method:?}; this server has `reload_weights`"
        )));
    }
    let kwargs = fields.object("kwargs", "kwargs.")?;
    let named = kwargs.map_or(Ok(None), |kwargs| kwargs.text("weights_path"))?;
    let first = fields.list("args")?.and_then(|args| args.first());
    let path = named.or_else(|| first.and_then(Value::as_str)).map(PathBuf::from);
    drop(body);
    reload(app, path).await?;
    Ok(Reply::Json(json!({"results": [null]})))
}

/// Loads weights from a folder (by default the last one) and checks them, while the old weights are still in
/// use. Then switches.
async fn reload(app: &Arc<App>, path: Option<PathBuf>) -> Result<(), ApiError> {
    // Only one reload at a time, so that the last one requested is the last one installed.
    let _guard = app.reloading.lock().await;
    let path = path.unwrap_or_else(|| app.folder().clone());
    let (asked, loader) = (path.clone(), app.clone());
    let model = off_thread(move || load(&loader, &asked)).await?.map_err(|problem| {
        let message =
            format!("the weights in {} cannot be used: {problem}; the old ones stay", path.display());
        ApiError::field("weights_path", message)
    })?;
    ask(app, |done| EngineCommand::Install { model: Box::new(model), done }).await?;
    *app.folder() = path;
    Ok(())
}

fn load(app: &App, path: &Path) -> Result<Model, String> {
    if !path.is_dir() {
        return Err("there is no such folder".to_owned());
    }
    let model = (app.load)(path)?;
    match difference(&app.model, model.config()) {
        Some(difference) => Err(difference),
        None => Ok(model),
    }
}

/// The first difference between two models in a size that the engine's buffers depend on.
fn difference(old: &TransformerConfig, new: &TransformerConfig) -> Option<String> {
    let sizes = |config: &TransformerConfig| {
        [
            ("vocab_size", config.vocab_size),
            ("hidden_size", config.hidden_size),
            ("intermediate_size", config.intermediate_size),
            ("num_hidden_layers", config.num_layers),
            ("num_attention_heads", config.num_heads),
            ("num_key_value_heads", config.num_kv_heads),
            ("head_dim", config.head_dim),
            ("max_position_embeddings", config.max_position_embeddings),
        ]
    };
    let mut pairs = sizes(old).into_iter().zip(sizes(new));
    if let Some(((name, old), (_, new))) = pairs.find(|(old, new)| old.1 != new.1) {
        return Some(format!("its {name} is {new}, that of the model served {old}"));
    }
    let rest =
        |config: &TransformerConfig| (config.architecture, config.rope_theta.to_bits(), config.rope_scaling);
    (rest(old) != rest(new))
        .then(|| "its architecture or its rotary frequencies are not those of the model served".to_owned())
}

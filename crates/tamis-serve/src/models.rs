//! The models of a server, each with an engine of its own. A request is answered by the model that it names;
//! without a name, by the first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::Fields;

use crate::engine::EngineCommand;
use crate::metrics::{self, ServeMetrics};
use crate::{App, Fault, ServeSettings, ServedPolicy};

/// At least one model.
pub(crate) struct Models {
    first: Arc<App>,
    others: Vec<Arc<App>>,
}

impl Models {
    /// Starts an engine for each policy. Each may cache as much as fits into its share of the memory.
    pub(crate) fn begin(
        policies: Vec<ServedPolicy>,
        settings: &ServeSettings,
    ) -> Result<(Self, Vec<JoinHandle<()>>), Fault> {
        let share = policies.len();
        let mut apps: Vec<Arc<App>> = Vec::with_capacity(share);
        let mut workers = Vec::with_capacity(share);
        for policy in policies {
            if apps.iter().any(|app| app.name == policy.name) {
                return Err(Fault::two_of_one_name(&policy.name));
            }
            let (app, worker) = App::begin(policy, settings.clone(), share)?;
            apps.push(app);
            workers.push(worker);
        }
        let mut apps = apps.into_iter();
        let first = apps.next().ok_or_else(Fault::no_model)?;
        Ok((Self { first, others: apps.collect() }, workers))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<App>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The first model, for what is the same of all.
    pub(crate) fn first(&self) -> &Arc<App> {
        &self.first
    }

    /// The model that a request names. A request without a model gets the first.
    pub(crate) fn named_in(&self, body: &Value) -> Result<&Arc<App>, ApiError> {
        let Some(name) = Fields::of(body)?.text("model")? else { return Ok(&self.first) };
        self.all().find(|app| app.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.all().map(|app| app.name.as_str()).collect();
            ApiError::no_model(name, &names.join(", "))
        })
    }

    /// The only model, for routes that control an engine and name none.
    pub(crate) fn only(&self) -> Result<&Arc<App>, ApiError> {
        if self.others.is_empty() {
            return Ok(&self.first);
        }
        Err(ApiError::bad(
            "this server has several models, and this route names none: pauses, aborts and new weights are for a server of \
             one model",
        ))
    }

    /// Answers running requests with what they have, and ends the engines.
    pub(crate) fn stop(&self) {
        for app in self.all() {
            app.metrics.is_stopping.store(true, Ordering::SeqCst);
            let _ = app.commands.send(EngineCommand::Stop);
        }
    }

    /// The answer of `/v1/models`.
    pub(crate) fn list(&self) -> Value {
        let model = |app: &Arc<App>| {
            json!({
                "id": app.name,
                "object": "model",
                "created": app.created,
                "owned_by": "tamis",
                "root": app.folder().display().to_string(),
                "parent": null,
                "max_model_len": app.max_model_len(),
                "has_chat_template": app.template.is_some(),
                "permission": [],
            })
        };
        json!({"object": "list", "data": self.all().map(model).collect::<Vec<_>>()})
    }

    /// The text of `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let all: Vec<(&str, &ServeMetrics)> =
            self.all().map(|app| (app.name.as_str(), &*app.metrics)).collect();
        metrics::text(&all)
    }

    /// Accepted samples of all models that have not ended.
    pub(crate) fn num_in_flight(&self) -> usize {
        self.all().map(|app| app.metrics.num_in_flight()).sum()
    }
}

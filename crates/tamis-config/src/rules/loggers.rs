//! Rules about the loggers that metrics are written to.

use super::Checker;
use crate::schema::LoggerKind;

impl Checker<'_> {
    pub(super) fn loggers(&mut self) {
        let loggers = &self.config.run.loggers;
        for (place, logger) in loggers.iter().enumerate() {
            let key = format!("run.loggers[{place}]");
            if loggers.iter().take(place).any(|earlier| earlier.as_str() == logger.as_str()) {
                let message = format!("`run.loggers` names `{logger}` twice");
                self.error(&[&key], message, "remove one of them");
            }
            match logger {
                LoggerKind::Prometheus(settings) if !is_address(&settings.address) => {
                    let message = format!("`{key}.address` is not an address: `{}`", settings.address);
                    let hint =
                        "write `HOST:PORT`, such as `127.0.0.1:9464`, or `0.0.0.0:9464` for other machines";
                    self.error(&[&format!("{key}.address"), &key], message, hint);
                }
                LoggerKind::Otlp(settings)
                    if settings.endpoint.strip_prefix("http://").is_none_or(str::is_empty) =>
                {
                    let message = format!("`{key}.endpoint` is not an HTTP address: `{}`", settings.endpoint);
                    let hint = "write `http://HOST:PORT/v1/traces`; for TLS, let a collector on this machine forward the spans";
                    self.error(&[&format!("{key}.endpoint"), &key], message, hint);
                }
                _ => {}
            }
            let (name, address, instead) = match logger {
                LoggerKind::Mlflow(settings) => (
                    "tracking_uri",
                    settings.tracking_uri.as_deref(),
                    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, or the whole address as \
                    MLFLOW_TRACKING_URI",
                ),
                LoggerKind::Otlp(settings) => {
                    ("endpoint", Some(settings.endpoint.as_str()), "a collector on this machine needs none")
                }
                _ => continue,
            };
            if address.is_some_and(has_password) {
                let path = format!("{key}.{name}");
                let message = format!(
                    "`{path}` contains a user name or a password, which would end up in the files of the run"
                );
                self.error(&[&path, &key], message, instead);
            }
        }
    }
}

/// Whether an address names a user, as in `https://USER:PASSWORD@HOST`.
fn has_password(address: &str) -> bool {
    let after = address.split_once("://").map(|(_, after)| after);
    after.is_some_and(|after| after.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@')))
}

/// Whether a text is `HOST:PORT`.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

//! Rules about the places that metrics are written to.

use super::Checker;
use crate::schema::LoggerKind;

impl Checker<'_> {
    pub(super) fn loggers(&mut self) {
        let loggers = &self.config.run.loggers;
        for (place, logger) in loggers.iter().enumerate() {
            let key = format!("run.loggers[{place}]");
            if loggers.iter().take(place).any(|earlier| earlier.as_str() == logger.as_str()) {
                let message = format!("`run.loggers` names `{logger}` twice");
                self.error(&[&key], message, "take one of them out");
            }
            match logger {
                LoggerKind::Prometheus(settings) if !is_address(&settings.address) => {
                    let message = format!("`{key}.address` is no address: `{}`", settings.address);
                    let hint =
                        "write `HOST:PORT`, such as `127.0.0.1:9464`, or `0.0.0.0:9464` for other machines";
                    self.error(&[&format!("{key}.address"), &key], message, hint);
                }
                LoggerKind::Otlp(settings)
                    if settings.endpoint.strip_prefix("http://").is_none_or(str::is_empty) =>
                {
                    let message = format!("`{key}.endpoint` is no address of HTTP: `{}`", settings.endpoint);
                    let hint =
                        "write `http://HOST:PORT/v1/traces`; a collector on this machine sends on with TLS";
                    self.error(&[&format!("{key}.endpoint"), &key], message, hint);
                }
                _ => {}
            }
        }
    }
}

/// Whether a text is `HOST:PORT`.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

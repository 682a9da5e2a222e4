//! Layered configuration of tamis: YAML with positions, overrides, validation, schema, import.

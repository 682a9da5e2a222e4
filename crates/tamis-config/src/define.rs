//! The macros in which the configuration's own keys are written once: `section!` for a group of keys,
//! `kinded!` for a group that depends on its `kind`. From one definition come the plain Rust struct, the
//! reader, and the entry in the table from which defaults, schema, reference page and `explain` are
//! generated. Named values are defined with [`tamis_core::choice`].

/// Defines a section: a plain struct whose fields are configuration keys.
///
/// A field reads `name: Type = "default in YAML", check, resume;` where *check* is a
/// [`tamis_core::setting::Check`] and *resume* says whether the key may differ when a run is resumed (`Free`)
/// or not (`Fixed`). `name("key"): ...` gives the key another name than the field, for keys that are Rust
/// keywords.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $(($key:literal))? : $ty:ty = $default:literal, $check:expr, $resume:ident;
            )*
        }
    ) => {
        $(#[doc = $section_doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(
                $(#[doc = $doc])*
                pub $field: $ty,
            )*
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::reader::Setting::to_json(self).serialize(serializer)
            }
        }

        impl $crate::reader::Setting for $name {
            fn shape() -> tamis_core::setting::Shape {
                #[allow(unused_imports, clippy::enum_glob_use, reason = "checks are written without their type")]
                use tamis_core::setting::Check::*;
                tamis_core::setting::Shape::Section {
                    doc: concat!($($section_doc, "\n"),*),
                    keys: vec![$(
                        tamis_core::setting::KeySpec {
                            name: section!(@key $field $(, $key)?),
                            doc: concat!($($doc, "\n"),*),
                            default: $default.into(),
                            check: $check,
                            resume: tamis_core::setting::Resume::$resume,
                            shape: <$ty as $crate::reader::Setting>::shape,
                        },
                    )*],
                }
            }

            fn to_json(&self) -> serde_json::Value {
                let mut object = serde_json::Map::new();
                $(
                    object.insert(
                        section!(@key $field $(, $key)?).to_owned(),
                        $crate::reader::Setting::to_json(&self.$field),
                    );
                )*
                serde_json::Value::Object(object)
            }

            fn read(node: &$crate::tree::Node, path: &str, reader: &mut $crate::reader::Reader) -> Option<Self> {
                #[allow(unused_imports, clippy::enum_glob_use, reason = "checks are written without their type")]
                use tamis_core::setting::Check::*;
                let known: &[&'static str] = &[$(section!(@key $field $(, $key)?)),*];
                let section = reader.open(node, path, known)?;
                $(
                    let $field = reader.key::<$ty>(section, path, section!(@key $field $(, $key)?), $default, $check);
                )*
                Some(Self { $($field: $field?,)* })
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident, $key:literal) => { $key };
}

/// Defines a section of which `kind` decides what keys it has: those of a tagged enum that its owner
/// describes, and some of its own that all kinds have.
macro_rules! kinded {
    (
        $(#[doc = $section_doc:literal])*
        pub struct $name:ident {
            $(#[doc = $kind_doc:literal])*
            kind: $kind:ty;
            $(
                $(#[doc = $doc:literal])*
                $field:ident : $ty:ty = $default:literal, $check:expr, $resume:ident;
            )*
        }
    ) => {
        $(#[doc = $section_doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(#[doc = $kind_doc])*
            pub kind: $kind,
            $(
                $(#[doc = $doc])*
                pub $field: $ty,
            )*
        }

        impl $crate::reader::Setting for $name {
            fn shape() -> tamis_core::setting::Shape {
                #[allow(unused_imports, clippy::enum_glob_use, reason = "checks are written without their type")]
                use tamis_core::setting::Check::*;
                let mut shape = <$kind as tamis_core::setting::Described>::shape();
                if let tamis_core::setting::Shape::Tagged { doc, common, .. } = &mut shape {
                    *doc = concat!($($section_doc, "\n"),*);
                    $(
                        common.push(tamis_core::setting::KeySpec {
                            name: stringify!($field),
                            doc: concat!($($doc, "\n"),*),
                            default: $default.into(),
                            check: $check,
                            resume: tamis_core::setting::Resume::$resume,
                            shape: <$ty as $crate::reader::Setting>::shape,
                        });
                    )*
                }
                shape
            }

            fn to_json(&self) -> serde_json::Value {
                let mut json = serde_json::to_value(&self.kind).unwrap_or_default();
                if let serde_json::Value::Object(object) = &mut json {
                    $( object.insert(stringify!($field).to_owned(), $crate::reader::Setting::to_json(&self.$field)); )*
                }
                json
            }

            fn read(node: &$crate::tree::Node, path: &str, reader: &mut $crate::reader::Reader) -> Option<Self> {
                #[allow(unused_imports, clippy::enum_glob_use, reason = "checks are written without their type")]
                use tamis_core::setting::Check::*;
                let shape = Self::shape();
                let variant = reader.open_kind(node, path, &shape)?;
                $(
                    let $field = reader.key::<$ty>(node, path, stringify!($field), $default, $check);
                )*
                let kind = reader.kind::<$kind>(node, path, variant);
                Some(Self { kind: kind?, $($field: $field?,)* })
            }
        }
    };
}

pub(crate) use {kinded, section};

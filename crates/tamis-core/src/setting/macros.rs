//! The macros that define configuration keys. Each key is written once.

/// Defines named values: an enum, its texts, and their documentation. The first value is the type's
/// `Default`.
///
/// ```
/// tamis_core::choice! {
///     /// What happens to a group of one trajectory.
///     pub enum Lonely {
///         /// Kept.
///         Keep = "keep",
///         /// Dropped.
///         Drop = "drop",
///     }
/// }
/// assert_eq!(Lonely::Drop.as_str(), "drop");
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident {
            $( $(#[doc = $value_doc:literal])* $value:ident = $text:literal, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $( $(#[doc = $value_doc])* #[serde(rename = $text)] $value, )*
        }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];

            /// The value as a configuration writes it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)* }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.as_str())
            }
        }

        impl $crate::setting::Described for $name {
            fn shape() -> $crate::setting::Shape {
                $crate::setting::Shape::Choice(vec![$(($text, concat!($($value_doc, "\n"),*)),)*])
            }
        }
    };
}

/// Defines a struct whose fields are configuration keys.
/// A field reads `key: Type = default, check, resume;`: the default is a value of the type, the *check* a
/// [`Check`](crate::setting::Check), and *resume* is `Free` if the key may differ when a run is resumed.
/// Check and resume may be left out. A key without a default must be given; a struct without such keys has a
/// `Default`. `field("name"): ...` gives the key another name than its field, for keywords of Rust.
/// `..field: Type;` at the end adds the keys of another such struct, or `kind` and the keys of an enum of
/// [`tagged!`](crate::tagged). Write `..field: Type, named;` for an enum without a default kind.
///
/// ```
/// tamis_core::settings! {
///     /// Keeps a group whose rewards differ.
///     pub struct Differ {
///         /// Largest spread that still counts as uniform.
///         tolerance: f64 = 0.0, NonNegative;
///     }
/// }
/// assert_eq!(serde_json::to_string(&Differ::default()).expect("json"), r#"{"tolerance":0.0}"#);
/// ```
#[macro_export]
macro_rules! settings {
    // Every key has a default.
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        pub struct $name:ident {
            $( $(#[doc = $key_doc:literal])* $key:ident $(($name_of_key:literal))? : $type:ty = $default:expr $(, $check:expr $(, $resume:ident)?)?; )*
            $( ..$rest:ident : $rest_type:ty; )?
        }
    ) => {
        $crate::settings! {
            @define
            $(#[doc = $doc])*
            $(#[derive($($derive),*)])?
            pub struct $name {
                $( $(#[doc = $key_doc])* $key $(($name_of_key))? : $type = ($default) $(, $check $(, $resume)?)?; )*
                $( ..$rest : $rest_type; )?
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* $($rest: <$rest_type>::default(),)? }
            }
        }
    };
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        pub struct $name:ident {
            $( $(#[doc = $key_doc:literal])* $key:ident $(($name_of_key:literal))? : $type:ty $(= $default:expr)? $(, $check:expr $(, $resume:ident)?)?; )*
            $( ..$rest:ident : $rest_type:ty $(, $named:ident)?; )?
        }
    ) => {
        $crate::settings! {
            @define
            $(#[doc = $doc])*
            $(#[derive($($derive),*)])?
            pub struct $name {
                $( $(#[doc = $key_doc])* $key $(($name_of_key))? : $type $(= ($default))? $(, $check $(, $resume)?)?; )*
                $( ..$rest : $rest_type; )?
            }
        }
    };
    (
        @define
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        pub struct $name:ident {
            $( $(#[doc = $key_doc:literal])* $key:ident $(($name_of_key:literal))? : $type:ty $(= ($default:expr))? $(, $check:expr $(, $resume:ident)?)?; )*
            $( ..$rest:ident : $rest_type:ty; )?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq)]
        $(#[derive($($derive),*)])?
        pub struct $name {
            $( $(#[doc = $key_doc])* pub $key: $type, )*
            $(
                /// The keys that it shares with others of its family.
                pub $rest: $rest_type,
            )?
        }

        impl $crate::setting::Settings for $name {
            fn write_keys<M: serde::ser::SerializeMap>(&self, _keys: &mut M) -> Result<(), M::Error> {
                $( if <$rest_type as $crate::setting::Settings>::LEADS { self.$rest.write_keys(_keys)?; } )?
                $( _keys.serialize_entry($crate::settings!(@name $key $($name_of_key)?), &self.$key)?; )*
                $( if !<$rest_type as $crate::setting::Settings>::LEADS { self.$rest.write_keys(_keys)?; } )?
                Ok(())
            }

            fn take_keys(_keys: &mut $crate::setting::Keys) -> Result<Self, String> {
                Ok(Self {
                    $( $key: $crate::settings!(@take _keys, ($crate::settings!(@name $key $($name_of_key)?)) $(, $default)?), )*
                    $( $rest: <$rest_type as $crate::setting::Settings>::take_keys(_keys)?, )?
                })
            }
        }

        impl $crate::setting::Ranged for $name {
            fn check_ranges(&self) -> Result<(), $crate::setting::OutOfRange> {
                #[allow(unused_imports, clippy::enum_glob_use, reason = "checks are written without their type")]
                use $crate::setting::Check::*;
                $( $crate::setting::check_range($crate::settings!(@name $key $($name_of_key)?), &self.$key, $crate::settings!(@check $($check)?))?; )*
                $( self.$rest.check_ranges()?; )?
                Ok(())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut keys = serializer.serialize_map(None)?;
                $crate::setting::Settings::write_keys(self, &mut keys)?;
                serde::ser::SerializeMap::end(keys)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let keys = $crate::setting::Keys::deserialize(deserializer)?;
                $crate::setting::of_keys(keys).map_err(serde::de::Error::custom)
            }
        }

        impl $crate::setting::Described for $name {
            fn shape() -> $crate::setting::Shape {
                #[allow(unused_imports, clippy::enum_glob_use, reason = "checks are written without their type")]
                use $crate::setting::Check::*;
                // Built once: the text of a default is its serialised form.
                static SHAPE: std::sync::OnceLock<$crate::setting::Shape> = std::sync::OnceLock::new();
                let shape = SHAPE.get_or_init(|| {
                    let doc = concat!($($doc, "\n"),*);
                    let keys = vec![$(
                        $crate::setting::KeySpec {
                            name: $crate::settings!(@name $key $($name_of_key)?),
                            doc: concat!($($key_doc, "\n"),*),
                            default: $crate::settings!(@text $type $(, $default)?).into(),
                            check: $crate::settings!(@check $($check)?),
                            resume: $crate::settings!(@resume $($($resume)?)?),
                            shape: <$type as $crate::setting::Described>::shape,
                        },
                    )*];
                    $crate::settings!(@shape doc, keys $(, $rest_type)?)
                });
                shape.clone()
            }
        }
    };
    (@name $key:ident) => { stringify!($key) };
    (@name $key:ident $name:literal) => { $name };
    (@shape $doc:ident, $keys:ident) => { $crate::setting::Shape::Section { doc: $doc, keys: $keys } };
    (@shape $doc:ident, $keys:ident, $rest:ty) => {
        $crate::setting::taking_in($doc, $keys, <$rest as $crate::setting::Described>::shape())
    };
    (@text $type:ty) => { "" };
    (@text $type:ty, $default:expr) => {{
        let default: $type = $default;
        // Once in a process, like a text of the source.
        &*$crate::setting::default_of(&default, stringify!($default)).leak()
    }};
    (@take $keys:ident, ($name:expr)) => { $crate::setting::take_required($keys, $name)? };
    (@take $keys:ident, ($name:expr), $default:expr) => {
        $crate::setting::take_key($keys, $name)?.unwrap_or_else(|| $default)
    };
    (@resume) => { $crate::setting::Resume::Fixed };
    (@resume $resume:ident) => { $crate::setting::Resume::$resume };
    (@check) => { $crate::setting::Check::Any };
    (@check $check:expr) => { $check };
}

/// Defines a tagged section: an enum over structs of [`settings!`](crate::settings), chosen by the key
/// `kind`.
///
/// One line registers a kind: `Variance(Variance) = "variance",`. The trait after the enum's name is
/// implemented by every kind, and the enum dereferences to it. `default Variance` is the kind that is used if
/// none is named (its struct needs a `Default`). With `, or name` the name of a kind may replace a section
/// that sets nothing else.
#[macro_export]
macro_rules! tagged {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        pub enum $name:ident $(: $family:ident)? $(, default $default:ident)? $(, or $or_name:ident)? {
            $( $(#[doc = $kind_doc:literal])* $kind:ident ( $settings:ty ) = $text:literal, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[allow(clippy::large_enum_variant, reason = "a configuration holds few of them")]
        #[derive(Debug, Clone, PartialEq)]
        $(#[derive($($derive),*)])?
        pub enum $name {
            $( $(#[doc = $kind_doc])* $kind($settings), )*
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $(
                    let $or_name = self.as_str();
                    if $crate::setting::is_plain_kind(self, $or_name) {
                        return serializer.serialize_str($or_name);
                    }
                )?
                let mut keys = serializer.serialize_map(None)?;
                $crate::setting::Settings::write_keys(self, &mut keys)?;
                serde::ser::SerializeMap::end(keys)
            }
        }

        impl $crate::setting::Settings for $name {
            const LEADS: bool = true;

            fn write_keys<M: serde::ser::SerializeMap>(&self, keys: &mut M) -> Result<(), M::Error> {
                keys.serialize_entry("kind", self.as_str())?;
                match self {
                    $( Self::$kind(settings) => $crate::setting::Settings::write_keys(settings, keys), )*
                }
            }

            fn take_keys(keys: &mut $crate::setting::Keys) -> Result<Self, String> {
                let kind: String = $crate::setting::take_required(keys, "kind")?;
                let settings = match kind.as_str() {
                    $( $text => <$settings as $crate::setting::Settings>::take_keys(keys).map(Self::$kind), )*
                    _ => Err(format!("there is no such kind: there are {}", Self::NAMES.join(", "))),
                };
                settings.map_err(|error| format!("`{kind}`: {error}"))
            }
        }

        impl $crate::setting::Ranged for $name {
            fn check_ranges(&self) -> Result<(), $crate::setting::OutOfRange> {
                match self { $( Self::$kind(settings) => settings.check_ranges(), )* }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut keys = $crate::tagged!(@keys deserializer $($or_name)?);
                let kind: String = $crate::setting::take_required(&mut keys, "kind").map_err(serde::de::Error::custom)?;
                let settings = match kind.as_str() {
                    $( $text => $crate::setting::of_keys(keys).map(Self::$kind), )*
                    _ => Err(format!("there is no such kind: there are {}", Self::NAMES.join(", "))),
                };
                settings.map_err(|error| serde::de::Error::custom(format!("`{kind}`: {error}")))
            }
        }

        impl $name {
            /// The name of every kind, in the order of the documentation.
            pub const NAMES: &'static [&'static str] = &[$($text),*];

            /// The kind as a configuration writes it.
            pub const fn as_str(&self) -> &'static str {
                match self { $(Self::$kind(_) => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.as_str())
            }
        }

        $(
            impl Default for $name {
                fn default() -> Self {
                    Self::$default(Default::default())
                }
            }
        )?

        $crate::tagged!(@family $name [$($family)?] $($kind($settings) = $text)*);

        impl $crate::setting::Described for $name {
            fn shape() -> $crate::setting::Shape {
                let variants = vec![$(
                    $crate::setting::Variant {
                        name: $text,
                        doc: concat!($($kind_doc, "\n"),*),
                        keys: $crate::setting::keys_of::<$settings>(),
                    },
                )*];
                #[allow(unused_mut, unused_assignments, reason = "not every family has a default")]
                let mut default: Option<&'static str> = None;
                $( default = Some(Self::$default(Default::default()).as_str()); )?
                let kind = $crate::setting::KeySpec {
                    name: "kind",
                    doc: concat!($($doc, "\n"),*),
                    default: default.unwrap_or_default().into(),
                    check: $crate::setting::Check::Any,
                    resume: $crate::setting::Resume::Fixed,
                    shape: || {
                        $crate::setting::Shape::Choice(vec![$(($text, concat!($($kind_doc, "\n"),*)),)*])
                    },
                };
                let doc = concat!($($doc, "\n"),*);
                let shape = $crate::setting::Shape::Tagged { doc, common: vec![kind], variants, default };
                $(
                    let $or_name = Box::new(shape);
                    let shape = $crate::setting::Shape::OrName($or_name);
                )?
                shape
            }
        }
    };
    (@keys $deserializer:ident) => { $crate::setting::Keys::deserialize($deserializer)? };
    (@keys $deserializer:ident $or_name:ident) => { $crate::setting::keys_or_name($deserializer)? };
    (@family $name:ident [] $($kind:ident($settings:ty) = $text:literal)*) => {};
    (@family $name:ident [$family:ident] $($kind:ident($settings:ty) = $text:literal)*) => {
        $(
            impl $crate::setting::Named for $settings {
                fn name(&self) -> &'static str {
                    $text
                }
            }
        )*

        impl std::ops::Deref for $name {
            type Target = dyn $family;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$kind(settings) => settings,)* }
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$kind(settings) => settings,)* }
            }
        }
    };
}

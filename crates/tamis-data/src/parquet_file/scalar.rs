//! Single values of a column as JSON.

use parquet::basic::LogicalType;
use parquet::data_type::Decimal;
use parquet::record::Field;
use parquet::schema::types::ColumnDescPtr;
use serde_json::{Number, Value};

/// A value as JSON. NaN and infinities have none.
pub(super) fn of_field(field: &Field, column: &ColumnDescPtr) -> Value {
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    match field {
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float16(value) => float(f64::from(value.to_f32())),
        // The number that was written: `0.1`, not `0.10000000149011612`, the nearest in 64 bits.
        Field::Float(value) => float(value.to_string().parse().unwrap_or(f64::from(*value))),
        Field::Double(value) => float(*value),
        Field::Decimal(value) => Value::from(decimal(value).unwrap_or_else(|| field.to_string())),
        Field::TimestampMillis(_) | Field::TimestampMicros(_) => {
            let text = field.to_string();
            // The library formats every time as UTC.
            let is_local = matches!(column.logical_type_ref(), Some(LogicalType::Timestamp(timestamp)) if !timestamp.is_adjusted_to_u_t_c);
            Value::from(if is_local { text.trim_end_matches(" +00:00") } else { &text })
        }
        Field::Null
        | Field::Str(_)
        | Field::Bytes(_)
        | Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::Group(_)
        | Field::ListInternal(_)
        | Field::MapInternal(_) => Value::from(field.to_string()),
    }
}

/// The digits of a decimal of at most 128 bits. The library's own formatting asserts `precision > scale`.
fn decimal(value: &Decimal) -> Option<String> {
    let bytes = value.data();
    let scale = usize::try_from(value.scale()).ok()?;
    if bytes.is_empty() || bytes.len() > 16 || scale > 38 {
        return None;
    }
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1i128 } else { 0 };
    let number = bytes.iter().fold(start, |number, &byte| (number << 8) | i128::from(byte));
    let mut digits = format!("{:0width$}", number.unsigned_abs(), width = scale + 1);
    if scale > 0 {
        digits.insert(digits.len() - scale, '.');
    }
    Some(if negative { format!("-{digits}") } else { digits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        let text = |value: i64, precision: i32, scale: i32| {
            decimal(&Decimal::from_i64(value, precision, scale)).unwrap()
        };
        assert_eq!(text(1250, 10, 2), "12.50");
        assert_eq!(text(-5, 3, 2), "-0.05");
        assert_eq!(text(7, 2, 2), "0.07");
        assert_eq!(text(-42, 5, 0), "-42");
    }
}

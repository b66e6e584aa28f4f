//! One Parquet file: the rows of one table in one segment. Snappy, one row group, schema version in the footer.
//!
//! Files may come from anywhere: sizes and counts are limited before anything is allocated, and whatever the bytes are,
//! the result is rows or an error.

use super::batch::{Cell, ROWS_MAX, Row};
use super::table::{COMMON, Kind, SCHEMA, Table, TableSpec};
use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::cell::Cell as Flag;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

/// Longest file that is read.
pub const FILE_MAX: u64 = 64 << 20;
/// Most rows of a file that are read: those of an hour's batches.
const FILE_ROWS_MAX: usize = 64 * ROWS_MAX;
/// Most bytes of a column once it is not compressed.
const COLUMN_MAX: i64 = 512 << 20;
/// The key of [`SCHEMA`] in the footer.
const SCHEMA_KEY: &str = "nearpath.schema";
/// The key of the table's name in the footer.
const TABLE_KEY: &str = "nearpath.table";

/// A row with its common columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// End of the interval in microseconds since 1970.
    pub time_us: i64,
    /// Its length in seconds.
    pub interval_s: f64,
    /// Name of the host.
    pub host: Arc<str>,
    /// The kernel's boot id.
    pub boot: Arc<str>,
    /// The table's own columns; null where the file has no such column.
    pub row: Row,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is cut, or no such file.
    #[error("{0}")]
    Parquet(#[from] ParquetError),
    /// Another table, another version, or too much.
    #[error("{0}")]
    Form(String),
}

fn form<T>(text: impl Into<String>) -> Result<T, FileError> {
    Err(FileError::Form(text.into()))
}

/// The schema in Parquet's notation.
pub fn schema(spec: &TableSpec) -> String {
    let mut text = format!(
        "message {} {{ REQUIRED INT64 time (TIMESTAMP(MICROS,true)); REQUIRED DOUBLE interval_s; \
         REQUIRED BYTE_ARRAY host (UTF8); REQUIRED BYTE_ARRAY boot (UTF8); ",
        spec.name
    );
    for column in spec.columns {
        let (kind, logical) = match column.kind {
            Kind::Count => ("INT64", ""),
            Kind::Real => ("DOUBLE", ""),
            Kind::Text => ("BYTE_ARRAY", " (UTF8)"),
        };
        text.push_str(&format!("OPTIONAL {kind} {}{logical}; ", column.name));
    }
    text.push('}');
    text
}

/// Writes the rows of a table; returns the writer.
///
/// # Errors
/// The writer's.
pub fn write<W: Write + Send>(to: W, table: Table, rows: &[Recorded]) -> Result<W, ParquetError> {
    let spec = table.spec();
    let key = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("nearpath version {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(vec![
            key(SCHEMA_KEY, SCHEMA.to_string()),
            key(TABLE_KEY, spec.name.to_owned()),
        ]))
        .build();
    let schema = Arc::new(parse_message_type(&schema(spec))?);
    let mut writer = SerializedFileWriter::new(to, schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let mut number = 0;
    while let Some(mut column) = group.next_column()? {
        write_column(column.untyped(), number, rows)?;
        column.close()?;
        number += 1;
    }
    group.close()?;
    writer.into_inner()
}

fn write_column(
    column: &mut ColumnWriter<'_>,
    number: usize,
    rows: &[Recorded],
) -> Result<(), ParquetError> {
    let own = |row: &Recorded| -> Cell {
        let at = number.checked_sub(COMMON.len());
        at.and_then(|at| row.row.get(at)).cloned().unwrap_or(Cell::Null)
    };
    let present: Vec<i16> =
        rows.iter().map(|row| i16::from(number < COMMON.len() || own(row) != Cell::Null)).collect();
    let levels = (number >= COMMON.len()).then_some(present.as_slice());
    match column {
        ColumnWriter::Int64ColumnWriter(column) => {
            let value = |row: &Recorded| {
                if number == 0 { Some(row.time_us) } else { own(row).count() }
            };
            let values: Vec<i64> = rows.iter().filter_map(value).collect();
            column.write_batch(&values, levels, None)?;
        }
        ColumnWriter::DoubleColumnWriter(column) => {
            let value =
                |row: &Recorded| if number == 1 { Some(row.interval_s) } else { own(row).real() };
            let values: Vec<f64> = rows.iter().filter_map(value).collect();
            column.write_batch(&values, levels, None)?;
        }
        ColumnWriter::ByteArrayColumnWriter(column) => {
            let value = |row: &Recorded| match number {
                2 => Some(ByteArray::from(&*row.host)),
                3 => Some(ByteArray::from(&*row.boot)),
                _ => own(row).text().map(ByteArray::from),
            };
            let values: Vec<ByteArray> = rows.iter().filter_map(value).collect();
            column.write_batch(&values, levels, None)?;
        }
        _ => return Err(ParquetError::General("a column of a type that no table has".to_owned())),
    }
    Ok(())
}

/// Reads the rows of a table.
///
/// # Errors
/// The file is cut or damaged, of another table or of a newer version, or has more than is read.
pub fn read(bytes: Bytes, table: Table) -> Result<Vec<Recorded>, FileError> {
    // The library asserts what damaged pages do not hold.
    quietly(|| rows(bytes, table)).unwrap_or_else(|| form("it is damaged"))
}

/// Runs something that may panic; `None` if it did. Nothing is printed, and nothing of it is used afterwards.
fn quietly<R>(run: impl FnOnce() -> R) -> Option<R> {
    thread_local!(static QUIET: Flag<bool> = const { Flag::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    result.ok()
}

fn rows(bytes: Bytes, table: Table) -> Result<Vec<Recorded>, FileError> {
    let reader = SerializedFileReader::new(bytes)?;
    check(&reader, table)?;
    let mut rows = Vec::new();
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number)?;
        read_group(&*group, table.spec(), &mut rows)?;
    }
    Ok(rows)
}

/// Checks what the footer says before anything is allocated for it.
fn check(reader: &SerializedFileReader<Bytes>, table: Table) -> Result<(), FileError> {
    let metadata = reader.metadata().file_metadata();
    let value = |key: &str| {
        let all = metadata.key_value_metadata().into_iter().flatten();
        all.filter(|pair| pair.key == key).find_map(|pair| pair.value.as_deref())
    };
    match value(SCHEMA_KEY).and_then(|text| text.parse::<u32>().ok()) {
        Some(SCHEMA) => {}
        Some(version) => {
            return form(format!("it has version {version}, this nearpath reads {SCHEMA}"));
        }
        None => return form("it is no recording of nearpath"),
    }
    if value(TABLE_KEY) != Some(table.spec().name) {
        return form(format!("it is not of the table '{}'", table.spec().name));
    }
    let rows = usize::try_from(metadata.num_rows()).unwrap_or(usize::MAX);
    let mut sum = 0usize;
    for group in reader.metadata().row_groups() {
        sum = sum.saturating_add(usize::try_from(group.num_rows()).unwrap_or(usize::MAX));
        let too_long =
            group.columns().iter().any(|c| !(0..=COLUMN_MAX).contains(&c.uncompressed_size()));
        if too_long {
            return form("a column is too long");
        }
    }
    if sum != rows || rows > FILE_ROWS_MAX {
        return form(format!("it has {rows} rows"));
    }
    Ok(())
}

fn read_group(
    group: &dyn RowGroupReader,
    spec: &TableSpec,
    rows: &mut Vec<Recorded>,
) -> Result<(), FileError> {
    let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    let common = |name: &str| match column(group, name, count)? {
        Some(values) if values.iter().all(|cell| *cell != Cell::Null) => Ok(values),
        _ => form(format!("column '{name}' is missing")),
    };
    let (times, intervals) = (common("time")?, common("interval_s")?);
    let (hosts, boots) = (common("host")?, common("boot")?);
    let mut own = Vec::with_capacity(spec.columns.len());
    for wanted in spec.columns {
        let values = column(group, wanted.name, count)?;
        own.push(values.filter(|values| values.iter().all(|cell| cell.fits(wanted.kind))));
    }
    let (mut host, mut boot): (Arc<str>, Arc<str>) = ("".into(), "".into());
    for at in 0..count {
        let (Some(time_us), Some(interval_s)) = (times[at].count(), intervals[at].real()) else {
            return form("a common column has another type");
        };
        same(&mut host, hosts[at].text());
        same(&mut boot, boots[at].text());
        let cell = |column: &Option<Vec<Cell>>| {
            column.as_ref().and_then(|values| values.get(at)).cloned().unwrap_or(Cell::Null)
        };
        let row = own.iter().map(cell).collect();
        let (host, boot) = (Arc::clone(&host), Arc::clone(&boot));
        rows.push(Recorded { time_us, interval_s, host, boot, row });
    }
    Ok(())
}

/// Shares the text of the row before.
fn same(have: &mut Arc<str>, text: Option<&str>) {
    let text = text.unwrap_or_default();
    if &**have != text {
        *have = text.into();
    }
}

/// The values of a column by its name; `None` if there is none.
fn column(
    group: &dyn RowGroupReader,
    name: &str,
    count: usize,
) -> Result<Option<Vec<Cell>>, FileError> {
    let columns = group.metadata().columns();
    let Some(number) = columns.iter().position(|c| c.column_path().string() == name) else {
        return Ok(None);
    };
    let levels = columns[number].column_descr().max_def_level();
    if levels > 1 || columns[number].column_descr().max_rep_level() > 0 {
        return form(format!("column '{name}' is nested"));
    }
    let values = match group.get_column_reader(number)? {
        ColumnReader::Int64ColumnReader(reader) => {
            values(reader, count, levels, |&count| Cell::Count(count))
        }
        ColumnReader::DoubleColumnReader(reader) => values(reader, count, levels, |&n| n.into()),
        ColumnReader::ByteArrayColumnReader(reader) => values(reader, count, levels, |bytes| {
            Cell::Text(String::from_utf8_lossy(bytes.data()).into_owned())
        }),
        _ => return form(format!("column '{name}' has another type")),
    };
    values.map(Some)
}

fn values<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    count: usize,
    max_level: i16,
    cell: impl Fn(&T::T) -> Cell,
) -> Result<Vec<Cell>, FileError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut records = 0;
    while records < count {
        let wanted = count - records;
        let (more, _, _) = reader.read_records(
            wanted,
            (max_level > 0).then_some(&mut levels),
            None,
            &mut values,
        )?;
        if more == 0 {
            return form("it has fewer rows than it says");
        }
        records += more;
    }
    let mut present = values.iter();
    let mut next = |is_present: bool| -> Result<Cell, FileError> {
        if !is_present {
            return Ok(Cell::Null);
        }
        match present.next() {
            Some(value) => Ok(cell(value)),
            None => form("it has fewer values than it says"),
        }
    };
    if max_level == 0 {
        return (0..count).map(|_| next(true)).collect();
    }
    if levels.len() < count {
        return form("it has fewer levels than it says");
    }
    levels.iter().take(count).map(|&level| next(level == max_level)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::TABLES;

    fn rows(table: Table, count: i64) -> Vec<Recorded> {
        let cell = |kind: Kind, n: i64| match (n % 3, kind) {
            (0, _) => Cell::Null,
            (_, Kind::Count) => Cell::Count(n * i64::from(u32::MAX)),
            (_, Kind::Real) => Cell::Real(n as f64 / 7.0),
            (_, Kind::Text) => Cell::Text(format!("ä{n}")),
        };
        let row = |n: i64| Recorded {
            time_us: 1_700_000_000_000_000 + n,
            interval_s: 10.0,
            host: "one".into(),
            boot: if n < 5 { "a".into() } else { "b".into() },
            row: table.spec().columns.iter().map(|column| cell(column.kind, n)).collect(),
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn each_table_comes_back() {
        for spec in TABLES {
            for count in [0, 1, 3_000] {
                let rows = rows(spec.table, count);
                let bytes = write(Vec::new(), spec.table, &rows).unwrap();
                assert_eq!(read(bytes.into(), spec.table).unwrap(), rows, "{}", spec.name);
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_or_of_another_table_is_refused() {
        let bytes = Bytes::from(write(Vec::new(), Table::Spans, &rows(Table::Spans, 20)).unwrap());
        for length in 0..bytes.len() {
            assert!(read(bytes.slice(..length), Table::Spans).is_err(), "{length}");
        }
        assert!(read(bytes.clone(), Table::Spans).is_ok());
        let error = read(bytes, Table::Paths).unwrap_err().to_string();
        assert_eq!(error, "it is not of the table 'paths'");
    }

    #[test]
    fn changed_bytes_never_panic() {
        let bytes = write(Vec::new(), Table::Spans, &rows(Table::Spans, 5)).unwrap();
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0xff, bytes[at] ^ 1] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = read(changed.into(), Table::Spans);
            }
        }
    }
}

//! A room as text.

use std::fmt::Write as _;

use super::room::{Cell, Room};
use super::{SokobanObservation, SokobanSymbols};

/// The cells, in the order in which a legend explains them.
const CELLS: [(Cell, &str); 7] = [
    (Cell::Wall, "wall"),
    (Cell::Empty, "empty"),
    (Cell::Target, "target"),
    (Cell::BoxOnTarget, "box on target"),
    (Cell::Box, "box"),
    (Cell::Player, "player"),
    (Cell::PlayerOnTarget, "player on target"),
];

pub(super) fn symbol(cell: Cell, symbols: SokobanSymbols) -> &'static str {
    let of_each = match symbols {
        SokobanSymbols::Shapes => ["#", "_", "O", "√", "X", "P", "S"],
        SokobanSymbols::SpacedShapes => [" # ", " _ ", " O ", " √ ", " X ", " P ", " S "],
        SokobanSymbols::Letters => ["W", ".", "G", "C", "B", "A", "@"],
    };
    of_each[cell as usize]
}

pub(super) fn legend(symbols: SokobanSymbols) -> Vec<(String, String)> {
    CELLS.iter().map(|&(cell, meaning)| (symbol(cell, symbols).to_owned(), meaning.to_owned())).collect()
}

pub(super) fn render(room: &Room, observation: SokobanObservation, symbols: SokobanSymbols) -> String {
    // A symbol takes up to three bytes, five with its spaces.
    let mut text = String::with_capacity(room.rows() * (5 * room.columns() + 1));
    match observation {
        SokobanObservation::Grid => write_grid(&mut text, room, symbols),
        SokobanObservation::Coordinates => write_coordinates(&mut text, room),
        SokobanObservation::GridAndCoordinates => {
            text.push_str("Coordinates: \n");
            write_coordinates(&mut text, room);
            text.push_str("\nGrid Map: \n");
            write_grid(&mut text, room, symbols);
        }
    }
    text
}

fn write_grid(text: &mut String, room: &Room, symbols: SokobanSymbols) {
    for row in 0..room.rows() {
        if row > 0 {
            text.push('\n');
        }
        for column in 0..room.columns() {
            text.push_str(symbol(room.cell(row, column), symbols));
        }
    }
}

/// The size of the room, then a line for each thing that there is, places in reading order. Walls have no
/// line.
fn write_coordinates(text: &mut String, room: &Room) {
    // Writing to a text does not fail.
    let _ = write!(text, "Board size: {} rows x {} cols (zero-indexed).", room.rows(), room.columns());
    let lines: [(&str, &[Cell]); 5] = [
        ("Targets", &[Cell::Target, Cell::BoxOnTarget, Cell::PlayerOnTarget]),
        ("Boxes", &[Cell::Box]),
        ("Boxes on target", &[Cell::BoxOnTarget]),
        ("Player", &[Cell::Player]),
        ("Player on target", &[Cell::PlayerOnTarget]),
    ];
    for (label, cells) in lines {
        let mut separator = ": ";
        for row in 0..room.rows() {
            for column in 0..room.columns() {
                if cells.contains(&room.cell(row, column)) {
                    if separator == ": " {
                        text.push('\n');
                        text.push_str(label);
                    }
                    let _ = write!(text, "{separator}({row}, {column})");
                    separator = ", ";
                }
            }
        }
    }
}

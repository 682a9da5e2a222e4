//! Draws as much as fits into the terminal, the most important first. A small terminal shows only lines. From
//! `WIDE` columns and `TALL` lines on there are charts and a table of the last steps. Colours only repeat
//! what the words say.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, Wrap};
use tamis_core::figure::{percent, short};
use tamis_core::printable::one_line;

use super::sample::Sample;
use super::summary::{Course, PastStep, WatchedState};
use super::{WatchedRun, text};

const WIDE: u16 = 80;
const TALL: u16 = 24;
/// Columns of the names on the left.
const NAMES: usize = 11;
/// Largest number of metrics that are drawn. The others have a line.
const MOST_COURSES: usize = 2;
/// The unit of a bar in a sparkline.
const FULL: f64 = 1000.0;

/// With or without colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// With colours.
    Coloured,
    /// Without.
    Plain,
}

impl Look {
    fn colour(self, colour: Color) -> Style {
        match self {
            Self::Coloured => Style::new().fg(colour),
            Self::Plain => Style::new(),
        }
    }

    fn of(self, state: WatchedState) -> Style {
        let colour = match state {
            WatchedState::Running => Color::Green,
            WatchedState::Failed => Color::Red,
            WatchedState::StoppedEarly | WatchedState::Unfinished => Color::Yellow,
            WatchedState::Finished | WatchedState::Unknown => Color::Cyan,
        };
        self.colour(colour).add_modifier(Modifier::BOLD)
    }

    fn of_message(self, name: &str) -> Style {
        match name {
            "error" => self.colour(Color::Red),
            "warning" => self.colour(Color::Yellow),
            _ => Style::new(),
        }
    }
}

pub(super) fn draw(
    frame: &mut Frame<'_>,
    summary: &WatchedRun,
    sample: Option<&Result<Sample, String>>,
    look: Look,
) {
    let area = frame.area();
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    draw_head(frame, head, summary, look);
    if let Some(sample) = sample {
        draw_sample(frame, body, sample.as_ref(), look);
    } else if area.width >= WIDE && area.height >= TALL {
        draw_wide(frame, body, summary, look);
    } else {
        let lines = small_lines(summary, body, look);
        frame.render_widget(Paragraph::new(lines), body);
    }
    let keys = match sample {
        Some(_) => "q quits, s the next, Esc the figures",
        None => "q quits, r looks now, s a completion",
    };
    frame.render_widget(Line::from(keys).style(look.colour(Color::DarkGray)), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, summary: &WatchedRun, look: Look) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let path = one_line(&summary.path);
    // The end of a long path is its informative part.
    let room = usize::from(area.width);
    let hidden = path.chars().count().saturating_sub(room);
    let shown: String = if hidden == 0 {
        path
    } else {
        std::iter::once('…').chain(path.chars().skip(hidden + 1)).collect()
    };
    let lines = vec![
        Line::from(Span::styled(shown, bold)),
        Line::from(Span::styled(text::headline(summary), look.of(summary.state))),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn batches(summary: &WatchedRun) -> Vec<Line<'static>> {
    text::batch_lines(&summary.batch_figures).into_iter().map(Line::from).collect()
}

fn named(name: &str, said: &str, style: Style) -> Line<'static> {
    Line::from(Span::styled(format!("{name:<NAMES$}{}", one_line(said)), style))
}

/// Lines for a small terminal: what ended the run, the figures of the batches, then as much as there is room
/// for.
fn small_lines(summary: &WatchedRun, area: Rect, look: Look) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let messages = text::messages(summary);
    let (errors, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|(name, _)| *name == "error");
    lines.extend(errors.iter().take(1).map(|(name, said)| named(name, said, look.of_message(name))));
    lines.extend(batches(summary));
    let room = usize::from(area.width);
    let courses = courses(summary);
    for (name, course, shown) in &courses {
        let figures = format!("{} → {} ", shown(course.first), shown(course.last));
        let spark = text::spark(&course.values, room.saturating_sub(NAMES + figures.chars().count()));
        lines.push(named(name, &format!("{figures}{spark}"), look.colour(Color::Cyan)));
    }
    // The step in progress comes before the facts about the whole run.
    let rows = text::rows(summary);
    let of = |wanted: &'static str| rows.iter().filter(move |(name, _)| *name == wanted);
    let is_drawn = |wanted: &str| courses.iter().any(|(drawn, ..)| *drawn == wanted);
    let others_first = ["now", "pass rate"].into_iter().filter(|wanted| !is_drawn(wanted));
    for wanted in others_first.chain(["dropped", "groups", "refill", "lag", "time", "update"]) {
        lines.extend(of(wanted).map(|(name, said)| named(name, said, Style::new())));
    }
    lines.extend(
        others
            .iter()
            .chain(errors.iter().skip(1))
            .map(|(name, said)| named(name, said, look.of_message(name))),
    );
    lines
}

type Shown = fn(f64) -> String;

/// The metrics that are drawn. The first is how good the policy is on held-out prompts.
fn courses(summary: &WatchedRun) -> Vec<(&'static str, &Course, Shown)> {
    let validation = summary.validation.as_ref().map(|course| ("validation", course, short as Shown));
    let reward = summary.reward.as_ref().map(|course| ("reward", course, short as Shown));
    let rate = summary.pass_rate.as_ref().map(|course| ("pass rate", course, percent as Shown));
    validation.into_iter().chain(reward).chain(rate).take(MOST_COURSES).collect()
}

fn draw_wide(frame: &mut Frame<'_>, area: Rect, summary: &WatchedRun, look: Look) {
    let courses = courses(summary);
    let rows: Vec<Line<'static>> = text::rows(summary)
        .into_iter()
        .filter(|(name, _)| !courses.iter().any(|(drawn, ..)| drawn == name))
        .map(|(name, said)| named(name, &said, Style::new()))
        .collect();
    let messages: Vec<Line<'static>> = text::messages(summary)
        .into_iter()
        .map(|(name, said)| named(name, &said, look.of_message(name)))
        .collect();
    let most = usize::from(area.height / 4).max(1);
    let num_messages = messages.len().min(most);
    let (num_rows, num_messages) = (rows.len() as u16, num_messages as u16);
    let [top, middle, bottom, last] = Layout::vertical([
        Constraint::Length(6),
        Constraint::Length(num_rows),
        Constraint::Fill(1),
        Constraint::Length(num_messages),
    ])
    .areas(area);
    let [left, right] = Layout::horizontal([Constraint::Length(36), Constraint::Fill(1)]).areas(top);
    frame.render_widget(Paragraph::new(batches(summary)).block(Block::bordered().title("Batches")), left);
    let charts = Layout::horizontal(vec![Constraint::Fill(1); courses.len().max(1)]).split(right);
    for ((name, course, shown), area) in courses.iter().zip(charts.iter()) {
        draw_chart(frame, *area, (*name, *course, *shown), look);
    }
    frame.render_widget(Paragraph::new(rows), middle);
    draw_steps(frame, bottom, summary);
    // Only the latest line counts.
    let messages: Vec<Line<'static>> = messages.into_iter().rev().take(most).rev().collect();
    frame.render_widget(Paragraph::new(messages), last);
}

/// A completion with its reward, or why there is none. Control characters were replaced when it was read.
fn draw_sample(frame: &mut Frame<'_>, area: Rect, sample: Result<&Sample, &String>, look: Look) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = Vec::new();
    match sample {
        Ok(sample) => {
            let reward = if sample.reward.is_nan() {
                "unscored".to_owned()
            } else {
                format!("reward {}", short(sample.reward))
            };
            let (place, all) = sample.place;
            let head = format!("{reward}, {}; step {}, {place} of {all}", sample.verdict, sample.step);
            lines.push(Line::from(Span::styled(head, bold)));
            for (name, text) in [("Prompt", &sample.prompt), ("Completion", &sample.completion)] {
                lines.push(Line::from(Span::styled(name, look.colour(Color::Cyan))));
                lines.extend(text.lines().map(|line| Line::from(line.to_owned())));
            }
        }
        Err(reason) => lines.push(Line::from(one_line(reason))),
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, chart: (&str, &Course, Shown), look: Look) {
    let (name, course, shown) = chart;
    let title = format!("{name} {} → {}, {}", shown(course.first), shown(course.last), course.over);
    let block = Block::bordered().title(title);
    let columns = text::columns(&course.values, usize::from(block.inner(area).width));
    // The smallest value is a low bar, not an empty one.
    let bars: Vec<u64> =
        text::shares(&columns).into_iter().map(|share| (FULL * (0.1 + 0.9 * share)) as u64).collect();
    let chart = Sparkline::default().block(block).data(bars).max(FULL as u64).style(look.colour(Color::Cyan));
    frame.render_widget(chart, area);
}

/// The last steps, as many as there is room for, the newest at the top.
fn draw_steps(frame: &mut Frame<'_>, area: Rect, summary: &WatchedRun) {
    if area.height < 3 || summary.history.is_empty() {
        return;
    }
    let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let figure = |value: Option<f64>, shown: Shown| value.map_or_else(|| "-".to_owned(), shown);
    let row = |point: &PastStep| {
        Row::new([
            point.step.to_string(),
            point.batches.to_string(),
            count(point.kept),
            count(point.dropped),
            figure(point.reward, short),
            figure(point.pass_rate, percent),
            figure(point.seconds, text::time),
        ])
    };
    let names = ["step", "batches", "kept", "dropped", "reward", "pass rate", "time"];
    let table = Table::new(summary.history.iter().rev().map(row), [Constraint::Length(10); 7])
        .header(Row::new(names).style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::bordered().title("Last steps"));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests;

//! What commands print: data to standard output, in the form that was asked for; everything else to standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use console::style;
use serde_json::Value;

/// Prints data. Whoever reads may have seen enough and closed the pipe: with that error a command ends, and says nothing of it.
pub(crate) fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}

/// Prints a line on what was done. Somebody who does not read it is no reason to leave the rest undone.
pub(crate) fn say(line: impl Display) -> io::Result<()> {
    heard_or_not(writeln!(io::stdout().lock(), "{line}"))
}

/// Where the exit status says something, too, nobody needs to have read the rest.
pub(crate) fn heard_or_not(said: io::Result<()>) -> io::Result<()> {
    match said {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}

/// Tells something that is no data, on standard error, if somebody listens.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The form of what is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// A line of JSON for each row.
    Ndjson,
}

/// What every command takes that prints data.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Output {
    /// The form of what is printed.
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    output: Form,
}

/// Rows of the same kind: as cells for people, and as JSON for programs.
pub(crate) struct Rows {
    form: Form,
    columns: &'static [&'static str],
    cells: Vec<Vec<String>>,
    documents: Vec<Value>,
}

impl Output {
    pub(crate) fn form(self) -> Form {
        self.output
    }

    /// No rows yet.
    pub(crate) fn rows(self, columns: &'static [&'static str]) -> Rows {
        Rows { form: self.output, columns, cells: Vec::new(), documents: Vec::new() }
    }

    /// One thing, of which people see lines of names and values.
    pub(crate) fn one(self, lines: &[(&str, String)], document: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.output {
            Form::Json => writeln!(out, "{document:#}"),
            Form::Ndjson => writeln!(out, "{document}"),
            Form::Table => {
                let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
                for (name, value) in lines {
                    writeln!(out, "{}  {}", style(format!("{name:width$}")).bold(), plain(value))?;
                }
                Ok(())
            }
        }
    }
}

impl Rows {
    /// Adds a row. Lines of JSON are printed at once.
    pub(crate) fn push(&mut self, cells: Vec<String>, document: Value) -> io::Result<()> {
        match self.form {
            Form::Ndjson => writeln!(io::stdout().lock(), "{document}")?,
            Form::Json => self.documents.push(document),
            Form::Table => self.cells.push(cells),
        }
        Ok(())
    }

    /// Prints what was not printed yet.
    pub(crate) fn print(self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.form {
            Form::Ndjson => return Ok(()),
            Form::Json => return writeln!(out, "{:#}", Value::Array(self.documents)),
            Form::Table => {}
        }
        let cells: Vec<Vec<String>> =
            self.cells.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
        let width = |column: usize| {
            let cells = cells.iter().map(|row| console::measure_text_width(&row[column]));
            cells.chain([self.columns[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<_> = cells
                .zip(&widths)
                .map(|(cell, width)| console::pad_str(cell, *width, console::Alignment::Left, None).into_owned())
                .collect();
            padded.join("  ").trim_end().to_owned()
        };
        writeln!(out, "{}", style(line(&mut self.columns.iter().copied())).bold())?;
        for row in &cells {
            writeln!(out, "{}", line(&mut row.iter().map(String::as_str)))?;
        }
        Ok(())
    }
}

/// What events say, fit for a terminal: on one line, and no sign that would steer it.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect()
}

/// A text that is no longer than so many characters.
pub(crate) fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Asks whether to go on, where somebody can answer; where nobody can, the answer is no.
pub(crate) fn confirmed(question: &str, yes: bool) -> io::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        tell("nothing was changed; say --yes to go on");
        return Ok(false);
    }
    write!(io::stderr(), "{question} [y/N] ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if !answer.ends_with('\n') {
        // The end of input leaves the cursor behind the question.
        tell("");
    }
    let confirmed = matches!(&*answer.trim().to_ascii_lowercase(), "y" | "yes");
    if !confirmed {
        tell("nothing was changed");
    }
    Ok(confirmed)
}

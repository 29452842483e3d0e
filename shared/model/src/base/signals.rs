//! The signals of Linux, by number and name.
//!
//! Guarantees: a signal is one that Linux has; its name is written without `SIG`, and read with or without it.
//! Does not: send any; the agent does.

use crate::BadText;
use crate::text_form::text_form;
use std::fmt;
use std::str::FromStr;

/// The names of the signals of Linux, from 1 on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The name of a signal, without `SIG`.
pub(crate) fn name_of(number: i32) -> Option<&'static str> {
    NAMES.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
}

/// A signal. In JSON and on the command line its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    /// Asks a command to end.
    pub const TERM: Self = Self(15);
    /// Makes a stopped process go on.
    pub const CONT: Self = Self(18);

    pub const fn number(self) -> i32 {
        self.0
    }

    /// Whether a command can handle the signal: any but `KILL` and `STOP`.
    pub const fn is_heard(self) -> bool {
        !matches!(self.0, 9 | 19)
    }
}

impl FromStr for Signal {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Self, BadText> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let numbers = (1..).zip(NAMES);
        let is_it = |(number, known): &(i32, &str)| *known == name || number.to_string() == text;
        let fault = "is not a signal: write its name or its number, such as USR1, TERM or 10";
        numbers.into_iter().find(is_it).map(|(number, _)| Self(number)).ok_or_else(|| BadText::of(text, fault))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_of(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

text_form!(Signal);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_by_its_name_or_its_number_and_written_by_its_name() {
        for (text, number, name) in
            [("USR1", 10, "USR1"), ("sigusr2", 12, "USR2"), ("15", 15, "TERM"), ("SIGKILL", 9, "KILL")]
        {
            let signal: Signal = text.parse().unwrap();
            assert_eq!((signal.number(), signal.to_string().as_str()), (number, name), "{text}");
            assert_eq!(serde_json::to_value(signal).unwrap(), name);
        }
        for bad in ["", "SIG", "0", "32", "-1", "USR3", "1 "] {
            assert!(bad.parse::<Signal>().is_err(), "{bad:?}");
        }
        assert!(!"KILL".parse::<Signal>().unwrap().is_heard() && Signal::TERM.is_heard());
    }
}

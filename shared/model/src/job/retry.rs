//! Retry rules: which causes of an end are tried again, how often, and how.
//!
//! ```text
//! rule    CAUSE[,CAUSE…]=DO[,DO…]
//! CAUSE   exit:75  exit:75-78  exit:*  signal:9  signal:*  memory  timeout  failed  lost  spot  node
//! DO      fail | again | again*3 | again*any, and with `again`: pause=30s  elsewhere  on-demand  memory*1.5  max-memory=64G
//! ```
//!
//! Guarantees: the first rule that names a cause decides; a rule is one text in rows, in JSON and on the command line, and what
//! is written is read as the same rule; the refusal of a wrong text says what to write.
//! Does not: know which rules count where a job says none (`failure_policy` does), or queue a job again (`job` does).

use crate::enums::{CauseWord, ClientStatus, MarketNeed};
use crate::mistakes::shown;
use crate::text_form::text_form;
use crate::{BadText, EndCause, Needs, Signal, amounts};
use std::fmt;
use std::str::FromStr;

/// The most rules of a job.
pub const MAX_RULES: usize = 16;
/// The longest rule, in bytes.
const MAX_RULE_BYTES: usize = 256;
/// The longest pause of a rule, in seconds: a week.
const MAX_PAUSE_S: u64 = 7 * 86_400;
/// By how much memory may grow, in hundredths.
const GROWTH: std::ops::RangeInclusive<u64> = 101..=1600;

const FORM: &str = "write CAUSES=fail or CAUSES=again*N, such as exit:75-78=again*3,pause=30s or \
                    memory=again*2,memory*1.5,max-memory=64G";

/// Which ends a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The command ended with an exit code from the first to the last.
    Exit(i32, i32),
    /// This signal ended the command, or a program below its shell.
    Signal(Signal),
    Word(CauseWord),
}

/// What a rule says to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleAction {
    Fail,
    Again(Again),
}

/// How a job is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Again {
    /// How often; `None` for no limit.
    pub(crate) times: Option<u32>,
    /// The wait before, in seconds; `None` for that of the policy.
    pause_s: Option<u64>,
    /// Whether the job keeps away from the nodes of its last tries.
    elsewhere: bool,
    /// Whether the job accepts only nodes that are bought on demand from now on.
    on_demand: bool,
    /// The factor by which its memory grows, in hundredths.
    growth: Option<u64>,
    /// Up to how much its memory grows, in MiB.
    most_mib: Option<u64>,
}

/// When a job is tried again, and how: one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryRule {
    causes: Vec<Cause>,
    then: RuleAction,
}

/// The decision of a rule about an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryDecision {
    /// The place of the rule that decides, among all rules of the job.
    pub rule: usize,
    pub text: String,
    /// Whether the rule is one of the job's own. Otherwise it is one of the default rules behind them.
    pub is_own: bool,
    pub follows: RetryOutcome,
}

/// Whether a job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOutcome {
    Again(Retry),
    Fails(WhyNot),
}

/// A try that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How often the rule was used, this time included.
    pub used: u32,
    /// How often it may be used; `None` for no limit.
    pub times: Option<u32>,
    /// The wait before, in seconds; `None` for that of the policy.
    pub pause_s: Option<u64>,
    /// Whether the job keeps away from the nodes of its last tries.
    pub elsewhere: bool,
    /// The market that the job accepts from now on; `None`: as before.
    pub market: Option<MarketNeed>,
    /// The memory of each member from now on; `None`: as before.
    pub memory_mib: Option<u64>,
}

/// Why a job is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// The rule says `fail`.
    Rule,
    /// The rule was used as often as it may be.
    UsedUp { times: u32 },
    /// The job had all the memory that the rule allows.
    AllMemory { memory_mib: u64 },
}

impl Cause {
    fn names(self, cause: &EndCause) -> bool {
        let code = match cause {
            EndCause::Exited { .. }
            | EndCause::NotFound { .. }
            | EndCause::NotExecutable { .. }
            | EndCause::NoInterpreter { .. } => cause.exit_code(),
            // The exit codes of other ends are not those of a command.
            _ => None,
        };
        // A shell, and the init of a container, report the signal that ended a program as an exit code.
        let signal = match *cause {
            EndCause::Signalled { signal } => Some(signal),
            EndCause::Exited { code } => (129..=192).contains(&code).then(|| code - 128),
            _ => None,
        };
        // No rule names a success.
        let code = code.filter(|code| *code != 0);
        match self {
            Self::Exit(first, last) => code.is_some_and(|code| (first..=last).contains(&code)),
            Self::Signal(one) => signal == Some(one.number()),
            Self::Word(CauseWord::AnyExit) => code.is_some(),
            Self::Word(CauseWord::AnySignal) => signal.is_some(),
            Self::Word(CauseWord::Memory) => matches!(cause, EndCause::OverMemory { .. }),
            Self::Word(CauseWord::Timeout) => matches!(cause, EndCause::OverTime { .. }),
            Self::Word(CauseWord::Failed) => cause.client() == ClientStatus::Failed,
            Self::Word(CauseWord::Lost) => cause.is_loss(),
            Self::Word(CauseWord::Spot) => matches!(cause, EndCause::Interrupted { .. }),
            Self::Word(CauseWord::Node) => matches!(cause, EndCause::NotStarted { .. }),
        }
    }
}

impl FromStr for Cause {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let code = |text: &str| {
            text.parse::<i32>().ok().filter(|code| (1..=255).contains(code)).ok_or_else(|| {
                format!(
                    "has {}, which is no exit code of a failure: 1 to 255, a range such as 75-78, or *",
                    shown(text)
                )
            })
        };
        if let Ok(word) = text.parse() {
            return Ok(Self::Word(word));
        }
        match text.split_once(':') {
            Some(("exit", codes)) => {
                let (first, last) = codes.split_once('-').unwrap_or((codes, codes));
                let (first, last) = (code(first)?, code(last)?);
                if first > last {
                    return Err(format!("has the range {}, which ends before it begins", shown(codes)));
                }
                Ok(Self::Exit(first, last))
            }
            Some(("signal", signal)) => signal.parse().map(Self::Signal).map_err(|e| format!("is wrong: {e}, or *")),
            _ => {
                let causes = "exit:CODE, signal:NAME, memory, timeout, failed, lost, spot and node are";
                Err(format!("has {}, which is no cause ({causes})", shown(text)))
            }
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(first, last) if first == last => write!(f, "exit:{first}"),
            Self::Exit(first, last) => write!(f, "exit:{first}-{last}"),
            Self::Signal(signal) => write!(f, "signal:{signal}"),
            Self::Word(word) => word.fmt(f),
        }
    }
}

/// The actions of a rule, as they are read one by one.
#[derive(Default)]
struct RuleActions {
    fails: bool,
    again: Option<Option<u32>>,
    more: Again,
}

impl RuleActions {
    fn read(&mut self, part: &str) -> Result<(), String> {
        let once = |is_new: bool| if is_new { Ok(()) } else { Err(format!("says {} twice", shown(part))) };
        match (part, part.split_once('*'), part.split_once('=')) {
            ("fail", ..) => once(!std::mem::replace(&mut self.fails, true)),
            ("again", ..) => once(self.again.replace(Some(1)).is_none()),
            ("again*any", ..) => once(self.again.replace(None).is_none()),
            ("elsewhere", ..) => once(!std::mem::replace(&mut self.more.elsewhere, true)),
            ("on-demand", ..) => once(!std::mem::replace(&mut self.more.on_demand, true)),
            (_, Some(("again", times)), _) => {
                let times = times.parse().ok().filter(|times| *times > 0);
                let wrong = || format!("has {}: how often is a number from 1 on, or any", shown(part));
                once(self.again.replace(Some(times.ok_or_else(wrong)?)).is_none())
            }
            (_, Some(("memory", factor)), _) => {
                let hundredths = hundredths(factor).filter(|h| GROWTH.contains(h));
                let wrong = || format!("has {}: memory grows by a factor from 1.01 to 16", shown(part));
                once(self.more.growth.replace(hundredths.ok_or_else(wrong)?).is_none())
            }
            (_, _, Some(("pause", pause))) => {
                let pause = amounts::seconds(pause).ok().filter(|s| *s <= MAX_PAUSE_S);
                let wrong = || format!("has {}: a pause is a time of at most a week, such as 30s or 10m", shown(part));
                once(self.more.pause_s.replace(pause.ok_or_else(wrong)?).is_none())
            }
            (_, _, Some(("max-memory", size))) => {
                let size = amounts::mebibytes(size).map_err(|e| format!("has {}: {e}", shown(part)))?;
                once(self.more.most_mib.replace(size).is_none())
            }
            _ => Err(format!("has {}, which is nothing to do", shown(part))),
        }
    }

    fn then(self) -> Result<RuleAction, String> {
        let Self { fails, again, more } = self;
        if more.most_mib.is_some() && more.growth.is_none() {
            return Err("has max-memory without a growth such as memory*1.5".to_owned());
        }
        match again {
            Some(_) if fails => Err("says both fail and again".to_owned()),
            Some(times) => Ok(RuleAction::Again(Again { times, ..more })),
            None if fails && more == Again::default() => Ok(RuleAction::Fail),
            None if fails => Err("says fail, and how to try again".to_owned()),
            None => Err("says neither fail nor again".to_owned()),
        }
    }
}

/// `1.5` as 150.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let fits = digits(whole) && digits(fraction) && fraction.len() <= 2;
    format!("{whole}{fraction:0<2}").parse().ok().filter(|_| fits)
}

impl FromStr for RetryRule {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Self, BadText> {
        let bad = |what: String| BadText(format!("the retry rule {} {what}: {FORM}", shown(text)));
        if text.len() > MAX_RULE_BYTES {
            return Err(bad(format!("has more than {MAX_RULE_BYTES} bytes")));
        }
        let (causes, acts) = text.split_once('=').ok_or_else(|| bad("has no =".to_owned()))?;
        let causes = causes.split(',').map(str::parse).collect::<Result<_, _>>().map_err(bad)?;
        let mut said = RuleActions::default();
        acts.split(',').try_for_each(|part| said.read(part)).map_err(bad)?;
        Ok(Self { causes, then: said.then().map_err(bad)? })
    }
}

text_form!(RetryRule);

impl fmt::Display for RetryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let causes: Vec<String> = self.causes.iter().map(ToString::to_string).collect();
        write!(f, "{}=", causes.join(","))?;
        let RuleAction::Again(again) = self.then else { return f.write_str("fail") };
        match again.times {
            Some(times) => write!(f, "again*{times}")?,
            None => f.write_str("again*any")?,
        }
        if let Some(pause_s) = again.pause_s {
            write!(f, ",pause={pause_s}s")?;
        }
        f.write_str(if again.elsewhere { ",elsewhere" } else { "" })?;
        f.write_str(if again.on_demand { ",on-demand" } else { "" })?;
        if let Some(hundredths) = again.growth {
            write!(f, ",memory*{}", hundredths as f64 / 100.0)?;
        }
        again.most_mib.map_or(Ok(()), |most| write!(f, ",max-memory={most}M"))
    }
}

impl RetryRule {
    /// Whether each of its causes stands in one of these rules, which come before it.
    pub(crate) fn is_behind(&self, earlier: &[Self]) -> bool {
        let is_named = |cause: &Cause| earlier.iter().any(|rule| rule.causes.contains(cause));
        self.causes.iter().all(is_named)
    }

    /// The rule that such an end is tried again this often.
    pub(crate) fn of(cause: CauseWord, times: u32) -> Self {
        let again = Again { times: Some(times), ..Again::default() };
        let then = if times == 0 { RuleAction::Fail } else { RuleAction::Again(again) };
        Self { causes: vec![Cause::Word(cause)], then }
    }

    /// The same rule, and each try keeps away from the nodes of the last ones.
    pub(crate) fn elsewhere(mut self) -> Self {
        if let RuleAction::Again(again) = &mut self.then {
            again.elsewhere = true;
        }
        self
    }

    pub(crate) fn names(&self, cause: &EndCause) -> bool {
        self.causes.iter().any(|one| one.names(cause))
    }

    /// What is wrong with the rule for a job with these needs and this time limit in seconds, 0 for none.
    pub(crate) fn contradiction(&self, needs: &Needs, timeout_s: u64) -> Option<String> {
        if timeout_s == 0 && self.causes.iter().all(|cause| *cause == Cause::Word(CauseWord::Timeout)) {
            return Some(format!("the retry rule {self} is about a time limit, and the job has none: give --timeout"));
        }
        let RuleAction::Again(Again { growth: Some(_), most_mib, .. }) = self.then else { return None };
        if needs.memory_mib == 0 {
            return Some(format!("the retry rule {self} raises the memory, and the job asks for none: give --memory"));
        }
        let most = most_mib.filter(|most| *most <= needs.memory_mib)?;
        Some(format!("max-memory of the retry rule {self} must be above --memory, and {most} MiB is not"))
    }

    /// The first try by this rule, for a job with these needs; `None` if the rule never tries again.
    pub fn first(&self, needs: &Needs) -> Option<Retry> {
        if let RetryOutcome::Again(retry) = self.follows(0, needs) { Some(retry) } else { None }
    }

    /// What the rule says for a job that used it `used` times and has these needs.
    pub(crate) fn follows(&self, used: u32, needs: &Needs) -> RetryOutcome {
        let RuleAction::Again(again) = self.then else { return RetryOutcome::Fails(WhyNot::Rule) };
        if let Some(times) = again.times.filter(|times| used >= *times) {
            return RetryOutcome::Fails(WhyNot::UsedUp { times });
        }
        let grown = again.growth.map(|hundredths| needs.memory_mib.saturating_mul(hundredths).div_ceil(100));
        let memory_mib = grown.map(|grown| grown.min(again.most_mib.unwrap_or(u64::MAX)));
        if memory_mib.is_some_and(|grown| grown <= needs.memory_mib) {
            return RetryOutcome::Fails(WhyNot::AllMemory { memory_mib: needs.memory_mib });
        }
        RetryOutcome::Again(Retry {
            used: used.saturating_add(1),
            times: again.times,
            pause_s: again.pause_s,
            elsewhere: again.elsewhere,
            market: again.on_demand.then_some(MarketNeed::OnDemand),
            memory_mib,
        })
    }
}

impl Retry {
    /// What the job needs from this try on.
    #[must_use]
    pub fn needs(&self, before: &Needs) -> Needs {
        let mut needs = before.clone();
        needs.memory_mib = self.memory_mib.unwrap_or(needs.memory_mib);
        needs.machine.market = self.market.or(needs.machine.market);
        needs
    }
}

impl fmt::Display for RetryDecision {
    /// `retry 1 of 3 by the rule exit:75=again*3, 2 left; from now on with 1536 MiB of memory`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.is_own { format!(" by the rule {}", self.text) } else { String::new() };
        match self.follows {
            RetryOutcome::Fails(WhyNot::Rule) if self.is_own => write!(f, "no retry{by}"),
            RetryOutcome::Fails(WhyNot::Rule) => f.write_str("no retry is allowed"),
            RetryOutcome::Fails(WhyNot::UsedUp { times }) => write!(f, "none of {times} retries{by} is left"),
            RetryOutcome::Fails(WhyNot::AllMemory { memory_mib }) => {
                write!(f, "no retry{by}: its {memory_mib} MiB are all the memory that the rule allows")
            }
            RetryOutcome::Again(Retry { used, times, market, memory_mib, .. }) => {
                match times {
                    Some(times) => {
                        write!(f, "retry {used} of {times}{by}, {} left", times.saturating_sub(used))?;
                    }
                    None => write!(f, "it is tried again{by}")?,
                }
                memory_mib.map_or(Ok(()), |mib| write!(f, "; from now on with {mib} MiB of memory"))?;
                market.map_or(Ok(()), |market| write!(f, "; from now on only on nodes of the market {market}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> RetryRule {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn a_rule_is_read_as_it_is_written() {
        for (text, written) in [
            ("exit:1=fail", "exit:1=fail"),
            ("exit:75-78,signal:9=again", "exit:75-78,signal:KILL=again*1"),
            ("lost,node=again*any,elsewhere", "lost,node=again*any,elsewhere"),
            ("memory=memory*2,again*2", "memory=again*2,memory*2"),
            (
                "memory,exit:137=again*3,memory*1.5,max-memory=64G,on-demand,elsewhere,pause=1m30s",
                "memory,exit:137=again*3,pause=90s,elsewhere,on-demand,memory*1.5,max-memory=65536M",
            ),
            ("failed=again*1,memory*1.05", "failed=again*1,memory*1.05"),
            ("exit:*,signal:*,timeout=again*4294967295", "exit:*,signal:*,timeout=again*4294967295"),
        ] {
            assert_eq!(rule(text).to_string(), written, "{text}");
            assert_eq!(rule(written), rule(text));
            assert_eq!(serde_json::from_value::<RetryRule>(written.into()).unwrap(), rule(text));
        }
    }

    #[test]
    fn a_wrong_rule_says_what_to_write() {
        for (text, says) in [
            ("", "has no ="),
            ("exit:1", "has no ="),
            ("=fail", "has \"\", which is no cause"),
            ("oom=again", "has \"oom\", which is no cause (exit:CODE, signal:NAME, memory"),
            ("exit:0=again", "has \"0\", which is no exit code of a failure: 1 to 255"),
            ("exit:9-7=again", "ends before it begins"),
            ("exit:1-256=again", "has \"256\""),
            ("signal:FOO=again", "\"FOO\" is not a signal"),
            ("lost=", "has \"\", which is nothing to do"),
            ("lost=again*0", "how often is a number from 1 on, or any"),
            ("lost=again,again*2", "says \"again*2\" twice"),
            ("lost=elsewhere", "says neither fail nor again"),
            ("lost=fail,again", "says both fail and again"),
            ("lost=fail,pause=1s", "says fail, and how to try again"),
            ("lost=again,pause=soon", "a pause is a time of at most a week"),
            ("lost=again,pause=8d", "a pause is a time of at most a week"),
            ("memory=again,memory*1", "memory grows by a factor from 1.01 to 16"),
            ("memory=again,memory*1.555", "memory grows by a factor"),
            ("memory=again,max-memory=64G", "max-memory without a growth"),
            ("memory=again,memory*2,max-memory=lots", "it must be a number of MiB"),
        ] {
            let error = text.parse::<RetryRule>().unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("such as exit:75-78=again*3,pause=30s"), "{text}: {error}");
        }
        let long = format!("{}=fail", "lost,".repeat(1000));
        assert!(long.parse::<RetryRule>().unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn every_cause_is_named_by_its_words_and_by_no_others() {
        let (why, program) = (String::new(), String::new());
        let words = ["exit:3", "exit:126-127", "exit:*", "signal:9", "signal:*", "memory", "timeout", "failed", "lost"];
        for (cause, named) in [
            (EndCause::Exited { code: 3 }, vec!["exit:3", "exit:*", "failed"]),
            (EndCause::Exited { code: 137 }, vec!["exit:*", "signal:9", "signal:*", "failed"]),
            (EndCause::Exited { code: 193 }, vec!["exit:*", "failed"]),
            (EndCause::NotFound { program: program.clone() }, vec!["exit:126-127", "exit:*", "failed"]),
            (EndCause::NotExecutable { program }, vec!["exit:126-127", "exit:*", "failed"]),
            (EndCause::Signalled { signal: 9 }, vec!["signal:9", "signal:*", "failed"]),
            (EndCause::Signalled { signal: 11 }, vec!["signal:*", "failed"]),
            (EndCause::OverMemory { allowed_mib: 1, used_mib: None }, vec!["memory", "failed"]),
            (EndCause::OverTime { limit_s: 1 }, vec!["timeout", "failed"]),
            (EndCause::NoOutput { path: why.clone(), why: why.clone(), others: [].into() }, vec!["failed"]),
            (EndCause::Rejected { why: why.clone() }, vec!["failed"]),
            (EndCause::Lost { why: why.clone() }, vec!["lost"]),
            (EndCause::NoService { service: crate::enums::Service::S3, why: why.clone() }, vec!["lost"]),
            (EndCause::Interrupted { why: why.clone() }, vec!["lost", "spot"]),
            (EndCause::Moved { why: why.clone() }, vec!["lost"]),
            (EndCause::NotStarted { why }, vec!["node"]),
        ] {
            let names = |word: &&str| rule(&format!("{word}=fail")).names(&cause);
            let found: Vec<&str> = words.into_iter().chain(["spot", "node"]).filter(names).collect();
            assert_eq!(found, named, "{cause:?}");
        }
    }

    #[test]
    fn memory_grows_up_to_its_bound_and_then_the_job_fails() {
        let growing = rule("memory=again*5,memory*1.5,max-memory=4000M");
        let mut needs = Needs { memory_mib: 1000, ..Needs::default() };
        for (used, grown) in [(0, 1500), (1, 2250), (2, 3375), (3, 4000)] {
            let RetryOutcome::Again(retry) = growing.follows(used, &needs) else { panic!("{used}") };
            assert_eq!((retry.used, retry.memory_mib), (used + 1, Some(grown)));
            needs.memory_mib = grown;
        }
        assert_eq!(growing.follows(4, &needs), RetryOutcome::Fails(WhyNot::AllMemory { memory_mib: 4000 }));
        assert_eq!(growing.follows(5, &needs), RetryOutcome::Fails(WhyNot::UsedUp { times: 5 }));
        assert!(growing.contradiction(&needs, 0).unwrap().contains("must be above --memory"));
        assert!(growing.contradiction(&Needs::default(), 0).unwrap().contains("give --memory"));
        assert_eq!(rule("memory=again").contradiction(&Needs::default(), 0), None);
    }
}

//! A setting: what it does, where it lives, what it may be.

use serde::Serialize;

use crate::tree::MachineTree;

/// A setting of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineKnob {
    /// Its name, as [`KnobTransaction::begin`](crate::KnobTransaction::begin) takes it.
    pub name: String,
    /// What the setting does, for people.
    pub what: String,
    /// Which pipes it affects.
    pub affects: &'static str,
    /// What is needed to change it.
    pub needs: &'static str,
    /// What it was tried on.
    pub verified: &'static str,
    /// The file, and the register in it.
    pub lives_at: String,
    /// What it may be set to.
    pub allowed: AllowedValues,
    /// Its value; `None` where it is absent.
    pub value: Option<String>,
    /// Why it has no value here.
    pub absent: Option<String>,
    /// Why it is not changed by this library.
    pub fixed: Option<String>,
    #[serde(skip)]
    pub(crate) place: Place,
}

/// The values that a setting may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllowedValues {
    /// One of these words.
    OneOf(Vec<String>),
    /// A whole number.
    Number {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A whole number of steps. The kernel rounds what is between them.
    Steps {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
        /// The step; all values are multiples of it.
        step: u64,
    },
    /// A whole number from 0 on, or a word for none.
    NumberOr {
        /// The word.
        none: &'static str,
        /// The largest.
        max: u64,
    },
    /// A name: letters, digits and signs of ASCII, without blanks and brackets.
    Name {
        /// The most bytes.
        max: usize,
    },
    /// A mask, hexadecimal. It is not empty.
    Mask {
        /// The bits it may have.
        bits: u64,
        /// How many of them it has at least.
        min_bits: u32,
        /// Whether its bits need not be neighbours.
        may_have_gaps: bool,
    },
    /// A share for each cache or memory controller, as `0=ff;1=ff`.
    Shares {
        /// Their numbers.
        domains: Vec<u64>,
        /// What a share may be.
        each: Box<AllowedValues>,
        /// Whether shares are hexadecimal.
        is_mask: bool,
    },
    /// It is not set by this library.
    Nothing,
}

/// The most of a number whose bound only the kernel knows, which reads 32 bits.
pub(crate) const MAX_OF_KERNEL: u64 = u32::MAX as u64;

/// Where the value is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Text {
        file: String,
        /// How much memory each unit of the value takes, in KiB.
        kib_each: u64,
        /// The setting that the kernel changes with this one: its name and file.
        along: Option<(String, String)>,
    },
    /// The bits `mask` of a register that each of the files has.
    Bits { files: Vec<String>, at: u64, width: usize, mask: u64, form: BitForm },
    /// A line of the schemata of a resource control group that is made for the transaction.
    Shares { resource: &'static str },
    /// It is absent.
    Nowhere,
}

/// What bits of a register mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitForm {
    /// On if the bit is set.
    OnIfSet,
    /// Off if the bit is set.
    OffIfSet,
    Mask,
}

impl BitForm {
    pub(crate) fn shown(self, bits: u64) -> String {
        match self {
            BitForm::OnIfSet => if bits != 0 { "on" } else { "off" }.into(),
            BitForm::OffIfSet => if bits != 0 { "off" } else { "on" }.into(),
            BitForm::Mask => format!("{bits:#x}"),
        }
    }

    /// Returns the bits of a value that was checked.
    pub(crate) fn bits(self, value: &str, mask: u64) -> Option<u64> {
        match self {
            BitForm::OnIfSet => Some(if value == "on" { mask } else { 0 }),
            BitForm::OffIfSet => Some(if value == "on" { 0 } else { mask }),
            BitForm::Mask => hexadecimal(value),
        }
    }
}

/// Parses `0x7f` or `7f`.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // The parser of numbers also takes a sign.
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, 16).ok() }
}

/// Returns the choice in brackets of `none [mq-deadline] kyber`, or the whole text.
pub(crate) fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(choice, _)| choice)
}

impl AllowedValues {
    /// Checks a value, and returns it as the kernel takes it, or says what would be right.
    pub(crate) fn check(&self, value: &str) -> Result<String, String> {
        let value = value.trim();
        let ok = match self {
            AllowedValues::OneOf(words) => words.iter().any(|word| word == value).then(|| value.to_owned()),
            AllowedValues::Number { min, max } => {
                let number = value.bytes().all(|b| b.is_ascii_digit()).then(|| value.parse::<u64>().ok()).flatten();
                number.filter(|n| (min..=max).contains(&n)).map(|n| n.to_string())
            }
            AllowedValues::Steps { min, max, step } => {
                let number = AllowedValues::Number { min: *min, max: *max }.check(value).map_err(|_| self.shown())?;
                number.parse::<u64>().ok().filter(|n| n.is_multiple_of(*step)).map(|_| number)
            }
            AllowedValues::NumberOr { none, .. } if value == *none => Some(value.to_owned()),
            AllowedValues::NumberOr { max, .. } => {
                return AllowedValues::Number { min: 0, max: *max }.check(value).map_err(|_| self.shown());
            }
            AllowedValues::Name { max } => {
                let is_name = value.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'[' | b']'));
                (is_name && (1..=*max).contains(&value.len())).then(|| value.to_owned())
            }
            AllowedValues::Mask { bits, min_bits, may_have_gaps } => {
                let has_form =
                    |mask: u64| mask != 0 && (*may_have_gaps || is_run(mask)) && mask.count_ones() >= *min_bits;
                hexadecimal(value).filter(|mask| has_form(*mask) && mask & !bits == 0).map(|mask| format!("{mask:#x}"))
            }
            AllowedValues::Shares { domains, each, is_mask } => shares(value, domains, each, *is_mask),
            AllowedValues::Nothing => None,
        };
        ok.ok_or_else(|| self.shown())
    }

    /// What the values may be, in words.
    pub fn shown(&self) -> String {
        match self {
            AllowedValues::OneOf(words) => words.join(", "),
            AllowedValues::Number { min, max: MAX_OF_KERNEL } => format!("{min} or more; the kernel checks the most"),
            AllowedValues::Number { min, max } => format!("{min} to {max}"),
            AllowedValues::Steps { min, max, step } => format!("{min} to {max}, multiples of {step}"),
            AllowedValues::NumberOr { none, max } => format!("{none} or 0 to {max}"),
            AllowedValues::Name { max } => format!("a name of 1 to {max} bytes, without blanks and brackets"),
            AllowedValues::Mask { bits, min_bits, may_have_gaps } => {
                let least = if *min_bits > 1 { format!("at least {min_bits} ") } else { String::new() };
                let neighbours = if *may_have_gaps { "" } else { "neighbouring " };
                format!("a mask of {least}{neighbours}bits within {bits:#x}")
            }
            AllowedValues::Shares { domains, each, is_mask } => {
                let example = if *is_mask { "f" } else { "50" };
                let example: Vec<String> = domains.iter().map(|d| format!("{d}={example}")).collect();
                format!("as {}; each {}", example.join(";"), each.shown())
            }
            AllowedValues::Nothing => "nothing".into(),
        }
    }
}

/// Whether it is not empty and its bits are neighbours: most hardware refuses other masks.
fn is_run(mask: u64) -> bool {
    mask != 0 && {
        let low = mask >> mask.trailing_zeros();
        low & low.wrapping_add(1) == 0
    }
}

fn shares(value: &str, domains: &[u64], each: &AllowedValues, is_mask: bool) -> Option<String> {
    let mut seen: Vec<u64> = Vec::new();
    let mut parts = Vec::new();
    for part in value.split(';') {
        let (domain, share) = part.split_once('=')?;
        let domain: u64 = domain.trim().parse().ok()?;
        if !domains.contains(&domain) || seen.contains(&domain) {
            return None;
        }
        seen.push(domain);
        let share = each.check(share).ok()?;
        // The kernel takes hexadecimal digits alone.
        parts.push(format!("{domain}={}", if is_mask { share.trim_start_matches("0x") } else { &share }));
    }
    Some(parts.join(";"))
}

impl MachineKnob {
    /// A setting that this machine lacks.
    pub(crate) fn absent(name: &str, what: &str, about: About, why: String) -> MachineKnob {
        MachineKnob {
            name: name.into(),
            what: what.into(),
            affects: about.affects,
            needs: about.needs,
            verified: about.verified,
            lives_at: String::new(),
            allowed: AllowedValues::Nothing,
            value: None,
            absent: Some(why),
            fixed: None,
            place: Place::Nowhere,
        }
    }

    /// A setting that is text in a file.
    pub(crate) fn text(tree: &MachineTree, name: String, what: &str, about: About, file: String) -> MachineKnob {
        let mut knob = MachineKnob::absent(&name, what, about, String::new());
        knob.lives_at = format!("/{file}");
        match tree.text(&file) {
            Ok(text) => {
                knob.absent = None;
                if text.contains('[') && text.contains(']') {
                    let words = text.split_whitespace().map(|word| word.trim_matches(['[', ']']).to_owned());
                    knob.allowed = AllowedValues::OneOf(words.collect());
                }
                knob.value = Some(chosen(&text).to_owned());
                knob.place = Place::Text { file, kib_each: 0, along: None };
            }
            Err(error) => knob.absent = Some(format!("/{file}: {error}")),
        }
        knob
    }

    /// A setting that is bits of a register. `why` tells of a file that cannot be read.
    pub(crate) fn bits(
        tree: &MachineTree,
        name: &str,
        what: &str,
        about: About,
        place: Place,
        why: &str,
    ) -> MachineKnob {
        let mut knob = MachineKnob::absent(name, what, about, String::new());
        let Place::Bits { files, at, width, mask, form } = &place else { return knob };
        knob.lives_at = format!("/{} at {at:#x}, bits {mask:#x}", files.first().map_or("", String::as_str));
        if files.len() > 1 {
            knob.lives_at += &format!(", and {} more", files.len() - 1);
        }
        let mut values = Vec::new();
        for file in files {
            match tree.register(file, *at, *width) {
                Ok(raw) => values.push(form.shown(raw & mask)),
                Err(error) => {
                    knob.absent = Some(format!("/{file}: {error}{why}"));
                    return knob;
                }
            }
        }
        values.dedup();
        knob.absent = None;
        knob.value = Some(match &values[..] {
            [one] => one.clone(),
            _ => "differs between cores".into(),
        });
        knob.allowed = match form {
            BitForm::Mask => AllowedValues::Mask { bits: *mask, min_bits: 1, may_have_gaps: false },
            _ => AllowedValues::OneOf(vec!["on".into(), "off".into()]),
        };
        knob.place = place;
        knob
    }

    /// The same, with the values that it may have, unless it is absent.
    pub(crate) fn allowing(mut self, allowed: AllowedValues) -> MachineKnob {
        if self.value.is_some() {
            self.allowed = allowed;
        }
        self
    }

    /// The same, with the setting that the kernel changes with it.
    pub(crate) fn changing(mut self, name: String, other: String) -> MachineKnob {
        if let Place::Text { along, .. } = &mut self.place {
            *along = Some((name, other));
        }
        self
    }

    /// The same, which this library does not change.
    pub(crate) fn fixed(mut self, why: &str) -> MachineKnob {
        self.fixed = Some(why.into());
        self.allowed = AllowedValues::Nothing;
        self
    }
}

/// What knobs of one kind have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) affects: &'static str,
    pub(crate) needs: &'static str,
    pub(crate) verified: &'static str,
}

/// It was set and restored on machines like those of this project: two processors of Zen 4, virtual
/// disks, Linux 6.
pub(crate) const THIS_KIND: &str = "this project's test machines";
/// No machine of this project has it.
pub(crate) const MADE_TREES: &str = "made trees only";
